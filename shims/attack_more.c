/* Attempts on privileges, limits, time, ports and the first process; and on processes that are named by their pid. */
#include <errno.h>
#include <fcntl.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/inotify.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/timex.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#include "attack.h"
#include "kernel.h"

#if defined(__x86_64__)
#include <sys/io.h>
#endif

static int ambient_capability(void) { return done(prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, 21 /* SYS_ADMIN */, 0, 0)); }
static int raise_capabilities(void)
{
    struct kernel_capability_header header = {KERNEL_CAPABILITY_VERSION_3, 0};
    struct kernel_capability_data all[2] = {{~0u, ~0u, 0}, {~0u, ~0u, 0}};
    return done(syscall(SYS_capset, &header, all));
}
static int allow_privileges(void) { return done(prctl(PR_SET_NO_NEW_PRIVS, 0, 0, 0, 0)); }
static int drop_filter(void) { return done(prctl(PR_SET_SECCOMP, 0 /* disabled */, 0, 0, 0)); }
static int move_own_memory(void) { return done(prctl(PR_SET_MM, PR_SET_MM_START_CODE, 0, 0, 0)); }

static int write_to(const char *path, const char *text)
{
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    return fd < 0 ? -errno : done(write(fd, text, strlen(text)));
}

static int map_root(void) { return write_to("/proc/self/uid_map", "0 0 1\n"); }
static int escape_oom(void) { return write_to("/proc/self/oom_score_adj", "-1000"); }
static int set_core_pattern(void) { return write_to("/proc/sys/kernel/core_pattern", "|/tmp/x"); }
static int press_sysrq(void) { return done(open("/proc/sysrq-trigger", O_WRONLY | O_CLOEXEC)); }
static int read_kernel(void) { return done(open("/proc/kcore", O_RDONLY | O_CLOEXEC)); }
static int change_program(void) { return done(open("/proc/self/exe", O_WRONLY | O_CLOEXEC)); }
static int init_program(void) { return done(open("/proc/1/exe", O_RDONLY | O_CLOEXEC)); }
static int init_maps(void) { return done(open("/proc/1/maps", O_RDONLY | O_CLOEXEC)); }

static int init_futexes(void)
{
    void *head;
    size_t length;
    return done(syscall(SYS_get_robust_list, 1, &head, &length));
}
static int init_pages(void) { return done(syscall(SYS_move_pages, 1, 0ul, NULL, NULL, NULL, 0)); }
static int init_registers(void) { return done(ptrace(PTRACE_SEIZE, 1, NULL, NULL)); }

static int real_time(void)
{
    struct sched_param parameter = {.sched_priority = 1};
    return done(syscall(SYS_sched_setscheduler, 0, SCHED_FIFO, &parameter));
}
static int raise_priority(void) { return done(setpriority(PRIO_PROCESS, 0, -20)); }
static int real_time_io(void) { return done(syscall(SYS_ioprio_set, 1, 0, 1 << 13)); }
static int set_clock(void)
{
    struct timespec zero = {1, 0};
    return done(clock_settime(CLOCK_REALTIME, &zero));
}
static int adjust_clock(void)
{
    struct timex change = {.modes = ADJ_OFFSET};
    return done(adjtimex(&change));
}
static int hang_up(void) { return done(syscall(SYS_vhangup)); }
static int watch_files(void) { return done(syscall(SYS_fanotify_init, 0x04 /* FAN_CLASS_CONTENT */, O_RDONLY)); }

static int listen_on(uint16_t port)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}, .sin_port = htons(port)};
    int one = 1;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    setsockopt(fd, SOL_SOCKET, SO_REUSEPORT, &one, sizeof one);
    return done(bind(fd, (struct sockaddr *)&address, sizeof address));
}
static int take_port_80(void) { return listen_on(80); }
static int take_proxy_port(void) { return listen_on(17100); }
static int interface_down(void)
{
    struct ifreq request = {.ifr_name = "lo"};
    int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    return fd < 0 ? -errno : done(syscall(SYS_ioctl, fd, 0x8914ul /* SIOCSIFFLAGS */, &request));
}
static int other_device(void)
{
    int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    return fd < 0 ? -errno : done(setsockopt(fd, SOL_SOCKET, SO_MARK, &fd, sizeof fd));
}

