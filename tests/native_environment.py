"""An environment without namespaces: commands are children of this process, on the descriptors that the shim sent.

It keeps the promises of an environment's init (status and signals over the shim's connection, own session, terminal)
with the standard library alone, so that shim and broker can be tested for real, and apart from the launcher.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import os
import signal
import socket
import subprocess
import termios
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from agenthost.broker import Broker, Limits, Policy
from agenthost.errors import EnvironmentFailed, WireError
from agenthost.events import EventLog
from agenthost.launcher.mounts import MountStep
from agenthost.layout import ViewPath
from agenthost.linux.framestream import FrameStream
from agenthost.wire import Command, CommandFlag, Exited, Failed, FrameType, Signal


class NativeCommand:
    """One child of this process; answers on the shim's connection as init does."""

    def __init__(self, ident: int, child: subprocess.Popen[bytes], stream: FrameStream | None) -> None:
        self._ident = ident
        self._child = child
        self._stream = stream
        self._listening = asyncio.create_task(self._listen(stream)) if stream is not None else None
        self._ended = asyncio.create_task(self._end())

    async def wait(self) -> Exited | Failed:
        return await asyncio.shield(self._ended)

    def kill(self, number: int = signal.SIGKILL) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._child.pid, number)

    async def _listen(self, stream: FrameStream) -> None:
        with contextlib.suppress(OSError, WireError):
            while (frame := await stream.receive()) is not None:
                self.kill(Signal.parse(frame.body).signal)
        self.kill()

    async def _end(self) -> Exited:
        await _readable(os.pidfd_open(self._child.pid))
        code = self._child.wait()
        ended = Exited(self._ident, max(code, 0), max(-code, 0))
        if self._listening is not None and self._stream is not None:
            self._listening.cancel()
            with contextlib.suppress(OSError):
                await self._stream.send(FrameType.EXITED, ended.body())
            self._stream.close()
        return ended


async def _readable(fd: int) -> None:
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[None] = loop.create_future()
    loop.add_reader(fd, _wake, ready)
    try:
        await ready
    finally:
        loop.remove_reader(fd)
        os.close(fd)


def _wake(ready: asyncio.Future[None]) -> None:
    if not ready.done():
        ready.set_result(None)


class NativeFailure:
    """A command that could not be started."""

    def __init__(self, failed: Failed) -> None:
        self._failed = failed

    async def wait(self) -> Exited | Failed:
        return self._failed


class NativeEnvironment:
    """Runs commands right here. `gone` makes it answer as an environment that has ended."""

    def __init__(self, variables: Mapping[str, str] | None = None) -> None:
        self.variables: Mapping[str, str] = variables or {"HOME": "/", "PATH": "/usr/bin:/bin", "LANG": "C.UTF-8"}
        self.commands: list[Command] = []
        self.running: list[NativeCommand] = []
        self.gone = False

    def world(self) -> Sequence[MountStep]:
        return ()

    def canonical(self, path: ViewPath) -> ViewPath:
        return ViewPath(os.path.realpath(path))

    async def spawn(self, command: Command, fds: Sequence[int]) -> NativeCommand | NativeFailure:
        if self.gone:
            raise EnvironmentFailed("the environment ended", remedy="start the Session again")
        self.commands.append(command)
        stream = None
        if command.flags & CommandFlag.CONNECTION:
            stream = FrameStream(socket.socket(fileno=fcntl.fcntl(fds[-1], fcntl.F_DUPFD_CLOEXEC, 3)))
        try:
            child = _start(command, fds)
        except OSError as error:
            status = 127 if error.errno == errno.ENOENT else 126
            failed = Failed(len(self.commands), error.errno or 0, status, f"cannot run: {error}".encode())
            if stream is not None:
                await stream.send(FrameType.FAILED, failed.body())
                stream.close()
            return NativeFailure(failed)
        self.running.append(NativeCommand(len(self.commands), child, stream))
        return self.running[-1]

    def drop_connections(self) -> None:
        """What a shim sees when the environment dies: its connection ends, and the command with it."""
        for running in self.running:
            if running._listening is not None and running._stream is not None:
                running._listening.cancel()
                running._stream.close()
                running._stream = None
            running.kill()

    async def aclose(self) -> None:
        for running in self.running:
            running.kill()
            await running.wait()


