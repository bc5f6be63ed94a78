"""Process attributes and capabilities: prctl(2), capset(2), user namespace maps."""

from __future__ import annotations

import ctypes
import os
from typing import Final

_libc: Final = ctypes.CDLL(None, use_errno=True)

_PR_CAP_AMBIENT: Final = 47
_PR_CAP_AMBIENT_RAISE: Final = 2
_CAPABILITY_VERSION_3: Final = 0x20080522


class _Header(ctypes.Structure):
    """linux/capability.h"""

    _fields_ = (("version", ctypes.c_uint32), ("pid", ctypes.c_int))


class _Data(ctypes.Structure):
    """linux/capability.h: two of them carry 64 capabilities."""

    _fields_ = (("effective", ctypes.c_uint32), ("permitted", ctypes.c_uint32), ("inheritable", ctypes.c_uint32))


def _check(result: int, what: str) -> None:
    if result != 0:
        errno = ctypes.get_errno()
        raise OSError(errno, os.strerror(errno), what)


def last_capability() -> int:
    """The highest capability that this kernel knows (/proc/sys/kernel/cap_last_cap, Linux 3.2)."""
    with open("/proc/sys/kernel/cap_last_cap", encoding="ascii") as file:
        return int(file.read())


def keep_capabilities_over_exec() -> None:
    """Makes every capability ambient (capabilities(7), Linux 4.3), so that a program started by this one has them.

    In a user namespace whose only user is not 0, execve(2) would drop them all.
    """
    last = last_capability()
    every = (1 << (last + 1)) - 1
    low, high = every & 0xFFFFFFFF, every >> 32
    header = _Header(_CAPABILITY_VERSION_3, 0)
    data = (_Data * 2)(_Data(low, low, low), _Data(high, high, high))
    _check(_libc.capset(ctypes.byref(header), data), "capset")
    zero = ctypes.c_ulong(0)
    for capability in range(last + 1):
        raised = _libc.prctl(
            _PR_CAP_AMBIENT, ctypes.c_ulong(_PR_CAP_AMBIENT_RAISE), ctypes.c_ulong(capability), zero, zero
        )
        _check(raised, "prctl PR_CAP_AMBIENT_RAISE")


def write_proc(path: str, text: str) -> None:
    """Writes a control file of /proc in one write(2), as the kernel wants it."""
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, text.encode("ascii"))
    finally:
        os.close(fd)
