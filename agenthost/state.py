"""The state directory: made closed, one directory a Session, held by one process at a time.

ROOT/                   0700, the daemon's
    attach/             empty; where the builder attaches private mounts, seen by the builder alone
    sessions/ID/        one Session; its lock is an exclusive flock(2) on the directory itself
        session.json    what must be known to open it again
        home/           the Session home
        events.jsonl    what happened
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import secrets
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from agenthost.errors import StateUnusable
from agenthost.events import EventLog
from agenthost.layout import StateLayout
from agenthost.lease import lease_uid
from agenthost.linux.rootdir import Owner, RootDir
from agenthost.request import Admitted

_RECORD: Final = "session.json"
_RECORD_VERSION: Final = 1


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
    made: list[Path] = []
    try:
        try:
            for directory in (layout.root, layout.attach, layout.sessions):
                _make_directories(directory, made)
            found = layout.root.stat()
        except OSError as error:
            raise StateUnusable(
                f"the state directory {layout.root} cannot be made ({error.strerror})", remedy="use another --state-dir"
            ) from error
        if found.st_uid != os.geteuid() or found.st_mode & 0o077:
            raise StateUnusable(
                f"the state directory {layout.root} is open to others",
                remedy=f"chmod 700 {layout.root}, or use another --state-dir",
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


@contextlib.contextmanager
def nothing_half_done(record: Record) -> Iterator[None]:
    """Removes a new Session's directory when it cannot be opened: no Harness has been in it."""
    try:
        yield
    except BaseException:
        if record.new:
            with RootDir.open(record.directory.parent) as sessions:
                sessions.remove(record.id)
        raise


@contextlib.contextmanager
def open_record(layout: StateLayout, admitted: Admitted, *, rootless: bool) -> Iterator[Record]:
    """The Session's directory, held by this process alone; in root mode with a lease of the Session's uid."""
    wanted = admitted.request.session
    session_id = wanted or f"s-{secrets.token_hex(6)}"
    directory = layout.session(session_id)
    directory.mkdir(mode=0o700, exist_ok=True)
    with contextlib.ExitStack() as stack:
        try:
            lock = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW)
            stack.callback(os.close, lock)
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise StateUnusable(f"Session {session_id} is open elsewhere", remedy="close it there") from None
        with RootDir.open(directory) as root:
            known = _read_record(root, session_id)
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
                if known is None:
                    values = {"version": _RECORD_VERSION, "id": session_id, "workspace": str(admitted.workspace)}
                    root.write(_RECORD, json.dumps(values | {"uid": record.owner.uid}).encode() + b"\n")
        yield record


def _read_record(root: RootDir, session_id: str) -> dict[str, object] | None:
    try:
        record = json.loads(root.read(_RECORD))
    except FileNotFoundError:
        return None  # an earlier daemon ended before it was written
    except (OSError, ValueError) as error:
        raise StateUnusable(
            f"the record of Session {session_id} cannot be read", remedy="remove the Session"
        ) from error
    if not isinstance(record, dict) or record.get("version") != _RECORD_VERSION:
        raise StateUnusable(f"Session {session_id} is of another version", remedy="remove the Session")
    return record


@contextlib.contextmanager
def open_events(record: Record, copy: Path | None) -> Iterator[EventLog]:
    with contextlib.ExitStack() as stack:
        try:
            copied = None if copy is None else stack.enter_context(copy.open("ab"))
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
            fd = os.open(record.directory / "events.jsonl", flags, 0o600)
        except OSError as error:
            raise StateUnusable(
                f"{error.filename} cannot be written ({error.strerror})", remedy="check --events and --state-dir"
            ) from error
        log = EventLog(record.id, fd, copied)
        stack.callback(log.close)
        yield log
