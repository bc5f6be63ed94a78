"""libseccomp through ctypes: rules as values, compiled to the kernel's classic BPF.

The library's constants are those of seccomp.h, version 2.5.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import errno
import os
from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from agenthost.errors import HostUnfit

_ACT_ALLOW: Final = 0x7FFF0000
_ACT_ERRNO: Final = 0x00050000
_ATTRIBUTE_BAD_ARCHITECTURE: Final = 2
_UNKNOWN_SYSCALL: Final = -1

ARCHITECTURES: Final = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
"""AUDIT_ARCH_* (linux/audit.h) by the machine's name in uname(2): the architectures that a view exists on."""


class Compare(IntEnum):
    """scmp_compare"""

    NOT_EQUAL = 1
    LESS = 2
    EQUAL = 4
    GREATER = 6
    MASKED_EQUAL = 7


@dataclass(frozen=True, slots=True)
class Argument:
    """A condition on one argument (0 to 5). With MASKED_EQUAL: argument & `first` == `second`."""

    index: int
    compare: Compare
    first: int
    second: int = 0


@dataclass(frozen=True, slots=True)
class Rule:
    """A system call, by name or (Linux 5.0 and later: the same everywhere) number, that fails with `error`."""

    syscall: str | int
    error: int = errno.EPERM
    arguments: tuple[Argument, ...] = ()


class _Comparison(ctypes.Structure):
    """struct scmp_arg_cmp"""

    _fields_ = (
        ("arg", ctypes.c_uint),
        ("op", ctypes.c_int),
        ("datum_a", ctypes.c_uint64),
        ("datum_b", ctypes.c_uint64),
    )


def _library() -> ctypes.CDLL:
    try:
        library = ctypes.CDLL("libseccomp.so.2", use_errno=True)
    except OSError:
        raise HostUnfit("libseccomp.so.2 is not installed", remedy="install the package libseccomp2") from None
    library.seccomp_init.restype = ctypes.c_void_p
    library.seccomp_init.argtypes = (ctypes.c_uint32,)
    library.seccomp_release.argtypes = (ctypes.c_void_p,)
    library.seccomp_attr_set.argtypes = (ctypes.c_void_p, ctypes.c_int, ctypes.c_uint32)
    library.seccomp_arch_add.argtypes = (ctypes.c_void_p, ctypes.c_uint32)
    library.seccomp_arch_remove.argtypes = (ctypes.c_void_p, ctypes.c_uint32)
    library.seccomp_rule_add_array.argtypes = (
        ctypes.c_void_p,
        ctypes.c_uint32,
        ctypes.c_int,
        ctypes.c_uint,
        ctypes.POINTER(_Comparison),
    )
    library.seccomp_export_bpf.argtypes = (ctypes.c_void_p, ctypes.c_int)
    return library


def compile_filter(rules: Iterable[Rule], architecture: str | None = None) -> bytes:
    """The filter as an array of struct sock_filter: what no rule names is allowed.

    `architecture` is a key of `ARCHITECTURES`, by default this machine's. System calls of any other one (i386 and x32
    on x86-64) fail with ENOSYS; a rule for a call that the architecture does not have is none. Raises `HostUnfit`
    without libseccomp or on another machine, `OSError` when libseccomp refuses a rule.
    """
    here = os.uname().machine
    wanted = here if architecture is None else architecture
    if not {here, wanted} <= ARCHITECTURES.keys():
        raise HostUnfit(f"there is no filter for {wanted}", remedy=f"use one of {', '.join(ARCHITECTURES)}")
    library = _library()
    context = library.seccomp_init(_ACT_ALLOW)
    if not context:
        raise MemoryError
    try:
        _done(
            library.seccomp_attr_set(context, _ATTRIBUTE_BAD_ARCHITECTURE, _ACT_ERRNO | errno.ENOSYS),
            "seccomp_attr_set",
        )
        if wanted != here:
            # Before the first rule: each is translated to the architectures that are there when it is added.
            _done(library.seccomp_arch_add(context, ARCHITECTURES[wanted]), f"seccomp_arch_add {wanted}")
            _done(library.seccomp_arch_remove(context, ARCHITECTURES[here]), f"seccomp_arch_remove {here}")
        for rule in rules:
            _add(library, context, rule)
        return _export(library, context)
    finally:
        library.seccomp_release(context)


def _add(library: ctypes.CDLL, context: int, rule: Rule) -> None:
    number = rule.syscall if isinstance(rule.syscall, int) else _resolve(library, rule.syscall)
    comparisons = (_Comparison * len(rule.arguments))(
        *(_Comparison(part.index, part.compare, part.first, part.second) for part in rule.arguments)
    )
    added = library.seccomp_rule_add_array(context, _ACT_ERRNO | rule.error, number, len(rule.arguments), comparisons)
    _done(added, f"seccomp_rule_add {rule.syscall}")


def _resolve(library: ctypes.CDLL, name: str) -> int:
    number: int = library.seccomp_syscall_resolve_name(name.encode())
    if number == _UNKNOWN_SYSCALL:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS), f"libseccomp does not know {name}")
    return number


def _export(library: ctypes.CDLL, context: int) -> bytes:
    fd = os.memfd_create("filter", os.MFD_CLOEXEC)
    try:
        _done(library.seccomp_export_bpf(context, fd), "seccomp_export_bpf")
        return os.pread(fd, os.fstat(fd).st_size, 0)
    finally:
        os.close(fd)


def _done(result: int, what: str) -> None:
    if result != 0:
        raise OSError(-result, os.strerror(-result), what)
