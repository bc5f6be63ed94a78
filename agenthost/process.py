"""The Harness of a live view, and the descriptors between it and its caller.

A view gets pipes, sockets and `/dev/null` alone: any other descriptor would let the Harness reach a device or a
filesystem of the host by it, and execute what the descriptor is open on. What a caller gives of another kind is pumped.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import signal as signals
import stat
import threading
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final

PIPE: Final = -1
"""As a descriptor of `Session.launch`: a pipe whose other end is a stream of the `Process`."""

_CHUNK: Final = 64 << 10
_DRAIN_S: Final = 2.0
"""Seconds that a pump may go on after the view has ended: a command of the environment can hold the pipe open."""


@dataclass(slots=True)
class Stdio:
    """Three descriptors for the Harness, and what stands at their other ends. Owns all that it opened."""

    harness_ends: list[int] = field(default_factory=list)
    stdin: asyncio.StreamWriter | None = None
    stdout: asyncio.StreamReader | None = None
    stderr: asyncio.StreamReader | None = None
    _transports: list[asyncio.BaseTransport] = field(default_factory=list)
    _outputs: list[threading.Thread] = field(default_factory=list)

    @classmethod
    async def open(cls, stdin: int, stdout: int, stderr: int) -> Stdio:
        """`PIPE`, or a descriptor that stays the caller's."""
        stdio = cls()
        try:
            await stdio._open_input(stdin)
            stdio.stdout = await stdio._open_output(stdout)
            stdio.stderr = await stdio._open_output(stderr)
        except BaseException:
            stdio.close_harness_ends()
            stdio.close()
            raise
        return stdio

    def close_harness_ends(self) -> None:
        """Once they were passed on: until then no reader sees an end."""
        for fd in self.harness_ends:
            os.close(fd)
        self.harness_ends.clear()

    async def drain(self) -> None:
        """Waits until what the Harness wrote has reached the caller's descriptors."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + _DRAIN_S
        for pump in self._outputs:
            await loop.run_in_executor(None, pump.join, max(0.0, deadline - loop.time()))

    def close(self) -> None:
        """Closes the input; output that was not read stays readable."""
        if self.stdin is not None:
            self.stdin.close()

    async def _open_input(self, given: int) -> None:
        if given != PIPE and _may_enter(given):
            self.harness_ends.append(_duplicate(given))
            return
        reading, writing = os.pipe2(os.O_CLOEXEC)
        self.harness_ends.append(reading)
        if given == PIPE:
            self.stdin = await self._writer(writing)
        else:
            _pump(_duplicate(given), writing)

    async def _open_output(self, given: int) -> asyncio.StreamReader | None:
        if given != PIPE and _may_enter(given):
            self.harness_ends.append(_duplicate(given))
            return None
        reading, writing = os.pipe2(os.O_CLOEXEC)
        self.harness_ends.append(writing)
        if given == PIPE:
            return await self._reader(reading)
        self._outputs.append(_pump(reading, _duplicate(given)))
        return None

    async def _reader(self, fd: int) -> asyncio.StreamReader:
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader(limit=_CHUNK, loop=loop)
        file = os.fdopen(fd, "rb", buffering=0)
        transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader, loop=loop), file)
        self._transports.append(transport)
        return reader

    async def _writer(self, fd: int) -> asyncio.StreamWriter:
        loop = asyncio.get_running_loop()
        file = os.fdopen(fd, "wb", buffering=0)
        transport, protocol = await loop.connect_write_pipe(lambda: asyncio.streams.FlowControlMixin(loop=loop), file)
        self._transports.append(transport)
        return asyncio.StreamWriter(transport, protocol, None, loop)


class Process:
    """The Harness in its view. `stdin`, `stdout` and `stderr` are streams where `PIPE` was asked for, else None."""

    def __init__(
        self,
        stdio: Stdio,
        *,
        ended: Awaitable[int],
        send: Callable[[int], Awaitable[None]],
        stop: Callable[[], Awaitable[None]],
    ) -> None:
        self.stdin = stdio.stdin
        self.stdout = stdio.stdout
        self.stderr = stdio.stderr
        self.returncode: int | None = None
        """The exit status once `wait` has returned: the Harness's own, or 128 and the number of the signal."""
        self._send = send
        self._stop = stop
        self._tasks: set[asyncio.Task[None]] = set()
        self._ended = asyncio.ensure_future(ended)

    @property
    def ended(self) -> bool:
        """Whether the Harness has ended and all that belonged to it has settled."""
        return self._ended.done()

    async def wait(self) -> int:
        """How the Harness ended, after gateway, broker and view have settled.

        The Harness's own exit status, or 128 and the number of the signal that ended it. Raises `EnvironmentFailed`
        when the view was ended from outside, `GatewayFailed` when a listener broke.
        """
        self.returncode = await asyncio.shield(self._ended)
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Sends a signal to the Harness itself; nothing when it has ended."""
        task = asyncio.get_running_loop().create_task(_as_coroutine(self._send(number)))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def terminate(self) -> None:
        """`send_signal` with SIGTERM."""
        self.send_signal(signals.SIGTERM)

    async def stop(self) -> None:
        """TERM to every process of the view, the Session's grace, then KILL; returns when they are gone."""
        await self._stop()
        with contextlib.suppress(Exception):
            await self.wait()


async def _as_coroutine(awaitable: Awaitable[None]) -> None:
    await awaitable


def _duplicate(fd: int) -> int:
    duplicate = os.dup(fd)
    os.set_inheritable(duplicate, False)
    return duplicate


def _may_enter(fd: int) -> bool:
    found = os.fstat(fd)
    if stat.S_ISFIFO(found.st_mode) or stat.S_ISSOCK(found.st_mode):
        return True
    return stat.S_ISCHR(found.st_mode) and found.st_rdev == os.makedev(1, 3)


def _has_more(source: int, sink: int) -> bool:
    """Waits for input. False when nobody reads `sink` any more: a terminal's next line is then somebody else's."""
    poll = select.poll()
    poll.register(source, select.POLLIN)
    poll.register(sink, 0)
    return all(fd != sink for fd, _ in poll.poll())


def _pump(source: int, sink: int) -> threading.Thread:
    """Copies until the end of `source` or of whoever reads `sink`; owns both. A thread, for files and terminals."""

    def run() -> None:
        try:
            while _has_more(source, sink) and (data := os.read(source, _CHUNK)):
                while data:
                    data = data[os.write(sink, data) :]
        except OSError:
            pass
        finally:
            os.close(source)
            os.close(sink)

    thread = threading.Thread(target=run, name="agenthost stdio", daemon=True)
    thread.start()
    return thread
