"""AgentHost and Session: who owns what, and for how long.

    AgentHost   the builder; one for a daemon, for as long as the daemon likes
    Session     workspace, home, uid lease, events, environment; any number of launches, one after another
    launch      view, gateway, broker; ends with the Harness

Everything is closed in the reverse order of its making, and a launch reports its exit only when all that belonged to it
has settled.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from agenthost import view as story
from agenthost.broker.broker import Broker
from agenthost.codex.instructions import workspace_instructions
from agenthost.environment.local import LocalEnvironment, Workspace
from agenthost.errors import EnvironmentFailed, LaunchFailed, StateUnusable
from agenthost.events import EventLog
from agenthost.gateway.server import Gateway
from agenthost.home import Home
from agenthost.launcher.client import Init, Launcher, RunningCommand
from agenthost.launcher.mounts import IdMap
from agenthost.layout import StateLayout, default_state_dir
from agenthost.limits import ENVIRONMENT, VIEW, Limits, SessionCgroup, TmpfsSizes, find_delegation, limited
from agenthost.linux.rootdir import Owner
from agenthost.process import PIPE, Process, Stdio
from agenthost.programs import static_program
from agenthost.recovery import Finding, recover, recover_session
from agenthost.request import Admitted, Harness, SessionRequest, admit
from agenthost.state import Record, hold_state, made_state, nothing_half_done, open_events, open_record
from agenthost.wire import Exited, Failed, SignalScope

_COMMANDS_SETTLE_S: Final = 1.0

_LOGGER: Final = logging.getLogger(__name__)


class AgentHost:
    """The daemon's side of every view. An async context manager; holds the builder.

    `state_dir` is created 0700; the default is that of `layout.default_state_dir`. It is this daemon's alone until the
    end; with `exclusive=False` it is shared with others that say so too, as the commands of the command line do.
    `recovered` is what earlier processes left there and what became of it.
    """

    def __init__(self, state_dir: Path | None = None, *, exclusive: bool = True) -> None:
        self.recovered: tuple[Finding, ...] = ()
        self._exclusive = exclusive
        self._state_lock = -1
        self._layout = StateLayout((state_dir or default_state_dir()).absolute())
        self._launcher: Launcher | None = None
        self._starting = asyncio.Lock()
        self._rootless = os.geteuid() != 0

    async def __aenter__(self) -> Self:
        """Raises `StateUnusable` when another process has the state directory."""
        if self._exclusive:
            await self._hold_state()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        launcher, self._launcher = self._launcher, None
        try:
            if launcher is not None:
                await launcher.aclose()
        finally:
            lock, self._state_lock = self._state_lock, -1
            if lock >= 0:
                os.close(lock)

    @contextlib.asynccontextmanager
    async def open(self, request: SessionRequest) -> AsyncIterator[Session]:
        """A Session, and the end of it and of everything in it.

        Raises `RequestRefused` and its kinds and `NoView` before any effect, `HostUnfit`, `StateUnusable`,
        `LaunchFailed`.
        """
        with admit(request, self._layout.root) as admitted:
            # Its digest may have to be computed, of 300 MB.
            found = await asyncio.to_thread(story.discover, request, os.environ, self._layout.root)
            declared = story.declare(found, request.shim_paths, await asyncio.to_thread(story.choose, found, request))
            if not self._rootless:
                story.check_reach(declared)
            shim = static_program("oac-shim")
            limits = Limits(memory=request.memory, pids=request.pids, cpus=request.cpus)
            delegation = find_delegation(limits.controllers) if limits.controllers else None
            async with AsyncExitStack() as stack:
                launcher = await self._builder()
                if request.session is not None:
                    await asyncio.to_thread(recover_session, self._layout, request.session)
                record = stack.enter_context(open_record(self._layout, admitted, rootless=self._rootless))
                environment = _environment(admitted, declared, record.owner, rootless=self._rootless)
                with nothing_half_done(record):
                    events = stack.enter_context(open_events(record, request.events_copy))
                    home = stack.enter_context(_home(record, rootless=self._rootless))
                    cgroup = stack.enter_context(limited(record.id, record.directory, limits, delegation))
                    if cgroup is not None:
                        stack.callback(_tell_used, events, cgroup)
                    stack.push_async_callback(launcher.forget, record.id)
                    stack.push_async_callback(environment.aclose)
                    with _entrance(cgroup, ENVIRONMENT) as entrance:
                        await environment.start(launcher, record.id, cgroup=entrance)
                session = Session(admitted, declared, launcher, environment, _Own(record, events, home, shim, cgroup))
                stack.push_async_callback(session.aclose)
                _tell_opened(events, admitted)
                yield session

    async def _hold_state(self) -> None:
        self._state_lock = hold_state(self._layout, exclusive=self._exclusive)
        try:
            # Its time depends on what was left.
            self.recovered = await asyncio.to_thread(recover, self._layout, alone=self._exclusive)
        except BaseException:
            os.close(self._state_lock)
            self._state_lock = -1
            raise
        for finding in self.recovered:
            _LOGGER.info("%s is %s: %s", finding.name, finding.found, finding.outcome)

    async def _builder(self) -> Launcher:
        async with self._starting:
            if self._launcher is None:
                if self._state_lock < 0:
                    await self._hold_state()
                init = static_program("oac-init")
                with made_state(self._layout):
                    self._launcher = await Launcher.start(
                        init=init, attach=self._layout.attach, rootless=self._rootless
                    )
            return self._launcher


@dataclass(frozen=True, slots=True)
class _Own:
    """What a Session has of its own; its makers own it."""

    record: Record
    events: EventLog
    home: Home
    shim: Path
    cgroup: SessionCgroup | None


class Session:
    """One workspace, one home, one environment, and launches one after another. Made by `AgentHost.open`."""

    def __init__(
        self,
        admitted: Admitted,
        declared: story.Declared,
        launcher: Launcher,
        environment: LocalEnvironment,
        own: _Own,
    ) -> None:
        self.id = own.record.id
        self.events = own.events
        self.workspace = admitted.workspace
        self.declaration = declared.view
        self._admitted = admitted
        self._declared = declared
        self._launcher = launcher
        self._environment = environment
        self._record = own.record
        self._home = own.home
        self._shim = own.shim
        self._cgroup = own.cgroup
        self._live: Process | None = None
        self._launching = asyncio.Lock()
        self._closed = False

    async def launch(
        self, args: Sequence[str], *, stdin: int = PIPE, stdout: int = PIPE, stderr: int = PIPE
    ) -> Process:
        """The Harness with `args` in a view of its own.

        Each of `stdin`, `stdout` and `stderr` is `PIPE` or a descriptor that stays the caller's. Raises `StateUnusable`
        while another view of the Session lives, `LaunchFailed`, `HomeUnsafe`, `GatewayFailed`.
        """
        if self._closed:
            raise StateUnusable(f"Session {self.id} is closed", remedy="open it again")
        if self._launching.locked() or (self._live is not None and not self._live.ended):
            raise StateUnusable(f"Session {self.id} has a live view", remedy="wait for it, or open another Session")
        async with self._launching:
            self._live = await self._launch(args, stdin, stdout, stderr)
        return self._live

    async def aclose(self) -> None:
        """Stops the live view, if there is one; a launch that is under way is waited for, and stopped."""
        self._closed = True
        async with self._launching:
            if self._live is not None:
                await self._live.stop()

    async def _launch(self, args: Sequence[str], stdin: int, stdout: int, stderr: int) -> Process:
        story.check_unchanged(self._declared)
        plan = self._plan(args)
        async with AsyncExitStack() as stack:
            # Its time depends on what an earlier launch left there.
            await asyncio.to_thread(story.prepare_home, plan, self._home)
            for name in plan.harness.home_once:
                stack.callback(self._home.remove, name)
            stdio = await Stdio.open(stdin, stdout, stderr)
            stack.callback(stdio.close)
            try:
                with _entrance(self._cgroup, VIEW) as entrance:
                    init, running = await story.launch(
                        plan, self._launcher, self.id, stdio.harness_ends, cgroup=entrance
                    )
            finally:
                stdio.close_harness_ends()
            stack.push_async_callback(init.aclose)
            broker = Broker(plan.policy, self._environment, self.events, self._record.owner.uid)
            stack.push_async_callback(broker.aclose)
            gateway = Gateway(
                self._admitted.request.provider, allow_hosts=self._admitted.allow_hosts, events=self.events
            )
            stack.push_async_callback(gateway.aclose)
            await self._serve(init, broker, gateway)
            self.events.write(
                "view.started", **story.described(self._declared), cwd=plan.harness.cwd, uid=self._record.owner.uid
            )
            parts = _Parts(init, running, stdio, gateway, broker, stack.pop_all())
            live = _Live(parts, self.events, self._admitted.request.grace_s, self._cgroup)
            return Process(stdio, ended=live.settle(), send=live.send, stop=live.stop)

    def _plan(self, args: Sequence[str]) -> story.Plan:
        return story.prepare(
            self._declared,
            self._environment,
            story.Place(str(self.workspace), self._record.directory / "home", self._shim, self._record.owner),
            args=args,
            agents_md=workspace_instructions(self._admitted.workspace_fd),
        )

    async def _serve(self, init: Init, broker: Broker, gateway: Gateway) -> None:
        proxy, model = init.listeners
        init.listeners = ()
        shims, init.shim_listener = init.shim_listener, None
        if shims is None:
            raise AssertionError("a view without a shim listener")
        await broker.start(shims)
        await gateway.start(proxy=proxy, model=model)


@dataclass(frozen=True, slots=True)
class _Parts:
    init: Init
    running: RunningCommand
    stdio: Stdio
    gateway: Gateway
    broker: Broker
    stack: AsyncExitStack


class _Live:
    """One live view: waits for its end, and settles what belonged to it."""

    def __init__(self, parts: _Parts, events: EventLog, grace_s: float, cgroup: SessionCgroup | None) -> None:
        self._parts = parts
        self._events = events
        self._grace_s = grace_s
        self._cgroup = cgroup
        self._oom_before = self._oom_kills()
        self._started = asyncio.get_running_loop().time()
        self._stopping: asyncio.Task[None] | None = None

    async def send(self, number: int) -> None:
        await self._parts.init.signal(number, SignalScope.LEADER)

    async def stop(self) -> None:
        if self._stopping is None:
            self._stopping = asyncio.create_task(self._parts.init.stop(self._grace_s))
        await asyncio.shield(self._stopping)

    async def settle(self) -> int:
        parts = self._parts
        status: int | None = None
        try:
            async with parts.stack:
                status = await self._end()
                if self._stopping is not None:
                    # What else runs in the view has its grace, too.
                    await asyncio.wait([self._stopping])
                await parts.init.aclose()
                await parts.stdio.drain()
                await parts.broker.settle(_COMMANDS_SETTLE_S)
        finally:
            self._tell_oom()
            ms = round((asyncio.get_running_loop().time() - self._started) * 1000, 1)
            self._events.write("view.exited", status=status, ms=ms)
        return status

    async def _end(self) -> int:
        """The Harness's status; a broken gateway ends the view, because the Harness would wait without end."""
        ended = asyncio.ensure_future(self._parts.running.wait())
        broken = asyncio.ensure_future(self._parts.gateway.failed())
        try:
            await asyncio.wait([ended, broken], return_when=asyncio.FIRST_COMPLETED)
            if not ended.done():
                await self.stop()
                raise broken.result()
            match ended.result():
                case Exited() as exited:
                    return exited.status
                case Failed(message=message):
                    raise LaunchFailed(os.fsdecode(message), remedy="see 'agenthost declare'")
        except EnvironmentFailed:
            # The kernel kills the view as one when memory runs out in it, init too.
            if self._stopping is not None or self._oom_kills() != self._oom_before:
                return 128 + signal.SIGKILL
            raise
        finally:
            for task in (ended, broken):
                task.cancel()
            await asyncio.gather(ended, broken, return_exceptions=True)

    def _oom_kills(self) -> tuple[int, int]:
        if self._cgroup is None:
            return 0, 0
        return self._cgroup.oom_kills(VIEW), self._cgroup.oom_kills(ENVIRONMENT)

    def _tell_oom(self) -> None:
        names = ("view.oom", "environment.oom")
        for name, before, now in zip(names, self._oom_before, self._oom_kills(), strict=True):
            if now > before:
                self._events.write(name, killed=now - before)


