"""Is a file a static ELF program of this machine?

Promise: `is_static_elf` and `why_not_static` answer for any path whatever, without an exception, without blocking and
without a side effect on a device, and read at most `MAX_READ` bytes however large the file is or claims to be.

Static means that the kernel starts the program by itself: no interpreter (PT_INTERP) and nothing for one to load
(DT_NEEDED). A static-pie has a dynamic section for its own relocation and is static all the same.
"""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

HEADER_SIZE: Final = 64
"""Bytes of an ELF64 file header."""

PROGRAM_HEADER_SIZE: Final = 56
MAX_PROGRAM_HEADERS: Final = 65536 // PROGRAM_HEADER_SIZE
"""Linux refuses a program header table of more than 64 KiB (fs/binfmt_elf.c, load_elf_phdrs)."""

DYNAMIC_ENTRY_SIZE: Final = 16
MAX_DYNAMIC: Final = 16384
"""Bytes of dynamic section that are looked at; linkers write some hundreds."""

MAX_READ: Final = HEADER_SIZE + MAX_PROGRAM_HEADERS * PROGRAM_HEADER_SIZE + MAX_DYNAMIC
"""Bytes read of any file, at most."""

_MACHINES: Final = {"x86_64": "EM_X86_64", "aarch64": "EM_AARCH64"}


class _NotStatic(Exception):
    """Carries the reason."""


def is_static_elf(path: str | os.PathLike[str]) -> bool:
    """Whether `path` (links followed) is an executable static ELF program of this machine. Never raises OSError."""
    return why_not_static(path) is None


def why_not_static(path: str | os.PathLike[str]) -> str | None:
    """The one reason why `path` is not a static ELF program of this machine, or None when it is one.

    The reason is the end of a sentence that begins with the file: "is a FIFO", "has no executable bit".
    """
    if sys.platform != "linux":
        return "is on a system other than Linux"
    try:
        fd = _open_regular(path)
    except _NotStatic as verdict:
        return str(verdict)
    except (OSError, ValueError) as error:
        return f"cannot be opened ({_cause(error)})"
    try:
        _judge(fd)
    except _NotStatic as verdict:
        return str(verdict)
    except OSError as error:
        return f"cannot be read ({_cause(error)})"
    finally:
        os.close(fd)
    return None


def _cause(error: OSError | ValueError) -> str:
    return (error.strerror or "unknown error") if isinstance(error, OSError) else "not a path"


