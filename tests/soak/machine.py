"""What the machine holds, in figures: taken before and after, it tells what was left over."""

from __future__ import annotations

import os
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Final

import psutil

from tests.leaks import Held

NAMESPACES: Final = ("cgroup", "ipc", "mnt", "net", "pid", "user", "uts")
KIB: Final = 1024


@dataclass(frozen=True, slots=True)
class Machine:
    """Of the whole machine; other work on it shows, so these are for people to read, and not to fail by."""

    processes: int
    namespaces: int
    mounts: int
    open_files: int
    slab_kib: int

    @classmethod
    def now(cls) -> Machine:
        numbers = [name for name in os.listdir("/proc") if name.isdigit()]  # noqa: PTH208 - processes end meanwhile
        found = {link for number in numbers for link in _namespaces_of(number)}
        slab = next(line for line in Path("/proc/meminfo").read_text().splitlines() if line.startswith("Slab:"))
        return cls(
            processes=len(numbers),
            namespaces=len(found),
            mounts=len(Path("/proc/self/mountinfo").read_text().splitlines()),
            open_files=int(Path("/proc/sys/fs/file-nr").read_text().split()[0]),
            slab_kib=int(slab.split()[1]),
        )

    def since(self, before: Machine) -> dict[str, str]:
        """Each figure, and how it changed."""
        pairs = {field.name: (getattr(before, field.name), getattr(self, field.name)) for field in fields(self)}
        return {name: f"{new} ({new - old:+})" for name, (old, new) in pairs.items()}


@dataclass(frozen=True, slots=True)
class Weight:
    """What one daemon takes."""

    rss_kib: int
    descriptors: int
    children: int

    @classmethod
    def of(cls, pid: int) -> Weight:
        process = psutil.Process(pid)
        living = [child for child in process.children(recursive=True) if child.status() != psutil.STATUS_ZOMBIE]
        return cls(process.memory_info().rss // KIB, process.num_fds(), len(living))


def namespaces_below(pid: int) -> set[str]:
    """The namespaces of the processes that come from `pid` which `pid` itself is not in."""
    below = {link for child in psutil.Process(pid).children(recursive=True) for link in _namespaces_of(str(child.pid))}
    return below - set(_namespaces_of(str(pid)))


def left_over(held: Held) -> list[str]:
    """Processes (and with them namespaces), mounts and descriptors of this process that were not there before."""
    return [*held.left_behind(), *(f"namespace {name}" for name in sorted(namespaces_below(os.getpid())))]


def _namespaces_of(number: str) -> list[str]:
    found = []
    for kind in NAMESPACES:
        try:
            found.append(os.readlink(f"/proc/{number}/ns/{kind}"))  # noqa: PTH115 - the text is the namespace
        except OSError:
            continue
    return found