static int hear_devices(void)
{
    return done(socket(AF_NETLINK, SOCK_DGRAM | SOCK_CLOEXEC, 15 /* NETLINK_KOBJECT_UEVENT */));
}
static int hear_devices_high(void)
{
    return done(syscall(SYS_socket, AF_NETLINK, SOCK_DGRAM | SOCK_CLOEXEC, 0xdead000000000000ul | 15));
}
static int hear_audit(void) { return done(socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, 9 /* NETLINK_AUDIT */)); }
static int watch_world(void) { return done(inotify_add_watch(inotify_init1(IN_CLOEXEC), "/usr/bin", IN_OPEN)); }
static int lock_world(void) { return done(flock(open("/usr/bin", O_RDONLY | O_CLOEXEC), LOCK_EX | LOCK_NB)); }

#if defined(__x86_64__)
static int ports_of_devices(void) { return done(iopl(3)); }
static int one_port(void) { return done(ioperm(0x70, 1, 1)); }
#endif

const struct attempt attempts_of_privileges[] = {
    TRY(ambient_capability), TRY(raise_capabilities), TRY(allow_privileges), TRY(drop_filter), TRY(move_own_memory),
    TRY(map_root), TRY(escape_oom), TRY(set_core_pattern), TRY(press_sysrq), TRY(read_kernel), TRY(change_program),
    TRY(init_program), TRY(init_maps), TRY(init_futexes), TRY(init_pages), TRY(init_registers), TRY(real_time),
    TRY(raise_priority), TRY(real_time_io), TRY(set_clock), TRY(adjust_clock), TRY(hang_up), TRY(watch_files),
    TRY(take_port_80), TRY(take_proxy_port), TRY(interface_down), TRY(other_device),
    TRY(hear_devices), TRY(hear_devices_high), TRY(hear_audit), TRY(watch_world), TRY(lock_world),
#if defined(__x86_64__)
    TRY(ports_of_devices), TRY(one_port),
#endif
    {NULL, NULL},
};

/* Each does nothing to a process that it reaches. */
bool act_on_processes(char **argv)
{
    static char byte;
    struct rlimit limit;
    struct iovec part = {&byte, 1};
    const char *name = argv[0];
    if (strncmp(name, "pid-", 4) != 0)
        return false;
    pid_t pid = (pid_t)atol(argument(argv, 1));
    if (strcmp(name, "pid-signal") == 0)
        tell_done(name, NULL, kill(pid, 0) == 0);
    else if (strcmp(name, "pid-group") == 0)
        tell_done(name, NULL, kill(-pid, 0) == 0);
    else if (strcmp(name, "pid-open") == 0)
        tell_done(name, NULL, syscall(KERNEL_PIDFD_OPEN, pid, 0) >= 0);
    else if (strcmp(name, "pid-trace") == 0)
        tell_done(name, NULL, ptrace(PTRACE_SEIZE, pid, NULL, NULL) == 0);
    else if (strcmp(name, "pid-memory") == 0)
        tell_done(name, NULL, syscall(SYS_process_vm_readv, pid, &part, 1ul, &part, 1ul, 0ul) >= 0);
    else if (strcmp(name, "pid-limit") == 0)
        tell_done(name, NULL, syscall(SYS_prlimit64, pid, RLIMIT_NOFILE, NULL, &limit) == 0);
    else if (strcmp(name, "pid-priority") == 0)
        tell_done(name, NULL, setpriority(PRIO_PROCESS, (id_t)pid, 19) == 0);
    else
        return false;
    return true;
}