def _start(command: Command, fds: Sequence[int]) -> subprocess.Popen[bytes]:
    given = iter(fds)
    stdio = [next(given) if command.descriptors >> fd & 1 else None for fd in range(3)]

    def prepare() -> None:
        for fd in range(3):
            if stdio[fd] is None:
                os.close(fd)
        if command.flags & CommandFlag.TERMINAL:
            terminal = next(fd for fd in range(3) if stdio[fd] is not None and os.isatty(fd))
            fcntl.ioctl(terminal, termios.TIOCSCTTY, 0)
        os.setpriority(os.PRIO_PROCESS, 0, command.nice)

    streams = [subprocess.DEVNULL if fd is None else fd for fd in stdio]
    return subprocess.Popen(
        command.argv,
        executable=command.program,
        stdin=streams[0],
        stdout=streams[1],
        stderr=streams[2],
        cwd=command.cwd,
        env=dict(entry.split(b"=", 1) for entry in command.env),
        umask=command.umask,
        start_new_session=True,
        preexec_fn=prepare,  # noqa: PLW1509 - the child of a test
    )


class Served:
    """A broker that serves in a thread of its own, so that a test may block."""

    def __init__(self, listener: socket.socket, policy: Policy, log: Path, uid: int, limits: Limits) -> None:
        self.environment = NativeEnvironment(policy.environment)
        self.events: list[Mapping[str, object]] = []
        self.errors: list[BaseException] = []
        self.broker: Broker | None = None
        self._settings = (listener, policy, log, uid, limits)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._started = threading.Event()
        self._stop = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name="broker")

    def start(self) -> None:
        self._thread.start()
        assert self._started.wait(10)

    def call(self, function: Callable[[], object]) -> None:
        """Runs a function in the loop's thread and waits for it."""
        done = threading.Event()

        def run() -> None:
            function()
            done.set()

        assert self._loop is not None
        self._loop.call_soon_threadsafe(run)
        assert done.wait(10)

    def settle(self, timeout_s: float) -> None:
        """`Broker.settle`, awaited from the test's thread."""
        assert self._loop is not None
        assert self.broker is not None
        asyncio.run_coroutine_threadsafe(self.broker.settle(timeout_s), self._loop).result(20)

    def stop(self) -> None:
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(20)
        assert not self._thread.is_alive(), "the broker did not stop"

    def _run(self) -> None:
        try:
            asyncio.run(self._main())
        except BaseException as error:  # noqa: BLE001 - handed to the test's thread
            self.errors.append(error)
        finally:
            self._started.set()

    async def _main(self) -> None:
        listener, policy, log, uid, limits = self._settings
        self._loop = asyncio.get_running_loop()
        self._loop.set_exception_handler(self._note)
        log_fd = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        event_log = EventLog("test", log_fd)
        event_log.subscribers.append(self.events.append)
        self.broker = broker = Broker(policy, self.environment, event_log, uid, limits)
        await broker.start(listener)
        self._started.set()
        await self._stop.wait()
        await self.environment.aclose()
        await broker.aclose()
        event_log.close()

    def _note(self, _: object, context: Mapping[str, object]) -> None:
        error = context.get("exception")
        self.errors.append(error if isinstance(error, BaseException) else RuntimeError(context))


@contextlib.contextmanager
def serving(
    listener: socket.socket, policy: Policy, log: Path, *, uid: int | None = None, limits: Limits | None = None
) -> Iterator[Served]:
    """Serves `listener`; in the end closes the environment and the broker, and raises what went wrong there."""
    served = Served(listener, policy, log, os.getuid() if uid is None else uid, limits or Limits())
    served.start()
    try:
        yield served
    finally:
        served.stop()
    if served.errors:
        raise served.errors[0]
