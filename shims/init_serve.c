#include "init.h"

#include <errno.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { SIGNAL_BODY = 8, SIGNAL_FRAME = (int)WIRE_HEADER_SIZE + SIGNAL_BODY };

struct command {
    struct command *next;
    uint32_t id;
    pid_t pid;
    int connection; /* to the shim; -1 when there is none */
    bool is_main;
    unsigned have; /* bytes of a SIGNAL frame that have come */
    unsigned char bytes[SIGNAL_FRAME];
};

/* What a COMMAND frame asks for. */
struct order {
    uint32_t id;
    uint32_t descriptors;
    uint32_t umask;
    int32_t nice;
    uint32_t flags;
    char *program;
    char *cwd;
    char **argv;
    char **envp;
};

/* Why a command could not be started. */
struct obstacle {
    const char *what; /* NULL when there is none */
    int error;
};

static struct command *commands;
static int events;
static bool ending; /* init ends when no process is left */

static void report(int socket, enum frame_type type, const uint32_t *numbers, unsigned count, const char *text)
{
    struct wire_writer writer = {0};
    for (unsigned i = 0; i < count; i++)
        wire_write_u32(&writer, numbers[i]);
    if (text != NULL)
        wire_write_blob(&writer, text, strlen(text));
    if (!writer.failed)
        wire_send(socket, type, writer.bytes, writer.length, NULL, 0);
    wire_writer_free(&writer);
}

static void close_connection(struct command *command)
{
    if (command->connection >= 0) {
        /* close(2) alone would leave it in the set while the broker still has its copy of the same open file, and the
         * next event on it would come with a command that is gone (epoll(7), question 6). */
        epoll_ctl(events, EPOLL_CTL_DEL, command->connection, NULL);
        close(command->connection);
    }
    command->connection = -1;
}

static void finish(struct command *command, int status)
{
    uint32_t code = WIFEXITED(status) ? (uint32_t)WEXITSTATUS(status) : 0;
    uint32_t number = WIFSIGNALED(status) ? (uint32_t)WTERMSIG(status) : 0;
    uint32_t numbers[3] = {command->id, code, number};
    if (command->connection >= 0)
        report(command->connection, FRAME_EXITED, numbers, 3, NULL);
    report(CONTROL_FD, FRAME_EXITED, numbers, 3, NULL);
    if (command->is_main && !ending)
        _exit(0);
    close_connection(command);
    free(command);
}

static void reap(void)
{
    for (;;) {
        int status;
        pid_t pid = waitpid(-1, &status, WNOHANG);
        if (pid < 0 && errno == ECHILD && ending)
            _exit(0);
        if (pid < 0 && errno != ECHILD)
            _exit(125); /* an end that is not known would be waited for without one */
        if (pid <= 0)
            return;
        for (struct command **at = &commands; *at != NULL; at = &(*at)->next) {
            struct command *command = *at;
            if (command->pid != pid)
                continue;
            *at = command->next;
            finish(command, status);
            break;
        }
    }
}

static bool parse_order(struct wire_reader *reader, struct order *order)
{
    order->id = wire_read_u32(reader);
    order->descriptors = wire_read_u32(reader);
    order->umask = wire_read_u32(reader);
    order->nice = (int32_t)wire_read_u32(reader);
    order->flags = wire_read_u32(reader);
    order->program = wire_copy_string(wire_read_string(reader));
    order->cwd = wire_copy_string(wire_read_string(reader));
    order->argv = wire_read_vector(reader);
    order->envp = wire_read_vector(reader);
    return wire_read_end(reader) && order->program != NULL && order->cwd != NULL && order->argv[0] != NULL;
}

static void free_order(struct order *order)
{
    free(order->program);
    free(order->cwd);
    free(order->argv);
    free(order->envp);
}

static const char *search_path(char *const *envp)
{
    for (; *envp != NULL; envp++)
        if (strncmp(*envp, "PATH=", 5) == 0)
            return *envp + 5;
    return "";
}

/* As execvpe(3), without its run of a shell on ENOEXEC: what the kernel cannot execute is not executed. */
static int execute(const struct order *order)
{
    if (strchr(order->program, '/') != NULL) {
        execve(order->program, order->argv, order->envp);
        return errno;
    }
    int result = ENOENT;
    for (const char *at = search_path(order->envp); *at != '\0';) {
        size_t length = strcspn(at, ":");
        char path[PATH_MAX];
        int size = snprintf(path, sizeof path, "%.*s/%s", (int)length, at, order->program);
        if (length > 0 && size > 0 && (size_t)size < sizeof path) {
            execve(path, order->argv, order->envp);
            if (errno != ENOENT && errno != ENOTDIR && errno != EACCES)
                return errno;
            if (errno == EACCES)
                result = EACCES;
        }
        at += length + (at[length] == ':');
    }
    return result;
}

