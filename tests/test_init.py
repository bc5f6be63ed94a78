"""Init by itself: commands, their ends, and its own."""

from __future__ import annotations

import asyncio
import os
import signal

import pytest

from agenthost.errors import EnvironmentFailed
from agenthost.launcher.client import Init, Launcher
from agenthost.wire import CommandFlag, Failed, SignalScope
from tests.launcher_rig import NOBODY, in_world, output, read_all, shell
from tests.needs import needs

pytestmark = [needs("root"), pytest.mark.usefixtures("no_leaks")]


@pytest.mark.parametrize(
    ("script", "text", "status"),
    [
        ("echo hello", "hello\n", 0),
        ("exit 7", "", 7),
        ("kill -TERM $$", "", 143),
        ("kill -KILL $$", "", 137),
        ("pwd; umask; nice", "/\n0022\n0\n", 0),
        ("echo $$", "2\n", 0),
        ("id -u; id -g; id -G", f"{NOBODY}\n{NOBODY}\n{NOBODY}\n", 0),
    ],
)
def test_output_and_status(script: str, text: str, status: int) -> None:
    async def test(_: Launcher, init: Init) -> None:
        said, end = await output(init, shell(script))
        assert (said, end.status) == (text, status)

    in_world(test)


@pytest.mark.parametrize(
    ("changes", "status", "says"),
    [
        ({"program": b"/no/such/program"}, 127, "cannot run /no/such/program: No such file or directory"),
        ({"program": b"no-such-program"}, 127, "cannot run no-such-program: No such file or directory"),
        ({"program": b"/usr"}, 126, "cannot run /usr: Permission denied"),
        ({"program": b"/usr/lib/os-release"}, 126, "cannot run /usr/lib/os-release: Permission denied"),
        ({"cwd": b"/no/such"}, 126, "cannot enter /no/such: No such file or directory"),
        ({"cwd": b"/usr/bin/env"}, 126, "cannot enter /usr/bin/env: Not a directory"),
        ({"program": b"sh", "env": ()}, 127, "cannot run sh: No such file or directory"),
    ],
)
def test_one_that_cannot_start(changes: dict[str, object], status: int, says: str) -> None:
    async def test(_: Launcher, init: Init) -> None:
        said, end = await output(init, shell("true", **changes))
        assert isinstance(end, Failed)
        assert (said, end.status, end.message.decode()) == ("", status, says)
        assert (await output(init, shell("echo still here")))[0] == "still here\n"

    in_world(test)


def test_path_is_searched_as_a_shell_does() -> None:
    async def test(_: Launcher, init: Init) -> None:
        search = b"PATH=/no/such::/usr/share:/usr/bin"
        said, end = await output(init, shell("echo found", program=b"sh", env=(search,)))
        assert (said, end.status) == ("found\n", 0)

    in_world(test)


def test_closed_descriptors_stay_closed() -> None:
    async def test(_: Launcher, init: Init) -> None:
        reading, writing = os.pipe()
        command = shell("[ -e /proc/self/fd/0 ] || echo closed", descriptors=0b010)
        running = await init.run(command, [writing])
        os.close(writing)
        assert await asyncio.to_thread(read_all, reading) == "closed\n"
        assert (await running.wait()).status == 0

    in_world(test)


def test_many_at_once_are_told_apart() -> None:
    async def test(_: Launcher, init: Init) -> None:
        async def one(code: int) -> int:
            return (await output(init, shell(f"exit {code}")))[1].status

        assert await asyncio.gather(*(one(code) for code in range(40))) == list(range(40))

    in_world(test)


def test_the_end_of_the_main_one_is_the_end_of_all() -> None:
    async def test(_: Launcher, init: Init) -> None:
        reading, writing = os.pipe()
        null = os.open("/dev/null", os.O_RDWR)
        background = await init.run(shell("trap '' TERM HUP; sleep 60; echo late"), [null, writing, null])
        os.close(writing)
        main = await init.run(shell("exit 9", flags=CommandFlag.MAIN), [null, null, null])
        os.close(null)
        assert (await main.wait()).status == 9
        await asyncio.wait_for(init.gone(), 10)
        with pytest.raises(EnvironmentFailed, match="test of Session one has ended"):
            await background.wait()
        with pytest.raises(EnvironmentFailed):
            await output(init, shell("true"))
        assert await asyncio.to_thread(read_all, reading) == ""

    in_world(test)


@pytest.mark.parametrize("scope", [SignalScope.LEADER, SignalScope.GROUP])
def test_a_signal_reaches_the_main_one(scope: SignalScope) -> None:
    async def test(_: Launcher, init: Init) -> None:
        null = os.open("/dev/null", os.O_RDWR)
        command = shell("", program=b"/usr/bin/sleep", argv=(b"sleep", b"60"), flags=CommandFlag.MAIN)
        running = await init.run(command, [null, null, null])
        os.close(null)
        await init.signal(signal.SIGUSR1, scope)
        assert (await running.wait()).status == 128 + signal.SIGUSR1

    in_world(test)


def test_stop_gives_time_and_then_none() -> None:
    async def test(_: Launcher, init: Init) -> None:
        reading, writing = os.pipe()
        null = os.open("/dev/null", os.O_RDWR)
        command = shell("trap 'echo asked' TERM; echo ready; while :; do sleep 1; done")
        await init.run(command, [null, writing, null])
        os.close(writing)
        os.close(null)
        with os.fdopen(reading, encoding="utf-8") as file:
            assert await asyncio.to_thread(file.readline) == "ready\n"
            started = asyncio.get_running_loop().time()
            await init.stop(1.5)
            assert asyncio.get_running_loop().time() - started >= 1.5
            assert await asyncio.to_thread(file.read) == "asked\n"

    in_world(test)


def test_closing_at_the_same_time_is_closing() -> None:
    async def test(_: Launcher, init: Init) -> None:
        await asyncio.gather(init.aclose(), init.stop(1), init.aclose())
        await init.aclose()

    in_world(test)