@contextlib.contextmanager
def _entrance(cgroup: SessionCgroup | None, leaf: str) -> Iterator[int | None]:
    if cgroup is None:
        yield None
        return
    with cgroup.entrance(leaf) as fd:
        yield fd


def _tell_used(events: EventLog, cgroup: SessionCgroup) -> None:
    events.write("session.used", **cgroup.used())


def _home(record: Record, *, rootless: bool) -> Home:
    path = record.directory / "home"
    return Home.open(path) if rootless else Home.open(path, uid=record.owner.uid, gid=record.owner.gid)


def _environment(admitted: Admitted, declared: story.Declared, owner: Owner, *, rootless: bool) -> LocalEnvironment:
    found = admitted.workspace_status
    idmap = None if rootless or found.st_uid == owner.uid else IdMap(found.st_uid, found.st_gid, owner.uid, owner.gid)
    workspace = Workspace(admitted.workspace, admitted.identity, idmap)
    network = admitted.request.env_network == "host"
    return LocalEnvironment(
        workspace,
        owner,
        bind_ro=admitted.bind_ro,
        programs=story.programs(declared),
        network=network,
        sizes=TmpfsSizes.within(admitted.request.memory),
    )


def _tell_opened(events: EventLog, admitted: Admitted) -> None:
    asked = admitted.request.workspace
    events.write("session.opened", workspace=str(admitted.workspace), asked=str(asked))


__all__ = ["AgentHost", "Harness", "Session", "SessionRequest"]
