/* The program that stands in a view where the Harness expects one of its commands: /.oac/bin/git, /bin/bash.
 *
 * It hands its whole invocation (argv, environment, cwd, umask, nice, descriptors 0 to 2) to the broker, passes on the
 * signals it gets, and ends as the command ended. contracts/shim.md says what is promised.
 *
 *   shim ──INVOKE, [0 1 2]──► broker ──COMMAND, [0 1 2, this connection]──► init of the environment
 *   shim ──SIGNAL──────────────────────────────────────────────────────────► init
 *   shim ◄─────────────────────────────────────────────EXITED or FAILED──── init (FAILED also from the broker)
 *
 * Invariants: the data never passes through this process; from the first instruction on a signal either has its
 * default effect here, before anything ran, or reaches the command; when this process dies, the connection ends, and
 * with it the command.
 *
 * It runs once a command, so it uses neither stdio nor locales, and makes about thirty system calls. */
#include "wire.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <unistd.h>

extern char **environ;

#ifndef SHIM_SOCKET
#define SHIM_SOCKET "/.oac/run/broker" /* agenthost.layout.SHIM_SOCKET */
#endif

enum {
    STATUS_UNABLE = 126, /* the invocation cannot be handed over: as a shell says "found, but cannot run" */
    STATUS_GONE = 255,   /* no broker, or no environment any more */
    STDIO = 3,
};

struct shim {
    int connection; /* to the broker, and from its decision on to the environment's init */
    int signals;    /* signalfd of every signal that does not stop: read, and forwarded */
    int stops;      /* signalfd of the stop signals: only polled, see forward_stops */
    int errors;     /* a copy of descriptor 2 for error lines; -1 when that was closed */
};

/* Ends with one line on stderr. Signals have their own effect again, so that a reader who does not read cannot make
 * this process unkillable; SIGPIPE does not, so that a reader who left does not change the status. */
static _Noreturn void fail(const struct shim *shim, int status, const char *what, const char *why)
{
    sigset_t mask;
    sigemptyset(&mask);
    sigaddset(&mask, SIGPIPE);
    sigprocmask(SIG_SETMASK, &mask, NULL);
    const char *texts[] = {"agenthost: ", what, *why == '\0' ? "" : ": ", why, "\n"};
    struct iovec parts[sizeof texts / sizeof *texts];
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        parts[i] = (struct iovec){(void *)(uintptr_t)texts[i], strlen(texts[i])};
    while (writev(shim->errors, parts, sizeof parts / sizeof *parts) < 0 && errno == EINTR)
        continue;
    _exit(status);
}

/* With descriptor 0, 1 or 2 closed the kernel gives that number to what is opened next; none of ours may sit there. */
static int above_stdio(int fd)
{
    if (fd < 0 || fd >= STDIO)
        return fd;
    int moved = fcntl(fd, F_DUPFD_CLOEXEC, STDIO);
    int saved = errno;
    close(fd);
    errno = saved;
    return moved;
}

static void stop_signals(sigset_t *set)
{
    sigemptyset(set);
    sigaddset(set, SIGTSTP);
    sigaddset(set, SIGTTIN);
    sigaddset(set, SIGTTOU);
}

static void catch_signals(struct shim *shim)
{
    sigset_t all;
    /* Not sigfillset: it leaves out what the libc keeps for itself, and 34 is musl's own, but SIGRTMIN to a program
     * that uses glibc. */
    memset(&all, 0xff, sizeof all);
    sigprocmask(SIG_SETMASK, &all, NULL);

    sigset_t stops;
    stop_signals(&stops);
    sigdelset(&all, SIGTSTP);
    sigdelset(&all, SIGTTIN);
    sigdelset(&all, SIGTTOU);
    shim->signals = above_stdio(signalfd(-1, &all, SFD_CLOEXEC | SFD_NONBLOCK));
    shim->stops = above_stdio(signalfd(-1, &stops, SFD_CLOEXEC | SFD_NONBLOCK));
    if (shim->signals < 0 || shim->stops < 0)
        fail(shim, STATUS_UNABLE, "shim: cannot watch signals", strerror(errno));
}

static unsigned open_descriptors(void)
{
    unsigned open = 0;
    for (int fd = 0; fd < STDIO; fd++) {
        if (fcntl(fd, F_GETFD) >= 0)
            open |= 1u << fd;
    }
    return open;
}

