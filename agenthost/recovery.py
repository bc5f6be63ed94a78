"""What an earlier process left in a state directory, found and settled; and Sessions removed.

A daemon that is killed leaves no process: each view and environment ends with its control socket. It leaves files,
and the cgroup of a Session that had limits:

    sessions/.oac-*             a Session on its way out                          removed
    sessions/ID, no record      a Session that was not made yet                   removed
    sessions/ID/open.json       a Session that nobody has open any more           settled: its cgroup and temporary
                                                                                  files removed, its home kept, an
                                                                                  event written
    .oac-*                      a file that was not whole yet                     removed, by who is alone
    /run/agenthost/uids/UID     a lease that its holder has not ended             removed, by who is alone

Promise: nothing is touched whose lock another process holds, nothing outside the state directory but ended leases, no
link is followed, and what agenthost does not put there (links, other names, other owners' files) stays as it is.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from agenthost.codex.plan import CATALOG_FILE
from agenthost.errors import CleanupFailed, RequestRefused, StateUnusable
from agenthost.events import EventLog
from agenthost.home import DIRECTORIES
from agenthost.layout import SESSION_ID, StateLayout
from agenthost.lease import remove_stale, wait_until_unused
from agenthost.limits import remove_left
from agenthost.linux.rootdir import TEMPORARY, RootDir
from agenthost.state import (
    EVENTS,
    OPENED,
    PATIENCE_S,
    RECORD,
    discard,
    hold_state,
    is_unused,
    lock_session,
    open_event_file,
    read_record,
)

_TEMPORARY_NAME: Final = re.compile(re.escape(TEMPORARY) + r"[0-9a-f]{16}")
_DAY_S: Final = 86_400

_ENDED_WITHIN_S: Final = 2.0
"""Seconds. A killed daemon's view ends in milliseconds; a machine that is busy takes longer."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was found, and what became of it; of a dry run, what would have.

    `name` is below the state directory, or "uid N" of a lease. `found` completes "NAME is ...".
    """

    name: str
    found: str
    outcome: Literal["removed", "settled", "left"]


def recover(layout: StateLayout, *, alone: bool, dry_run: bool = False) -> tuple[Finding, ...]:
    """Settles what ended processes left. `alone` is for who holds the state directory exclusively."""
    found: list[Finding] = []
    with _opened(layout) as (root, sessions):
        if root is not None and alone:
            found += _temporary_files(root, dry_run=dry_run)
        if sessions is not None:
            for name, kind in sorted(sessions.entries()):
                finding = _look(layout, sessions, name, kind, dry_run=dry_run)
                found += [] if finding is None else [finding]
            if not dry_run:
                _await_end(sessions, found)
    if alone and not dry_run:
        found += _ended_leases()
    return tuple(found)


def recover_session(layout: StateLayout, session_id: str) -> None:
    """The same for one Session that is about to be opened."""
    if not SESSION_ID.fullmatch(session_id):
        return
    with _opened(layout) as (_, sessions), contextlib.suppress(FileNotFoundError):
        if sessions is not None:
            finding = _look(layout, sessions, session_id, sessions.stat(session_id), dry_run=False)
            _await_end(sessions, [] if finding is None else [finding])


def _await_end(sessions: RootDir, found: Sequence[Finding]) -> None:
    """Waits for what the kernel is still ending in Sessions that were settled: they may be opened next."""
    uids = set()
    for finding in found:
        if finding.outcome == "settled" and os.geteuid() == 0:
            name = finding.name.removeprefix("sessions/")
            with contextlib.suppress(OSError, StateUnusable, ValueError), sessions.directory(name) as session:
                uids.add(int(str((read_record(session, name) or {}).get("uid"))))
    if uids:
        wait_until_unused(uids, _ENDED_WITHIN_S)


def collect(layout: StateLayout, *, older_than_days: float | None, dry_run: bool = False) -> tuple[Finding, ...]:
    """`recover`, and then the Sessions that nobody has open or has used for so many days. Raises `CleanupFailed`."""
    if not layout.sessions.is_dir():
        return ()  # not ours to make, nor to lock
    found = list(_alone(layout, dry_run=dry_run))
    found += recover(layout, alone=False, dry_run=dry_run)
    if older_than_days is None:
        return tuple(found)
    before = time.time() - older_than_days * _DAY_S
    with _opened(layout) as (_, sessions):
        for name, kind in [] if sessions is None else sorted(sessions.entries()):
            if sessions is None or not SESSION_ID.fullmatch(name) or not stat.S_ISDIR(kind.st_mode):
                continue
            busy = contextlib.suppress(FileNotFoundError, StateUnusable)
            with _cleaning(name), busy, _locked(layout, name, patience_s=0):
                with sessions.directory(name) as session:
                    old = session.exists(RECORD) and last_use(session) < before
                if old:
                    if not dry_run:
                        discard(sessions, name)
                    found.append(Finding(f"sessions/{name}", f"unused for {older_than_days:g} days", "removed"))
    return tuple(found)


def remove(layout: StateLayout, session_ids: Sequence[str]) -> None:
    """Removes Sessions with their homes: all of them, or none when one is open or does not exist.

    Raises `RequestRefused` for an unknown Session, `StateUnusable` for one that is open, `CleanupFailed`.
    """
    with contextlib.ExitStack() as stack:
        _, sessions = stack.enter_context(_opened(layout))
        for name in dict.fromkeys(session_ids):
            unknown = RequestRefused(f"no Session {name} is in {layout.root}", remedy="see 'agenthost sessions list'")
            if not SESSION_ID.fullmatch(name) or sessions is None:
                raise unknown
            try:
                stack.enter_context(_locked(layout, name))
            except FileNotFoundError:
                raise unknown from None
            with sessions.directory(name) as session:
                if not session.exists(RECORD) and not is_unused(session):
                    raise StateUnusable(
                        f"sessions/{name} has no record of a Session", remedy="look at it, and remove it yourself"
                    )
        for name in dict.fromkeys(session_ids):
            if sessions is not None:
                with _cleaning(name):
                    remove_left(layout.session(name))  # its record goes with the directory
                    discard(sessions, name)


def last_use(session: RootDir) -> float:
    """When something was last written down of the Session: seconds since the epoch."""
    times = [session.stat(name).st_mtime for name in (EVENTS, RECORD) if session.exists(name)]
    return max(times, default=0.0)


def _look(layout: StateLayout, sessions: RootDir, name: str, kind: os.stat_result, *, dry_run: bool) -> Finding | None:
    """What a name in `sessions` is, and settles it; None for what is as it should be, is open, or is gone."""
    where = f"sessions/{name}"
    temporary = bool(_TEMPORARY_NAME.fullmatch(name))
    own_directory = stat.S_ISDIR(kind.st_mode) and kind.st_uid == os.geteuid()
    if not own_directory or not (temporary or SESSION_ID.fullmatch(name)):
        return Finding(where, "not what agenthost puts there", "left")
    try:
        if not temporary and _is_settled(sessions, name):
            return None
        with _locked(layout, name, patience_s=0):
            if not temporary:
                return _settle(layout, sessions, name, dry_run=dry_run)
            if not dry_run:
                sessions.remove(name)
            return Finding(where, "a Session that was being removed", "removed")
    except (FileNotFoundError, StateUnusable):
        return None
    except CleanupFailed as error:
        return Finding(where, f"a Session whose daemon has ended, and {error.what}", "left")
    except OSError as error:
        # What a Harness made of its home must not keep a daemon from starting: the next launch in it will say so.
        return Finding(where, f"in the way of its own removal ({error.filename}: {error.strerror})", "left")


def _is_settled(sessions: RootDir, name: str) -> bool:
    """Recorded, not marked as open, and nothing half written: a look without the Session's lock."""
    names = sessions.names(name)
    return RECORD in names and OPENED not in names and not any(map(_TEMPORARY_NAME.fullmatch, names))


