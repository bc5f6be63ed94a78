"""Leases of uids for Sessions in root mode.

A Session's Harness and commands run under a uid of their own, so that the kernel keeps Sessions apart from each other
and from the host. A lease is an exclusive flock(2) on a file named after the uid in a directory that all daemons of the
host share; the kernel ends it with the process that holds it. The gid is the same number. Only who holds the lock of
a file removes it, and who gets a lock makes sure that the file still stands at its name: no two hold one uid.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import random
import re
import stat
import time
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from agenthost.errors import StateUnusable

LEASES: Final = Path("/run/agenthost/uids")
UID_RANGE: Final = range(1_900_000_000, 1_900_065_536)
"""Above systemd's range for containers (up to 1879048191) and below 2^31: given out by nobody else (UIDS-GIDS)."""

_TRIES: Final = 64

_LOOKS: Final = 25
"""How often a wanted uid is tried, 2 ms apart: who only looks for stale leases holds one for microseconds."""

_NAME: Final = re.compile(r"[1-9][0-9]{0,9}")


@dataclass(frozen=True, slots=True)
class UidLease:
    """A uid that nobody else on this host uses until `release`."""

    uid: int
    fd: int
    path: Path

    def release(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            self.path.unlink()
        os.close(self.fd)


def lease_uid(wanted: int | None = None, *, uids: range = UID_RANGE, leases: Path = LEASES) -> UidLease:
    """A lease of `wanted`, or of any free uid of the range. Raises `StateUnusable` when there is none.

    A uid that any running thread holds is never given out, whoever started it.
    """
    _open_directory(leases)
    held = set(_held_by_threads())
    candidates = [wanted] if wanted is not None else random.sample(uids, k=min(_TRIES, len(uids)))
    for uid in candidates:
        for look in range(1 if wanted is None or uid in held else _LOOKS):
            time.sleep(0.002 if look else 0)
            lease = None if uid in held else _try_lease(leases, uid)
            if lease is not None:
                return lease
    if wanted is not None:
        raise StateUnusable(
            f"uid {wanted} of this Session is in use",
            remedy="wait until its other user has ended, or open a new Session",
        )
    raise StateUnusable(f"no free uid in {uids.start} to {uids.stop - 1}", remedy="close Sessions, or widen the range")


def _open_directory(leases: Path) -> None:
    leases.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = leases.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o022:
        raise StateUnusable(f"{leases} is not a directory of this user alone", remedy=f"remove {leases}")


def remove_stale(leases: Path = LEASES) -> list[int]:
    """Removes the files of leases that ended with their holder, and tells their uids. Other files stay."""
    try:
        if not stat.S_ISDIR(leases.lstat().st_mode) or leases.lstat().st_uid != os.geteuid():
            return []
        names = sorted(path.name for path in leases.iterdir())
    except FileNotFoundError:
        return []
    removed = []
    for name in names:
        lease = _try_lease(leases, int(name), make=False) if _NAME.fullmatch(name) else None
        if lease is not None:
            lease.release()
            removed.append(lease.uid)
    return removed


def _try_lease(leases: Path, uid: int, *, make: bool = True) -> UidLease | None:
    path = leases / str(uid)
    flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK | (os.O_CREAT if make else 0)
    while True:
        try:
            fd = os.open(path, flags, 0o600)
        except OSError:
            if make:
                raise
            return None
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(fd), path.lstat()):
                return UidLease(uid, fd, path)
        except BlockingIOError:
            os.close(fd)
            return None
        except FileNotFoundError:
            pass
        os.close(fd)  # removed by its last holder between the opening and the lock


def wait_until_unused(uids: Collection[int], seconds: float) -> None:
    """Until no thread holds one of them, or the time is over: the kernel takes a moment to end a killed view."""
    deadline = time.monotonic() + seconds
    while not set(uids).isdisjoint(_held_by_threads()) and time.monotonic() < deadline:
        time.sleep(0.02)


def _held_by_threads() -> Iterator[int]:
    """Every uid (real, effective, saved, filesystem) of every thread that runs: proc_pid_status(5).

    A zombie runs nothing, and where nobody reaps (a container without an init) it stays.
    """
    for process in _numbers("/proc"):
        for thread in _numbers(f"/proc/{process}/task"):
            with contextlib.suppress(OSError), Path(f"/proc/{process}/task/{thread}/status").open("rb") as file:
                for line in file:
                    if line.startswith((b"State:\tZ", b"State:\tX")):
                        break
                    if line.startswith(b"Uid:"):
                        yield from (int(uid) for uid in line.split()[1:])
                        break


def _numbers(directory: str) -> list[str]:
    try:
        return [path.name for path in Path(directory).iterdir() if path.name.isdigit()]
    except OSError:
        return []
