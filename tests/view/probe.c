/* A static program that tests run as the Harness, and as a command: it tells what it finds, one line a fact.
 *
 *     probe ACTION [ARGUMENT...] [++ ACTION [ARGUMENT...]]...
 *
 * The actions run one after the other; `exec`, `exit` and those that never return come last. Arguments "-c X" in front,
 * as Codex gets them, are passed over. With an effective capability it does nothing at all and exits with 99: by mistake
 * as root outside a view it would do real harm. */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <signal.h>
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

#include "../../shims/kernel.h"
#include "probe.h"

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
    NAMED(ECONNRESET), NAMED(ESOCKTNOSUPPORT),
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
    fprintf(stderr, "probe: %s\n", why);
    exit(UNUSABLE);
}

static void refuse_with_capabilities(void)
{
    struct kernel_capability_header header = {KERNEL_CAPABILITY_VERSION_3, 0};
    struct kernel_capability_data data[2] = {{0, 0, 0}, {0, 0, 0}};
    if (syscall(SYS_capget, &header, data) == 0 && data[0].effective == 0 && data[1].effective == 0)
        return;
    fputs("probe: refuses to run with capabilities\n", stderr);
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

/* Life --------------------------------------------------------------------------------------------------------- */

static void ignore_signals(void)
{
    for (int number = 1; number < NSIG; number++)
        if (number != SIGKILL && number != SIGSTOP && number != SIGCHLD)
            signal(number, SIG_IGN);
}

static _Noreturn void wait_for_ever(void)
{
    for (;;)
        pause();
}

static _Noreturn void die(int number)
{
    struct sigaction plain = {.sa_handler = SIG_DFL};
    sigset_t none;
    sigaction(number, &plain, NULL);
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    kill(getpid(), number);
    wait_for_ever();
}

/* `count` children that ignore every signal, each a session of its own, half of them stopped; they keep stdout. */
static void fork_many(long count)
{
    long made = 0;
    int error = 0;
    for (long i = 0; i < count; i++) {
        pid_t pid = fork();
        if (pid == 0) {
            ignore_signals();
            setsid();
            if (i % 2 == 1)
                raise(SIGSTOP);
            wait_for_ever();
        }
        if (pid < 0)
            error = errno;
        else
            made++;
    }
    tell_number("forked", NULL, made);
    tell("fork", NULL, error == 0 ? "ok" : errno_name(error));
}

/* A grandchild without a parent, in a session of its own, that keeps the descriptors and, after a while, writes. */
static void leave_orphan(void)
{
    int status;
    fflush(stdout);
    pid_t pid = fork();
    if (pid == 0) {
        setsid();
        if (fork() != 0)
            _exit(0);
        ignore_signals();
        sleep(30);
        tell("orphan", NULL, "alive");
        wait_for_ever();
    }
    waitpid(pid, &status, 0);
    tell("orphan", NULL, "left");
}

static void copy_stream(void)
{
    static char block[1 << 16];
    for (ssize_t count; (count = read(0, block, sizeof block)) > 0;)
        for (ssize_t at = 0; at < count;) {
            ssize_t written = write(1, block + at, (size_t)(count - at));
            if (written < 0)
                exit(1);
            at += written;
        }
}

/* Actions ------------------------------------------------------------------------------------------------------ */

static void try_action(char **argv)
{
    for (char **name = argv + 1; *name != NULL; name++)
        if (!attempt(*name))
            give_up("no such attempt");
    if (argv[1] == NULL)
        attempt_all();
}

static bool act_on_life(char **argv)
{
    const char *name = argv[0];
    if (strcmp(name, "exit") == 0)
        exit(argv[1] == NULL ? 0 : atoi(argv[1]));
    else if (strcmp(name, "die") == 0)
        die(atoi(argument(argv, 1)));
    else if (strcmp(name, "copy") == 0)
        copy_stream();
    else if (strcmp(name, "sleep") == 0)
        usleep((useconds_t)(atof(argument(argv, 1)) * 1e6));
    else if (strcmp(name, "wait") == 0)
        wait_for_ever();
    else if (strcmp(name, "ignore-signals") == 0)
        ignore_signals();
    else if (strcmp(name, "fork-many") == 0)
        fork_many(atol(argument(argv, 1)));
    else if (strcmp(name, "orphan") == 0)
        leave_orphan();
    else
        return false;
    return true;
}

static bool act(char **argv)
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
    else
        return act_on_files(argv) || act_on_programs(argv) || act_on_life(argv);
    return true;
}

int main(int argc, char **argv)
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
        if (end > at && !act(argv + at))
            give_up("no such action");
        if (last)
            break;
        at = end + 1;
    }
    return 0;
}
