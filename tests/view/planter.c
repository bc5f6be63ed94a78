/* A hostile Harness: plants one kind of thing at each of the names below its home, in place of what is there.
 *
 *     planter KIND TARGET NAME...     says `planted N` when it is done
 *     planter wait                    says `ready` and stays
 *
 * TARGET is what links point to. Names are relative to HOME. What cannot be planted is passed over. */
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

enum { DEPTH = 3000, MANY = 1500, LONGEST = 255 };

static int unlink_entry(const char *path, const struct stat *status, int kind, struct FTW *where)
{
    (void)status, (void)kind, (void)where;
    return remove(path);
}

static bool make_file(const char *path, const char *text, mode_t mode)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL, 0600);
    if (fd < 0)
        return false;
    bool done = write(fd, text, strlen(text)) == (ssize_t)strlen(text) && fchmod(fd, mode) == 0;
    return close(fd) == 0 && done;
}

static bool make_directory(const char *path, mode_t mode)
{
    char inside[4096];
    if (mkdir(path, 0700) != 0)
        return false;
    snprintf(inside, sizeof inside, "%s/planted.toml", path);
    bool done = make_file(inside, "model = \"planted\"\n", 0600);
    return chmod(path, mode) == 0 && done;
}

static bool make_deep(const char *path)
{
    int home = open(".", O_RDONLY | O_DIRECTORY);
    bool done = home >= 0 && mkdir(path, 0700) == 0 && chdir(path) == 0;
    for (int level = 0; done && level < DEPTH; level++)
        done = mkdir("d", 0700) == 0 && chdir("d") == 0;
    if (done)
        (void)symlink("/etc/passwd", "link");
    if (home >= 0)
        (void)fchdir(home), close(home);
    return done;
}

static bool make_many(const char *path)
{
    char inside[4096];
    if (mkdir(path, 0700) != 0)
        return false;
    for (int number = 0; number < MANY; number++) {
        snprintf(inside, sizeof inside, "%s/%0*d", path, number % 100 == 0 ? LONGEST : 8, number);
        if (!make_file(inside, "x", 0600))
            return false;
    }
    snprintf(inside, sizeof inside, "%s/line\nend \xff\xfe", path);
    return make_file(inside, "x", 0600);
}

static bool make_socket(const char *path)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    if (fd < 0 || strlen(path) >= sizeof address.sun_path)
        return false;
    strcpy(address.sun_path, path);
    return bind(fd, (struct sockaddr *)&address, sizeof address) == 0;
}

static bool plant(const char *kind, const char *target, const char *path)
{
    if (strcmp(kind, "link") == 0)
        return symlink(target, path) == 0;
    if (strcmp(kind, "hard-link") == 0)
        return link(target, path) == 0;
    if (strcmp(kind, "loop") == 0)
        return symlink(strrchr(path, '/') == NULL ? path : strrchr(path, '/') + 1, path) == 0;
    if (strcmp(kind, "fifo") == 0)
        return mkfifo(path, 0600) == 0;
    if (strcmp(kind, "socket") == 0)
        return make_socket(path);
    if (strcmp(kind, "file") == 0)
        return make_file(path, "model = \"planted\"\nMARK-PLANTED\n", 0600);
    if (strcmp(kind, "closed-file") == 0)
        return make_file(path, "MARK-PLANTED", 0000);
    if (strcmp(kind, "directory") == 0)
        return make_directory(path, 0700);
    if (strcmp(kind, "closed-directory") == 0)
        return make_directory(path, 0000);
    if (strcmp(kind, "read-only-directory") == 0)
        return make_directory(path, 0555);
    if (strcmp(kind, "setgid-directory") == 0)  /* the view forbids the bit; then a sticky one for everybody */
        return make_directory(path, 02777) || chmod(path, 01777) == 0;
    if (strcmp(kind, "deep") == 0)
        return make_deep(path);
    if (strcmp(kind, "many") == 0)
        return make_many(path);
    fprintf(stderr, "planter: no kind %s\n", kind);
    exit(2);
}

int main(int argc, char **argv)
{
    if (argc >= 2 && strcmp(argv[1], "wait") == 0) {
        puts("ready");
        fflush(stdout);
        for (;;)
            pause();
    }
    const char *home = getenv("HOME");
    if (argc < 4 || home == NULL || chdir(home) != 0)
        return 2;
    int planted = 0;
    for (int at = 3; at < argc; at++) {
        if (strchr(argv[at], '/') != NULL)
            (void)mkdir("codex", 0700);
        (void)nftw(argv[at], unlink_entry, 16, FTW_DEPTH | FTW_PHYS);
        if (plant(argv[1], argv[2], argv[at]))
            planted++;
        else
            fprintf(stderr, "planter: %s: %s\n", argv[at], strerror(errno));
    }
    printf("planted %d\n", planted);
    return 0;
}
