"""System calls that Python has no function for: one function each, under the kernel's own name.

Each raises `OSError` with the kernel's errno. Numbers from 424 on are the same on every architecture (Linux 5.0); older
calls go through libc. Structures are those of the uapi headers named beside them.
"""

from __future__ import annotations

import ctypes
import os
from typing import Final

_libc: Final = ctypes.CDLL(None, use_errno=True)
_syscall: Final = _libc.syscall
_syscall.restype = ctypes.c_long

_OPEN_TREE: Final = 428
_MOVE_MOUNT: Final = 429
_FSOPEN: Final = 430
_FSCONFIG: Final = 431
_FSMOUNT: Final = 432
_OPENAT2: Final = 437
_MOUNT_SETATTR: Final = 442
_LANDLOCK_CREATE_RULESET: Final = 444

AT_FDCWD: Final = -100
AT_EMPTY_PATH: Final = 0x1000
AT_RECURSIVE: Final = 0x8000
AT_SYMLINK_NOFOLLOW: Final = 0x100

OPEN_TREE_CLONE: Final = 1
OPEN_TREE_CLOEXEC: Final = os.O_CLOEXEC

MOVE_MOUNT_F_EMPTY_PATH: Final = 0x04
MOVE_MOUNT_T_EMPTY_PATH: Final = 0x40

FSOPEN_CLOEXEC: Final = 1
FSMOUNT_CLOEXEC: Final = 1
_FSCONFIG_SET_FLAG: Final = 0
_FSCONFIG_SET_STRING: Final = 1
_FSCONFIG_CMD_CREATE: Final = 6

MOUNT_ATTR_RDONLY: Final = 0x01
MOUNT_ATTR_NOSUID: Final = 0x02
MOUNT_ATTR_NODEV: Final = 0x04
MOUNT_ATTR_NOEXEC: Final = 0x08
MOUNT_ATTR_NOATIME: Final = 0x10
MOUNT_ATTR_IDMAP: Final = 0x00100000

MS_RDONLY: Final = 0x01
MS_REC: Final = 0x4000
MS_PRIVATE: Final = 1 << 18
MNT_DETACH: Final = 2

RESOLVE_NO_XDEV: Final = 0x01
RESOLVE_NO_MAGICLINKS: Final = 0x02
RESOLVE_NO_SYMLINKS: Final = 0x04
RESOLVE_BENEATH: Final = 0x08
RESOLVE_IN_ROOT: Final = 0x10

CLONE_NEWNS: Final = 0x00020000
CLONE_NEWUSER: Final = 0x10000000


def _check(result: int, what: str) -> int:
    if result < 0:
        errno = ctypes.get_errno()
        raise OSError(errno, os.strerror(errno), what)
    return result


