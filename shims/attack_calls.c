/* Attempts that must fail in a view, most of them in an environment too, and their harmless siblings that must not.
 *
 * Each returns 0 or -errno, and runs in a child of its own: what it changes ends with it. */
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/personality.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "kernel.h"
#include "attack.h"

enum {
    NR_PIDFD_SEND_SIGNAL = 424,
    NR_IO_URING_SETUP = 425,
    NR_IO_URING_ENTER = 426,
    NR_IO_URING_REGISTER = 427,
    NR_OPEN_TREE = 428,
    NR_FSPICK = 433,
    NR_CLONE3 = 435,
    NR_PIDFD_GETFD = 438,
    NR_MOUNT_SETATTR = 442,
    NR_FCHMODAT2 = 452,
    NR_OPEN_TREE_ATTR = 467,
};

int done(long result)
{
    return result < 0 ? -errno : 0;
}

static int unshare_one(int flag)
{
    return done(unshare(flag));
}

static int clone_one(unsigned long flag)
{
    long pid = syscall(SYS_clone, flag | SIGCHLD, 0, 0, 0, 0);
    if (pid == 0)
        _exit(0);
    return done(pid);
}

#define UNSHARE(name, flag) \
    static int unshare_##name(void) { return unshare_one(flag); } \
    static int clone_##name(void) { return clone_one(flag); }
UNSHARE(user, CLONE_NEWUSER)
UNSHARE(mount, CLONE_NEWNS)
UNSHARE(pid, CLONE_NEWPID)
UNSHARE(net, CLONE_NEWNET)
UNSHARE(ipc, CLONE_NEWIPC)
UNSHARE(uts, CLONE_NEWUTS)
UNSHARE(cgroup, CLONE_NEWCGROUP)

static int unshare_time(void) { return unshare_one(0x80); }
static int unshare_files(void) { return unshare_one(CLONE_FILES); }
static int clone_plain(void) { return clone_one(0); }

/* The upper half of the register belongs to the caller; the kernel does not look at it. */
static int unshare_user_high(void)
{
    return done(syscall(SYS_unshare, 0xdead000000000000ul | (unsigned long)CLONE_NEWUSER));
}

static int clone3_plain(void)
{
    struct {
        uint64_t flags, pidfd, child_tid, parent_tid, exit_signal, stack, stack_size, tls;
    } arguments = {.exit_signal = SIGCHLD};
    long pid = syscall(NR_CLONE3, &arguments, sizeof arguments);
    if (pid == 0)
        _exit(0);
    return done(pid);
}

static int set_namespace(void)
{
    int fd = open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC);
    return fd < 0 ? -errno : done(setns(fd, 0));
}

static int mount_tmpfs(void) { return done(mount("none", "/tmp", "tmpfs", 0, NULL)); }
static int remount_exec(void) { return done(mount(NULL, "/", NULL, MS_REMOUNT | MS_BIND, NULL)); }
static int bind_mount(void) { return done(mount("/usr", "/tmp", NULL, MS_BIND, NULL)); }
static int unmount(void) { return done(umount2("/etc", MNT_DETACH)); }
static int pivot(void) { return done(syscall(SYS_pivot_root, ".", ".")); }
static int change_root(void) { return done(chroot("/tmp")); }
static int tree_clone(void) { return done(syscall(NR_OPEN_TREE, AT_FDCWD, "/usr", 1)); }
static int tree_clone_attr(void) { return done(syscall(NR_OPEN_TREE_ATTR, AT_FDCWD, "/usr", 1, NULL, 0)); }
static int tree_move(void) { return done(syscall(KERNEL_MOVE_MOUNT, AT_FDCWD, "/etc", AT_FDCWD, "/tmp", 0)); }
static int fs_open(void) { return done(syscall(KERNEL_FSOPEN, "tmpfs", 0)); }
static int fs_config(void) { return done(syscall(KERNEL_FSCONFIG, 0, KERNEL_FSCONFIG_CMD_CREATE, NULL, NULL, 0)); }
static int fs_mount(void) { return done(syscall(KERNEL_FSMOUNT, 0, 0, 0)); }
static int fs_pick(void) { return done(syscall(NR_FSPICK, AT_FDCWD, "/", 0)); }

