"""The catalogue's system calls: each fails whatever it is called with, in every process of a view or an environment."""

from __future__ import annotations

from typing import Final

from agenthost.attack.attack import Attack, Where, call

_NAMESPACE: Final = "namespaces"
_MOUNT: Final = "mounts"
_PROCESS: Final = "processes"
_FIRST: Final = "first process"
_SOCKET: Final = "sockets"
_KERNEL: Final = "kernel surface"
_MEMORY: Final = "execution"
_TERMINAL: Final = "terminals"
_FILE: Final = "dangerous files"
_PRIVILEGE: Final = "privileges"

_KINDS: Final = ("user", "mount", "pid", "net", "ipc", "uts", "cgroup")
_FAMILIES: Final = (
    *("unspecified", "ax25", "ipx", "appletalk", "x25", "packet", "key", "rds", "llc", "can", "tipc", "bluetooth"),
    *("rxrpc", "phonet", "alg", "nfc", "vsock", "kcm", "qipcrtr", "smc", "xdp", "beyond"),
)
_NO_FAMILY: Final = "EAFNOSUPPORT"
_CLOSED: Final = Where("ENOENT", "EACCES")
"""Files of /proc: a view's shows its own processes alone, an environment's first process is not dumpable."""

_NAMESPACES: Final = (
    *(call(f"unshare_{n}", _NAMESPACE, f"unshares a {n} namespace", "EPERM", control=n == "user") for n in _KINDS),
    *(call(f"clone_{n}", _NAMESPACE, f"clones into a new {n} namespace", "EPERM", control=n == "user") for n in _KINDS),
    call("unshare_time", _NAMESPACE, "unshares a time namespace", "EPERM"),
    call("unshare_user_high", _NAMESPACE, "hides CLONE_NEWUSER below bits that the kernel ignores", "EPERM"),
    call("clone3_plain", _NAMESPACE, "uses clone3, whose flags no filter can read", "ENOSYS", control=True),
    call("set_namespace", _NAMESPACE, "enters a namespace by its descriptor", "EPERM"),
    call("map_root", _NAMESPACE, "writes a uid map for itself", "EPERM"),
)

_MOUNTS: Final = (
    call("mount_tmpfs", _MOUNT, "mounts a tmpfs over /tmp", "EPERM"),
    call("remount_exec", _MOUNT, "mounts / again without noexec", "EPERM"),
    call("bind_mount", _MOUNT, "binds /usr over /tmp", "EPERM"),
    call("unmount", _MOUNT, "unmounts /etc, and the mask with it", "EPERM"),
    call("pivot", _MOUNT, "changes its root with pivot_root", "EPERM"),
    call("change_root", _MOUNT, "changes its root with chroot", "EPERM"),
    call("tree_clone", _MOUNT, "clones a mount with open_tree", "EPERM"),
    call("tree_clone_attr", _MOUNT, "clones a mount with open_tree_attr", "EPERM"),
    call("tree_move", _MOUNT, "moves a mount away with move_mount", "EPERM"),
    call("tree_attributes", _MOUNT, "takes noexec from /tmp with mount_setattr", "EPERM"),
    call("fs_open", _MOUNT, "opens a new filesystem with fsopen", "EPERM"),
    call("fs_config", _MOUNT, "creates a filesystem with fsconfig", "EPERM"),
    call("fs_mount", _MOUNT, "makes a mount with fsmount", "EPERM"),
    call("fs_pick", _MOUNT, "takes a mounted filesystem with fspick", "EPERM"),
    call("open_two", _MOUNT, "uses openat2, whose mode no filter can read", "ENOSYS", control=True),
    call("name_to_handle", _MOUNT, "asks for a file handle", "EPERM", control=True),
    call("open_by_handle", _MOUNT, "opens a file by its handle, past every mount", "EPERM"),
)

_PROCESSES: Final = (
    call("trace_me", _PROCESS, "lets itself be traced", Where("EPERM", "ok"), control=True),
    call("read_memory", _PROCESS, "reads a process's memory", Where("EPERM", "ok"), control=True),
    call("write_memory", _PROCESS, "writes a process's memory", Where("EPERM", "ok"), control=True),
    call("take_descriptor", _PROCESS, "takes a descriptor out of a process", Where("EPERM", "ok"), control=True),
    call("compare_processes", _PROCESS, "compares its kernel objects with init's", "EPERM"),
)

