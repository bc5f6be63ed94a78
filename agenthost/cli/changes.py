"""Which files of a workspace changed: two looks at it, before and after.

The look works for any workspace, with git or without, and runs nothing: a repository's own configuration can name
programs that git would execute on the host. It opens directories by descriptor and follows no link, so that a
workspace that changes meanwhile cannot lead it outside. Of a `.git` directory it sees only what can run programs
later (`config`, `config.worktree`, `hooks`, `info`), because the rest is bookkeeping.

Cost: 3.5 to 4.5 microseconds a file and look, measured with a warm cache: a fifth of a second for 50 000 files.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

MOST_ENTRIES: Final = 200_000
"""Files and directories. A larger workspace is not compared: the look would hold up the turn."""

DEEPEST: Final = 128
"""Levels of directories; one descriptor each is open."""

GIT: Final = ".git"
SEEN_OF_GIT: Final = frozenset({"config", "config.worktree", "hooks", "info"})

_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC

Mark = tuple[int, int, int, int, int]
"""Inode, size, modification and status change in nanoseconds, mode. The status change is the one that no program can
set back, so a file whose times were restored still counts as changed."""

Kind = Literal["added", "changed", "removed", "renamed"]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What a look saw. Names are relative, with surrogates for bytes that are not UTF-8."""

    files: Mapping[str, Mark]
    directories: frozenset[str]
    too_large: bool = False
    unread: int = 0
    """Directories that could not be opened or lie too deep."""


@dataclass(frozen=True, slots=True)
class Change:
    """One file, or a whole new or vanished directory (`path` ends in a slash) of `count` files."""

    kind: Kind
    path: str
    size: int | None = None
    """Bytes, of a file that is there now."""

    count: int = 1
    origin: str | None = None
    """The former path of a renamed file."""


def look(workspace: Path, *, most: int = MOST_ENTRIES) -> Snapshot:
    """See `workspace` as it is now. Synchronous; what cannot be read is counted and never raises."""
    try:
        stack = [_open(workspace, None, "")]
    except OSError:
        return Snapshot({}, frozenset(), unread=1)
    files = stack[0].files.copy()
    directories: set[str] = set()
    unread = 0
    try:
        while stack:
            try:
                name = next(stack[-1].names)
            except StopIteration:
                os.close(stack.pop().fd)
                continue
            parent = stack[-1]
            path = parent.prefix + name
            directories.add(path)
            if len(stack) >= DEEPEST:
                unread += 1
                continue
            try:
                stack.append(_open(name, parent.fd, path + "/"))
            except OSError:
                unread += 1
                continue
            files.update(stack[-1].files)
            if len(files) + len(directories) > most:
                return Snapshot({}, frozenset(), too_large=True)
        return Snapshot(files, frozenset(directories), unread=unread)
    finally:
        for level in stack:
            os.close(level.fd)


@dataclass(slots=True)
class _Level:
    fd: int
    prefix: str
    files: dict[str, Mark]
    names: Iterator[str]
    """Of the directories not yet entered."""


def _open(name: str | Path, parent: int | None, prefix: str) -> _Level:
    # The workspace itself may be named through a link; nothing below it is.
    flags = _DIRECTORY if parent is not None else _DIRECTORY & ~os.O_NOFOLLOW
    fd = os.open(name, flags, dir_fd=parent)
    try:
        files: dict[str, Mark] = {}
        names: list[str] = []
        seen = SEEN_OF_GIT if name == GIT else None
        with os.scandir(fd) as entries:
            for entry in entries:
                if seen is not None and entry.name not in seen:
                    continue
                if entry.is_dir(follow_symlinks=False):
                    names.append(entry.name)
                elif (mark := _mark(entry)) is not None:
                    files[prefix + entry.name] = mark
    except OSError:
        os.close(fd)
        raise
    return _Level(fd, prefix, files, iter(names))


def _mark(entry: os.DirEntry[str]) -> Mark | None:
    try:
        stat = entry.stat(follow_symlinks=False)
    except OSError:  # gone since it was listed
        return None
    return (stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_mode)


def compare(before: Snapshot, after: Snapshot) -> tuple[Change, ...]:
    """What differs, by path. A new or vanished directory with its files is one change."""
    added = {path: mark for path, mark in after.files.items() if path not in before.files}
    removed = {path: mark for path, mark in before.files.items() if path not in after.files}
    changes = [
        Change("changed", path, after.files[path][1])
        for path, mark in before.files.items()
        if path in after.files and after.files[path] != mark
    ]
    # A rename keeps inode, size and modification time; an inode alone may have been used again.
    origins = {mark[:3]: path for path, mark in removed.items()}
    for path, mark in list(added.items()):
        origin = origins.pop(mark[:3], None)
        if origin is not None:
            changes.append(Change("renamed", path, mark[1], origin=origin))
            del added[path], removed[origin]
    changes += _gathered("added", added, after.directories - before.directories)
    changes += _gathered("removed", removed, before.directories - after.directories)
    return tuple(sorted(changes, key=lambda change: change.path))


def _gathered(kind: Kind, files: Mapping[str, Mark], directories: frozenset[str]) -> list[Change]:
    """Files below one of `directories` count for the topmost of them, unless they are alone there."""
    gathered: dict[str, list[str]] = {}
    for path in files:
        gathered.setdefault(_topmost(path, directories), []).append(path)
    changes: list[Change] = []
    for place, paths in gathered.items():
        if place and len(paths) > 1:
            changes.append(Change(kind, place + "/", count=len(paths)))
        else:
            changes += [Change(kind, path, files[path][1] if kind == "added" else None) for path in paths]
    return changes


def _topmost(path: str, directories: frozenset[str]) -> str:
    if not directories:
        return ""
    end = path.find("/")
    while end != -1:
        if path[:end] in directories:
            return path[:end]
        end = path.find("/", end + 1)
    return ""