static int tree_attributes(void)
{
    struct {
        uint64_t set, clear, propagation, userns;
    } attributes = {.clear = 8 /* MOUNT_ATTR_NOEXEC */};
    return done(syscall(NR_MOUNT_SETATTR, AT_FDCWD, "/tmp", 0, &attributes, sizeof attributes));
}

static int open_two(void)
{
    struct kernel_open_how how = {.flags = O_PATH | O_CLOEXEC};
    return done(syscall(KERNEL_OPENAT2, AT_FDCWD, "/", &how, sizeof how));
}

static int name_to_handle(void)
{
    struct {
        unsigned size;
        int type;
        char bytes[128];
    } handle = {.size = 128};
    int mount_id;
    return done(syscall(SYS_name_to_handle_at, AT_FDCWD, "/usr", &handle, &mount_id, 0));
}

static int open_by_handle(void)
{
    struct {
        unsigned size;
        int type;
        char bytes[8];
    } handle = {.size = 8, .type = 1};
    return done(syscall(SYS_open_by_handle_at, AT_FDCWD, &handle, O_RDONLY));
}

static int trace_init(void) { return done(ptrace(PTRACE_ATTACH, 1, NULL, NULL)); }
static int trace_me(void) { return done(ptrace(PTRACE_TRACEME, 0, NULL, NULL)); }

static int read_memory(void)
{
    static char byte;
    struct iovec part = {&byte, 1};
    return done(process_vm_readv(getpid(), &part, 1, &part, 1, 0));
}

static int write_memory(void)
{
    static char byte;
    struct iovec part = {&byte, 1};
    return done(process_vm_writev(getpid(), &part, 1, &part, 1, 0));
}

static int take_descriptor(void)
{
    int pidfd = (int)syscall(KERNEL_PIDFD_OPEN, getpid(), 0);
    return pidfd < 0 ? -errno : done(syscall(NR_PIDFD_GETFD, pidfd, 0, 0));
}

static int compare_processes(void) { return done(syscall(SYS_kcmp, getpid(), 1, 0, 0, 0)); }
/* Goes through and does nothing: no signal from inside ends the first process of a pid namespace. */
static int kill_init(void) { return done(kill(1, SIGKILL)); }
static int stop_init(void) { return done(kill(1, SIGSTOP)); }
static int kill_init_pidfd(void)
{
    int pidfd = (int)syscall(KERNEL_PIDFD_OPEN, 1, 0);
    return pidfd < 0 ? -errno : done(syscall(NR_PIDFD_SEND_SIGNAL, pidfd, SIGKILL, NULL, 0));
}
static int limit_init(void)
{
    struct rlimit none = {0, 0};
    return done(prlimit(1, RLIMIT_NOFILE, &none, NULL));
}

static int init_root(void) { return done(open("/proc/1/root/usr", O_RDONLY | O_CLOEXEC)); }
static int init_cwd(void) { return done(open("/proc/1/cwd", O_RDONLY | O_CLOEXEC)); }
static int init_memory(void) { return done(open("/proc/1/mem", O_RDWR | O_CLOEXEC)); }
static int init_environment(void) { return done(open("/proc/1/environ", O_RDONLY | O_CLOEXEC)); }
static int init_descriptors(void) { return done(open("/proc/1/fd", O_RDONLY | O_DIRECTORY | O_CLOEXEC)); }
static int init_namespace(void) { return done(open("/proc/1/ns/mnt", O_RDONLY | O_CLOEXEC)); }
static int proc_sys(void) { return done(open("/proc/sys/vm/memfd_noexec", O_WRONLY | O_CLOEXEC)); }

#define SOCKET(name, family, type) \
    static int socket_##name(void) { return done(socket(family, type | SOCK_CLOEXEC, 0)); }
