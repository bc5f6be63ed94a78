/* What can be executed, by which way; and descriptors that come from elsewhere. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "attack.h"

extern char **environ;

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
int receive_descriptor(int socket)
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

int unix_socket(const char *path, struct sockaddr_un *address)
{
    *address = (struct sockaddr_un){.sun_family = AF_UNIX};
    if (strlen(path) >= sizeof address->sun_path)
        give_up("a path too long for a socket");
    memcpy(address->sun_path, path, strlen(path));
    return socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
}

int connect_unix(const char *path)
{
    struct sockaddr_un address;
    int fd = unix_socket(path, &address);
    for (int i = 0; connect(fd, (struct sockaddr *)&address, sizeof address) != 0; i++) {
        if (i == 500)
            give_up("nobody listens");
        usleep(10000);
    }
    return fd;
}

static void execute_received(const char *path)
{
    int from = path == NULL ? 0 : connect_unix(path);
    int fd = receive_descriptor(from);
    if (fd < 0)
        give_up("no descriptor came");
    tell_run("received", "execveat", run_descriptor, &fd);
    tell_run("received", "execve", run_proc_descriptor, &fd);
    close(fd);
}

bool send_descriptor(int socket, int fd)
{
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
    return sendmsg(socket, &message, 0) == 1;
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
    if (!send_descriptor(connection, fd))
        give_up("cannot send a descriptor");
    unlink(path);
}

/* `count` children at once, each of which runs `program -c "exit N"` with its own N. */
static void run_at_once(char *program, int count)
{
    pid_t pids[256];
    int wrong = 0;
    if (count > 255)
        give_up("too many at once");
    for (int i = 0; i < count; i++) {
        pids[i] = fork();
        if (pids[i] == 0) {
            char script[32];
            snprintf(script, sizeof script, "exit %d", i);
            execl(program, program, "-c", script, NULL);
            _exit(255);
        }
    }
    for (int i = 0; i < count; i++) {
        int status;
        if (waitpid(pids[i], &status, 0) != pids[i] || !WIFEXITED(status) || WEXITSTATUS(status) != i)
            wrong++;
    }
    tell_number("wrong", NULL, wrong);
}

bool act_on_programs(char **argv)
{
    const char *name = argv[0];
    if (strcmp(name, "spawn") == 0) {
        argument(argv, 1);
        tell_run("spawn", argv[1], run_path, argv + 1);
    } else if (strcmp(name, "exec") == 0) {
        execve(argument(argv, 1), argv + 1, environ);
        tell_error("exec", argv[1], errno);
    } else if (strcmp(name, "at-once") == 0) {
        run_at_once(argv[1], atoi(argument(argv, 2)));
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
