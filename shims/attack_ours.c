/* Attacks on what is ours: the broker's socket, the environment's init behind it, and descriptors that are carried from
 * a view into an environment or the other way round. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include "attack.h"
#include "wire.h"

enum { PATIENCE_S = 5 };

static int connect_broker(void)
{
    struct timeval limit = {PATIENCE_S, 0};
    int fd = connect_unix("/.oac/run/broker");
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    return fd;
}

/* What the other side does with what it got: "closed", "failed STATUS", "exited STATUS", or "no answer". */
static void tell_answer(const char *name, const char *what, int fd)
{
    struct frame_header header;
    unsigned char *body;
    char text[64];
    int result = wire_receive(fd, &header, &body, NULL, 0);
    close(fd);
    if (result != 1) {
        bool late = result < 0 && (errno == EAGAIN || errno == EWOULDBLOCK);
        tell(name, what, late ? "no answer" : "closed");
        return;
    }
    struct wire_reader reader = {body, header.length, false};
    wire_read_u32(&reader);
    uint32_t first = wire_read_u32(&reader);
    uint32_t second = wire_read_u32(&reader);
    if (header.type == FRAME_FAILED)
        snprintf(text, sizeof text, "failed %u", second);
    else if (header.type == FRAME_EXITED)
        snprintf(text, sizeof text, "exited %u", second == 0 ? first : 128 + second);
    else
        snprintf(text, sizeof text, "frame %u", header.type);
    tell(name, what, text);
    free(body);
}

struct invocation {
    uint32_t descriptors;
    uint32_t flags;
    const char *executable;
    const char *cwd;
    const char *script;
    unsigned fds;
};

static void send_invocation(int fd, const struct invocation *wanted)
{
    struct wire_writer writer = {0};
    char option[] = "-c";
    char name[] = "bash";
    char *script = strdup(wanted->script);
    char *argv[] = {name, option, script, NULL};
    char *envp[] = {NULL};
    int fds[WIRE_MAX_FDS];
    for (unsigned i = 0; i < WIRE_MAX_FDS; i++)
        fds[i] = (int)(i % 3);
    wire_write_u32(&writer, wanted->descriptors);
    wire_write_u32(&writer, 022);
    wire_write_u32(&writer, 0);
    wire_write_u32(&writer, wanted->flags);
    wire_write_blob(&writer, wanted->executable, strlen(wanted->executable));
    wire_write_blob(&writer, wanted->cwd, strlen(wanted->cwd));
    wire_write_vector(&writer, argv);
    wire_write_vector(&writer, envp);
    wire_send(fd, FRAME_INVOKE, writer.bytes, writer.length, fds, wanted->fds);
    wire_writer_free(&writer);
    free(script);
}

/* The shim at a shim path has this for its /proc/self/exe. */
static const char *real_bash(void)
{
    static char path[4096];
    return realpath("/bin/bash", path) == NULL ? "/bin/bash" : path;
}

static void send_header(int fd, uint32_t length, uint16_t type)
{
    unsigned char bytes[WIRE_HEADER_SIZE];
    struct frame_header header = {length, type, 0};
    wire_header_encode(&header, bytes);
    if (write(fd, bytes, sizeof bytes) < 0)
        give_up("cannot write to the broker");
}

static void send_frames(const char *kind)
{
    static unsigned char garbage[4096];
    struct invocation wanted = {7, 0, real_bash(), "/", "exit 7", 3};
    int fd = connect_broker();
    memset(garbage, 0xff, sizeof garbage);
    if (strcmp(kind, "garbage") == 0) {
        if (write(fd, garbage, sizeof garbage) < 0)
            give_up("cannot write to the broker");
    } else if (strcmp(kind, "endless") == 0) {
        send_header(fd, 0xfffffff0u, FRAME_INVOKE);
    } else if (strcmp(kind, "as-daemon") == 0) {
        wire_send(fd, FRAME_COMMAND, garbage, 64, NULL, 0);
    } else if (strcmp(kind, "as-builder") == 0) {
        wire_send(fd, FRAME_SETUP, garbage, 64, NULL, 0);
    } else if (strcmp(kind, "signal-first") == 0) {
        wire_send(fd, FRAME_SIGNAL, garbage, 8, NULL, 0);
    } else if (strcmp(kind, "cut-off") == 0) {
        wire_send(fd, FRAME_INVOKE, garbage, 3, NULL, 0);
    } else {
        if (strcmp(kind, "foreign-program") == 0)
            wanted.executable = "/usr/bin/python3";
        else if (strcmp(kind, "main-command") == 0)
            wanted.flags = COMMAND_MAIN;
        else if (strcmp(kind, "unknown-flags") == 0)
            wanted.flags = 0xfffffff0u;
        else if (strcmp(kind, "no-descriptors") == 0)
            wanted.fds = 0;
        else if (strcmp(kind, "many-descriptors") == 0)
            wanted.fds = WIRE_MAX_FDS;
        else if (strcmp(kind, "outside-cwd") == 0)
            wanted.cwd = "/.oac/home";
        else if (strcmp(kind, "valid") != 0)
            give_up("no such frames");
        send_invocation(fd, &wanted);
    }
    tell_answer("frames", kind, fd);
}

