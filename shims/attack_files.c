/* Facts about the probe's own process, its mounts, and files. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "attack.h"

extern char **environ;

static void tell_status(void)
{
    static const char *const wanted[] = {
        "CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb", "NoNewPrivs", "Seccomp", "Umask", "SigIgn", "SigBlk",
    };
    char line[512];
    FILE *file = fopen("/proc/self/status", "re");
    if (file == NULL)
        give_up("no /proc/self/status");
    while (fgets(line, sizeof line, file) != NULL) {
        char *colon = strchr(line, ':');
        if (colon == NULL)
            continue;
        *colon = '\0';
        char *value = colon + 1 + strspn(colon + 1, " \t");
        value[strcspn(value, "\n")] = '\0';
        for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++)
            if (strcmp(line, wanted[i]) == 0)
                tell(line, NULL, value);
    }
    fclose(file);
}

static void tell_ids(void)
{
    uid_t uid[3];
    gid_t gid[3];
    gid_t groups[64];
    char text[1024];
    getresuid(&uid[0], &uid[1], &uid[2]);
    getresgid(&gid[0], &gid[1], &gid[2]);
    snprintf(text, sizeof text, "%u %u %u", uid[0], uid[1], uid[2]);
    tell("uid", NULL, text);
    snprintf(text, sizeof text, "%u %u %u", gid[0], gid[1], gid[2]);
    tell("gid", NULL, text);
    int count = getgroups(64, groups);
    size_t at = 0;
    text[0] = '\0';
    for (int i = 0; i < count; i++)
        at += (size_t)snprintf(text + at, sizeof text - at, "%s%u", i == 0 ? "" : " ", groups[i]);
    tell("groups", NULL, text);
}

static void tell_descriptors(void)
{
    char text[4096];
    size_t at = 0;
    text[0] = '\0';
    for (int fd = 0; fd < 4096 && at < sizeof text - 16; fd++)
        if (fcntl(fd, F_GETFD) >= 0)
            at += (size_t)snprintf(text + at, sizeof text - at, "%s%d", at == 0 ? "" : " ", fd);
    tell("descriptors", NULL, text);
}

static const char *kind_of(int fd)
{
    struct stat status;
    if (fstat(fd, &status) != 0)
        return errno_name(errno);
    if (S_ISFIFO(status.st_mode))
        return "pipe";
    if (S_ISSOCK(status.st_mode))
        return "socket";
    if (S_ISCHR(status.st_mode))
        return isatty(fd) ? "terminal" : "device";
    return S_ISREG(status.st_mode) ? "file" : "other";
}

void tell_facts(void)
{
    char path[4096];
    char text[64];
    struct rlimit core;
    struct utsname names_of_system;
    tell_ids();
    tell_status();
    tell_descriptors();
    for (int fd = 0; fd < 3; fd++) {
        snprintf(text, sizeof text, "%d", fd);
        tell("kind", text, kind_of(fd));
    }
    tell_number("leader", NULL, getsid(0) == getpid() && getpgrp() == getpid());
    tell_number("ppid", NULL, getppid());
    tell_number("nice", NULL, getpriority(PRIO_PROCESS, 0));
    int tty = open("/dev/tty", O_RDWR | O_CLOEXEC);
    if (tty < 0)
        tell_error("tty", NULL, errno);
    else
        tell("tty", NULL, "open");
    tell("cwd", NULL, getcwd(path, sizeof path) == NULL ? errno_name(errno) : path);
    getrlimit(RLIMIT_CORE, &core);
    snprintf(text, sizeof text, "%llu %llu", (unsigned long long)core.rlim_cur, (unsigned long long)core.rlim_max);
    tell("core", NULL, text);
    uname(&names_of_system);
    tell("hostname", NULL, names_of_system.nodename);
    for (char **entry = environ; *entry != NULL; entry++)
        tell("env", NULL, *entry);
}

void tell_mounts(void)
{
    static char line[16384];
    FILE *file = fopen("/proc/self/mountinfo", "re");
    if (file == NULL)
        give_up("no /proc/self/mountinfo");
    while (fgets(line, sizeof line, file) != NULL) {
        /* id parent device root PLACE OPTIONS [PROPAGATION...] - ... (proc_pid_mountinfo(5)) */
        char *fields[7] = {NULL};
        char *save = NULL;
        for (int i = 0; i < 7; i++)
            fields[i] = strtok_r(i == 0 ? line : NULL, " ", &save);
        if (fields[6] == NULL)
            give_up("a strange line in mountinfo");
        char value[256];
        snprintf(value, sizeof value, "%s %s", fields[5], strcmp(fields[6], "-") == 0 ? "private" : fields[6]);
        tell("mount", fields[4], value);
    }
    fclose(file);
}

static int compare(const void *one, const void *other)
{
    return strcmp(*(char *const *)one, *(char *const *)other);
}

