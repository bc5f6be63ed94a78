"""The state directory: made closed, one directory a Session, one daemon alone or several commands side by side.

ROOT/                   0700, the daemon's
    lock                flock(2): exclusive for one daemon alone, shared by processes that live side by side
    attach/             empty; where the builder attaches private mounts, seen by the builder alone
    sessions/ID/        one Session; its lock is an exclusive flock(2) on the directory itself
        session.json    what must be known to open it again
        open.json       who has it open; what an end in between leaves is a sign of just that
        home/           the Session home
        events.jsonl    what happened
    */.oac-*            files and directories on their way in or out

Two locks, because there are two kinds of holder. A long-lived daemon takes ROOT/lock exclusively, so that all that is
open there is its own. A client of the command line starts several short-lived processes at once on the one default
directory, so these share ROOT/lock. What keeps them apart is the lock of each Session: whoever opens, recovers or
removes a Session holds that lock, and has made sure after locking that the directory still stands at its name. So
recovering and removing one Session is safe at any time, beside a daemon and beside commands. Only what belongs to no
Session, the temporary files in ROOT itself, may be somebody's write under way: that needs ROOT/lock exclusively.
The kernel ends a lock with its holder: nothing is ever locked by a process that is gone.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import secrets
import stat
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from agenthost.errors import StateUnusable
from agenthost.events import EventLog
from agenthost.layout import StateLayout
from agenthost.lease import lease_uid
from agenthost.linux.rootdir import TEMPORARY, Owner, RootDir
from agenthost.request import Admitted

RECORD: Final = "session.json"
OPENED: Final = "open.json"
EVENTS: Final = "events.jsonl"
LOCK: Final = "lock"

_RECORD_VERSION: Final = 1

PATIENCE_S: Final = 0.05
"""Seconds. Who only looks whether a lock is free holds it for microseconds; more is somebody who stays."""


@dataclass(frozen=True, slots=True)
class Record:
    """What the state directory says of a Session, and the lock on it."""

    id: str
    directory: Path
    owner: Owner
    new: bool


@contextlib.contextmanager
def made_state(layout: StateLayout) -> Iterator[None]:
    """The state directory, closed to everybody else. What was made is removed again when the block fails."""
    with _made(layout.root, (layout.root, layout.attach, layout.sessions)):
        yield


@contextlib.contextmanager
def _made(root: Path, directories: tuple[Path, ...]) -> Iterator[None]:
    made: list[Path] = []
    try:
        try:
            for directory in directories:
                _make_directories(directory, made)
            found = root.stat()
        except OSError as error:
            raise StateUnusable(
                f"the state directory {root} cannot be made ({error.strerror})", remedy="use another --state-dir"
            ) from error
        if found.st_uid != os.geteuid() or found.st_mode & 0o077:
            raise StateUnusable(
                f"the state directory {root} is open to others", remedy=f"chmod 700 {root}, or use another --state-dir"
            )
        yield
    except BaseException:
        for directory in reversed(made):
            with contextlib.suppress(OSError):
                directory.rmdir()
        raise


def _make_directories(directory: Path, made: list[Path]) -> None:
    missing = [path for path in (directory, *directory.parents) if not path.exists()]
    for path in reversed(missing):
        path.mkdir(mode=0o700)
        made.append(path)


def hold_state(layout: StateLayout, *, exclusive: bool) -> int:
    """The state directory, alone or side by side with others, until the descriptor is closed.

    Makes the directory when it is not there. Raises `StateUnusable`, naming the process that is in the way.
    """
    with _made(layout.root, (layout.root,)):
        lock = _open_lock(layout.root / LOCK)
        try:
            _flock(lock, fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH)
            if exclusive:
                os.ftruncate(lock, 0)
                os.pwrite(lock, b"%d\n" % os.getpid(), 0)
        except BlockingIOError:
            holder = _holder(lock)
            os.close(lock)
            raise StateUnusable(
                f"the state directory {layout.root} is in use by {holder}",
                remedy="wait for its end, or use another --state-dir",
            ) from None
        except BaseException:
            os.close(lock)
            raise
        return lock


def _open_lock(path: Path) -> int:
    try:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)
    except OSError as error:
        raise StateUnusable(f"{path} cannot be opened ({error.strerror})", remedy=f"remove {path}") from error
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise StateUnusable(f"{path} is not a file", remedy=f"remove {path}")
    return fd


def _flock(fd: int, how: int, patience_s: float = PATIENCE_S) -> None:
    """Raises BlockingIOError when the lock is not free for so many seconds."""
    deadline = time.monotonic() + patience_s
    while True:
        try:
            fcntl.flock(fd, how | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.002)
        else:
            return


def _holder(lock: int) -> str:
    """Who holds it: the kernel knows (proc_locks(5)), or, where it numbers the file system otherwise, the file says."""
    found = os.fstat(lock)
    place = f"{os.major(found.st_dev):02x}:{os.minor(found.st_dev):02x}:{found.st_ino}"
    with contextlib.suppress(OSError):
        lines = [line.split() for line in Path("/proc/locks").read_text().splitlines()]
        held = {line[4] for line in lines if line[1] == "FLOCK" and line[5] == place}
        if held:
            return f"process {', '.join(sorted(held, key=int))}"
    said = os.pread(lock, 32, 0).strip()
    return f"process {said.decode()}" if said.isdigit() else "another process"


def lock_session(layout: StateLayout, session_id: str, *, patience_s: float = PATIENCE_S) -> int:
    """The directory of a Session, open, and locked by this process alone until the descriptor is closed.

    Raises `StateUnusable` while somebody else has it, FileNotFoundError when there is none.
    """
    directory = layout.session(session_id)
    while True:
        try:
            fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except NotADirectoryError:
            raise StateUnusable(f"{directory} is not the directory of a Session", remedy="remove it") from None
        try:
            _flock(fd, fcntl.LOCK_EX, patience_s)
            if _stands_at(fd, directory):
                return fd
        except BlockingIOError:
            os.close(fd)
            raise StateUnusable(f"Session {session_id} is open elsewhere", remedy="close it there") from None
        except BaseException:
            os.close(fd)
            raise
        os.close(fd)


def _stands_at(fd: int, path: Path) -> bool:
    """Whether it is still that directory: it may have been removed between opening and locking."""
    try:
        return os.path.samestat(os.fstat(fd), path.lstat())
    except FileNotFoundError:
        return False


def lock_made_session(layout: StateLayout, session_id: str) -> int:
    """The same; the directory is made when there is none."""
    while True:
        try:
            with _writable(layout.sessions):
                layout.session(session_id).mkdir(mode=0o700, exist_ok=True)
        except FileExistsError:
            raise StateUnusable(f"{layout.session(session_id)} is not a directory", remedy="remove it") from None
        with contextlib.suppress(FileNotFoundError):  # an empty one was taken for a remainder, and removed
            return lock_session(layout, session_id)


@contextlib.contextmanager
def nothing_half_done(record: Record) -> Iterator[None]:
    """Removes a new Session's directory when it cannot be opened: no Harness has been in it."""
    try:
        yield
    except BaseException:
        if record.new:
            with RootDir.open(record.directory.parent) as sessions:
                discard(sessions, record.id)
        raise


