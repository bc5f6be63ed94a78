"""Limits of a Session: memory, processes and processor time, by a cgroup v2 of its own (cgroup-v2.rst).

    BASE/                        delegated to this daemon
        agenthost-daemon/        what was in BASE: a cgroup that hands controllers on may hold no process
        agenthost-ID-RANDOM/     one Session: the limits, and no process
            view/                when memory runs out in it, all of it is killed: a half Harness is none
            environment/         when memory runs out in it, its largest process is killed: a command that failed

A cgroup is taken only when it is delegated: writable, and, where systemd manages the cgroups, marked by it. There is no
weaker limit in place of one that was asked for.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from agenthost.errors import CleanupFailed, HostUnfit

VIEW: Final = "view"
ENVIRONMENT: Final = "environment"
RECORD: Final = "cgroup"
"""The file in a Session's directory that names its cgroup, for as long as that may exist."""

_DAEMON: Final = "agenthost-daemon"
_PREFIX: Final = "agenthost-"
_PERIOD_US: Final = 100_000
_GONE_WITHIN_S: Final = 5.0
_MARKS: Final = ("user.delegate", "trusted.delegate")
"""Extended attributes by which systemd marks what it has delegated (systemd CGROUP_DELEGATION)."""

_GIB: Final = 1 << 30
_SMALLEST_TMPFS: Final = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What a Session may use. None is no limit.

    memory   bytes; swap is not given on top
    pids     processes and threads
    cpus     processors' worth of time, such as 1.5
    """

    memory: int | None = None
    pids: int | None = None
    cpus: float | None = None

    @property
    def controllers(self) -> tuple[str, ...]:
        """The controllers that these limits need; none when there is no limit."""
        asked = {"memory": self.memory, "pids": self.pids, "cpu": self.cpus}
        return tuple(name for name, value in asked.items() if value is not None)

    def settings(self) -> dict[str, str]:
        """The files of the Session's cgroup and what is written to each."""
        values: dict[str, str] = {}
        if self.memory is not None:
            values |= {"memory.max": str(self.memory), "memory.swap.max": "0"}
        if self.pids is not None:
            values["pids.max"] = str(self.pids)
        if self.cpus is not None:
            values["cpu.max"] = f"{round(self.cpus * _PERIOD_US)} {_PERIOD_US}"
        return values