_INIT: Final = (
    call("trace_init", _FIRST, "attaches to the first process", "EPERM"),
    call("init_registers", _FIRST, "seizes the first process", "EPERM"),
    call("kill_init", _FIRST, "kills the first process; the kernel drops the signal", "ok"),
    call("stop_init", _FIRST, "stops the first process; the kernel drops the signal", "ok"),
    call("kill_init_pidfd", _FIRST, "kills the first process by a pidfd; the kernel drops the signal", "ok"),
    call("limit_init", _FIRST, "takes the first process its descriptors with prlimit", "EPERM"),
    call("init_futexes", _FIRST, "asks for the first process's list of futexes", "EPERM"),
    call("init_pages", _FIRST, "moves the first process's memory", "EPERM"),
    call("init_root", _FIRST, "goes out through /proc/1/root", _CLOSED),
    call("init_cwd", _FIRST, "goes out through /proc/1/cwd", _CLOSED),
    call("init_memory", _FIRST, "opens /proc/1/mem", _CLOSED),
    call("init_environment", _FIRST, "reads /proc/1/environ", _CLOSED),
    call("init_descriptors", _FIRST, "lists /proc/1/fd", _CLOSED),
    call("init_namespace", _FIRST, "opens /proc/1/ns/mnt", _CLOSED),
    call("init_program", _FIRST, "opens /proc/1/exe", _CLOSED),
    call("init_maps", _FIRST, "reads /proc/1/maps", _CLOSED),
)

_SOCKETS: Final = (
    *(
        call(f"socket_{n}", _SOCKET, f"makes a socket of the family {n}", _NO_FAMILY, control=n == "vsock")
        for n in _FAMILIES
    ),
    call("socket_vsock_high", _SOCKET, "hides AF_VSOCK below bits that the kernel ignores", _NO_FAMILY, control=True),
    call("socketpair_vsock", _SOCKET, "makes a pair of AF_VSOCK sockets", _NO_FAMILY),
    call("socket_raw", _SOCKET, "makes a raw IP socket", "EPERM"),
    call("take_port_80", _SOCKET, "listens on a privileged port", "EACCES"),
    call("take_proxy_port", _SOCKET, "listens on the proxy's port", Where("EADDRINUSE", "ok")),
    call("interface_down", _SOCKET, "changes the loopback interface", "EPERM"),
    call("hear_devices", _SOCKET, "listens to the host's device events", "EPROTONOSUPPORT", control=True),
    call("hear_devices_high", _SOCKET, "hides their protocol below bits", "EPROTONOSUPPORT", control=True),
    call("hear_audit", _SOCKET, "listens to the host's audit log", "EPROTONOSUPPORT"),
    call("other_device", _SOCKET, "marks its packets for other routes", "EPERM"),
)

_SURFACE: Final = (
    call("key_control", _KERNEL, "looks into the session keyring", "ENOSYS", control=True),
    call("key_add", _KERNEL, "adds a key", "ENOSYS", control=True),
    call("key_request", _KERNEL, "requests a key", "ENOSYS"),
    call("bpf_call", _KERNEL, "loads a BPF object", "ENOSYS"),
    call("io_uring", _KERNEL, "makes an io_uring, past the filter", "ENOSYS", control=True),
    call("io_uring_enter", _KERNEL, "enters an io_uring", "ENOSYS"),
    call("io_uring_register", _KERNEL, "registers with an io_uring", "ENOSYS"),
    call("user_faults", _KERNEL, "handles its own page faults", "ENOSYS"),
    call("perf", _KERNEL, "opens a performance counter", "ENOSYS"),
    call("set_host_name", _KERNEL, "changes the host name", "EPERM"),
    call("kernel_log", _KERNEL, "reads the kernel's log", "EPERM"),
    call("restart", _KERNEL, "restarts the machine", "EPERM"),
    call("account", _KERNEL, "turns process accounting off", "EPERM"),
    call("swap", _KERNEL, "adds swap space", "EPERM"),
    call("load_module", _KERNEL, "loads a kernel module", "EPERM"),
    call("load_kernel", _KERNEL, "loads another kernel", "EPERM"),
    call("quota", _KERNEL, "changes quotas", "EPERM"),
    call("set_clock", _KERNEL, "sets the clock", "EPERM"),
    call("adjust_clock", _KERNEL, "adjusts the clock", "EPERM"),
    call("watch_files", _KERNEL, "decides on others' file accesses with fanotify", "EPERM"),
    call("ports_of_devices", _KERNEL, "asks for all I/O ports", "EPERM|ENOSYS", machine="x86_64"),
    call("one_port", _KERNEL, "asks for one I/O port", "EPERM|ENOSYS", machine="x86_64"),
    call("call_i386", _KERNEL, "makes a 32-bit system call", "ENOSYS", machine="x86_64"),
    call("call_x32", _KERNEL, "makes an x32 system call", "ENOSYS", machine="x86_64"),
    call("watch_world", _KERNEL, "watches who opens files of /usr, which stays possible", "ok", control=True),
    call("lock_world", _KERNEL, "locks a directory of /usr, which stays possible", "ok", control=True),
    call("proc_sys", _KERNEL, "opens a setting of the kernel for writing", _CLOSED),
    call("set_core_pattern", _KERNEL, "names a program that the kernel runs for core dumps", _CLOSED),
    call("press_sysrq", _KERNEL, "opens /proc/sysrq-trigger", Where("ENOENT", "EACCES|ENOENT")),
    call("read_kernel", _KERNEL, "opens /proc/kcore", Where("ENOENT", "EACCES|ENOENT")),
)