static void tell_names(const char *path)
{
    static char *found[4096];
    static char text[1 << 18];
    size_t count = 0;
    size_t at = 0;
    DIR *directory = opendir(path);
    if (directory == NULL) {
        tell_error("ls", path, errno);
        return;
    }
    for (struct dirent *entry; (entry = readdir(directory)) != NULL && count < 4096;)
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0)
            found[count++] = strdup(entry->d_name);
    closedir(directory);
    qsort(found, count, sizeof *found, compare);
    text[0] = '\0';
    for (size_t i = 0; i < count; i++)
        at += (size_t)snprintf(text + at, sizeof text - at, "%s%s", i == 0 ? "" : "/", found[i]);
    tell("ls", path, text);
}

static void tell_content(const char *path)
{
    static char text[1 << 20];
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    ssize_t count = fd < 0 ? -1 : read(fd, text, sizeof text - 1);
    if (count < 0) {
        tell_error("cat", path, errno);
    } else {
        text[count] = '\0';
        for (ssize_t i = 0; i < count; i++)
            if (text[i] == '\0')
                text[i] = '\n';
        tell("cat", path, text);
    }
    if (fd >= 0)
        close(fd);
}

static void tell_stat(const char *path)
{
    struct stat status;
    char text[64];
    if (lstat(path, &status) != 0) {
        tell_error("stat", path, errno);
        return;
    }
    snprintf(text, sizeof text, "%u %u %o", status.st_uid, status.st_gid, status.st_mode & 07777u);
    tell("stat", path, text);
}

static void write_file(const char *path, const char *text)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    bool done = fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text);
    tell_done("write", path, done);
    if (fd >= 0)
        close(fd);
}

/* Fills a file until the filesystem is full or `limit` bytes are in it; removes it. */
static void fill(const char *path, long long limit)
{
    static char block[1 << 20];
    long long size = 0;
    int error = 0;
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    while (fd >= 0 && size < limit) {
        ssize_t count = write(fd, block, sizeof block);
        if (count < 0) {
            error = errno;
            break;
        }
        size += count;
    }
    if (fd < 0)
        error = errno;
    else
        close(fd);
    unlink(path);
    tell_done("fill", path, (errno = error) == 0);
    tell_number("filled", path, (long)(size >> 20));
}

void map_executable(const char *path, bool later)
{
    const char *name = later ? "mprotect" : "mmap";
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        tell_error(name, path, errno);
        return;
    }
    void *memory = mmap(NULL, 4096, later ? PROT_READ : PROT_READ | PROT_EXEC, MAP_PRIVATE, fd, 0);
    if (memory == MAP_FAILED)
        tell_error(name, path, errno);
    else
        tell_done(name, path, !later || mprotect(memory, 4096, PROT_READ | PROT_EXEC) == 0);
    close(fd);
}

bool act_on_files(char **argv)
{
    const char *name = argv[0];
    if (strcmp(name, "ls") == 0)
        tell_names(argument(argv, 1));
    else if (strcmp(name, "cat") == 0)
        tell_content(argument(argv, 1));
    else if (strcmp(name, "stat") == 0)
        tell_stat(argument(argv, 1));
    else if (strcmp(name, "write") == 0)
        write_file(argument(argv, 1), argument(argv, 2));
    else if (strcmp(name, "mkdir") == 0)
        tell_done("mkdir", argv[1], mkdir(argument(argv, 1), 0777) == 0);
    else if (strcmp(name, "unlink") == 0)
        tell_done("unlink", argv[1], unlink(argument(argv, 1)) == 0);
    else if (strcmp(name, "rename") == 0)
        tell_done("rename", argv[1], rename(argument(argv, 1), argument(argv, 2)) == 0);
    else if (strcmp(name, "link") == 0)
        tell_done("link", argv[2], link(argument(argv, 1), argument(argv, 2)) == 0);
    else if (strcmp(name, "symlink") == 0)
        tell_done("symlink", argv[2], symlink(argument(argv, 1), argument(argv, 2)) == 0);
    else if (strcmp(name, "chmod") == 0)
        tell_done("chmod", argv[2], chmod(argument(argv, 2), (mode_t)strtoul(argv[1], NULL, 8)) == 0);
    else if (strcmp(name, "chown") == 0)
        tell_done("chown", argv[2], chown(argument(argv, 2), (uid_t)atol(argv[1]), (gid_t)-1) == 0);
    else if (strcmp(name, "fill") == 0)
        fill(argument(argv, 1), atoll(argument(argv, 2)) << 20);
    else if (strcmp(name, "mmap") == 0)
        map_executable(argument(argv, 1), false);
    else if (strcmp(name, "mprotect") == 0)
        map_executable(argument(argv, 1), true);
    else
        return false;
    return true;
}