@dataclass(frozen=True, slots=True)
class TmpfsSizes:
    """Bytes. What is in a tmpfs is memory, and is charged to whoever wrote it."""

    private: int
    shm: int

    @classmethod
    def within(cls, memory: int | None) -> TmpfsSizes:
        """So that a full `/tmp` is ENOSPC and no lack of memory: a quarter of the limit, or of the machine's memory."""
        whole = memory if memory is not None else os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        quarter = max(whole // 4, _SMALLEST_TMPFS)
        return cls(private=min(quarter, _GIB), shm=min(quarter, _GIB // 4))


@dataclass(frozen=True, slots=True)
class Delegation:
    """A cgroup in which this daemon may make others, and what was asked of it."""

    base: Path
    controllers: tuple[str, ...]

    def prepare(self) -> None:
        """Hands the controllers on to cgroups below. Raises OSError."""
        missing = set(self.controllers) - set(_words(self.base / "cgroup.subtree_control"))
        if not missing:
            return
        # The root is the one cgroup that may hold processes and hand controllers on; it has no cgroup.type.
        if (self.base / "cgroup.type").exists():
            _make_room(self.base)
        _write(self.base / "cgroup.subtree_control", " ".join(f"+{name}" for name in sorted(missing)))


class SessionCgroup:
    """The cgroup of one Session, with a leaf for its views and one for its environment."""

    def __init__(self, path: Path, controllers: Sequence[str]) -> None:
        self.path = path
        self._controllers = tuple(controllers)

    @classmethod
    def make(cls, path: Path, delegation: Delegation, settings: Mapping[str, str]) -> SessionCgroup:
        """Raises OSError; nothing is left then."""
        delegation.prepare()
        path.mkdir()
        made = cls(path, delegation.controllers)
        try:
            made.limit(settings)
        except BaseException:
            made.remove()
            raise
        return made

    def limit(self, settings: Mapping[str, str]) -> None:
        for name, value in settings.items():
            # A kernel without swap accounting has no file for it, and no swap that would be counted.
            if name != "memory.swap.max" or (self.path / name).exists():
                _write(self.path / name, value)
        if self._controllers:
            _write(self.path / "cgroup.subtree_control", " ".join(f"+{name}" for name in self._controllers))
        for leaf in (VIEW, ENVIRONMENT):
            (self.path / leaf).mkdir()
        if "memory" in self._controllers:
            _write(self.path / VIEW / "memory.oom.group", "1")

    @contextlib.contextmanager
    def entrance(self, leaf: str) -> Iterator[int]:
        """A descriptor; the process whose pid is written to it is in the leaf."""
        fd = os.open(self.path / leaf / "cgroup.procs", os.O_WRONLY | os.O_CLOEXEC)
        try:
            yield fd
        finally:
            os.close(fd)

    def oom_kills(self, leaf: str) -> int:
        """How many processes of the leaf were killed because memory ran out, so far."""
        return self._event(f"{leaf}/memory.events", "oom_kill")

    def used(self) -> dict[str, int]:
        """Peaks, and how often a limit was hit; what this kernel does not tell is left out."""
        found: dict[str, int] = {}
        for name in ("memory.peak", "pids.peak"):
            with contextlib.suppress(OSError):
                found[name.replace(".", "_")] = int((self.path / name).read_text())
        if "memory" in self._controllers:
            found["oom_kills"] = self.oom_kills(VIEW) + self.oom_kills(ENVIRONMENT)
        if "pids" in self._controllers:
            # Counted where the limit is since Linux 6.11, where the fork was before.
            places = ("pids.events", f"{VIEW}/pids.events", f"{ENVIRONMENT}/pids.events")
            found["forks_refused"] = sum(self._event(place, "max") for place in places)
        if "cpu" in self._controllers:
            found["cpu_throttled_us"] = self._event("cpu.stat", "throttled_usec")
        return found

    def remove(self) -> None:
        """Kills what is left in it, and removes it. Raises `CleanupFailed`."""
        deadline = time.monotonic() + _GONE_WITHIN_S
        while self.path.exists():
            with contextlib.suppress(OSError):
                _write(self.path / "cgroup.kill", "1")
            try:
                for leaf in [path for path in self.path.iterdir() if path.is_dir()]:
                    leaf.rmdir()
                self.path.rmdir()
            except FileNotFoundError:
                continue
            except OSError as error:
                if error.errno != errno.EBUSY or time.monotonic() > deadline:
                    raise CleanupFailed(
                        f"the cgroup {self.path} cannot be removed ({error.strerror})",
                        remedy="look at its cgroup.procs, and remove it with rmdir",
                    ) from error
                time.sleep(0.01)

    def _event(self, file: str, name: str) -> int:
        with contextlib.suppress(OSError):
            for line in (self.path / file).read_text().splitlines():
                key, _, value = line.partition(" ")
                if key == name:
                    return int(value)
        return 0


def find_delegation(controllers: Sequence[str]) -> Delegation:
    """The cgroup to make Sessions' cgroups in. Touches nothing. Raises `HostUnfit`: what is missing, how to get it."""
    mount, root = _mounted()
    own = _own(mount, root)
    wanted = tuple(controllers)
    above = own.parent
    if own != mount and (own.name == _DAEMON or _is_marked(above)) and _refusal(above, wanted) is None:
        return Delegation(above, wanted)
    if (refusal := _refusal(own, wanted)) is not None:
        raise refusal
    return Delegation(own, wanted)


@contextlib.contextmanager
def limited(
    session: str, directory: Path, limits: Limits, delegation: Delegation | None
) -> Iterator[SessionCgroup | None]:
    """The Session's cgroup for as long as the block runs; None without a limit. `directory` is the Session's.

    Raises `HostUnfit`, and in the end `CleanupFailed`.
    """
    remove_left(directory)
    if delegation is None:
        yield None
        return
    path = delegation.base / f"{_PREFIX}{session}-{secrets.token_hex(4)}"
    record = directory / RECORD
    try:
        try:
            # Before the cgroup itself: a daemon that is killed in between leaves a name of nothing.
            record.write_text(f"{path}\n")
            cgroup = SessionCgroup.make(path, delegation, limits.settings())
        except OSError as error:
            raise HostUnfit(
                f"the limits cannot be set: {error.filename} ({error.strerror})", remedy=_how_to_delegate()
            ) from error
        try:
            yield cgroup
        finally:
            cgroup.remove()
    finally:
        record.unlink(missing_ok=True)


def remove_left(directory: Path) -> Path | None:
    """Removes the cgroup that a killed daemon left for the Session of this directory, and says which it was.

    Raises `CleanupFailed`. Call it only with the Session's lock held.
    """
    record = directory / RECORD
    try:
        path = Path(record.read_text().strip())
    except (OSError, ValueError):
        return None
    found = path.name.startswith(f"{_PREFIX}{directory.name}-") and (path / "cgroup.procs").exists()
    if found:
        SessionCgroup(path, ()).remove()
    record.unlink(missing_ok=True)
    return path if found else None


def _make_room(base: Path) -> None:
    """Moves what is in the cgroup itself to a leaf: nothing else than being able to hand controllers on changes."""
    leaf = base / _DAEMON
    leaf.mkdir(exist_ok=True)
    # A process that forks while it is looked at needs another round.
    for _ in range(100):
        inside = _words(base / "cgroup.procs")
        if not inside:
            return
        for pid in inside:
            with contextlib.suppress(ProcessLookupError):
                _write(leaf / "cgroup.procs", pid)


def _refusal(cgroup: Path, wanted: Sequence[str]) -> HostUnfit | None:
    """Why `cgroup` cannot be the base; None when it can."""
    available = _words(cgroup / "cgroup.controllers")
    missing = [name for name in wanted if name not in available]
    if missing:
        names = ", ".join(missing)
        what = f"no limit without a delegated cgroup v2 controller: {cgroup} does not have {names}"
        if elsewhere := [name for name in missing if name in _of_version_1()]:
            held = ", ".join(elsewhere)
            remedy = f"cgroup v1 holds {held}: boot with systemd.unified_cgroup_hierarchy=1, or leave the limit out"
            return HostUnfit(what, remedy=remedy)
        return HostUnfit(what, remedy=_how_to_delegate())
    needed = (cgroup, cgroup / "cgroup.procs", cgroup / "cgroup.subtree_control")
    closed = [path for path in needed if not os.access(path, os.W_OK)]
    if closed or (_systemd_runs() and not _is_marked(cgroup)):
        return HostUnfit(
            f"no limit without a delegated cgroup v2: {cgroup} with its controllers {', '.join(wanted)} is not"
            " delegated to this user",
            remedy=_how_to_delegate(),
        )
    return None


def _how_to_delegate() -> str:
    if os.geteuid() == 0:
        return "start the daemon with: systemd-run --scope -p Delegate=yes COMMAND"
    return (
        "start the daemon with: systemd-run --user --scope -p Delegate=yes COMMAND (a controller that is missing then:"
        " Delegate=cpu memory pids in a drop-in for user@.service)"
    )


def _mounted() -> tuple[Path, str]:
    """Where cgroup v2 is mounted, and which cgroup is seen there: proc_pid_mountinfo(5)."""
    for line in Path("/proc/self/mountinfo").read_text(errors="surrogateescape").splitlines():
        before, _, after = line.partition(" - ")
        if after.split(" ", 1)[0] == "cgroup2":
            fields = before.split(" ")
            return Path(_unescaped(fields[4])), _unescaped(fields[3])
    raise HostUnfit("no limit without cgroup v2, which is not mounted", remedy="mount it, or leave the limit out")


def _unescaped(text: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), text)


def _own(mount: Path, root: str) -> Path:
    """This process's cgroup in the mounted tree: cgroups(7), /proc/pid/cgroup."""
    for line in Path("/proc/self/cgroup").read_text(errors="surrogateescape").splitlines():
        if line.startswith("0::"):
            inside = os.path.relpath(line[3:], root)
            if inside == ".." or inside.startswith("../"):
                break
            return mount if inside == "." else mount / inside
    raise HostUnfit(
        "no limit without a cgroup v2 of this daemon, and what is mounted does not show it", remedy=_how_to_delegate()
    )


def _of_version_1() -> set[str]:
    """Controllers that a version 1 hierarchy holds (a number other than 0 in the second column of /proc/cgroups)."""
    with contextlib.suppress(OSError):
        rows = [line.split() for line in Path("/proc/cgroups").read_text().splitlines()[1:]]
        return {row[0] for row in rows if len(row) > 1 and row[1] != "0"}
    return set()


def _systemd_runs() -> bool:
    return Path("/run/systemd/system").is_dir()  # sd_booted(3)


def _is_marked(cgroup: Path) -> bool:
    for mark in _MARKS:
        with contextlib.suppress(OSError):
            if os.getxattr(cgroup, mark) == b"1":
                return True
    return False


def _words(path: Path) -> list[str]:
    try:
        return path.read_text().split()
    except OSError:
        return []


def _write(path: Path, text: str) -> None:
    """In one write(2), as the kernel wants it."""
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, text.encode("ascii"))
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error
    finally:
        os.close(fd)
