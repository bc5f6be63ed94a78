/* Runs a program and makes one system call of it, or of what it starts, fail without having been done.
 *
 *     faults PROCESS NUMBER ERRNO LOG PROGRAM [ARGUMENT...]
 *
 * The program is the builder, which starts inits. Their processes have names by the order in which they begin:
 *
 *     builder            from its first unshare(2) on; the interpreter's own start is not counted
 *     init-N             what the builder starts as the Nth: oac-init, from the beginning of posix_spawn(3)'s child
 *     init-N.first       the first process of its pid namespace
 *     init-N.command     what that one starts, until its execve(2); it is let go then
 *
 * NUMBER counts the system calls of PROCESS from 1; with 0 none fails. Each call is a line "PROCESS NUMBER CALL" of LOG,
 * and the one that failed is another one, "failed CALL". How the program ends, this ends.
 *
 * As root it works only in a box that a test has made: its host name is BOX. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/user.h>
#include <sys/utsname.h>
#include <sys/wait.h>
#include <unistd.h>

#define BOX "agenthost-faults"

/* linux/ptrace.h; not every libc has them, or under one type. */
#define SEIZE 0x4206
#define LISTEN 0x4208
#define GET_SYSCALL_INFO 0x420e

enum { MOST = 256, NAME = 64, EVENT_STOP = 128, OPTION_SYSGOOD = 1 };
enum { EVENT_FORK = 1, EVENT_VFORK, EVENT_CLONE, EVENT_EXEC };

/* struct ptrace_syscall_info, linux/ptrace.h; the part that is looked at. */
struct call {
    uint8_t op, pad[3];
    uint32_t architecture;
    uint64_t ip, sp, number;
    uint64_t rest[8];
};

struct tracee {
    pid_t pid;
    char name[NAME];
    unsigned count;
    bool counting, inside, failing, waiting;
};

static struct tracee tracees[MOST];
static FILE *calls;
static const char *wanted;
static unsigned wanted_number;
static int wanted_error, inits;

static _Noreturn void stop(const char *what)
{
    fprintf(stderr, "faults: %s: %s\n", what, strerror(errno));
    exit(99);
}

static struct tracee *find(pid_t pid)
{
    for (struct tracee *tracee = tracees; tracee < tracees + MOST; tracee++)
        if (tracee->pid == pid)
            return tracee;
    for (struct tracee *tracee = tracees; tracee < tracees + MOST; tracee++)
        if (tracee->pid == 0) {
            *tracee = (struct tracee){.pid = pid};
            return tracee;
        }
    errno = ENOSPC;
    stop("too many processes");
}

static void go_on(const struct tracee *tracee, int number)
{
    /* It may have been killed meanwhile; then the next wait says so. */
    ptrace(PTRACE_SYSCALL, tracee->pid, NULL, (void *)(intptr_t)number);
}

#if defined __x86_64__
static void replace_call(pid_t pid)
{
    ptrace(PTRACE_POKEUSER, pid, offsetof(struct user, regs.orig_rax), -1L);
}

static void replace_result(pid_t pid, long result)
{
    ptrace(PTRACE_POKEUSER, pid, offsetof(struct user, regs.rax), result);
}
#elif defined __aarch64__
static void replace_call(pid_t pid)
{
    int none = -1;
    struct iovec part = {&none, sizeof none};
    ptrace(PTRACE_SETREGSET, pid, 0x404 /* NT_ARM_SYSTEM_CALL */, &part);
}

static void replace_result(pid_t pid, long result)
{
    struct user_regs_struct registers;
    struct iovec part = {&registers, sizeof registers};
    ptrace(PTRACE_GETREGSET, pid, 1 /* NT_PRSTATUS */, &part);
    registers.regs[0] = (unsigned long long)result;
    ptrace(PTRACE_SETREGSET, pid, 1, &part);
}
#endif

/* These do not come back, or not with a result, or always succeed (umask(2)). */
static bool cannot_fail(long number)
{
    return number == SYS_exit || number == SYS_exit_group || number == SYS_rt_sigreturn || number == SYS_umask;
}

