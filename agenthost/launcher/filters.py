"""Which system calls fail in a view and in an environment, and why. The kernel's own defaults are not trusted.

A filter is compiled once a daemon. Arguments that the kernel reads as 32 bits are compared as such (MASKED_EQUAL): the
upper half of the register belongs to the caller.
"""

from __future__ import annotations

import errno
from functools import cache
from typing import Final

from agenthost.linux.seccomp import Argument, Compare, Rule, compile_filter

_LOW: Final = 0xFFFFFFFF
_NAMESPACES: Final = (0x00020000, 0x02000000, 0x04000000, 0x08000000, 0x10000000, 0x20000000, 0x40000000)
_NEW_TIME: Final = 0x80
_SET_UID_BIT: Final = 0o4000
_O_CREAT: Final = 0o100
_O_TMPFILE: Final = 0o20000000
_INIT: Final = 1  # its pid, inside
_TIOCSTI: Final = 0x5412
_TIOCLINUX: Final = 0x541C
_MFD_NOEXEC_SEAL: Final = 8
_READ_IMPLIES_EXEC: Final = 0x0400000
_AF_NETLINK: Final = 16
_OTHER_NETLINK: Final = (9, 15)  # NETLINK_AUDIT, NETLINK_KOBJECT_UEVENT
_OTHER_FAMILIES: Final = (0, 3, 4, 5, 6, 7, 8, 9, 11, 12, 13, 14, 15)
_FCHMODAT2: Final = 452

_ABSENT: Final = (
    # clone3 passes its flags in memory, where no filter reads them; libcs fall back to clone.
    "clone3",
    # openat2 passes the mode in memory; a file could be made set-user-ID with it.
    "openat2",
    # Kernel surface that neither Codex nor a build needs.
    *("io_uring_setup", "io_uring_enter", "io_uring_register", "bpf", "perf_event_open", "userfaultfd"),
    # Keyrings are not namespaced: they would reach beyond the view.
    *("keyctl", "add_key", "request_key"),
)
_FORBIDDEN: Final = (
    *("setns", "mount", "umount2", "pivot_root", "chroot", "open_tree", "move_mount", "fsopen", "fsconfig", "fsmount"),
    *("fspick", "mount_setattr", "open_by_handle_at", "name_to_handle_at", "quotactl", "swapon", "swapoff", "acct"),
    *("kexec_load", "init_module", "finit_module", "delete_module", "reboot", "syslog", "lookup_dcookie"),
)
_FORBIDDEN_IN_VIEW: Final = ("ptrace", "process_vm_readv", "process_vm_writev", "kcmp", "pidfd_getfd")


def _masked(index: int, mask: int, value: int) -> tuple[Argument, ...]:
    return (Argument(index, Compare.MASKED_EQUAL, mask, value),)


def _common() -> list[Rule]:
    rules = [Rule(name, errno.ENOSYS) for name in _ABSENT]
    rules += [Rule(name) for name in _FORBIDDEN]
    for flag in _NAMESPACES:
        rules += [Rule("clone", arguments=_masked(0, flag, flag)), Rule("unshare", arguments=_masked(0, flag, flag))]
    rules.append(Rule("unshare", arguments=_masked(0, _NEW_TIME, _NEW_TIME)))
    for call in ("socket", "socketpair"):
        # AF_VSOCK reaches the hypervisor from any network namespace; the others are surface.
        rules.append(Rule(call, errno.EAFNOSUPPORT, (Argument(0, Compare.GREATER, _AF_NETLINK),)))
        for family in _OTHER_FAMILIES:
            rules.append(Rule(call, errno.EAFNOSUPPORT, (Argument(0, Compare.EQUAL, family),)))
    for protocol in _OTHER_NETLINK:
        # The host's device events reach every network namespace that the initial user namespace owns.
        of_family = (Argument(0, Compare.EQUAL, _AF_NETLINK), *_masked(2, _LOW, protocol))
        rules.append(Rule("socket", errno.EPROTONOSUPPORT, of_family))
    # A limit set on init from inside would end the environment or the view at its next descriptor.
    rules.append(Rule("prlimit64", arguments=_masked(0, _LOW, _INIT)))
    for command in (_TIOCSTI, _TIOCLINUX):
        rules.append(Rule("ioctl", arguments=_masked(1, _LOW, command)))
    # On disk the workspace belongs to its owner, who may be root: a set-user-ID file there would wait for a victim.
    modes: tuple[tuple[str | int, int], ...] = (
        *(("chmod", 1), ("fchmod", 1), ("fchmodat", 2), (_FCHMODAT2, 2), ("mknod", 1), ("mknodat", 2)),
        ("creat", 1),
    )
    rules += [Rule(call, arguments=_masked(index, _SET_UID_BIT, _SET_UID_BIT)) for call, index in modes]
    for call, flags_at in (("open", 1), ("openat", 2)):
        for creating in (_O_CREAT, _O_TMPFILE):
            with_bit = _masked(flags_at, creating, creating) + _masked(flags_at + 1, _SET_UID_BIT, _SET_UID_BIT)
            rules.append(Rule(call, arguments=with_bit))
    return rules


@cache
def environment_filter(architecture: str | None = None) -> bytes:
    """For commands: what reaches beyond the environment fails, what a build or a debugger needs does not."""
    return compile_filter(_common(), architecture)


@cache
def view_filter(architecture: str | None = None) -> bytes:
    """For the Harness: besides, nothing may become executable that is not in the closure, and nothing be traced."""
    rules = _common()
    rules += [Rule(name) for name in _FORBIDDEN_IN_VIEW]
    rules.append(Rule("memfd_create", errno.EACCES, _masked(1, _MFD_NOEXEC_SEAL, 0)))
    rules.append(Rule("personality", arguments=_masked(0, _READ_IMPLIES_EXEC, _READ_IMPLIES_EXEC)))
    return compile_filter(rules, architecture)