class _OpenHow(ctypes.Structure):
    """linux/openat2.h"""

    _fields_ = (("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64))


class _MountAttr(ctypes.Structure):
    """linux/mount.h"""

    _fields_ = (
        ("attr_set", ctypes.c_uint64),
        ("attr_clr", ctypes.c_uint64),
        ("propagation", ctypes.c_uint64),
        ("userns_fd", ctypes.c_uint64),
    )


def openat2(dirfd: int, path: str | bytes, flags: int, mode: int = 0, resolve: int = 0) -> int:
    """openat2(2), Linux 5.6. The descriptor is close-on-exec. EAGAIN: a race with a rename, worth another try."""
    how = _OpenHow(flags | os.O_CLOEXEC, mode, resolve)
    name = os.fsencode(path)
    return _check(
        _syscall(_OPENAT2, dirfd, name, ctypes.byref(how), ctypes.c_size_t(ctypes.sizeof(how))), f"openat2 {path!r}"
    )


def open_tree(dirfd: int, path: str | bytes, flags: int) -> int:
    """open_tree(2), Linux 5.2. With OPEN_TREE_CLONE: a detached copy of the mount at `path`."""
    name = os.fsencode(path)
    return _check(
        _syscall(_OPEN_TREE, dirfd, name, ctypes.c_uint(flags | OPEN_TREE_CLOEXEC)), f"open_tree {os.fsdecode(name)!r}"
    )


def move_mount(from_fd: int, to_fd: int) -> None:
    """move_mount(2), Linux 5.2: attaches the mount behind one descriptor where the other one is."""
    flags = MOVE_MOUNT_F_EMPTY_PATH | MOVE_MOUNT_T_EMPTY_PATH
    _check(_syscall(_MOVE_MOUNT, from_fd, b"", to_fd, b"", ctypes.c_uint(flags)), "move_mount")


def fsopen(filesystem: str) -> int:
    """fsopen(2), Linux 5.2."""
    return _check(_syscall(_FSOPEN, filesystem.encode(), FSOPEN_CLOEXEC), f"fsopen {filesystem}")


def fsconfig_set_string(fd: int, key: str, value: str) -> None:
    """fsconfig(2) FSCONFIG_SET_STRING."""
    _check(_syscall(_FSCONFIG, fd, _FSCONFIG_SET_STRING, key.encode(), os.fsencode(value), 0), f"fsconfig {key}")


def fsconfig_set_flag(fd: int, key: str) -> None:
    """fsconfig(2) FSCONFIG_SET_FLAG."""
    _check(_syscall(_FSCONFIG, fd, _FSCONFIG_SET_FLAG, key.encode(), None, 0), f"fsconfig {key}")


def fsconfig_create(fd: int) -> None:
    """fsconfig(2) FSCONFIG_CMD_CREATE: makes the superblock."""
    _check(_syscall(_FSCONFIG, fd, _FSCONFIG_CMD_CREATE, None, None, 0), "fsconfig create")


def fsmount(fd: int, attributes: int) -> int:
    """fsmount(2), Linux 5.2: a detached mount of the superblock, with MOUNT_ATTR_* attributes."""
    return _check(_syscall(_FSMOUNT, fd, FSMOUNT_CLOEXEC, ctypes.c_uint(attributes)), "fsmount")


def mount_setattr(
    fd: int, *, set_: int = 0, clear: int = 0, propagation: int = 0, userns_fd: int = -1, recursive: bool = True
) -> None:
    """mount_setattr(2), Linux 5.12, on the mount behind `fd`. `userns_fd` goes with MOUNT_ATTR_IDMAP."""
    attributes = _MountAttr(set_, clear, propagation, max(userns_fd, 0))
    flags = AT_EMPTY_PATH | (AT_RECURSIVE if recursive else 0)
    size = ctypes.c_size_t(ctypes.sizeof(attributes))
    _check(
        _syscall(_MOUNT_SETATTR, fd, b"", ctypes.c_uint(flags), ctypes.byref(attributes), size),
        "mount_setattr",
    )


def unshare(flags: int) -> None:
    """unshare(2)."""
    _check(_libc.unshare(ctypes.c_int(flags)), "unshare")


def mount(source: str, target: str, filesystem: str | None, flags: int) -> None:
    """mount(2), without data."""
    kind = None if filesystem is None else filesystem.encode()
    _check(_libc.mount(source.encode(), os.fsencode(target), kind, ctypes.c_ulong(flags), None), f"mount on {target}")


def umount2(target: str, flags: int) -> None:
    """umount2(2)."""
    _check(_libc.umount2(os.fsencode(target), ctypes.c_int(flags)), f"umount {target}")


def filesystem_type(path: str | os.PathLike[str]) -> int:
    """statfs(2): the magic number of the filesystem (linux/magic.h). `f_type` is the first word on 64-bit machines."""
    found = (ctypes.c_long * 64)()
    _check(_libc.statfs(os.fsencode(path), ctypes.byref(found)), f"statfs {os.fspath(path)}")
    return int(found[0]) & 0xFFFFFFFF


def landlock_version() -> int:
    """landlock_create_ruleset(2) with LANDLOCK_CREATE_RULESET_VERSION, Linux 5.13."""
    size, flags = ctypes.c_size_t(0), ctypes.c_uint(1)
    return _check(_syscall(_LANDLOCK_CREATE_RULESET, None, size, flags), "landlock_create_ruleset")
