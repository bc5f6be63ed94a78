"""What this process holds of the system, so that a test can tell what it left behind."""

from __future__ import annotations

import fcntl
import gc
import os
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import psutil

PATIENCE_S = 10.0
"""How long an ended view may take to be gone; a limit for the broken case, no measure of the good one."""

STATE = {"attach", "codex-digests.json", "lock", "sessions"}
"""What a state directory holds when nothing runs."""


@dataclass(frozen=True, slots=True)
class Held:
    """Processes (pid and start time), mounts and descriptors at one moment."""

    processes: frozenset[tuple[int, float]]
    mounts: frozenset[str]
    descriptors: Counter[str]

    @classmethod
    def now(cls) -> Held:
        gc.collect()
        return cls(_descendants(), frozenset(_mounts()), Counter(_descriptors()))

    def left_behind(self) -> list[str]:
        """What there is more now than then, after waiting for it to go; empty when nothing is."""
        deadline = time.monotonic() + PATIENCE_S
        while more := self._more():
            if time.monotonic() > deadline:
                return more
            time.sleep(0.02)
        return []

    def _more(self) -> list[str]:
        now = Held.now()
        return [
            *(f"process {_describe(pid)}" for pid, _ in sorted(now.processes - self.processes)),
            *(f"mount {mount}" for mount in sorted(now.mounts - self.mounts)),
            *(f"descriptor {name} ({count} more)" for name, count in (now.descriptors - self.descriptors).items()),
        ]


def left_in_state(state: Path) -> list[str]:
    """What an idle state directory must not hold: an attachment, a strange file, a Session that is locked."""
    if not state.exists():
        return []
    attached = [f"attachment {path}" for path in (state / "attach").glob("*")]
    strangers = [f"file {path}" for path in state.iterdir() if path.name not in STATE]
    return attached + strangers + [f"lock {path}" for path in (state / "sessions").glob("*") if _is_locked(path)]


def _is_locked(session: Path) -> bool:
    descriptor = os.open(session, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def _descendants() -> frozenset[tuple[int, float]]:
    found = set()
    for process in psutil.Process().children(recursive=True):
        try:
            if process.status() == psutil.STATUS_ZOMBIE:
                _reap_adopted(process.pid)
            else:
                found.add((process.pid, process.create_time()))
        except psutil.NoSuchProcess:
            continue
    return frozenset(found)


def _reap_adopted(pid: int) -> None:
    """Orphans come to this process (`no_leaks` makes it a subreaper), and nobody else waits for them."""
    try:
        os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        return


def _describe(pid: int) -> str:
    try:
        return f"{pid} ({' '.join(psutil.Process(pid).cmdline())})"
    except psutil.NoSuchProcess:
        return str(pid)


def _mounts() -> list[str]:
    """Mount id, parent and place: a mount that was replaced by one alike is a mount left behind."""
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    return [" ".join(line.split(" ")[index] for index in (0, 1, 4)) for line in lines]


def _descriptors() -> list[str]:
    names = []
    for number in Path("/proc/self/fd").iterdir():
        try:
            target = str(number.readlink())
        except FileNotFoundError:  # the one that lists the directory
            continue
        names.append(target.partition(":")[0] if target.startswith(("socket:", "pipe:")) else target)
    return names