/* A command of our own, and then a SIGNAL frame for it that asks for more than a shim may. */
static void send_signal(const char *number, const char *scope)
{
    struct wire_writer writer = {0};
    struct invocation wanted = {7, 0, real_bash(), "/", "sleep 30", 3};
    char what[64];
    int fd = connect_broker();
    send_invocation(fd, &wanted);
    usleep(200000);
    wire_write_u32(&writer, (uint32_t)strtoul(number, NULL, 0));
    wire_write_u32(&writer, (uint32_t)strtoul(scope, NULL, 0));
    wire_send(fd, FRAME_SIGNAL, writer.bytes, writer.length, NULL, 0);
    wire_writer_free(&writer);
    snprintf(what, sizeof what, "%s %s", number, scope);
    tell_answer("signal-frame", what, fd);
}

/* Descriptors of directories ------------------------------------------------------------------------------------ */

/* Runs a program with a directory as its stdin: so the shim carries it into the environment. */
static void execute_with_directory(char **argv)
{
    int fd = open(argument(argv, 1), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    argument(argv, 2);
    if (fd < 0 || dup2(fd, 0) < 0)
        tell_error("with-directory", argv[1], errno);
    else
        execve(argv[2], argv + 2, (char *[]){NULL});
    tell_error("exec", argv[2], errno);
}

/* What a directory on descriptor 0, and the file `name` in it, let their holder do. */
static void use_directory(const char *name)
{
    struct stat status;
    if (fstat(0, &status) != 0 || !S_ISDIR(status.st_mode)) {
        tell("held", NULL, "no directory");
        return;
    }
    int fd = openat(0, "held-new", O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    tell_done("held", "create", fd >= 0 && write(fd, "planted", 7) == 7);
    tell_done("held", "replace", renameat(0, "held-new", 0, name) == 0);
    fd = openat(0, name, O_WRONLY | O_CLOEXEC);
    tell_done("held", "write", fd >= 0);
    tell_done("held", "link", symlinkat("/etc/passwd", 0, "held-link") == 0);
    tell_done("held", "directory", mkdirat(0, "held-directory", 0700) == 0);
    tell_done("held", "remove", unlinkat(0, name, 0) == 0);
}

/* As `use_directory`, again and again, in a session of its own that outlives the command; says nothing. */
static void keep_directory(const char *name)
{
    if (fork() != 0)
        return;
    setsid();
    for (int fd = 1; fd < 3; fd++)
        close(fd);
    for (;;) {
        int fd = openat(0, "held-new", O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
        if (fd >= 0) {
            ssize_t written = write(fd, "planted\n", 8);
            close(fd);
            if (written == 8)
                renameat(0, "held-new", 0, name);
        }
        usleep(100);
    }
}

/* Keeps descriptor 0 in a session of its own, and gives it to whoever connects to `path`, once. */
static void offer_directory(const char *path)
{
    struct sockaddr_un address;
    int listener = unix_socket(path, &address);
    if (bind(listener, (struct sockaddr *)&address, sizeof address) != 0 || listen(listener, 1) != 0)
        give_up("cannot listen");
    if (fork() != 0)
        return;
    setsid();
    close(1);
    close(2);
    send_descriptor(accept(listener, NULL, NULL), 0);
    exit(0);
}

static void use_received(const char *path, const char *name)
{
    int fd = receive_descriptor(connect_unix(path));
    if (fd < 0 || dup2(fd, 0) < 0)
        give_up("no descriptor came");
    use_directory(name);
}

/* Maps a file, which whoever listens on `path` gives, as a program. */
static void map_received(const char *path)
{
    int fd = receive_descriptor(connect_unix(path));
    if (fd < 0)
        give_up("no descriptor came");
    void *memory = mmap(NULL, 4096, PROT_READ | PROT_EXEC, MAP_PRIVATE, fd, 0);
    tell_done("received", "mmap", memory != MAP_FAILED);
}

/* Terminals ------------------------------------------------------------------------------------------------------ */

/* Opens a terminal, says its name and stays. */
static void hold_terminal(void)
{
    int zero = 0;
    unsigned number = 0;
    char path[32];
    int fd = open("/dev/ptmx", O_RDWR | O_NOCTTY | O_CLOEXEC);
    if (fd < 0 || syscall(SYS_ioctl, fd, 0x40045431ul /* TIOCSPTLCK */, &zero) != 0 ||
        syscall(SYS_ioctl, fd, 0x80045430ul /* TIOCGPTN */, &number) != 0)
        give_up("no terminal");
    snprintf(path, sizeof path, "/dev/pts/%u", number);
    tell("terminal", NULL, path);
}

bool act_on_ours(char **argv)
{
    const char *name = argv[0];
    if (strcmp(name, "frames") == 0)
        send_frames(argument(argv, 1));
    else if (strcmp(name, "signal-frame") == 0)
        send_signal(argument(argv, 1), argument(argv, 2));
    else if (strcmp(name, "exec-with-directory") == 0)
        execute_with_directory(argv);
    else if (strcmp(name, "use-directory") == 0)
        use_directory(argument(argv, 1));
    else if (strcmp(name, "keep-directory") == 0)
        keep_directory(argument(argv, 1));
    else if (strcmp(name, "offer-directory") == 0)
        offer_directory(argument(argv, 1));
    else if (strcmp(name, "use-received") == 0)
        use_received(argument(argv, 1), argument(argv, 2));
    else if (strcmp(name, "map-received") == 0)
        map_received(argument(argv, 1));
    else if (strcmp(name, "hold-terminal") == 0)
        hold_terminal();
    else
        return false;
    return true;
}
