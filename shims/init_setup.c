#include "init.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "kernel.h"

void receive_setup(struct setup *setup)
{
    struct frame_header header;
    if (wire_receive(SETUP_FD, &header, &setup->body, NULL, 0) != 1 || header.type != FRAME_SETUP) {
        errno = EPROTO;
        fail("receive the set-up");
    }
    struct wire_reader reader = {setup->body, header.length, false};
    setup->flags = wire_read_u32(&reader);
    setup->uid = wire_read_u32(&reader);
    setup->gid = wire_read_u32(&reader);
    setup->hostname = wire_copy_string(wire_read_string(&reader));
    setup->ports = wire_read_vector(&reader);
    setup->executables = wire_read_vector(&reader);
    setup->seccomp = wire_read_blob(&reader);
    if (!wire_read_end(&reader) || setup->hostname == NULL) {
        errno = EPROTO;
        fail("read the set-up");
    }
}

void become_first_process(void)
{
    /* CLONE_PARENT makes the new first process a child of the builder, so that nothing of this one remains. */
    long pid = syscall(SYS_clone, CLONE_PARENT | CLONE_NEWPID | SIGCHLD, 0, 0, 0, 0);
    if (pid < 0)
        fail("make a pid namespace");
    if (pid > 0)
        _exit(0);
    if (prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) != 0)
        fail("close the first process to others");
}

static void raise_loopback(void)
{
    int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    struct ifreq request = {.ifr_name = "lo", .ifr_flags = IFF_UP | IFF_RUNNING};
    if (fd < 0 || ioctl(fd, SIOCSIFFLAGS, &request) != 0)
        fail("raise the loopback interface");
    close(fd);
}

void make_namespaces(const struct setup *setup)
{
    if (unshare(CLONE_NEWNS | CLONE_NEWIPC | CLONE_NEWUTS | CLONE_NEWCGROUP) != 0)
        fail("make mount, ipc, uts and cgroup namespaces");
    if (mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0)
        fail("make every mount private");
    if (sethostname(setup->hostname, strlen(setup->hostname)) != 0)
        fail("set the host name");
    if (setup->flags & SETUP_PRIVATE_NETWORK) {
        if (unshare(CLONE_NEWNET) != 0)
            fail("make a network namespace");
        raise_loopback();
    }
}

unsigned open_listeners(const struct setup *setup, int listeners[MAX_LISTENERS])
{
    unsigned count = 0;
    for (; setup->ports[count] != NULL; count++) {
        struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
        address.sin_port = htons((uint16_t)strtoul(setup->ports[count], NULL, 10));
        errno = E2BIG;
        if (count == MAX_LISTENERS)
            fail("open more listeners than there is room for");
        int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (fd < 0 || bind(fd, (struct sockaddr *)&address, sizeof address) != 0 || listen(fd, SOMAXCONN) != 0)
            fail("open a listener of the gateway");
        listeners[count] = fd;
    }
    return count;
}

void forbid_executable_memfds(void)
{
    /* Per pid namespace since Linux 6.6; still through the outer /proc, for the view's own has no sys. */
    int fd = open("/proc/sys/vm/memfd_noexec", O_WRONLY | O_CLOEXEC);
    if (fd < 0 || write(fd, "2", 1) != 1)
        fail("set vm.memfd_noexec");
    close(fd);
}

static void move_mount_to(int mount_fd, int target_fd, const char *target)
{
    unsigned flags = KERNEL_MOVE_MOUNT_F_EMPTY_PATH | KERNEL_MOVE_MOUNT_T_EMPTY_PATH;
    if (syscall(KERNEL_MOVE_MOUNT, mount_fd, "", target_fd, "", flags) != 0)
        fail(target);
}

static void attach(int root, int mount_fd, const char *target)
{
    /* Targets are canonical: a link in the way means that the world changed since it was looked at. */
    struct kernel_open_how how = {
        .flags = O_PATH | O_CLOEXEC | O_NOFOLLOW,
        .resolve = KERNEL_RESOLVE_IN_ROOT | KERNEL_RESOLVE_NO_SYMLINKS | KERNEL_RESOLVE_NO_MAGICLINKS,
    };
    int fd = (int)syscall(KERNEL_OPENAT2, root, target, &how, sizeof how);
    if (fd < 0)
        fail(target);
    move_mount_to(mount_fd, fd, target);
    close(fd);
    close(mount_fd);
}