def _open_regular(path: str | os.PathLike[str]) -> int:
    """A descriptor for reading. The file is looked at before it is opened: opening a device may act on it."""
    handle = os.open(Path(path), os.O_PATH | os.O_CLOEXEC)
    try:
        mode = os.fstat(handle).st_mode
        if not stat.S_ISREG(mode):
            raise _NotStatic(f"is {_kind(mode)}, not a regular file")
        if not mode & 0o111:
            raise _NotStatic("has no executable bit")
        return os.open(f"/proc/self/fd/{handle}", os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    finally:
        os.close(handle)


def _kind(mode: int) -> str:
    kinds = {
        stat.S_IFDIR: "a directory",
        stat.S_IFIFO: "a FIFO",
        stat.S_IFSOCK: "a socket",
        stat.S_IFCHR: "a character device",
        stat.S_IFBLK: "a block device",
    }
    return kinds.get(stat.S_IFMT(mode), "something else")


def _read(fd: int, size: int, offset: int, what: str) -> bytes:
    """Exactly `size` bytes: the offset comes from the file, so it may be anything up to 2**64."""
    if offset > os.fstat(fd).st_size - size:
        raise _NotStatic(f"is truncated: its {what} lies outside the file")
    data = os.pread(fd, size, offset)
    if len(data) != size:
        raise _NotStatic(f"is truncated: its {what} cannot be read whole")
    return data


def _judge(fd: int) -> None:
    # pyelftools takes longer to import than everything else of a launch together.
    from elftools.common.exceptions import ELFParseError  # noqa: PLC0415
    from elftools.elf.structs import ELFStructs  # noqa: PLC0415

    start = os.pread(fd, HEADER_SIZE, 0)
    _judge_identity(start)
    structs = ELFStructs(little_endian=True, elfclass=64)
    structs.create_basic_structs()
    structs.create_advanced_structs()
    try:
        header = structs.Elf_Ehdr.parse(start)
        _judge_header(header)
        segments = _segments(fd, header, structs)
        kinds = [segment["p_type"] for segment in segments]
        if "PT_INTERP" in kinds:
            raise _NotStatic("is dynamic: it asks for an interpreter (PT_INTERP)")
        if "PT_LOAD" not in kinds:
            raise _NotStatic("has nothing to load (no PT_LOAD)")
        dynamic = [segment for segment in segments if segment["p_type"] == "PT_DYNAMIC"]
        if len(dynamic) > 1:
            # No linker writes two, and a thousand would be a thousand reads.
            raise _NotStatic("is a corrupt ELF file (several dynamic sections)")
        if dynamic and "DT_NEEDED" in _dynamic_tags(fd, dynamic[0], structs):
            raise _NotStatic("is dynamic: it needs shared libraries (DT_NEEDED)")
    except ELFParseError as error:
        raise _NotStatic("is a corrupt ELF file") from error


def _judge_identity(start: bytes) -> None:
    if not start:
        raise _NotStatic("is empty")
    if start.startswith(b"#!"):
        raise _NotStatic("is a script")
    if not start.startswith(b"\x7fELF"):
        raise _NotStatic("is not an ELF file")
    if len(start) < HEADER_SIZE:
        raise _NotStatic("is truncated: it is shorter than an ELF header")
    if start[4] != 2:  # ELFCLASS64
        raise _NotStatic("is not a 64-bit ELF file")
    if start[5] != 1:  # ELFDATA2LSB
        raise _NotStatic("is not a little-endian ELF file")


def _judge_header(header: Any) -> None:
    machine = os.uname().machine
    wanted = _MACHINES.get(machine)
    if wanted is None:
        raise _NotStatic(f"cannot be judged: agenthost does not know the architecture {machine}")
    if header["e_machine"] != wanted:
        raise _NotStatic(f"is an ELF file of another architecture than {machine}")
    if header["e_type"] not in {"ET_EXEC", "ET_DYN"}:
        raise _NotStatic("is an ELF file that is not a program")
    if not header["e_entry"]:
        # What tells a shared library without dependencies from a static-pie; musl's static-pies carry no DF_1_PIE.
        raise _NotStatic("is an ELF file that is not a program (no entry point)")
    if header["e_phentsize"] != PROGRAM_HEADER_SIZE or not 0 < header["e_phnum"] <= MAX_PROGRAM_HEADERS:
        raise _NotStatic("is a corrupt ELF file (program header table)")


def _segments(fd: int, header: Any, structs: Any) -> list[Any]:
    count = header["e_phnum"]
    table = _read(fd, count * PROGRAM_HEADER_SIZE, header["e_phoff"], "program header table")
    return [structs.Elf_Phdr.parse(table[at : at + PROGRAM_HEADER_SIZE]) for at in _steps(count, PROGRAM_HEADER_SIZE)]


def _dynamic_tags(fd: int, segment: Any, structs: Any) -> set[object]:
    size = segment["p_filesz"]
    if size > MAX_DYNAMIC:
        raise _NotStatic("has a dynamic section too large to look through")
    data = _read(fd, size, segment["p_offset"], "dynamic section")
    tags: set[object] = set()
    for at in _steps(size // DYNAMIC_ENTRY_SIZE, DYNAMIC_ENTRY_SIZE):
        tag = structs.Elf_Dyn.parse(data[at : at + DYNAMIC_ENTRY_SIZE])["d_tag"]
        if tag == "DT_NULL":
            return tags
        tags.add(tag)
    raise _NotStatic("is a corrupt ELF file (dynamic section without an end)")


def _steps(count: int, size: int) -> Iterator[int]:
    return iter(range(0, count * size, size))
