/* The actions of the attack program, and how it tells what came of them.
 *
 * With an effective capability it does nothing at all and exits with 99: by mistake as root outside a view it would do
 * real harm. */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "attack.h"
#include "kernel.h"

enum { REFUSED = 99, UNUSABLE = 98 };

struct name_of_errno {
    int error;
    const char *name;
};

#define NAMED(error) {error, #error}
static const struct name_of_errno names[] = {
    NAMED(EPERM), NAMED(ENOENT), NAMED(ESRCH), NAMED(EIO), NAMED(ENXIO), NAMED(ENOEXEC), NAMED(EBADF), NAMED(ECHILD),
    NAMED(EAGAIN), NAMED(ENOMEM), NAMED(EACCES), NAMED(EFAULT), NAMED(EBUSY), NAMED(EEXIST), NAMED(EXDEV),
    NAMED(ENODEV), NAMED(ENOTDIR), NAMED(EISDIR), NAMED(EINVAL), NAMED(ENOTTY), NAMED(ETXTBSY), NAMED(EFBIG),
    NAMED(ENOSPC), NAMED(EROFS), NAMED(EMLINK), NAMED(EPIPE), NAMED(ENOSYS), NAMED(ENOTEMPTY), NAMED(ELOOP),
    NAMED(ENODATA), NAMED(EOVERFLOW), NAMED(EAFNOSUPPORT), NAMED(EPROTONOSUPPORT), NAMED(EOPNOTSUPP),
    NAMED(EADDRNOTAVAIL), NAMED(ENETUNREACH), NAMED(ECONNREFUSED), NAMED(ETIMEDOUT), NAMED(EHOSTUNREACH),
    NAMED(ECONNRESET), NAMED(ESOCKTNOSUPPORT), NAMED(EADDRINUSE), NAMED(ENOKEY), NAMED(ESTALE),
};

const char *errno_name(int error)
{
    static char other[16];
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (names[i].error == error)
            return names[i].name;
    snprintf(other, sizeof other, "E%d", error);
    return other;
}

static void put(const char *text)
{
    for (; *text != '\0'; text++) {
        unsigned char c = (unsigned char)*text;
        if (c == '\\')
            fputs("\\\\", stdout);
        else if (c < 0x20 || c >= 0x7f)
            printf("\\x%02x", c);
        else
            putchar(c);
    }
}

void tell(const char *name, const char *argument, const char *value)
{
    put(name);
    if (argument != NULL) {
        putchar(' ');
        put(argument);
    }
    putchar('=');
    put(value);
    putchar('\n');
    fflush(stdout);
}

void tell_error(const char *name, const char *argument, int error)
{
    char text[32];
    snprintf(text, sizeof text, "!%s", errno_name(error));
    tell(name, argument, text);
}

void tell_number(const char *name, const char *argument, long value)
{
    char text[32];
    snprintf(text, sizeof text, "%ld", value);
    tell(name, argument, text);
}

_Noreturn void give_up(const char *why)
{
    fprintf(stderr, "oac-attack: %s\n", why);
    exit(UNUSABLE);
}

static void refuse_with_capabilities(void)
{
    struct kernel_capability_header header = {KERNEL_CAPABILITY_VERSION_3, 0};
    struct kernel_capability_data data[2] = {{0, 0, 0}, {0, 0, 0}};
    if (syscall(SYS_capget, &header, data) == 0 && data[0].effective == 0 && data[1].effective == 0)
        return;
    fputs("oac-attack: refuses to run with capabilities\n", stderr);
    exit(REFUSED);
}

void tell_done(const char *name, const char *path, bool done)
{
    if (done)
        tell(name, path, "ok");
    else
        tell_error(name, path, errno);
}

const char *argument(char **argv, int at)
{
    for (int i = 0; i <= at; i++)
        if (argv[i] == NULL)
            give_up("an argument is missing");
    return argv[at];
}

/* Network ------------------------------------------------------------------------------------------------------ */

static void try_connect(const char *address, const char *port)
{
    char what[128];
    struct timeval limit = {5, 0};
    union {
        struct sockaddr any;
        struct sockaddr_in v4;
        struct sockaddr_in6 v6;
    } to = {.v4 = {.sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(port))}};
    socklen_t length = sizeof to.v4;
    if (inet_pton(AF_INET, address, &to.v4.sin_addr) != 1) {
        to.v6 = (struct sockaddr_in6){.sin6_family = AF_INET6, .sin6_port = htons((uint16_t)atoi(port))};
        length = sizeof to.v6;
        if (inet_pton(AF_INET6, address, &to.v6.sin6_addr) != 1)
            give_up("not an address");
    }
    snprintf(what, sizeof what, "%s %s", address, port);
    int fd = socket(to.any.sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
    tell_done("connect", what, fd >= 0 && connect(fd, &to.any, length) == 0);
    close(fd);
    fd = socket(to.any.sa_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    tell_done("datagram", what, fd >= 0 && sendto(fd, "x", 1, 0, &to.any, length) == 1);
    close(fd);
}

static void try_connect_unix(const char *path)
{
    struct sockaddr_un address;
    int fd = unix_socket(path, &address);
    socklen_t length = sizeof address;
    if (path[0] == '@') {
        address.sun_path[0] = '\0';
        length = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + strlen(path));
    }
    tell_done("unix", path, connect(fd, (struct sockaddr *)&address, length) == 0);
    close(fd);
}

