"""The daemon's half of the launcher: starts the builder, asks it for trees, and talks to each tree's init."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import itertools
import os
import signal
import socket
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

import agenthost
from agenthost.errors import AgentHostError, CleanupFailed, EnvironmentFailed, HostUnfit, LaunchFailed, WireError
from agenthost.launcher.builder import Start
from agenthost.launcher.mounts import MountStep
from agenthost.launcher.wire import BuildRequest, ForgetRequest, check_reply
from agenthost.layout import ViewPath
from agenthost.linux.fdpass import close_fds
from agenthost.linux.framestream import FrameStream
from agenthost.wire import Command, Exited, Failed, Frame, FrameType, Setup, Signal, SignalScope, Started

_BOOT: Final = "import sys; sys.path.insert(0, sys.argv[1]); from agenthost.launcher.builder import main; main(3)"
_GONE_WITHIN: Final = 10.0
"""Seconds. The kernel ends thousands of processes of a pid namespace in milliseconds; more means a hung kernel."""

_CANNOT_START: Final = "this user may not make the namespaces of a view"


class RunningCommand:
    """One command that init runs."""

    __slots__ = ("_ended", "id", "pid")

    def __init__(self, identifier: int, ended: asyncio.Future[Exited | Failed]) -> None:
        self.id = identifier
        self.pid: int | None = None
        self._ended = ended

    async def wait(self) -> Exited | Failed:
        """How it ended. Raises `EnvironmentFailed` when init ended without a word."""
        return await asyncio.shield(self._ended)


class Init:
    """The first process of a view or an environment, as the daemon sees it. Ends when this is closed, or the daemon."""

    def __init__(self, control: FrameStream, what: str) -> None:
        self._control = control
        self._what = what
        self._ids = itertools.count(1)
        self._commands: dict[int, tuple[RunningCommand, asyncio.Future[Exited | Failed]]] = {}
        self._pidfd = -1
        self._gone = asyncio.get_running_loop().create_future()
        self._reading: asyncio.Task[None] | None = None
        self._closing: asyncio.Task[None] | None = None
        self.listeners: tuple[socket.socket, ...] = ()
        self.shim_listener: socket.socket | None = None

    async def ready(self) -> None:
        """Waits until init has given up its privileges. Raises `LaunchFailed` with the step that failed."""
        try:
            frame = await self._control.receive()
        except (OSError, WireError) as error:
            raise LaunchFailed(f"start {self._what}: {error}", remedy="see 'agenthost doctor'") from error
        match frame:
            case Frame(FrameType.READY, _, (pidfd, *listeners)):
                self._pidfd = pidfd
                self.listeners = tuple(socket.socket(fileno=fd) for fd in listeners)
                asyncio.get_running_loop().add_reader(pidfd, self._on_gone)
                self._reading = asyncio.create_task(self._read())
            case Frame(FrameType.FAILED, body, _):
                failed = Failed.parse(body)
                raise LaunchFailed.at(os.fsdecode(failed.message), failed.errno, "see 'agenthost doctor'")
            case _:
                raise LaunchFailed(f"start {self._what}: init ended at once", remedy="see 'agenthost doctor'")

    async def run(self, command: Command, fds: Sequence[int]) -> RunningCommand:
        """Hands a command over, under an id of init's own. The caller keeps its descriptors."""
        identifier = next(self._ids)
        ended: asyncio.Future[Exited | Failed] = asyncio.get_running_loop().create_future()
        running = RunningCommand(identifier, ended)
        self._commands[identifier] = running, ended
        try:
            if self._reading is None or self._reading.done():
                raise ConnectionResetError
            await self._control.send(FrameType.COMMAND, replace(command, id=identifier).body(), fds)
        except WireError:
            del self._commands[identifier]
            raise
        except OSError as error:
            del self._commands[identifier]
            raise self._ended_early() from error
        return running

    async def signal(self, number: int, scope: SignalScope) -> None:
        """Sends a signal to the main command, to its group, or (END) to every process; nothing if init is gone."""
        with contextlib.suppress(OSError):
            await self._control.send(FrameType.SIGNAL, Signal(number, scope).body())

    async def stop(self, grace_s: float) -> None:
        """TERM to every process; after `grace_s` seconds, or when all are gone, the end of init and of all others."""
        if self._pidfd >= 0 and not self._gone.done():
            await self.signal(signal.SIGTERM, SignalScope.END)
            await asyncio.wait([self._gone], timeout=grace_s)
            if self._gone.done() and self._reading is not None:
                # Its last words are in the socket still.
                await asyncio.wait([self._reading], timeout=_GONE_WITHIN)
        await self.aclose()

    async def aclose(self) -> None:
        """Ends init, and with it every process of its pid namespace, and waits until they are gone.

        May be called more than once, also at the same time: by who stops a view, and by who sees its end.
        """
        if self._closing is None:
            self._closing = asyncio.create_task(self._close())
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        self._control.close()
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.gather(self._reading, return_exceptions=True)
            self._reading = None
        for listener in self.listeners:
            listener.close()
        if self.shim_listener is not None:
            self.shim_listener.close()
        if self._pidfd < 0:
            return
        if not self._gone.done():
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
            await asyncio.wait([self._gone], timeout=_GONE_WITHIN)
        gone = self._gone.done()
        asyncio.get_running_loop().remove_reader(self._pidfd)
        os.close(self._pidfd)
        self._pidfd = -1
        if not gone:
            raise CleanupFailed(f"{self._what} did not end within {_GONE_WITHIN:.0f} s", remedy="look for a hung mount")

    async def gone(self) -> None:
        """Waits until init, and with it every process of its namespace, is gone."""
        await asyncio.shield(self._gone)

    def _on_gone(self) -> None:
        asyncio.get_running_loop().remove_reader(self._pidfd)
        if not self._gone.done():
            self._gone.set_result(None)

    def _ended_early(self) -> EnvironmentFailed:
        return EnvironmentFailed(f"{self._what} has ended", remedy="open the Session again")

    async def _read(self) -> None:
        try:
            while (frame := await self._control.receive()) is not None:
                close_fds(frame.fds)
                self._on_frame(frame)
        except (OSError, AgentHostError):
            pass
        finally:
            for _, ended in self._commands.values():
                if not ended.done():
                    ended.set_exception(self._ended_early())
                    ended.exception()
            self._commands.clear()

    def _on_frame(self, frame: Frame) -> None:
        match frame.type:
            case FrameType.STARTED:
                started = Started.parse(frame.body)
                self._commands[started.id][0].pid = started.pid
            case FrameType.EXITED:
                exited = Exited.parse(frame.body)
                self._commands.pop(exited.id)[1].set_result(exited)
            case FrameType.FAILED:
                failed = Failed.parse(frame.body)
                self._commands.pop(failed.id)[1].set_result(failed)
            case other:
                raise WireError(f"a frame of type {other.name} from init")


