"""Builder and init by themselves, for the tests of both: a small world, and commands in it."""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

from agenthost.launcher.client import Init, Launcher
from agenthost.launcher.filters import environment_filter
from agenthost.launcher.mounts import Bind, Devices, Link, MountStep, Private
from agenthost.layout import ViewPath
from agenthost.programs import static_program
from agenthost.wire import Command, CommandFlag, Exited, Failed, Setup, SetupFlag

NOBODY = 1_900_200_000
SETUP = Setup(SetupFlag.PRIVATE_NETWORK, NOBODY, NOBODY, b"test", (), (), b"")
WORLD: tuple[MountStep, ...] = (
    *(
        Link(ViewPath(f"/{name}"), str(Path("/", name).readlink()))
        if Path("/", name).is_symlink()
        else Bind(f"/{name}", ViewPath(f"/{name}"), executable=True)
        for name in ("bin", "lib", "lib64", "sbin")
        if Path("/", name).exists()
    ),
    Bind("/usr", ViewPath("/usr"), executable=True),
    Private("tmp", ViewPath("/tmp"), executable=True, mode=0o1777),
    Devices(executable=True),
)


@asynccontextmanager
async def launching() -> AsyncIterator[Launcher]:
    with tempfile.TemporaryDirectory() as attach:
        launcher = await Launcher.start(init=static_program("oac-init"), attach=Path(attach), rootless=False)
        try:
            yield launcher
        finally:
            await launcher.aclose()


def setup(**changes: object) -> Setup:
    return replace(SETUP, seccomp=environment_filter(), **changes)  # type: ignore[arg-type]


def shell(script: str, **changes: object) -> Command:
    command = Command(
        id=0,
        descriptors=0b111,
        umask=0o022,
        nice=0,
        flags=CommandFlag(0),
        program=b"/bin/sh",
        cwd=b"/",
        argv=(b"sh", b"-c", script.encode()),
        env=(b"PATH=/usr/bin:/bin",),
    )
    return replace(command, **changes)  # type: ignore[arg-type]


async def output(init: Init, command: Command) -> tuple[str, Exited | Failed]:
    """What a command writes, and how it ends."""
    reading, writing = os.pipe()
    null = os.open("/dev/null", os.O_RDWR)
    try:
        running = await init.run(command, [null, writing, writing])
    except BaseException:
        os.close(reading)
        raise
    finally:
        os.close(writing)
        os.close(null)
    text = await asyncio.to_thread(read_all, reading)
    return text, await running.wait()


def read_all(fd: int) -> str:
    with os.fdopen(fd, encoding="utf-8") as file:
        return file.read()


def in_world(test: Callable[[Launcher, Init], Awaitable[None]], steps: Sequence[MountStep] = WORLD) -> None:
    """Runs `test` with an init of these steps; `no_leaks` sees what it leaves."""

    async def main() -> None:
        async with launching() as launcher:
            init = await launcher.build("one", steps, setup())
            try:
                await test(launcher, init)
            finally:
                await init.aclose()

    asyncio.run(main())