SOCKET(unix, AF_UNIX, SOCK_STREAM)
SOCKET(inet, AF_INET, SOCK_STREAM)
SOCKET(inet6, AF_INET6, SOCK_STREAM)
SOCKET(netlink, AF_NETLINK, SOCK_RAW)
SOCKET(unspecified, AF_UNSPEC, SOCK_STREAM)
SOCKET(ax25, AF_AX25, SOCK_DGRAM)
SOCKET(ipx, AF_IPX, SOCK_DGRAM)
SOCKET(appletalk, AF_APPLETALK, SOCK_DGRAM)
SOCKET(x25, AF_X25, SOCK_SEQPACKET)
SOCKET(packet, AF_PACKET, SOCK_RAW)
SOCKET(key, AF_KEY, SOCK_RAW)
SOCKET(rds, AF_RDS, SOCK_SEQPACKET)
SOCKET(llc, AF_LLC, SOCK_DGRAM)
SOCKET(can, AF_CAN, SOCK_RAW)
SOCKET(tipc, AF_TIPC, SOCK_STREAM)
SOCKET(bluetooth, AF_BLUETOOTH, SOCK_STREAM)
SOCKET(rxrpc, AF_RXRPC, SOCK_DGRAM)
SOCKET(phonet, AF_PHONET, SOCK_DGRAM)
SOCKET(alg, AF_ALG, SOCK_SEQPACKET)
SOCKET(nfc, AF_NFC, SOCK_SEQPACKET)
SOCKET(vsock, AF_VSOCK, SOCK_STREAM)
SOCKET(kcm, AF_KCM, SOCK_DGRAM)
SOCKET(qipcrtr, AF_QIPCRTR, SOCK_DGRAM)
SOCKET(smc, AF_SMC, SOCK_STREAM)
SOCKET(xdp, AF_XDP, SOCK_RAW)
SOCKET(beyond, 200, SOCK_STREAM)

static int socket_raw(void) { return done(socket(AF_INET, SOCK_RAW | SOCK_CLOEXEC, IPPROTO_ICMP)); }

static int socket_vsock_high(void)
{
    return done(syscall(SYS_socket, 0xdead000000000000ul | AF_VSOCK, SOCK_STREAM | SOCK_CLOEXEC, 0));
}

static int socketpair_vsock(void)
{
    int fds[2];
    return done(socketpair(AF_VSOCK, SOCK_STREAM, 0, fds));
}

static int key_control(void) { return done(syscall(SYS_keyctl, 0, -3, 0, 0, 0)); }
static int key_add(void) { return done(syscall(SYS_add_key, "user", "x", "x", 1, -3)); }
static int key_request(void) { return done(syscall(SYS_request_key, "user", "x", NULL, 0)); }
static int bpf_call(void) { return done(syscall(SYS_bpf, 0, NULL, 0)); }
static int io_uring(void)
{
    char parameters[120] = {0};
    return done(syscall(NR_IO_URING_SETUP, 1, parameters));
}
static int io_uring_enter(void) { return done(syscall(NR_IO_URING_ENTER, -1, 0, 0, 0, NULL, 0)); }
static int io_uring_register(void) { return done(syscall(NR_IO_URING_REGISTER, -1, 0, NULL, 0)); }
static int user_faults(void) { return done(syscall(SYS_userfaultfd, 1 /* UFFD_USER_MODE_ONLY */)); }
static int perf(void)
{
    char attributes[128] = {0};
    return done(syscall(SYS_perf_event_open, attributes, 0, -1, -1, 0));
}

static int memfd(unsigned flags) { return done(syscall(SYS_memfd_create, "x", flags)); }
static int memfd_plain(void) { return memfd(0); }
static int memfd_executable(void) { return memfd(0x10); }
static int memfd_sealed(void) { return memfd(0x08); }

static int read_implies_exec(void) { return done(personality(READ_IMPLIES_EXEC)); }
static int read_implies_exec_32(void) { return done(personality(PER_LINUX32 | READ_IMPLIES_EXEC)); }
static int ask_personality(void) { return done(personality(0xffffffff)); }

static int set_uid(void) { return done(setresuid(0, 0, 0)); }
static int set_gid(void) { return done(setresgid(0, 0, 0)); }
static int set_groups(void)
{
    gid_t none = 0;
    return done(syscall(SYS_setgroups, 1, &none));
}
static int raise_core(void)
{
    struct rlimit all = {RLIM_INFINITY, RLIM_INFINITY};
    return done(setrlimit(RLIMIT_CORE, &all));
}
static int set_host_name(void) { return done(sethostname("x", 1)); }
static int kernel_log(void) { return done(syscall(SYS_syslog, 10, NULL, 0)); }
static int restart(void) { return done(syscall(SYS_reboot, 0, 0, 0, NULL)); }
static int account(void) { return done(acct(NULL)); }
static int swap(void) { return done(syscall(SYS_swapon, "/dev/null", 0)); }
static int load_module(void) { return done(syscall(SYS_finit_module, -1, "", 0)); }
static int load_kernel(void) { return done(syscall(SYS_kexec_load, 0, 0, NULL, 0)); }
static int quota(void) { return done(syscall(SYS_quotactl, 0, NULL, 0, NULL)); }

