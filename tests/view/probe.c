/* The attack program (shims/attack.c) with actions on its own life, which tests run as the Harness and as a command.
 *
 *     probe ACTION [ARGUMENT...] [++ ACTION [ARGUMENT...]]...
 *
 * `exec`, `exit` and those that never return come last. */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../../shims/attack.h"

/* Life --------------------------------------------------------------------------------------------------------- */

static void ignore_signals(void)
{
    for (int number = 1; number < NSIG; number++)
        if (number != SIGKILL && number != SIGSTOP && number != SIGCHLD)
            signal(number, SIG_IGN);
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

static bool act_on_life(char **argv)
{
    const char *name = argv[0];
    if (strcmp(name, "die") == 0)
        die(atoi(argument(argv, 1)));
    else if (strcmp(name, "copy") == 0)
        copy_stream();
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

static bool act_here(char **argv)
{
    return act_on_life(argv) || act(argv);
}

int main(int argc, char **argv)
{
    return run_actions(argc, argv, act_here);
}