class Launcher:
    """The builder process. One for each daemon."""

    def __init__(self, stream: FrameStream, pid: int) -> None:
        self._stream = stream
        self._pid = pid
        self._turn = asyncio.Lock()
        self._ended = False

    @classmethod
    async def start(cls, *, init: Path, attach: Path, rootless: bool) -> Launcher:
        """Starts the builder. Raises `HostUnfit` when it may not make its namespaces."""
        here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        with there:
            pid = _spawn(there)
        launcher = cls(FrameStream(here), pid)
        try:
            await launcher._ask(Start(str(init), str(attach), rootless).body())
        except LaunchFailed as error:
            await launcher.aclose()
            remedy = (
                "allow user namespaces (sysctl user.max_user_namespaces, kernel.apparmor_restrict_unprivileged_userns)"
                if rootless
                else "run as root with CAP_SYS_ADMIN, or as an unprivileged user"
            )
            raise HostUnfit(f"{_CANNOT_START}: {error.what}", remedy=remedy) from error
        return launcher

    async def build(
        self,
        session: str,
        steps: Sequence[MountStep],
        setup: Setup,
        *,
        shim_socket: ViewPath | None = None,
        cgroup: int | None = None,
    ) -> Init:
        """A tree of these steps with its own init, ready for commands. Raises `LaunchFailed`; nothing is left then.

        `cgroup` is the entrance of the cgroup that it shall be in; it stays the caller's.
        """
        here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        init = Init(FrameStream(here), f"{os.fsdecode(setup.hostname)} of Session {session}")
        try:
            with there:
                request = BuildRequest(session, tuple(steps), setup, shim_socket)
                sent = [there.fileno()] if cgroup is None else [there.fileno(), cgroup]
                fds = await self._ask(request.body(), sent)
            if fds:
                init.shim_listener = socket.socket(fileno=fds[0])
            await init.ready()
        except BaseException:
            await init.aclose()
            raise
        return init

    async def forget(self, session: str) -> None:
        """Ends the private mounts of a Session. Those of a builder that has ended are gone already."""
        if self._stream.closed or self._ended:
            return
        try:
            await self._ask(ForgetRequest(session).body())
        except LaunchFailed:
            if not self._ended:
                raise

    async def aclose(self) -> None:
        """Ends the builder and waits for it. Live views are not touched: each ends with its own control socket."""
        self._stream.close()
        await asyncio.get_running_loop().run_in_executor(None, self._reap)

    def _reap(self) -> None:
        # A daemon may ignore SIGCHLD; then the kernel has reaped the builder already.
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self._pid, 0)

    async def _ask(self, body: bytes, fds: Sequence[int] = ()) -> tuple[int, ...]:
        exchange = asyncio.create_task(self._exchange(body, fds))
        try:
            return await asyncio.shield(exchange)
        except asyncio.CancelledError:
            # The builder answers in order: a reply that nobody took would be taken for the next one's.
            await asyncio.wait([exchange])
            if exchange.exception() is None:
                close_fds(exchange.result())
            raise

    async def _exchange(self, body: bytes, fds: Sequence[int]) -> tuple[int, ...]:
        async with self._turn:
            try:
                await self._stream.send(FrameType.REQUEST, body, fds)
                reply = await self._stream.receive()
            except (OSError, WireError):
                reply = None
        if reply is None:
            self._ended = True
            raise LaunchFailed("the builder has ended", remedy="start the daemon again; its last words are on stderr")
        try:
            check_reply(reply.body)
        except BaseException:
            close_fds(reply.fds)
            raise
        return reply.fds