_EXECUTION: Final = (
    call("memfd_plain", _MEMORY, "makes a memory file", Where("EACCES", "ok"), control=True),
    call("memfd_executable", _MEMORY, "makes an executable memory file", Where("EACCES", "ok"), control=True),
    call("read_implies_exec", _MEMORY, "makes what is readable executable", Where("EPERM", "ok"), control=True),
    call("read_implies_exec_32", _MEMORY, "does so as a 32-bit program", Where("EPERM", "ok"), control=True),
    call("map_zero", _MEMORY, "maps /dev/zero as a program", "EPERM", control=True),
    call("change_program", _MEMORY, "opens its own program for writing", "EACCES|EROFS|ETXTBSY"),
)

_TERMINALS: Final = (
    call("terminal_input", _TERMINAL, "types into its terminal with TIOCSTI", "EPERM"),
    call("terminal_input_high", _TERMINAL, "hides TIOCSTI below bits that the kernel ignores", "EPERM"),
    call("terminal_linux", _TERMINAL, "types with TIOCLINUX", "EPERM"),
    call("take_console", _TERMINAL, "redirects the console to its terminal", "EPERM|EINVAL"),
)

_FILES: Final = (
    call("fchmod_setuid", _FILE, "gives a file the set-user-ID bit with fchmod", "EPERM", control=True),
    call("fchmodat_setuid", _FILE, "gives a file the set-user-ID bit with fchmodat", "EPERM", control=True),
    call("fchmodat2_setuid", _FILE, "gives a file the set-user-ID bit with fchmodat2", "EPERM", control=True),
    call("openat_setuid", _FILE, "creates a set-user-ID file with openat", "EPERM", control=True),
    call("tmpfile_setuid", _FILE, "creates a set-user-ID file without a name", "EPERM", control=True),
    call("mknodat_setuid", _FILE, "creates a set-user-ID file with mknodat", "EPERM", control=True),
    *(
        call(f"{n}_setuid", _FILE, f"makes a set-user-ID file with {n}", "EPERM", control=True, machine="x86_64")
        for n in ("chmod", "creat", "open", "mknod")
    ),
    call("fchmod_setgid", _FILE, "gives a file the set-group-ID bit, which stays possible", "ok", control=True),
    call("give_to_root_group", _FILE, "gives a file to root's group", "EPERM", rootless="EINVAL"),
    call("set_capability", _FILE, "gives a file a capability", "EPERM"),
    call("make_character", _FILE, "makes a character device", "EPERM"),
    call("make_block", _FILE, "makes a block device", "EPERM"),
)

_PRIVILEGES: Final = (
    call("set_uid", _PRIVILEGE, "becomes user 0", "EPERM", rootless="EINVAL"),
    call("set_gid", _PRIVILEGE, "becomes group 0", "EPERM", rootless="EINVAL"),
    call("set_groups", _PRIVILEGE, "joins group 0", "EPERM"),
    call("raise_core", _PRIVILEGE, "allows itself core dumps", "EPERM"),
    call("ambient_capability", _PRIVILEGE, "raises an ambient capability", "EPERM"),
    call("raise_capabilities", _PRIVILEGE, "takes every capability", "EPERM"),
    call("allow_privileges", _PRIVILEGE, "takes no_new_privs back", "EINVAL"),
    call("drop_filter", _PRIVILEGE, "turns its seccomp filter off", "EINVAL"),
    call("move_own_memory", _PRIVILEGE, "moves its own memory's borders", "EPERM"),
    call("escape_oom", _PRIVILEGE, "exempts itself from the OOM killer", "EACCES"),
    call("real_time", _PRIVILEGE, "takes a real-time priority", "EPERM"),
    call("raise_priority", _PRIVILEGE, "raises its priority", "EACCES"),
    call("real_time_io", _PRIVILEGE, "takes a real-time I/O priority", "EPERM"),
    call("hang_up", _PRIVILEGE, "hangs up the terminal", "EPERM"),
)

CALLS: Final[tuple[Attack, ...]] = (
    *_NAMESPACES,
    *_MOUNTS,
    *_PROCESSES,
    *_INIT,
    *_SOCKETS,
    *_SURFACE,
    *_EXECUTION,
    *_TERMINALS,
    *_FILES,
    *_PRIVILEGES,
)