def _settle(layout: StateLayout, sessions: RootDir, name: str, *, dry_run: bool) -> Finding | None:
    where = f"sessions/{name}"
    with sessions.directory(name) as session:
        if not session.exists(RECORD):
            if not is_unused(session):
                return Finding(where, "without a record, and not empty", "left")
            if not dry_run:
                discard(sessions, name)
            return Finding(where, "a Session that was not made yet", "removed")
        if not session.exists(OPENED):
            half = [entry for entry in session.names() if _TEMPORARY_NAME.fullmatch(entry)]
            for entry in [] if dry_run else half:
                session.remove(entry)
            return Finding(where, "a Session that was being opened", "settled") if half else None
        if not dry_run:
            cgroup = remove_left(layout.session(name))
            removed = list(_remainders(session))
            for path in removed:
                session.remove(path)
            log = EventLog(name, open_event_file(layout.session(name)))
            log.write("session.recovered", removed=removed, cgroup=None if cgroup is None else str(cgroup))
            log.close()
            session.remove(OPENED)
        return Finding(where, "a Session whose daemon has ended", "settled")


def _remainders(session: RootDir) -> Iterator[str]:
    """Temporary names in a Session, and the model catalog of a launch: all else of the home is kept."""
    for directory in (".", "home", *(f"home/{name}" for name in DIRECTORIES)):
        try:
            names = sorted(session.names(directory))
        except OSError:
            continue  # not there, or not a directory: the next launch replaces what it finds
        prefix = "" if directory == "." else f"{directory}/"
        yield from (f"{prefix}{name}" for name in names if _TEMPORARY_NAME.fullmatch(name))
    catalog = f"home/{CATALOG_FILE}"
    with contextlib.suppress(OSError):
        if session.exists(catalog):
            yield catalog


