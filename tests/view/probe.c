/* A static program that tests run as the Harness, and as a command: it tells what it finds, one line a fact.
 *
 *     probe ACTION [ARGUMENT...] [++ ACTION [ARGUMENT...]]...
 *
 * The actions run one after the other; `exec`, `exit` and those that never return come last. Arguments "-c X" in front,
 * as Codex gets them, are passed over. With an effective capability it does nothing at all and exits with 99: by mistake
 * as root outside a view it would do real harm. */
#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/utsname.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../../shims/kernel.h"
#include "probe.h"

enum { REFUSED = 99, UNUSABLE = 98 };

extern char **environ;

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

static _Noreturn void give_up(const char *why)
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

/* Facts -------------------------------------------------------------------------------------------------------- */

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

static void tell_facts(void)
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

static void tell_mounts(void)
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

/* Files -------------------------------------------------------------------------------------------------------- */

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

static void tell_done(const char *name, const char *path, bool done)
{
    if (done)
        tell(name, path, "ok");
    else
        tell_error(name, path, errno);
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

static void map_executable(const char *path, bool later)
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

/* Execution ---------------------------------------------------------------------------------------------------- */

/* Runs the child's program by `run`, which returns only when it failed, with errno. */
static void tell_run(const char *name, const char *what, void (*run)(void *), void *argument)
{
    int report[2];
    int status;
    int error = 0;
    char text[32];
    fflush(stdout);
    if (pipe2(report, O_CLOEXEC) != 0)
        give_up("no pipe");
    pid_t pid = fork();
    if (pid == 0) {
        run(argument);
        error = errno;
        ssize_t written = write(report[1], &error, sizeof error);
        _exit(written == sizeof error ? 0 : 1);
    }
    close(report[1]);
    bool failed = read(report[0], &error, sizeof error) == sizeof error;
    close(report[0]);
    if (pid < 0 || waitpid(pid, &status, 0) != pid)
        give_up("no child");
    if (failed) {
        tell_error(name, what, error);
        return;
    }
    if (WIFSIGNALED(status))
        snprintf(text, sizeof text, "signal %d", WTERMSIG(status));
    else
        snprintf(text, sizeof text, "exit %d", WEXITSTATUS(status));
    tell(name, what, text);
}

static void run_path(void *argument)
{
    char **argv = argument;
    execve(argv[0], argv, environ);
}

static void run_descriptor(void *argument)
{
    char *argv[] = {"descriptor", "exit", "7", NULL};
    syscall(SYS_execveat, *(int *)argument, "", argv, environ, 0x1000 /* AT_EMPTY_PATH */);
}

static void run_proc_descriptor(void *argument)
{
    char *argv[] = {"descriptor", "exit", "7", NULL};
    char path[64];
    snprintf(path, sizeof path, "/proc/self/fd/%d", *(int *)argument);
    execve(path, argv, environ);
}

static bool copy_self(int to)
{
    static char block[1 << 16];
    int from = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
    ssize_t count = -1;
    while (from >= 0 && (count = read(from, block, sizeof block)) > 0)
        if (write(to, block, (size_t)count) != count)
            return false;
    close(from);
    return from >= 0 && count == 0;
}

/* A copy of this program, and a script for it, in `directory`: can they be executed, or made executable memory? */
static void try_copies(const char *directory)
{
    char copy[4096];
    char script[4096];
    snprintf(copy, sizeof copy, "%s/probe-copy", directory);
    snprintf(script, sizeof script, "%s/probe-script", directory);
    int fd = open(copy, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0755);
    if (fd < 0 || !copy_self(fd) || close(fd) != 0) {
        tell_error("copy", directory, errno);
        return;
    }
    char *argv[] = {copy, "exit", "7", NULL};
    tell_run("copy", directory, run_path, argv);
    map_executable(copy, false);
    map_executable(copy, true);
    fd = open(copy, O_RDONLY | O_CLOEXEC);
    tell_run("copy-fd", directory, run_descriptor, &fd);
    close(fd);

    char self[4096];
    ssize_t length = readlink("/proc/self/exe", self, sizeof self - 1);
    self[length < 0 ? 0 : length] = '\0';
    fd = open(script, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0755);
    dprintf(fd, "#!%s exit\n", self);
    close(fd);
    char *script_argv[] = {script, NULL};
    tell_run("script", directory, run_path, script_argv);
    unlink(copy);
    unlink(script);
}

static void try_memfd(const char *name, unsigned flags)
{
    int fd = (int)syscall(SYS_memfd_create, name, flags);
    if (fd < 0) {
        tell_error(name, NULL, errno);
        return;
    }
    if (!copy_self(fd))
        give_up("cannot write to a memfd");
    tell_done(name, "chmod", fchmod(fd, 0755) == 0);
    int reading = open("/proc/self/fd", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    char number[16];
    snprintf(number, sizeof number, "%d", fd);
    int copy = openat(reading, number, O_RDONLY | O_CLOEXEC);
    if (copy < 0)
        give_up("cannot open a memfd again");
    close(reading);
    close(fd); /* while it is open for writing, ETXTBSY would come first */
    tell_run(name, NULL, run_descriptor, &copy);
    close(copy);
}

/* Receives a descriptor on descriptor 0, a socket or, with a path, on a socket at that path. */
static int receive_descriptor(int socket)
{
    char byte;
    union {
        struct cmsghdr header;
        char room[CMSG_SPACE(sizeof(int))];
    } control;
    struct iovec part = {&byte, 1};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
    message.msg_control = &control;
    message.msg_controllen = sizeof control;
    int fd = -1;
    if (recvmsg(socket, &message, MSG_CMSG_CLOEXEC) == 1 && CMSG_FIRSTHDR(&message) != NULL)
        memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof fd);
    return fd;
}

static int unix_socket(const char *path, struct sockaddr_un *address)
{
    *address = (struct sockaddr_un){.sun_family = AF_UNIX};
    if (strlen(path) >= sizeof address->sun_path)
        give_up("a path too long for a socket");
    memcpy(address->sun_path, path, strlen(path));
    return socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
}

static void execute_received(const char *path)
{
    int from = 0;
    struct sockaddr_un address;
    if (path != NULL) {
        from = unix_socket(path, &address);
        for (int i = 0; connect(from, (struct sockaddr *)&address, sizeof address) != 0; i++) {
            if (i == 500)
                give_up("nobody sends a descriptor");
            usleep(10000);
        }
    }
    int fd = receive_descriptor(from);
    if (fd < 0)
        give_up("no descriptor came");
    tell_run("received", "execveat", run_descriptor, &fd);
    tell_run("received", "execve", run_proc_descriptor, &fd);
    close(fd);
}

/* Gives its own program, open for reading, to whoever connects to `path`, once. */
static void send_self(const char *path)
{
    struct sockaddr_un address;
    int listener = unix_socket(path, &address);
    if (bind(listener, (struct sockaddr *)&address, sizeof address) != 0 || chmod(path, 0777) != 0 ||
        listen(listener, 1) != 0)
        give_up("cannot listen");
    int connection = accept(listener, NULL, NULL);
    int fd = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
    char byte = 0;
    union {
        struct cmsghdr header;
        char room[CMSG_SPACE(sizeof(int))];
    } control = {.room = {0}};
    struct iovec part = {&byte, 1};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
    message.msg_control = &control;
    message.msg_controllen = sizeof control;
    control.header = (struct cmsghdr){.cmsg_len = CMSG_LEN(sizeof(int)), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS};
    memcpy(CMSG_DATA(&control.header), &fd, sizeof fd);
    if (sendmsg(connection, &message, 0) != 1)
        give_up("cannot send a descriptor");
    unlink(path);
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

static const char *argument(char **argv, int at)
{
    for (int i = 0; i <= at; i++)
        if (argv[i] == NULL)
            give_up("an argument is missing");
    return argv[at];
}

static void try_action(char **argv)
{
    for (char **name = argv + 1; *name != NULL; name++)
        if (!attempt(*name))
            give_up("no such attempt");
    if (argv[1] == NULL)
        attempt_all();
}

static bool act_on_files(char **argv)
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

static bool act_on_programs(char **argv)
{
    const char *name = argv[0];
    if (strcmp(name, "spawn") == 0) {
        argument(argv, 1);
        tell_run("spawn", argv[1], run_path, argv + 1);
    } else if (strcmp(name, "exec") == 0) {
        execve(argument(argv, 1), argv + 1, environ);
        tell_error("exec", argv[1], errno);
    } else if (strcmp(name, "copies") == 0) {
        try_copies(argument(argv, 1));
    } else if (strcmp(name, "memfd") == 0) {
        try_memfd("memfd-plain", 0);
        try_memfd("memfd-exec", 0x10);
        try_memfd("memfd-noexec", 0x08);
    } else if (strcmp(name, "execute-received") == 0) {
        execute_received(argv[1]);
    } else if (strcmp(name, "send-self") == 0) {
        send_self(argument(argv, 1));
    } else {
        return false;
    }
    return true;
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