static void on_entry(struct tracee *tracee)
{
    struct call call = {0};
    if (ptrace(GET_SYSCALL_INFO, tracee->pid, (void *)sizeof call, &call) < 0)
        return;
    long number = (long)call.number;
    if (strcmp(tracee->name, "builder") == 0 && number == SYS_unshare)
        tracee->counting = true;
    if (!tracee->counting || cannot_fail(number))
        return;
    tracee->count++;
    fprintf(calls, "%s %u %ld\n", tracee->name, tracee->count, number);
    if (tracee->count == wanted_number && strcmp(tracee->name, wanted) == 0) {
        fprintf(calls, "failed %ld\n", number);
        tracee->failing = true;
        replace_call(tracee->pid);
    }
}

static void on_call(struct tracee *tracee)
{
    tracee->inside = !tracee->inside;
    if (tracee->inside)
        on_entry(tracee);
    else if (tracee->failing) {
        tracee->failing = false;
        replace_result(tracee->pid, -wanted_error);
    }
    go_on(tracee, 0);
}

static void on_birth(struct tracee *parent)
{
    unsigned long pid = 0;
    ptrace(PTRACE_GETEVENTMSG, parent->pid, NULL, &pid);
    struct tracee *child = find((pid_t)pid);
    if (strcmp(parent->name, "builder") == 0)
        snprintf(child->name, NAME, "init-%d", ++inits);
    else
        snprintf(child->name, NAME, "%.40s.%s", parent->name, strchr(parent->name, '.') == NULL ? "first" : "command");
    char *within = strstr(child->name, ".first.command");
    if (within != NULL)
        memmove(within, within + strlen(".first"), strlen(".command") + 1);
    child->counting = parent->counting;
    if (child->waiting) {
        child->waiting = false;
        go_on(child, 0);
    }
    go_on(parent, 0);
}

static void on_stop(struct tracee *tracee, int status)
{
    int number = WSTOPSIG(status), event = status >> 16;
    if (number == (SIGTRAP | 0x80))
        on_call(tracee);
    else if (event == EVENT_FORK || event == EVENT_VFORK || event == EVENT_CLONE)
        on_birth(tracee);
    else if (event == EVENT_EXEC && strstr(tracee->name, ".command") != NULL) {
        ptrace(PTRACE_DETACH, tracee->pid, NULL, NULL);
        tracee->pid = 0;
    } else if (event == EVENT_STOP && tracee->name[0] == '\0')
        tracee->waiting = true; /* until its parent has said whose it is */
    else if (event == EVENT_STOP && number != SIGTRAP)
        ptrace(LISTEN, tracee->pid, NULL, NULL);
    else
        go_on(tracee, event == 0 ? number : 0);
}

static _Noreturn void begin(char **argv)
{
    raise(SIGSTOP);
    execv(argv[0], argv);
    _exit(127);
}

static _Noreturn void end_as(int status)
{
    fclose(calls);
    if (WIFSIGNALED(status)) {
        signal(WTERMSIG(status), SIG_DFL);
        raise(WTERMSIG(status));
    }
    _exit(WEXITSTATUS(status));
}

int main(int argc, char **argv)
{
    struct utsname here;
    if (argc < 6 || uname(&here) != 0)
        return 2;
    if (geteuid() == 0 && strcmp(here.nodename, BOX) != 0) {
        fprintf(stderr, "faults: this is root outside of a box\n");
        return 2;
    }
    wanted = argv[1];
    wanted_number = (unsigned)atoi(argv[2]);
    wanted_error = atoi(argv[3]);
    calls = fopen(argv[4], "ae");
    if (calls == NULL)
        stop(argv[4]);
    int status;
    pid_t program = fork();
    if (program == 0)
        begin(argv + 5);
    if (program < 0 || waitpid(program, &status, WUNTRACED) != program)
        stop("start");
    for (int fd = 3; fd < 16; fd++) /* the program's alone: its other end must see the program's end */
        if (fd != fileno(calls))
            close(fd);
    unsigned long options = OPTION_SYSGOOD | 1ul << EVENT_FORK | 1ul << EVENT_VFORK | 1ul << EVENT_CLONE | 1ul << EVENT_EXEC;
    if (ptrace(SEIZE, program, NULL, (void *)options) != 0)
        stop("seize");
    strcpy(find(program)->name, "builder");
    kill(program, SIGCONT);
    for (;;) {
        pid_t pid = waitpid(-1, &status, __WALL);
        if (pid < 0)
            stop("wait");
        struct tracee *tracee = find(pid);
        if (WIFSTOPPED(status)) {
            on_stop(tracee, status);
            continue;
        }
        tracee->pid = 0;
        if (pid == program)
            end_as(status);
    }
}