def discard(sessions: RootDir, name: str) -> None:
    """Removes a Session's directory, which the caller has locked: in one step from its name, and then from the disk."""
    temporary = TEMPORARY + secrets.token_hex(8)
    os.rename(name, temporary, src_dir_fd=sessions.fileno(), dst_dir_fd=sessions.fileno())
    sessions.remove(temporary)


@contextlib.contextmanager
def open_record(layout: StateLayout, admitted: Admitted, *, rootless: bool) -> Iterator[Record]:
    """The Session's directory, held by this process alone; in root mode with a lease of the Session's uid."""
    wanted = admitted.request.session
    session_id = wanted or f"s-{secrets.token_hex(6)}"
    directory = layout.session(session_id)
    with contextlib.ExitStack() as stack:
        lock = lock_made_session(layout, session_id)
        stack.callback(os.close, lock)
        with RootDir.open(directory) as root:
            known = read_record(root, session_id)
            if known is None and not is_unused(root):
                raise StateUnusable(
                    f"{directory} is not empty and has no record of a Session", remedy="use another Session"
                )
            if known is not None and known["workspace"] != str(admitted.workspace):
                raise StateUnusable(
                    f"Session {session_id} has the workspace {known['workspace']}", remedy="use it, or another Session"
                )
            record = Record(session_id, directory, Owner(os.geteuid(), os.getegid()), known is None)
            with nothing_half_done(record):
                if not rootless:
                    lease = lease_uid(None if known is None else int(str(known["uid"])))
                    stack.callback(lease.release)
                    record = replace(record, owner=Owner(lease.uid, lease.uid))
                with _writable(directory):
                    if known is None:
                        values = {"version": _RECORD_VERSION, "id": session_id, "workspace": str(admitted.workspace)}
                        root.write(RECORD, json.dumps(values | {"uid": record.owner.uid}).encode() + b"\n")
                    root.write(OPENED, json.dumps({"pid": os.getpid()}).encode() + b"\n")
        stack.callback(_closed, directory)
        yield record


@contextlib.contextmanager
def _writable(directory: Path) -> Iterator[None]:
    try:
        yield
    except FileExistsError:
        raise
    except OSError as error:
        raise StateUnusable(
            f"{directory} cannot be written ({error.strerror})", remedy="make room there, or use another --state-dir"
        ) from error


def _closed(directory: Path) -> None:
    with contextlib.suppress(FileNotFoundError), RootDir.open(directory) as root:
        root.remove(OPENED)


def read_record(root: RootDir, session_id: str) -> dict[str, object] | None:
    """What a Session's directory says of it; None when it was not written yet. Raises `StateUnusable`."""
    try:
        record = json.loads(root.read(RECORD))
    except FileNotFoundError:
        return None  # an earlier daemon ended before it was written
    except (OSError, ValueError) as error:
        raise StateUnusable(
            f"the record of Session {session_id} cannot be read", remedy="remove the Session"
        ) from error
    if not isinstance(record, dict) or record.get("version") != _RECORD_VERSION:
        raise StateUnusable(f"Session {session_id} is of another version", remedy="remove the Session")
    return record


def is_unused(root: RootDir) -> bool:
    """Whether a Session's directory holds nothing but remainders: its record is what is written first."""
    return all(name.startswith(TEMPORARY) for name in root.names())


@contextlib.contextmanager
def open_events(record: Record, copy: Path | None) -> Iterator[EventLog]:
    with contextlib.ExitStack() as stack:
        try:
            copied = None if copy is None else stack.enter_context(copy.open("ab"))
            fd = open_event_file(record.directory)
        except OSError as error:
            raise StateUnusable(
                f"{error.filename} cannot be written ({error.strerror})", remedy="check --events and --state-dir"
            ) from error
        log = EventLog(record.id, fd, copied)
        stack.callback(log.close)
        yield log


def open_event_file(directory: Path) -> int:
    """The event file of a Session, for appending whole lines."""
    flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
    fd = os.open(directory / EVENTS, flags, 0o600)
    size = os.fstat(fd).st_size
    if size and os.pread(fd, 1, size - 1) != b"\n":
        os.write(fd, b"\n")  # a daemon ended in the middle of a line
    return fd