static void forget_pending(int signal)
{
    /* Setting a signal to be ignored discards it where it is pending, blocked or not (POSIX, 2.4.3). */
    struct sigaction before;
    const struct sigaction ignore = {.sa_handler = SIG_IGN};
    if (sigaction(signal, &ignore, &before) == 0)
        sigaction(signal, &before, NULL);
}

/* Gives up the controlling terminal, so that the command can have it: a terminal controls one session at most.
 * Only a session leader may speak for its session. The kernel tells the foreground group, which is this process, with
 * SIGHUP and SIGCONT; those two are nobody else's business. True when it was given up. */
static bool release_terminal(unsigned open)
{
    if (getsid(0) != getpid())
        return false;
    sigset_t pending;
    sigpending(&pending);
    for (int fd = 0; fd < STDIO; fd++) {
        if ((open & 1u << fd) == 0 || ioctl(fd, TIOCNOTTY) != 0)
            continue;
        if (!sigismember(&pending, SIGHUP))
            forget_pending(SIGHUP);
        if (!sigismember(&pending, SIGCONT))
            forget_pending(SIGCONT);
        return true;
    }
    return false;
}

static void write_text(struct wire_writer *body, const char *text)
{
    wire_write_blob(body, text, strlen(text));
}

static void connect_to_broker(struct shim *shim)
{
    const struct sockaddr_un address = {.sun_family = AF_UNIX, .sun_path = SHIM_SOCKET};
    _Static_assert(sizeof SHIM_SOCKET <= sizeof address.sun_path, "the socket's path is too long");
    shim->connection = above_stdio(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (shim->connection < 0)
        fail(shim, STATUS_GONE, "broker: cannot make a socket", strerror(errno));
    while (connect(shim->connection, (const struct sockaddr *)&address, sizeof address) != 0) {
        if (errno != EINTR)
            fail(shim, STATUS_GONE, "broker: " SHIM_SOCKET, strerror(errno));
    }
}

static void hand_over(struct shim *shim, char *const *argv, unsigned open)
{
    char executable[PATH_MAX];
    ssize_t length = readlink("/proc/self/exe", executable, sizeof executable);
    if (length < 0 || (size_t)length == sizeof executable)
        fail(shim, STATUS_UNABLE, "shim: cannot tell its own path", strerror(length < 0 ? errno : ENAMETOOLONG));
    char cwd[PATH_MAX];
    if (getcwd(cwd, sizeof cwd) == NULL)
        fail(shim, STATUS_UNABLE, "shim: the working directory has no path", strerror(errno));
    connect_to_broker(shim);

    struct wire_writer body = {0};
    wire_write_u32(&body, open);
    wire_write_u32(&body, (uint32_t)umask(0));
    wire_write_u32(&body, (uint32_t)getpriority(PRIO_PROCESS, 0));
    wire_write_u32(&body, release_terminal(open) ? COMMAND_TERMINAL : 0);
    wire_write_blob(&body, executable, (size_t)length);
    write_text(&body, cwd);
    wire_write_vector(&body, argv);
    wire_write_vector(&body, environ);
    if (body.failed)
        fail(shim, STATUS_UNABLE, "shim: cannot hand over the arguments and the environment", strerror(E2BIG));

    int fds[STDIO];
    unsigned count = 0;
    for (int fd = 0; fd < STDIO; fd++) {
        if ((open & 1u << fd) != 0)
            fds[count++] = fd;
    }
    /* EPIPE and ECONNRESET: the broker closed before it had read all; it may have said why, which wait() reads. */
    if (wire_send(shim->connection, FRAME_INVOKE, body.bytes, body.length, fds, count) != 0 && errno != EPIPE &&
        errno != ECONNRESET)
        fail(shim, STATUS_GONE, "broker: cannot hand over the invocation", strerror(errno));
    wire_writer_free(&body);
    /* From here on the command alone decides when the other ends of its descriptors see their end. */
    for (unsigned i = 0; i < count; i++)
        close(fds[i]);
}

/* The command would have inherited that a signal is ignored. Asked only when one arrives: most commands get none. */
static bool is_ignored(int signal)
{
    struct sigaction action;
    return sigaction(signal, NULL, &action) == 0 && action.sa_handler == SIG_IGN;
}

static void forward(const struct shim *shim, int signal)
{
    if (is_ignored(signal))
        return;
    struct wire_writer body = {0};
    wire_write_u32(&body, (uint32_t)signal);
    wire_write_u32(&body, SCOPE_GROUP);
    /* When the command has ended meanwhile this fails, and the answer is there to be read. */
    if (!body.failed)
        wire_send(shim->connection, FRAME_SIGNAL, body.bytes, body.length, NULL, 0);
    wire_writer_free(&body);
}

static void forward_signals(const struct shim *shim)
{
    struct signalfd_siginfo info;
    while (read(shim->signals, &info, sizeof info) == (ssize_t)sizeof info)
        forward(shim, (int)info.ssi_signo);
}

/* Forwards a stop signal, then lets it stop this process, as the caller's wait would see the command stop. The signal
 * stays pending all the while: if SIGCONT comes in between, the kernel takes the pending stop back, and nothing here
 * can be late. (Reading it and raising it again could stop after the SIGCONT, for good.) */
static void forward_stops(const struct shim *shim)
{
    sigset_t stops;
    sigset_t pending;
    stop_signals(&stops);
    sigpending(&pending);
    for (int signal = 1; signal < NSIG; signal++) {
        if (sigismember(&stops, signal) == 1 && sigismember(&pending, signal) == 1)
            forward(shim, signal);
    }
    sigprocmask(SIG_UNBLOCK, &stops, NULL);
    sigprocmask(SIG_BLOCK, &stops, NULL);
}

static _Noreturn void die_of(int signal)
{
    /* The core, if any, is the command's. Not RLIMIT_CORE: a limit of 0 does not hold back a core that is piped. */
    prctl(PR_SET_DUMPABLE, 0);
    const struct sigaction action = {.sa_handler = SIG_DFL};
    sigaction(signal, &action, NULL);
    kill(getpid(), signal);
    /* Alone first: another one that is pending must not be the one to kill. Then all, for those that a libc refuses to
     * name (32 to 34 with musl). */
    sigset_t mask;
    memset(&mask, 0xff, sizeof mask);
    sigdelset(&mask, signal);
    sigprocmask(SIG_SETMASK, &mask, NULL);
    sigemptyset(&mask);
    sigprocmask(SIG_SETMASK, &mask, NULL);
    _exit(128 + signal);
}

static _Noreturn void end_as(const struct shim *shim, const struct frame_header *header, unsigned char *body)
{
    struct wire_reader reader = {.at = body, .left = header->length};
    wire_read_u32(&reader); /* the command's id, which means nothing here */
    if (header->type == FRAME_EXITED) {
        uint32_t code = wire_read_u32(&reader);
        uint32_t signal = wire_read_u32(&reader);
        if (wire_read_end(&reader) && code <= 255 && signal < NSIG) {
            if (signal != 0)
                die_of((int)signal);
            _exit((int)code);
        }
    } else if (header->type == FRAME_FAILED) {
        wire_read_u32(&reader); /* errno, which the message says in words */
        uint32_t status = wire_read_u32(&reader);
        struct wire_string message = wire_read_string(&reader);
        char *text = wire_read_end(&reader) ? wire_copy_string(message) : NULL;
        if (text != NULL)
            fail(shim, status >= 1 && status <= 255 ? (int)status : STATUS_GONE, text, "");
    }
    fail(shim, STATUS_GONE, "environment: its answer makes no sense; the programs of agenthost must be of one build", "");
}

static _Noreturn void wait_for_end(const struct shim *shim)
{
    for (;;) {
        struct pollfd ready[] = {
            {.fd = shim->connection, .events = POLLIN},
            {.fd = shim->signals, .events = POLLIN},
            {.fd = shim->stops, .events = POLLIN},
        };
        if (poll(ready, sizeof ready / sizeof *ready, -1) < 0) {
            if (errno == EINTR)
                continue;
            fail(shim, STATUS_GONE, "shim: poll", strerror(errno));
        }
        if (ready[0].revents != 0) {
            struct frame_header header;
            unsigned char *body;
            if (wire_receive(shim->connection, &header, &body, NULL, 0) == 1)
                end_as(shim, &header, body);
            fail(shim, STATUS_GONE, "environment: it ended, or the session did, before the command's status came", "");
        }
        if (ready[1].revents != 0)
            forward_signals(shim);
        if (ready[2].revents != 0)
            forward_stops(shim);
    }
}

int main(int argc, char **argv)
{
    (void)argc;
    unsigned open = open_descriptors();
    struct shim shim = {
        .connection = -1,
        .errors = (open & 1u << STDERR_FILENO) != 0 ? fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, STDIO) : -1,
    };
    catch_signals(&shim);
    hand_over(&shim, argv, open);
    wait_for_end(&shim);
}
