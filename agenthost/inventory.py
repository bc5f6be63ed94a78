"""What a state directory holds, for people and programs that ask: read only, without its lock.

Promise: whatever a Harness made of its home, looking at it opens nothing but directories, follows no link, and ends.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import stat
from collections import Counter
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Final

from agenthost.errors import RequestRefused, StateUnusable
from agenthost.layout import SESSION_ID, StateLayout
from agenthost.linux.rootdir import RootDir
from agenthost.state import EVENTS, read_record

MOST_ENTRIES: Final = 100_000
DEEPEST: Final = 200
"""Bounds of the walk through a home: beyond them its size is a lower bound."""

MOST_LISTED: Final = 200
"""Entries of one directory that `Details` lists."""

TAIL: Final = 1 << 20
"""Bytes of the event file that are read, from its end."""


@dataclass(frozen=True, slots=True)
class Size:
    """What a tree takes on the disk, in bytes; `complete` is false when there is more than was looked at."""

    bytes: int
    entries: int
    complete: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionInfo:
    """One Session. `end` of its last launch: an exit status, "open", "cut off" (its daemon ended first), or None."""

    id: str
    workspace: str | None
    uid: int | None
    is_open: bool
    last_launch: str | None
    end: int | str | None
    home: Size
    problem: str | None = None
    """Why the record cannot be read, if it cannot."""

    def to_json(self) -> dict[str, object]:
        return {
            "id": self.id,
            "workspace": self.workspace,
            "uid": self.uid,
            "open": self.is_open,
            "last_launch": self.last_launch,
            "end": self.end,
            "home": {"bytes": self.home.bytes, "entries": self.home.entries, "complete": self.home.complete},
            "problem": self.problem,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Details:
    """More of one Session: how often each event came, the last of them, and the top of its home."""

    info: SessionInfo
    counts: Counter[str]
    last_events: list[dict[str, Any]] = field(default_factory=list)
    home: list[tuple[str, str, int]] = field(default_factory=list)
    """Path below the home, kind, bytes."""

    def to_json(self) -> dict[str, object]:
        home = [{"name": name, "kind": kind, "bytes": size} for name, kind, size in self.home]
        return {
            **self.info.to_json(),
            "events": {"counts": dict(sorted(self.counts.items())), "last": self.last_events},
            "home_listing": home,
        }


def every_session(layout: StateLayout) -> list[SessionInfo]:
    """Every Session, by id. Raises `StateUnusable` when the directory cannot be read."""
    try:
        with RootDir.open(layout.sessions) as sessions:
            names = [name for name, kind in sessions.entries() if stat.S_ISDIR(kind.st_mode)]
            found = []
            for name in sorted(name for name in names if SESSION_ID.fullmatch(name)):
                with contextlib.suppress(FileNotFoundError), sessions.directory(name) as session:
                    found.append(_info(name, session, _events(session)))
            return found
    except FileNotFoundError:
        return []
    except OSError as error:
        raise StateUnusable(
            f"{layout.sessions} cannot be read ({error.strerror})", remedy="check --state-dir"
        ) from error


def one_session(layout: StateLayout, name: str, *, events: int = 10) -> Details:
    """One Session with its last events. Raises `RequestRefused` when there is none, `StateUnusable`."""
    try:
        if not SESSION_ID.fullmatch(name):
            raise FileNotFoundError
        with RootDir.open(layout.sessions) as sessions, sessions.directory(name) as session:
            known = _events(session)
            counts = Counter(str(event.get("type")) for event in known)
            return Details(
                info=_info(name, session, known), counts=counts, last_events=known[-events:], home=_top(session)
            )
    except (FileNotFoundError, NotADirectoryError):
        raise RequestRefused(f"no Session {name} is in {layout.root}", remedy="see 'agenthost sessions list'") from None
    except OSError as error:
        raise StateUnusable(f"Session {name} cannot be read ({error.strerror})", remedy="check --state-dir") from error


def _info(name: str, session: RootDir, events: list[dict[str, Any]]) -> SessionInfo:
    problem, record = None, None
    try:
        record = read_record(session, name)
        problem = "no record" if record is None else None
    except StateUnusable as error:
        problem = error.what
    is_open = _is_locked(session)
    last_launch, end = _last_launch(events, is_open=is_open)
    uid = None if record is None else record.get("uid")
    return SessionInfo(
        id=name,
        workspace=None if record is None else str(record.get("workspace")),
        uid=uid if isinstance(uid, int) else None,
        is_open=is_open,
        last_launch=last_launch,
        end=end,
        home=_size(session, "home"),
        problem=problem,
    )


def _is_locked(session: RootDir) -> bool:
    """Asks for a shared lock and drops it at once: who opens the Session meanwhile waits that long."""
    try:
        fcntl.flock(session.fileno(), fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    fcntl.flock(session.fileno(), fcntl.LOCK_UN)
    return False


def _last_launch(events: list[dict[str, Any]], *, is_open: bool) -> tuple[str | None, int | str | None]:
    started: object = None
    end: int | str | None = None
    for event in events:
        if event.get("type") == "view.started":
            started, end = event.get("ts"), "open" if is_open else "cut off"
        elif event.get("type") == "view.exited":
            status = event.get("status")
            end = status if isinstance(status, int) else "failed"
    return (started if isinstance(started, str) else None), end


def _events(session: RootDir) -> list[dict[str, Any]]:
    """The events at the end of the file; a line that is none is left out."""
    try:
        with session.directory(".") as here:
            fd = os.open(EVENTS, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=here.fileno())
    except OSError:
        return []
    try:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode):
            return []
        start = max(0, found.st_size - TAIL)
        lines = os.pread(fd, TAIL, start).split(b"\n")[1 if start else 0 :]
    finally:
        os.close(fd)
    events = []
    for line in lines:
        with contextlib.suppress(ValueError, RecursionError):
            event = json.loads(line)
            if isinstance(event, dict):
                events.append(event)
    return events


def _size(session: RootDir, name: str) -> Size:
    """A bounded walk by descriptor: one open directory a level."""
    walk = _Walk()
    try:
        walk.enter(session, name)
    except FileNotFoundError:
        return Size(0, 0, complete=True)
    try:
        while walk.levels:
            walk.step()
    finally:
        for level in walk.levels:
            level.close()
    return Size(walk.taken, walk.entries, walk.complete)


class _Walk:
    """What was seen so far. A file with several names counts once."""

    def __init__(self) -> None:
        self.levels: list[_Level] = []
        self.taken = 0
        self.entries = 0
        self.complete = True
        self._seen: set[int] = set()

    def enter(self, above: RootDir, name: str) -> None:
        """FileNotFoundError when it is gone; what cannot be looked into makes the walk incomplete."""
        try:
            if len(self.levels) == DEEPEST:
                raise OSError
            self.levels.append(_Level(above, name))
        except FileNotFoundError:
            raise
        except OSError:
            self.complete = False

    def step(self) -> None:
        level = self.levels[-1]
        entry = next(level.left, None) if self.entries < MOST_ENTRIES else None
        if entry is None:
            self.complete &= self.entries < MOST_ENTRIES
            self.levels.pop().close()
            return
        with contextlib.suppress(FileNotFoundError):
            kind = entry.stat(follow_symlinks=False)
            self.entries += 1
            self.taken += 0 if kind.st_ino in self._seen else kind.st_blocks * 512
            if stat.S_ISDIR(kind.st_mode):
                self.enter(level.directory, entry.name)
            elif kind.st_nlink > 1:
                self._seen.add(kind.st_ino)


class _Level:
    """An open directory of the walk, and what of it is still to be looked at."""

    __slots__ = ("directory", "left")

    def __init__(self, above: RootDir, name: str) -> None:
        self.directory = above.directory(name)
        try:
            self.left = os.scandir(self.directory.fileno())
        except BaseException:
            self.directory.close()
            raise

    def close(self) -> None:
        self.left.close()
        self.directory.close()


def _top(session: RootDir) -> list[tuple[str, str, int]]:
    """The home's own entries, and those of the directories among them."""
    found: list[tuple[str, str, int]] = []
    for name, mode, size in _listed(session, "home"):
        found.append((name, _kind(mode), size))
        if stat.S_ISDIR(mode):
            found += [
                (f"{name}/{entry}", _kind(inner), size) for entry, inner, size in _listed(session, f"home/{name}")
            ]
    return found


def _listed(session: RootDir, directory: str) -> list[tuple[str, int, int]]:
    try:
        level = _Level(session, directory)
    except OSError:
        return []
    found = []
    with contextlib.closing(level):
        for entry in islice(level.left, MOST_LISTED):
            with contextlib.suppress(OSError):
                kind = entry.stat(follow_symlinks=False)
                found.append((entry.name, kind.st_mode, kind.st_size))
    return sorted(found)


def _kind(mode: int) -> str:
    kinds = {
        stat.S_IFREG: "file",
        stat.S_IFDIR: "directory",
        stat.S_IFLNK: "link",
        stat.S_IFIFO: "fifo",
        stat.S_IFSOCK: "socket",
    }
    return kinds.get(stat.S_IFMT(mode), "device")