def _spawn(there: socket.socket) -> int:
    """The builder as a process group of its own: a ^C at the terminal is the daemon's business, not the builder's."""
    package = str(Path(agenthost.__file__).resolve().parent.parent)
    # A daemon may have closed its own 0 to 2: the socket could be one of them, and the builder needs a stderr.
    moved = fcntl.fcntl(there.fileno(), fcntl.F_DUPFD_CLOEXEC, 10)
    actions: list[tuple[int, ...] | tuple[int, int, str, int, int]] = [
        (os.POSIX_SPAWN_OPEN, 0, "/dev/null", os.O_RDONLY, 0),
        (os.POSIX_SPAWN_OPEN, 1, "/dev/null", os.O_WRONLY, 0),
        (os.POSIX_SPAWN_DUP2, moved, 3),
    ]
    if not _is_open(2):
        actions.append((os.POSIX_SPAWN_OPEN, 2, "/dev/null", os.O_WRONLY, 0))
    arguments = [sys.executable, "-I", "-S", "-c", _BOOT, package]
    try:
        return os.posix_spawn(
            sys.executable,
            arguments,
            {"LC_ALL": "C.UTF-8"},
            file_actions=actions,
            setsid=True,
            setsigmask=(),
            setsigdef=set(signal.valid_signals()) - {signal.SIGKILL, signal.SIGSTOP},
        )
    finally:
        os.close(moved)


def _is_open(fd: int) -> bool:
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True
