"""The broker: takes the shims' connections, lets the policy decide, and hands commands to the environment.

Promise: a client, however hostile, costs one of a bounded number of places for a bounded time, and never a descriptor,
never the event loop. Once a command is handed over, the connection belongs to the environment: its status and the
shim's signals do not pass through here, and the broker waits only to write the event.

    accept ── uid? ── INVOKE (bounded in size and time) ── policy ──┬── FAILED, 126
                                                                    └── environment.spawn ── both events
"""

from __future__ import annotations

import asyncio
import errno
import socket
import struct
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

from agenthost.broker.policy import UNABLE, Policy, Refusal, shown
from agenthost.environment.protocol import CommandHandle, Environment
from agenthost.errors import EnvironmentFailed, WireError
from agenthost.events import EventLog
from agenthost.linux.fdpass import close_fds
from agenthost.linux.framestream import FrameStream
from agenthost.wire import MAX_BODY, Command, Failed, Frame, FrameType, Invocation

GONE: Final = 255
"""Exit status of a command whose environment is gone, as ssh(1) has it for a connection that failed."""

_UCRED: Final = struct.Struct("iII")  # struct ucred, unix(7): pid, uid, gid
_MAX_FDS: Final = 3
_ON_THE_LOOP: Final = 64 << 10  # bytes of an INVOKE that take the loop well under a millisecond


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What the clients of one broker can take."""

    connections: int = 64
    """Connections at once that are no command yet; each can hold a body in memory. Further ones wait in the queue."""

    commands: int = 4096
    """Commands at once. Further ones are refused, as fork(2) refuses with EAGAIN."""

    invoke_s: float = 10.0
    """Seconds from a connection to its whole INVOKE, and for an answer to be taken."""

    body: int = MAX_BODY
    """Bytes of an INVOKE."""

    pause_s: float = 0.1
    """Seconds without accepting when the daemon has run out of descriptors or memory."""

    event_text: int = 8192
    """Characters of argv in one event."""

    rejections: int = 100
    """Rejected connections that get an event."""


@dataclass(frozen=True, slots=True)
class _Running:
    """A command that the environment has taken. `started` is of the monotonic clock."""

    number: int
    handle: CommandHandle
    started: float


class Broker:
    """The broker of one Session. `uid` is the only one whose processes may connect, as the daemon sees it."""

    def __init__(
        self, policy: Policy, environment: Environment, events: EventLog, uid: int, limits: Limits | None = None
    ) -> None:
        self._policy = policy
        self._environment = environment
        self._events = events
        self._uid = uid
        self._limits = limits or Limits()
        self._listener: socket.socket | None = None
        self._accepting = False
        self._resume: asyncio.TimerHandle | None = None
        self._arriving: dict[asyncio.Task[None], FrameStream] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._parser = ThreadPoolExecutor(max_workers=1, thread_name_prefix="broker")
        self._commands = 0
        self._running = 0
        self._rejected = 0

    async def start(self, listener: socket.socket) -> None:
        """Serves the shims that connect to `listener`, a listening Unix stream socket, which it owns from here on."""
        listener.setblocking(False)
        self._listener = listener
        self._accept_when_there_is_room()

    async def settle(self, timeout_s: float) -> None:
        """Waits at most `timeout_s` seconds until every command that was handed over has its last event.

        Once the view is gone the environment ends those commands, because their connections have closed.
        """
        if self._tasks:
            await asyncio.wait(tuple(self._tasks), timeout=timeout_s)

    async def aclose(self) -> None:
        """Stops taking connections, drops those that are no command yet, and no longer waits for commands.

        Commands end with the environment. Close that first: then every command has its last event.
        """
        self._stop_accepting()
        if self._resume is not None:
            self._resume.cancel()
        if self._listener is not None:
            self._listener.close()
            self._listener = None
        tasks = tuple(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._parser.shutdown(wait=False, cancel_futures=True)

    def _accept_when_there_is_room(self) -> None:
        if self._listener is None or self._accepting or self._resume is not None:
            return
        if len(self._arriving) < self._limits.connections:
            self._accepting = True
            asyncio.get_running_loop().add_reader(self._listener, self._accept, self._listener)

    def _stop_accepting(self) -> None:
        if self._listener is not None and self._accepting:
            self._accepting = False
            asyncio.get_running_loop().remove_reader(self._listener)

    def _accept(self, listener: socket.socket) -> None:
        while len(self._arriving) < self._limits.connections:
            try:
                connection, _ = listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError:
                # Out of descriptors or memory. The queue stays readable: without a pause this would spin.
                self._stop_accepting()
                self._resume = asyncio.get_running_loop().call_later(self._limits.pause_s, self._accept_again)
                return
            self._admit(connection)
        self._stop_accepting()

    def _accept_again(self) -> None:
        self._resume = None
        self._accept_when_there_is_room()

    def _admit(self, connection: socket.socket) -> None:
        pid, uid, _ = _UCRED.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size))
        if uid != self._uid:
            connection.close()
            self._reject(f"uid {uid} is not the Session's", pid)
            return
        stream = FrameStream(connection, max_body=self._limits.body, max_fds=_MAX_FDS)
        task = asyncio.get_running_loop().create_task(self._serve(stream, pid))
        self._arriving[task] = stream
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._leave(task)

    def _leave(self, task: asyncio.Task[None]) -> None:
        """The broker's end of a connection closes, once; if it was passed on, the connection lives on."""
        stream = self._arriving.pop(task, None)
        if stream is not None:
            stream.close()
            self._accept_when_there_is_room()

    def _reject(self, reason: str, pid: int) -> None:
        self._rejected += 1
        if self._rejected <= self._limits.rejections:
            last = self._rejected == self._limits.rejections
            self._events.write("broker.rejected", reason=reason, pid=pid, **({"last": True} if last else {}))

    async def _serve(self, stream: FrameStream, pid: int) -> None:
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 - a coroutine that runs is in a task
        try:
            running = await self._start(stream)
        except TimeoutError:
            self._reject("no whole invocation, or no room for the answer, in time", pid)
        except WireError as error:
            self._reject(error.what, pid)
        except OSError as error:
            self._reject(f"the connection failed: {error.strerror or error}", pid)
        else:
            if running is not None:
                self._leave(task)
                await self._follow(running)

    async def _start(self, stream: FrameStream) -> _Running | None:
        """Takes the invocation and hands the command over; None when there is none, and the client knows why."""
        async with asyncio.timeout(self._limits.invoke_s):
            frame = await stream.receive()
        if frame is None:
            return None
        try:
            if frame.type is not FrameType.INVOKE:
                raise WireError(f"{frame.type.name} from a shim, whose first frame is INVOKE")
            invocation, decision = await self._decide(frame)
            if isinstance(decision, Refusal):
                await self._refuse(stream, invocation, Failed(0, 0, decision.status, decision.message.encode()))
                return None
            return await self._hand_over(stream, invocation, decision, frame.fds)
        finally:
            close_fds(frame.fds)

    async def _decide(self, frame: Frame) -> tuple[Invocation, Command | Refusal]:
        """Off the loop when it is large: the kernel lets an invocation have some 700,000 arguments."""
        if len(frame.body) <= _ON_THE_LOOP:
            return self._parse_and_decide(frame)
        return await asyncio.get_running_loop().run_in_executor(self._parser, self._parse_and_decide, frame)

    def _parse_and_decide(self, frame: Frame) -> tuple[Invocation, Command | Refusal]:
        invocation = Invocation.parse(frame.body)
        return invocation, self._policy.decide(invocation, len(frame.fds))

    async def _hand_over(
        self, stream: FrameStream, invocation: Invocation, command: Command, fds: Sequence[int]
    ) -> _Running | None:
        if self._running >= self._limits.commands:
            message = f"the limit of {self._limits.commands} commands at once is reached"
            await self._refuse(stream, invocation, Failed(0, errno.EAGAIN, UNABLE, message.encode()))
            return None
        started = time.monotonic()
        try:
            handle = await self._environment.spawn(command, (*fds, stream.socket.fileno()))
        except EnvironmentFailed as error:
            await self._refuse(stream, invocation, Failed(0, 0, GONE, str(error).encode()))
            return None
        except WireError as error:
            # With the environment's own variables it no longer fits: what execve(2) says of too much.
            await self._refuse(stream, invocation, Failed(0, errno.E2BIG, UNABLE, error.what.encode()))
            return None
        self._commands += 1
        running = _Running(self._commands, handle, started)
        self._events.write("command.started", command=running.number, **self._described(invocation))
        return running

    async def _refuse(self, stream: FrameStream, invocation: Invocation, failed: Failed) -> None:
        reason = shown(failed.message)
        self._events.write("command.refused", **self._described(invocation), status=failed.status, reason=reason)
        async with asyncio.timeout(self._limits.invoke_s):
            await stream.send(FrameType.FAILED, failed.body())

    async def _follow(self, running: _Running) -> None:
        self._running += 1
        try:
            end = await running.handle.wait()
        except EnvironmentFailed as error:
            end = Failed(0, 0, GONE, str(error).encode())
        finally:
            self._running -= 1
        ms = round((time.monotonic() - running.started) * 1000, 1)
        message = {"message": shown(end.message)} if isinstance(end, Failed) else {}
        self._events.write("command.exited", command=running.number, status=end.status, ms=ms, **message)

    def _described(self, invocation: Invocation) -> dict[str, object]:
        """argv and cwd for an event. Backslashes stand for what is not UTF-8; a long argv is cut, and says so."""
        argv: list[str] = []
        room = self._limits.event_text
        for argument in invocation.argv:
            text = argument[:room].decode("utf-8", "backslashreplace")
            argv.append(text)
            room -= len(argument) + 1
            if room <= 0:
                break
        cut = room < 0 or len(argv) < len(invocation.argv)
        described = {
            "program": shown(invocation.executable),
            "argv": argv,
            "cwd": invocation.cwd.decode("utf-8", "backslashreplace"),
        }
        return described | ({"argv_cut": len(invocation.argv)} if cut else {})