static int make_proc(bool subset)
{
    int fd = (int)syscall(KERNEL_FSOPEN, "proc", 1u);
    if (fd < 0)
        fail("open the proc filesystem");
    if (subset && (syscall(KERNEL_FSCONFIG, fd, KERNEL_FSCONFIG_SET_STRING, "subset", "pid", 0) != 0 ||
                   syscall(KERNEL_FSCONFIG, fd, KERNEL_FSCONFIG_SET_STRING, "hidepid", "invisible", 0) != 0))
        fail("restrict /proc");
    if (syscall(KERNEL_FSCONFIG, fd, KERNEL_FSCONFIG_CMD_CREATE, NULL, NULL, 0) != 0)
        fail("make /proc");
    unsigned attributes = KERNEL_MOUNT_ATTR_NOSUID | KERNEL_MOUNT_ATTR_NODEV | KERNEL_MOUNT_ATTR_NOEXEC;
    int mount_fd = (int)syscall(KERNEL_FSMOUNT, fd, 1u, attributes);
    if (mount_fd < 0)
        fail("mount /proc");
    close(fd);
    return mount_fd;
}

void attach_tree(const struct setup *setup)
{
    struct frame_header header;
    unsigned char *body;
    int fds[WIRE_MAX_FDS];
    if (wire_receive(SETUP_FD, &header, &body, fds, WIRE_MAX_FDS) != 1 || header.type != FRAME_TREE || header.fds < 1) {
        /* The builder has failed and says why to the daemon itself. */
        _exit(125);
    }
    struct wire_reader reader = {body, header.length, false};
    char **targets = wire_read_vector(&reader);
    unsigned count = 0;
    while (targets != NULL && targets[count] != NULL)
        count++;
    if (!wire_read_end(&reader) || count + 1u != header.fds) {
        errno = EPROTO;
        fail("read the tree");
    }
    int root = fds[0];
    int slash = open("/", O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (slash < 0)
        fail("open the old root");
    move_mount_to(root, slash, "attach the root");
    close(slash);
    for (unsigned i = 0; i < count; i++)
        attach(root, fds[i + 1], targets[i]);
    attach(root, make_proc((setup->flags & SETUP_PROC_SUBSET) != 0), "/proc");
    free(targets);
    free(body);
    if (fchdir(root) != 0 || syscall(SYS_pivot_root, ".", ".") != 0)
        fail("change the root");
    if (umount2(".", MNT_DETACH) != 0 || chdir("/") != 0)
        fail("leave the old root");
    close(root);
}

static void allow(int ruleset, const char *path, uint64_t access)
{
    int fd = open(path, O_PATH | O_CLOEXEC | O_NOFOLLOW);
    struct kernel_landlock_path_beneath rule = {access, fd};
    if (fd < 0 || syscall(KERNEL_LANDLOCK_ADD_RULE, ruleset, KERNEL_LANDLOCK_RULE_PATH_BENEATH, &rule, 0u) != 0)
        fail(path);
    close(fd);
}

/* A directory's descriptor leads into the tree that it was opened in. Shims and sockets carry descriptors between view
 * and environment, where they outlive the view, and with the Session home's the environment would write the next
 * launch's configuration. What does not lie below this tree's own root can only be read. */
static void restrict_files(const struct setup *setup)
{
    bool guards_execution = (setup->flags & SETUP_LANDLOCK) != 0;
    bool guards_writing = (setup->flags & SETUP_OWN_FILES) != 0;
    uint64_t own = 0;
    long version = syscall(KERNEL_LANDLOCK_CREATE_RULESET, NULL, (size_t)0, KERNEL_LANDLOCK_CREATE_RULESET_VERSION);
    if (version < 1)
        fail("ask for the version of Landlock");
    if (guards_writing)
        own |= KERNEL_LANDLOCK_ACCESS_FS_WRITE_FILE | KERNEL_LANDLOCK_ACCESS_FS_CHANGE_DIRECTORY;
    if (guards_writing && version >= 3)
        own |= KERNEL_LANDLOCK_ACCESS_FS_TRUNCATE;
    /* A ruleset that does not handle REFER forbids every rename and link from one directory to another (EXDEV). */
    if (version >= 2)
        own |= KERNEL_LANDLOCK_ACCESS_FS_REFER;
    struct kernel_landlock_ruleset attributes = {
        .handled_access_fs = own | (guards_execution ? KERNEL_LANDLOCK_ACCESS_FS_EXECUTE : 0u),
        /* With the host's network a command would reach the abstract sockets of its services, which no file guards. */
        .scoped = version >= 6 ? KERNEL_LANDLOCK_SCOPE_ABSTRACT_UNIX_SOCKET : 0u,
    };
    int ruleset = (int)syscall(KERNEL_LANDLOCK_CREATE_RULESET, &attributes, sizeof attributes, 0u);
    if (ruleset < 0)
        fail("make a Landlock ruleset");
    if (own != 0)
        allow(ruleset, "/", own);
    if (guards_writing) {
        /* What descriptors 0 to 2 often are: a command may open them again, by /dev/stdout. View and environment share
         * these two, the terminals for the Session alone, and neither holds a file. */
        allow(ruleset, "/dev/pts", KERNEL_LANDLOCK_ACCESS_FS_WRITE_FILE);
        allow(ruleset, "/dev/null", KERNEL_LANDLOCK_ACCESS_FS_WRITE_FILE);
    }
    for (char *const *executable = setup->executables; guards_execution && *executable != NULL; executable++)
        allow(ruleset, *executable, KERNEL_LANDLOCK_ACCESS_FS_EXECUTE);
    if (syscall(KERNEL_LANDLOCK_RESTRICT_SELF, ruleset, 0u) != 0)
        fail("enter the Landlock ruleset");
    close(ruleset);
}

static void drop_capabilities(void)
{
    unsigned long capability = 0;
    while (prctl(PR_CAPBSET_DROP, capability, 0, 0, 0) == 0)
        capability++;
    /* EINVAL is the kernel's word for one that it does not know; it knows those of Linux 5.9, or is too old. */
    if (errno != EINVAL || capability <= KERNEL_CAP_CHECKPOINT_RESTORE)
        fail("empty the bounding set");
    if (prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0) != 0)
        fail("clear the ambient capabilities");
}