/* Actions ------------------------------------------------------------------------------------------------------ */

/* Attempts ----------------------------------------------------------------------------------------------------- */

static void run(const struct attempt *chosen)
{
    int status;
    char text[32];
    fflush(stdout);
    pid_t pid = fork();
    if (pid == 0) {
        alarm(5);
        _exit(-chosen->function());
    }
    if (pid < 0 || waitpid(pid, &status, 0) != pid) {
        tell_error(chosen->name, NULL, errno);
        return;
    }
    unlink("probe-victim");
    unlink("probe-setuid");
    unlink("probe-device");
    if (WIFSIGNALED(status))
        snprintf(text, sizeof text, "signal %d", WTERMSIG(status));
    else
        snprintf(text, sizeof text, "%s", WEXITSTATUS(status) == 0 ? "ok" : errno_name(WEXITSTATUS(status)));
    tell("try", chosen->name, text);
}

static const struct attempt *const tables[] = {attempts_of_calls, attempts_of_modes, attempts_of_privileges};

bool attempt(const char *name)
{
    for (size_t i = 0; i < sizeof tables / sizeof *tables; i++)
        for (const struct attempt *at = tables[i]; at->name != NULL; at++)
            if (strcmp(at->name, name) == 0) {
                run(at);
                return true;
            }
    return false;
}

void attempt_all(void)
{
    for (size_t i = 0; i < sizeof tables / sizeof *tables; i++)
        for (const struct attempt *at = tables[i]; at->name != NULL; at++)
            run(at);
}

_Noreturn void wait_for_ever(void)
{
    for (;;)
        pause();
}

static void try_action(char **argv)
{
    for (char **name = argv + 1; *name != NULL; name++)
        if (!attempt(*name))
            give_up("no such attempt");
    if (argv[1] == NULL)
        attempt_all();
}

bool act(char **argv)
{
    const char *name = argv[0];
    if (strcmp(name, "facts") == 0)
        tell_facts();
    else if (strcmp(name, "mounts") == 0)
        tell_mounts();
    else if (strcmp(name, "try") == 0)
        try_action(argv);
    else if (strcmp(name, "connect") == 0)
        try_connect(argument(argv, 1), argument(argv, 2));
    else if (strcmp(name, "unix") == 0)
        try_connect_unix(argument(argv, 1));
    else if (strcmp(name, "umask") == 0)
        umask((mode_t)strtoul(argument(argv, 1), NULL, 8));
    else if (strcmp(name, "setenv") == 0)
        setenv(argument(argv, 1), argument(argv, 2), 1);
    else if (strcmp(name, "nice") == 0)
        tell_done("nice", argv[1], setpriority(PRIO_PROCESS, 0, atoi(argument(argv, 1))) == 0);
    else if (strcmp(name, "cd") == 0)
        tell_done("cd", argv[1], chdir(argument(argv, 1)) == 0);
    else if (strcmp(name, "close") == 0)
        close(atoi(argument(argv, 1)));
    else if (strcmp(name, "say") == 0)
        tell("say", NULL, argument(argv, 1));
    else if (strcmp(name, "exit") == 0)
        exit(argv[1] == NULL ? 0 : atoi(argv[1]));
    else if (strcmp(name, "sleep") == 0)
        usleep((useconds_t)(atof(argument(argv, 1)) * 1e6));
    else if (strcmp(name, "wait") == 0)
        wait_for_ever();
    else
        return act_on_files(argv) || act_on_programs(argv) || act_on_ours(argv) || act_on_races(argv) ||
               act_on_processes(argv);
    return true;
}

int run_actions(int argc, char **argv, bool (*perform)(char **))
{
    int at = 1;
    refuse_with_capabilities();
    while (at + 1 < argc && strcmp(argv[at], "-c") == 0)
        at += 2;
    while (at < argc) {
        int end = at;
        /* What follows `exec` may be a probe with actions of its own. */
        while (end < argc && (strcmp(argv[end], "++") != 0 || strcmp(argv[at], "exec") == 0))
            end++;
        bool last = end >= argc;
        argv[end] = NULL;
        if (end > at && !perform(argv + at))
            give_up("no such action");
        if (last)
            break;
        at = end + 1;
    }
    return 0;
}
