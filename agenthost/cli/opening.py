"""Options to an open Session: the part that `run`, `launch` and `agenthost-codex` share."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from agenthost.cli.options import SessionOptions
from agenthost.cli.provider import real_provider
from agenthost.cli.signals import Signals
from agenthost.errors import RequestRefused

if TYPE_CHECKING:
    from agenthost.gateway.provider import Provider
    from agenthost.session import Session

Act = Callable[["Session", Signals], Awaitable[int]]


def here() -> Path:
    """The current directory. Raises RequestRefused when it is gone."""
    try:
        return Path.cwd()
    except OSError as error:
        raise RequestRefused(
            f"the current directory is unusable ({error.strerror})", remedy="change to one that exists"
        ) from error


def in_session(options: SessionOptions, act: Act) -> int:
    """Open the Session, do `act` in it, close it. The status is that of `act`; 128+n when signal n came first."""
    close_to_others()
    return asyncio.run(_in_session(options, act))


def close_to_others() -> None:
    """No core dump, and no other process of this user reads the key in this one's memory or environment."""
    import prctl

    prctl.set_dumpable(False)


async def _in_session(options: SessionOptions, act: Act) -> int:
    with Signals() as signals:
        try:
            async with open_session(options) as session:
                return await act(session, signals)
        except asyncio.CancelledError:
            if signals.ended_by is None:
                raise
            return 128 + signals.ended_by


@asynccontextmanager
async def open_session(options: SessionOptions) -> AsyncIterator[Session]:
    """The Session that the options ask for. Raises AgentHostError."""
    async with AsyncExitStack() as stack:
        provider = await _provider(options, stack)
        from agenthost.session import AgentHost, Harness, SessionRequest  # after what can be refused without it

        harness = None
        if options.harness_dir is not None and options.binary is not None:
            harness = Harness(options.harness_dir, options.binary)
        request = SessionRequest(
            workspace=options.workspace,
            provider=provider,
            model=options.model,
            model_verbosity=options.model_verbosity,
            codex=options.codex,
            session=options.session,
            allow_hosts=options.allow_hosts,
            env_network=options.env_network,
            shim_paths=options.shim_paths,
            bind_ro=options.bind_ro,
            memory=options.memory,
            pids=options.pids,
            cpus=options.cpus,
            grace_s=options.grace_s,
            harness=harness,
            events_copy=options.events,
        )
        # A client starts several of these at once: what is one Session's is locked by each for itself.
        host = await stack.enter_async_context(AgentHost(state_dir=options.state_dir, exclusive=False))
        yield await stack.enter_async_context(host.open(request))


async def _provider(options: SessionOptions, stack: AsyncExitStack) -> Provider | None:
    if options.scripted is None:
        return real_provider(options, os.environ)
    from agenthost.scripted.script import Script
    from agenthost.scripted.server import ScriptedModel

    script = Script.demo() if options.scripted == "demo" else Script.load(Path(options.scripted))
    model = await stack.enter_async_context(ScriptedModel(script))
    return model.provider