static int map_zero(void)
{
    int fd = open("/dev/zero", O_RDWR | O_CLOEXEC);
    return fd < 0 ? -errno : mmap(NULL, 4096, PROT_READ | PROT_EXEC, MAP_PRIVATE, fd, 0) == MAP_FAILED ? -errno : 0;
}
/* Stays possible, and must: a just-in-time compiler lives on it, as Codex's code mode has one. */
static int map_anonymous(void)
{
    int all = PROT_READ | PROT_WRITE | PROT_EXEC;
    return mmap(NULL, 4096, all, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) == MAP_FAILED ? -errno : 0;
}

#if defined(__x86_64__)
static int call_i386(void)
{
    long result;
    __asm__ volatile("int $0x80" : "=a"(result) : "a"(20 /* getpid */) : "memory", "r8", "r9", "r10", "r11");
    return result < 0 && result > -4096 ? (int)result : 0;
}
static int call_x32(void) { return done(syscall(0x40000000 | 39 /* getpid */)); }
#endif

const struct attempt attempts_of_calls[] = {
    TRY(unshare_user), TRY(unshare_mount), TRY(unshare_pid), TRY(unshare_net), TRY(unshare_ipc), TRY(unshare_uts),
    TRY(unshare_cgroup), TRY(unshare_time), TRY(unshare_user_high), TRY(unshare_files),
    TRY(clone_user), TRY(clone_mount), TRY(clone_pid), TRY(clone_net), TRY(clone_ipc), TRY(clone_uts),
    TRY(clone_cgroup), TRY(clone_plain), TRY(clone3_plain), TRY(set_namespace),
    TRY(mount_tmpfs), TRY(remount_exec), TRY(bind_mount), TRY(unmount), TRY(pivot), TRY(change_root), TRY(tree_clone),
    TRY(tree_clone_attr), TRY(tree_move), TRY(fs_open), TRY(fs_config), TRY(fs_mount), TRY(fs_pick),
    TRY(tree_attributes), TRY(open_two), TRY(name_to_handle), TRY(open_by_handle),
    TRY(trace_init), TRY(trace_me), TRY(read_memory), TRY(write_memory), TRY(take_descriptor), TRY(compare_processes),
    TRY(kill_init), TRY(stop_init), TRY(kill_init_pidfd), TRY(limit_init), TRY(init_root), TRY(init_cwd),
    TRY(init_memory), TRY(init_environment), TRY(init_descriptors), TRY(init_namespace), TRY(proc_sys),
    TRY(socket_unix), TRY(socket_inet), TRY(socket_inet6), TRY(socket_netlink), TRY(socket_raw),
    TRY(socket_unspecified), TRY(socket_ax25), TRY(socket_ipx), TRY(socket_appletalk), TRY(socket_x25),
    TRY(socket_packet), TRY(socket_key), TRY(socket_rds), TRY(socket_llc), TRY(socket_can), TRY(socket_tipc),
    TRY(socket_bluetooth), TRY(socket_rxrpc), TRY(socket_phonet), TRY(socket_alg), TRY(socket_nfc), TRY(socket_vsock),
    TRY(socket_kcm), TRY(socket_qipcrtr), TRY(socket_smc), TRY(socket_xdp), TRY(socket_beyond),
    TRY(socket_vsock_high), TRY(socketpair_vsock),
    TRY(key_control), TRY(key_add), TRY(key_request), TRY(bpf_call), TRY(io_uring), TRY(io_uring_enter),
    TRY(io_uring_register), TRY(user_faults), TRY(perf),
    TRY(memfd_plain), TRY(memfd_executable), TRY(memfd_sealed),
    TRY(read_implies_exec), TRY(read_implies_exec_32), TRY(ask_personality),
    TRY(set_uid), TRY(set_gid), TRY(set_groups), TRY(raise_core), TRY(set_host_name), TRY(kernel_log), TRY(restart),
    TRY(account), TRY(swap), TRY(load_module), TRY(load_kernel), TRY(quota),
    TRY(map_zero), TRY(map_anonymous),
#if defined(__x86_64__)
    TRY(call_i386), TRY(call_x32),
#endif
    {NULL, NULL},
};