def _temporary_files(root: RootDir, *, dry_run: bool) -> Iterator[Finding]:
    for name, kind in sorted(root.entries()):
        plain = stat.S_ISREG(kind.st_mode) and kind.st_nlink == 1 and kind.st_uid == os.geteuid()
        if _TEMPORARY_NAME.fullmatch(name) and plain:
            if not dry_run:
                root.remove(name)
            yield Finding(name, "a file that was not whole yet", "removed")


def _ended_leases() -> Iterator[Finding]:
    """In root mode; without root there are no leases."""
    if os.geteuid() == 0:
        yield from (Finding(f"uid {uid}", "a lease whose holder has ended", "removed") for uid in remove_stale())


def _alone(layout: StateLayout, *, dry_run: bool) -> Iterator[Finding]:
    """What only who is alone may remove; nothing while somebody else is there. Short: others are refused meanwhile."""
    try:
        lock = hold_state(layout, exclusive=True)
    except StateUnusable:
        return
    try:
        with RootDir.open(layout.root) as root:
            yield from _temporary_files(root, dry_run=dry_run)
        if not dry_run:
            yield from _ended_leases()
    finally:
        os.close(lock)


@contextlib.contextmanager
def _locked(layout: StateLayout, name: str, *, patience_s: float = PATIENCE_S) -> Iterator[None]:
    lock = lock_session(layout, name, patience_s=patience_s)
    try:
        yield
    finally:
        os.close(lock)


@contextlib.contextmanager
def _opened(layout: StateLayout) -> Iterator[tuple[RootDir | None, RootDir | None]]:
    """The state directory and its Sessions, or None for what is not there."""
    with contextlib.ExitStack() as stack:
        opened: list[RootDir | None] = []
        for directory in (layout.root, layout.sessions):
            try:
                opened.append(stack.enter_context(RootDir.open(directory)))
            except FileNotFoundError:
                opened.append(None)
            except OSError as error:
                raise StateUnusable(
                    f"{directory} cannot be opened ({error.strerror})", remedy="use another --state-dir"
                ) from error
        yield opened[0], opened[1]


@contextlib.contextmanager
def _cleaning(name: str) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError:
        raise
    except OSError as error:
        raise CleanupFailed(
            f"{name} cannot be removed ({error.filename}: {error.strerror})", remedy="remove it yourself"
        ) from error
