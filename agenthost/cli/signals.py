"""Signals of a launch: what is sent to this process reaches the Harness, once there is one."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Final, Protocol, Self

FORWARDED: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
"""What a supervisor, a terminal or a shell sends to end a program."""


class Signalled(Protocol):
    """What can receive a signal: `agenthost.Process`."""

    def send_signal(self, sig: int, /) -> None:
        """Send it to the Harness."""
        ...


class Signals:
    """Forwards the signals of `FORWARDED` while a Harness runs; until then the first one ends the start-up.

    A signal that was ignored when this process started stays ignored (`nohup`, a shell's background job).
    Entered inside a running event loop, by the task that opens the Session.
    """

    def __init__(self) -> None:
        self.ended_by: signal.Signals | None = None
        self._receiver: Signalled | None = None
        self._starting = True
        self._task: asyncio.Task[object] | None = None
        self._handled: list[signal.Signals] = []

    def __enter__(self) -> Self:
        self._task = asyncio.current_task()
        loop = asyncio.get_running_loop()
        for number in FORWARDED:
            if signal.getsignal(number) is not signal.SIG_IGN:
                loop.add_signal_handler(number, self._arrived, number)
                self._handled.append(number)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        loop = asyncio.get_running_loop()
        for number in self._handled:
            loop.remove_signal_handler(number)

    @contextmanager
    def forwarded_to(self, receiver: Signalled) -> Iterator[None]:
        """While the block runs, signals go to `receiver`. Afterwards they are dropped: the end is bounded anyway."""
        self._starting = False
        self._receiver = receiver
        try:
            yield
        finally:
            self._receiver = None

    def _arrived(self, number: signal.Signals) -> None:
        if self._receiver is not None:
            self._receiver.send_signal(number)
        elif self._starting and self.ended_by is None and self._task is not None:
            # One cancellation, never a second: it would interrupt the clean-up that the first one began.
            self.ended_by = number
            self._task.cancel()