static void install_filter(struct wire_string seccomp)
{
    /* The blob lies unaligned in the set-up's body. */
    struct kernel_sock_filter *filter = malloc(seccomp.length + 1u);
    if (filter == NULL)
        fail("copy the seccomp filter");
    memcpy(filter, seccomp.bytes, seccomp.length);
    struct kernel_sock_program program = {(unsigned short)(seccomp.length / sizeof *filter), filter};
    if (prctl(PR_SET_SECCOMP, KERNEL_SECCOMP_MODE_FILTER, &program, 0, 0) != 0)
        fail("install the seccomp filter");
    free(filter);
}

/* Never above what the daemon itself may have. */
static void set_limit(int resource, rlim_t most, const char *step)
{
    struct rlimit limit;
    if (getrlimit(resource, &limit) != 0)
        fail(step);
    if (limit.rlim_max > most)
        limit.rlim_max = most;
    limit.rlim_cur = limit.rlim_max;
    if (setrlimit(resource, &limit) != 0)
        fail(step);
}

void drop_privileges(const struct setup *setup)
{
    set_limit(RLIMIT_CORE, 0, "forbid core dumps");
    set_limit(RLIMIT_NOFILE, MOST_FILES, "limit the open files");
    set_limit(RLIMIT_NPROC, MOST_PROCESSES, "limit the processes");
    drop_capabilities();
    if (!(setup->flags & SETUP_ROOTLESS)) {
        if (setgroups(0, NULL) != 0 || setresgid(setup->gid, setup->gid, setup->gid) != 0 ||
            setresuid(setup->uid, setup->uid, setup->uid) != 0)
            fail("become the user of the Session");
    }
    struct kernel_capability_header header = {KERNEL_CAPABILITY_VERSION_3, 0};
    struct kernel_capability_data none[2] = {{0, 0, 0}, {0, 0, 0}};
    if (syscall(SYS_capset, &header, none) != 0)
        fail("give up every capability");
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0)
        fail("forbid new privileges");
    /* Changing the uid made the process dumpable again: /proc/1 would be open to the whole view. */
    if (prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) != 0)
        fail("close /proc/1");
    if (setup->flags & (SETUP_LANDLOCK | SETUP_OWN_FILES))
        restrict_files(setup);
    install_filter(setup->seccomp);
}