static void take_terminal(void)
{
    for (int fd = 0; fd < 3; fd++)
        if (isatty(fd) && ioctl(fd, TIOCSCTTY, 0) == 0)
            return;
}

static void limit_files(void)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur > FIRST_FILES) {
        limit.rlim_cur = FIRST_FILES;
        setrlimit(RLIMIT_NOFILE, &limit);
    }
}

static bool reset_signals(void)
{
    /* As system calls: a libc refuses those that it keeps for itself (32 to 34), and what started the daemon may have
     * had them ignored. SIG_DFL without flags is nothing but zeros, on every architecture. */
    static const unsigned long plain[4] = {0};
    for (int number = 1; number <= 64; number++)
        if (number != SIGKILL && number != SIGSTOP && syscall(SYS_rt_sigaction, number, plain, NULL, 8) != 0)
            return false;
    return true;
}

/* Runs in the vfork child: shares the parent's memory, so it writes nothing but `obstacle`. */
static _Noreturn void become(const struct order *order, const int *fds, volatile struct obstacle *obstacle)
{
    sigset_t none;
    if (!reset_signals() || setsid() < 0) {
        *obstacle = (struct obstacle){"in a session", errno};
        _exit(127);
    }
    const int *next = fds;
    for (int fd = 0; fd < 3; fd++) {
        if (!(order->descriptors & 1u << fd))
            close(fd);
        else if (dup2(*next++, fd) < 0) {
            *obstacle = (struct obstacle){"descriptor", errno};
            _exit(127);
        }
    }
    if (order->flags & COMMAND_TERMINAL)
        take_terminal();
    if (order->nice != 0)
        setpriority(PRIO_PROCESS, 0, order->nice);
    limit_files();
    umask((mode_t)order->umask & 0777);
    if (chdir(order->cwd) != 0) {
        *obstacle = (struct obstacle){order->cwd, errno};
        _exit(127);
    }
    sigemptyset(&none);
    if (sigprocmask(SIG_SETMASK, &none, NULL) != 0) {
        *obstacle = (struct obstacle){"with every signal", errno};
        _exit(127);
    }
    int error = execute(order);
    *obstacle = (struct obstacle){order->program, error};
    _exit(127);
}

static void refuse(const struct order *order, int connection, const struct obstacle *obstacle)
{
    char text[PATH_MAX + 128];
    const char *verb = obstacle->what == order->cwd ? "enter" : "run";
    snprintf(text, sizeof text, "cannot %s %s: %s", verb, obstacle->what, strerror(obstacle->error));
    uint32_t status = obstacle->what == order->program && obstacle->error == ENOENT ? 127 : 126;
    uint32_t numbers[3] = {order->id, (uint32_t)obstacle->error, status};
    if (connection >= 0) {
        report(connection, FRAME_FAILED, numbers, 3, text);
        close(connection);
    }
    report(CONTROL_FD, FRAME_FAILED, numbers, 3, text);
}

static void start(const struct order *order, const int *fds, int connection)
{
    struct obstacle obstacle = {NULL, 0};
    struct command *command = calloc(1, sizeof *command);
    if (command == NULL) {
        refuse(order, connection, &(struct obstacle){order->program, ENOMEM});
        return;
    }
    pid_t pid = vfork();
    if (pid == 0)
        become(order, fds, &obstacle);
    if (pid < 0)
        obstacle = (struct obstacle){order->program, errno};
    if (obstacle.what != NULL) {
        free(command);
        refuse(order, connection, &obstacle);
        return;
    }
    *command = (struct command){
        .next = commands,
        .id = order->id,
        .pid = pid,
        .connection = connection,
        .is_main = (order->flags & COMMAND_MAIN) != 0,
    };
    commands = command;
    if (connection >= 0) {
        struct epoll_event event = {.events = EPOLLIN | EPOLLRDHUP, .data = {.ptr = command}};
        if (epoll_ctl(events, EPOLL_CTL_ADD, connection, &event) != 0)
            kill(-pid, SIGKILL);
    }
    uint32_t numbers[2] = {order->id, (uint32_t)pid};
    report(CONTROL_FD, FRAME_STARTED, numbers, 2, NULL);
}

