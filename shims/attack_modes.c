/* Attempts on terminals, and to make files that would be dangerous outside: set-user-ID files, capabilities, devices. */
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "attack.h"

enum { NR_FCHMODAT2 = 452 };

static int own_terminal(unsigned long command)
{
    char path[32];
    int zero = 0;
    unsigned number = 0;
    int main_end = open("/dev/ptmx", O_RDWR | O_NOCTTY | O_CLOEXEC);
    /* As a system call: the type of ioctl's command differs from libc to libc. */
    if (main_end < 0 || syscall(SYS_ioctl, main_end, 0x40045431ul /* TIOCSPTLCK */, &zero) != 0 ||
        syscall(SYS_ioctl, main_end, 0x80045430ul /* TIOCGPTN */, &number) != 0)
        return -EIO;
    snprintf(path, sizeof path, "/dev/pts/%u", number);
    int fd = open(path, O_RDWR | O_NOCTTY | O_CLOEXEC);
    if (fd < 0 || setsid() < 0 || ioctl(fd, TIOCSCTTY, 0) != 0)
        return -EIO;
    char text[64] = "x";
    return done(syscall(SYS_ioctl, fd, command, text));
}

static int terminal_size(void) { return own_terminal(TIOCGWINSZ); }
static int terminal_input(void) { return own_terminal(TIOCSTI); }
static int terminal_input_high(void) { return own_terminal(0xdead00000000ul | TIOCSTI); }
static int terminal_linux(void) { return own_terminal(0x541C /* TIOCLINUX */); }

/* In the working directory: files with the set-user-ID bit. */
static const char victim[] = "probe-victim";

static int make_victim(void)
{
    int fd = open(victim, O_RDWR | O_CREAT | O_CLOEXEC, 0755);
    if (fd < 0)
        _exit(ENOTDIR); /* no attempt's own answer */
    return fd;
}

static int chmod_plain(void)
{
    close(make_victim());
    return done(syscall(SYS_fchmodat, AT_FDCWD, victim, 0700));
}
#ifdef SYS_chmod
static int chmod_setuid(void)
{
    close(make_victim());
    return done(syscall(SYS_chmod, victim, 04755));
}
static int creat_setuid(void) { return done(syscall(SYS_creat, "probe-setuid", 04755)); }
static int open_setuid(void)
{
    return done(syscall(SYS_open, "probe-setuid", O_CREAT | O_WRONLY | O_CLOEXEC, 04755));
}
static int mknod_setuid(void) { return done(syscall(SYS_mknod, "probe-setuid", S_IFREG | 04755, 0)); }
#endif
/* Not refused: the bit is what shared directories have, and no filter sees whether a descriptor is a directory. */
static int fchmod_setgid(void) { return done(fchmod(make_victim(), 02755)); }
static int give_to_root_group(void) { return done(fchown(make_victim(), (uid_t)-1, 0)); }
static int take_console(void)
{
    int fd = open("/dev/ptmx", O_RDWR | O_NOCTTY | O_CLOEXEC);
    return fd < 0 ? -errno : done(syscall(SYS_ioctl, fd, 0x541Dul /* TIOCCONS */, 0));
}
static int fchmod_setuid(void) { return done(fchmod(make_victim(), 04755)); }
static int fchmodat_setuid(void)
{
    close(make_victim());
    return done(syscall(SYS_fchmodat, AT_FDCWD, victim, 04755));
}
static int fchmodat2_setuid(void)
{
    close(make_victim());
    return done(syscall(NR_FCHMODAT2, AT_FDCWD, victim, 04755, 0));
}
static int openat_setuid(void)
{
    return done(syscall(SYS_openat, AT_FDCWD, "probe-setuid", O_CREAT | O_WRONLY | O_CLOEXEC, 04755));
}
static int tmpfile_setuid(void)
{
    return done(syscall(SYS_openat, AT_FDCWD, ".", O_TMPFILE | O_WRONLY | O_CLOEXEC, 04755));
}
static int mknodat_setuid(void)
{
    return done(syscall(SYS_mknodat, AT_FDCWD, "probe-setuid", S_IFREG | 04755, 0));
}
static int set_capability(void)
{
    /* struct vfs_cap_data, revision 2: CAP_SETUID, effective */
    static const uint32_t value[5] = {0x02000001, 1u << 7, 0, 0, 0};
    close(make_victim());
    return done(setxattr(victim, "security.capability", value, sizeof value, 0));
}
static int make_fifo(void)
{
    int result = done(mkfifo("probe-fifo", 0600));
    unlink("probe-fifo");
    return result;
}
static int make_character(void) { return done(mknod("probe-device", S_IFCHR | 0666, makedev(1, 3))); }
static int make_block(void) { return done(mknod("probe-device", S_IFBLK | 0666, makedev(254, 0))); }

const struct attempt attempts_of_modes[] = {
    TRY(terminal_size), TRY(terminal_input), TRY(terminal_input_high), TRY(terminal_linux),
    TRY(chmod_plain), TRY(fchmod_setuid), TRY(fchmodat_setuid), TRY(fchmodat2_setuid), TRY(openat_setuid),
    TRY(tmpfile_setuid), TRY(mknodat_setuid), TRY(set_capability), TRY(make_fifo), TRY(make_character),
    TRY(make_block), TRY(fchmod_setgid), TRY(give_to_root_group), TRY(take_console),
#ifdef SYS_chmod
    TRY(chmod_setuid), TRY(creat_setuid), TRY(open_setuid), TRY(mknod_setuid),
#endif
    {NULL, NULL},
};
