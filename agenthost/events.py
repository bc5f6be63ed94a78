"""What happened in a Session: one JSON object a line, appended as it happens.

    {"ts": "2026-01-31T12:00:00.123Z", "session": "ID", "type": "model.request", ...}

An event holds names, counts, statuses and durations; never a body, never a key. Everything that a view can choose
(paths, host names, argv) arrives as a JSON string, so it can neither break a line nor look like another event.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import BinaryIO, Final

Event = Mapping[str, object]
Subscriber = Callable[[Event], None]

_LOGGER: Final = logging.getLogger(__name__)


class EventLog:
    """The events of one Session. Belongs to one thread.

    Writing never fails for the caller: a full disk must not end a Session. The first error is kept in `failure`, for
    whoever closes the Session to report.
    """

    def __init__(self, session: str, fd: int, copy: BinaryIO | None = None) -> None:
        """Takes over `fd` (opened with O_APPEND | O_CLOEXEC); `copy` gets the same lines and stays the caller's."""
        self.session = session
        self.subscribers: list[Subscriber] = []
        """Called with each event, in order, after it was written. One that raises is dropped."""
        self.failure: OSError | None = None
        """The first error of a write to the log or to the copy."""
        self._fd = fd
        self._copy = copy
        self._torn = False

    def __repr__(self) -> str:
        return f"EventLog(session={self.session!r}, fd={self._fd})"

    def write(self, type_: str, **fields: object) -> None:
        """Appends one event. What is not JSON becomes its `str`. After `close` only the subscribers hear of it."""
        event: dict[str, object] = {"ts": _now(), "session": self.session, "type": type_, **fields}
        line = json.dumps(event, default=str, separators=(",", ":")).encode("ascii") + b"\n"
        if self._fd >= 0:
            self._append(line)
        if self._copy is not None:
            self._append_copy(self._copy, line)
        for subscriber in tuple(self.subscribers):
            self._tell(subscriber, event)

    def close(self) -> None:
        """Closes the log. Again is harmless."""
        fd, self._fd = self._fd, -1
        self._copy = None
        if fd >= 0:
            try:
                os.close(fd)
            except OSError as error:  # a network file system reports a failed write here
                self.failure = self.failure or error

    def _append(self, line: bytes) -> None:
        rest = b"\n" + line if self._torn else line  # a line that a full disk cut short must not swallow this one
        try:
            while rest:
                written = os.write(self._fd, rest)
                rest = rest[written:]
                self._torn = bool(rest)
        except OSError as error:
            self.failure = self.failure or error

    def _append_copy(self, copy: BinaryIO, line: bytes) -> None:
        try:
            copy.write(line)
            copy.flush()
        except OSError as error:
            self.failure = self.failure or error
            self._copy = None

    def _tell(self, subscriber: Subscriber, event: Event) -> None:
        try:
            subscriber(event)
        except Exception:
            self.subscribers.remove(subscriber)
            _LOGGER.exception("a subscriber of Session %s failed and hears no more events", self.session)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