static void on_command(struct wire_reader *reader, int *fds, unsigned count)
{
    struct order order = {0};
    if (!parse_order(reader, &order))
        _exit(125);
    unsigned expected = 0;
    for (unsigned fd = 0; fd < 3; fd++)
        expected += order.descriptors >> fd & 1u;
    bool connected = (order.flags & COMMAND_CONNECTION) != 0;
    if (count != expected + connected)
        _exit(125);
    start(&order, fds, connected ? fds[expected] : -1);
    for (unsigned i = 0; i < expected; i++)
        close(fds[i]);
    free_order(&order);
}

static void signal_main(int number, bool group)
{
    for (struct command *command = commands; command != NULL; command = command->next)
        if (command->is_main)
            kill(group ? -command->pid : command->pid, number);
}

static void on_signal(struct wire_reader *reader)
{
    int number = (int)wire_read_u32(reader);
    uint32_t scope = wire_read_u32(reader);
    if (!wire_read_end(reader) || number < 1 || number > 64)
        _exit(125);
    if (scope != SCOPE_END) {
        signal_main(number, scope == SCOPE_GROUP);
        return;
    }
    ending = true;
    kill(-1, number);
    /* A stopped process takes its signal only when it runs again. */
    kill(-1, SIGCONT);
    reap();
}

static void on_control(void)
{
    struct frame_header header;
    unsigned char *body;
    int fds[4];
    if (wire_receive(CONTROL_FD, &header, &body, fds, 4) != 1)
        _exit(0);
    struct wire_reader reader = {body, header.length, false};
    if (header.type == FRAME_COMMAND)
        on_command(&reader, fds, header.fds);
    else if (header.type == FRAME_SIGNAL && header.fds == 0)
        on_signal(&reader);
    else
        _exit(125);
    free(body);
}

/* The shim may be anything that runs in the view: what is not a SIGNAL frame ends its command, as its death does. */
static void on_connection(struct command *command)
{
    ssize_t count = recv(command->connection, command->bytes + command->have, SIGNAL_FRAME - command->have, MSG_DONTWAIT);
    if (count < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    struct frame_header header = {0};
    if (count > 0) {
        command->have += (unsigned)count;
        if (command->have < SIGNAL_FRAME)
            return;
        command->have = 0;
        struct wire_reader reader = {command->bytes + WIRE_HEADER_SIZE, SIGNAL_BODY, false};
        int number = (int)wire_read_u32(&reader);
        uint32_t scope = wire_read_u32(&reader);
        if (wire_header_decode(command->bytes, &header) && header.length == SIGNAL_BODY && header.fds == 0 &&
            header.type == FRAME_SIGNAL && number >= 1 && number <= 64 && scope <= SCOPE_LEADER) {
            kill(scope == SCOPE_GROUP ? -command->pid : command->pid, number);
            return;
        }
    }
    close_connection(command);
    kill(-command->pid, SIGKILL);
}

static void watch(int fd, void *tag)
{
    struct epoll_event event = {.events = EPOLLIN, .data = {.ptr = tag}};
    if (epoll_ctl(events, EPOLL_CTL_ADD, fd, &event) != 0)
        fail("watch a descriptor");
}

static int child_fd;
static char control, children; /* the addresses say which descriptor an event is of */

void prepare_to_serve(void)
{
    sigset_t blocked;
    sigemptyset(&blocked);
    sigaddset(&blocked, SIGCHLD);
    /* The builder ignores it, and ignored it would not come: the end of a command would never be known. */
    if (signal(SIGCHLD, SIG_DFL) == SIG_ERR || sigprocmask(SIG_SETMASK, &blocked, NULL) != 0)
        fail("block the signal of children");
    child_fd = signalfd(-1, &blocked, SFD_CLOEXEC | SFD_NONBLOCK);
    events = epoll_create1(EPOLL_CLOEXEC);
    if (child_fd < 0 || events < 0)
        fail("watch for children");
    watch(CONTROL_FD, &control);
    watch(child_fd, &children);
}

_Noreturn void serve(void)
{
    for (;;) {
        struct epoll_event event;
        if (epoll_wait(events, &event, 1, -1) != 1)
            continue;
        if (event.data.ptr == &control) {
            on_control();
        } else if (event.data.ptr == &children) {
            struct signalfd_siginfo discarded;
            while (read(child_fd, &discarded, sizeof discarded) > 0)
                continue;
            reap();
        } else {
            on_connection(event.data.ptr);
        }
    }
}
