"""The descriptors between a Harness and its caller: real pipes, sockets, files and terminals."""

from __future__ import annotations

import asyncio
import os
import pty
import signal
import socket
import stat
import tty
from collections.abc import Iterator
from pathlib import Path

import pytest

from agenthost.process import PIPE, Process, Stdio


def open_descriptors() -> set[str]:
    return {path.name for path in Path("/proc/self/fd").iterdir()}


@pytest.fixture(autouse=True)
def no_descriptor_left() -> Iterator[None]:
    before = open_descriptors()
    yield
    # Pumps close theirs a moment after their end.
    for _ in range(500):
        if open_descriptors() <= before:
            break
        os.sched_yield()
        asyncio.run(asyncio.sleep(0.01))
    assert open_descriptors() <= before


def kind(fd: int) -> str:
    mode = os.fstat(fd).st_mode
    names = {stat.S_IFIFO: "pipe", stat.S_IFSOCK: "socket", stat.S_IFCHR: "device", stat.S_IFREG: "file"}
    return names[stat.S_IFMT(mode)]


async def opened(stdin: int, stdout: int, stderr: int) -> tuple[Stdio, list[str]]:
    stdio = await Stdio.open(stdin, stdout, stderr)
    return stdio, [kind(fd) for fd in stdio.harness_ends]


async def ended(stdio: Stdio) -> None:
    """As a launch does it once the view is gone."""
    stdio.close_harness_ends()
    await stdio.drain()
    stdio.close()
    for stream in (stdio.stdout, stdio.stderr):
        if stream is not None:
            await stream.read()
    if stdio.stdin is not None:
        await asyncio.gather(stdio.stdin.wait_closed(), return_exceptions=True)


class TestKinds:
    def test_pipes_are_made(self) -> None:
        async def main() -> None:
            stdio, kinds = await opened(PIPE, PIPE, PIPE)
            assert kinds == ["pipe"] * 3
            assert stdio.stdin is not None
            assert stdio.stdout is not None
            assert stdio.stderr is not None
            harness = stdio.harness_ends
            stdio.stdin.write(b"in")
            await stdio.stdin.drain()
            assert os.read(harness[0], 10) == b"in"
            os.write(harness[1], b"out")
            os.write(harness[2], b"err")
            assert (await stdio.stdout.read(3), await stdio.stderr.read(3)) == (b"out", b"err")
            await ended(stdio)

        asyncio.run(main())

    def test_what_may_enter_is_passed_as_it_is(self) -> None:
        async def main() -> None:
            here, there = socket.socketpair()
            reading, writing = os.pipe()
            null = os.open("/dev/null", os.O_RDWR)
            stdio, kinds = await opened(there.fileno(), writing, null)
            assert kinds == ["socket", "pipe", "device"]
            for own, given in zip(stdio.harness_ends, (there.fileno(), writing, null), strict=True):
                assert own != given
                assert os.path.samestat(os.fstat(own), os.fstat(given))
                assert not os.get_inheritable(own)
            assert (stdio.stdin, stdio.stdout, stdio.stderr) == (None, None, None)
            await ended(stdio)
            here.close()
            there.close()
            for fd in (reading, writing, null):
                os.fstat(fd)  # they stayed the caller's
                os.close(fd)

        asyncio.run(main())

    def test_a_file_is_pumped(self, tmp_path: Path) -> None:
        async def main() -> None:
            (tmp_path / "in").write_bytes(b"x" * 300_000)
            source = os.open(tmp_path / "in", os.O_RDONLY)
            sink = os.open(tmp_path / "out", os.O_WRONLY | os.O_CREAT)
            stdio, kinds = await opened(source, sink, sink)
            assert kinds == ["pipe"] * 3
            got = await asyncio.to_thread(_read_all, stdio.harness_ends[0])
            assert got == b"x" * 300_000
            os.write(stdio.harness_ends[1], b"one ")
            await ended(stdio)
            assert (tmp_path / "out").read_bytes() == b"one "
            os.close(source)
            os.close(sink)

        asyncio.run(main())

    def test_a_terminal_is_pumped(self) -> None:
        async def main() -> None:
            outer, inner = pty.openpty()
            tty.setraw(inner)
            stdio, kinds = await opened(inner, inner, PIPE)
            assert kinds == ["pipe"] * 3
            os.write(outer, b"typed")
            assert os.read(stdio.harness_ends[0], 10) == b"typed"
            os.write(stdio.harness_ends[1], b"shown")
            assert await asyncio.to_thread(os.read, outer, 10) == b"shown"
            stdio.close_harness_ends()
            os.write(outer, b"to nobody")  # ends the pump, whose reader is gone
            os.close(outer)
            os.close(inner)
            await ended(stdio)

        asyncio.run(main())

    @pytest.mark.parametrize("path", ["/dev/zero", "/proc/self/exe", "/"])
    def test_nothing_else_enters(self, path: str) -> None:
        async def main() -> None:
            given = os.open(path, os.O_RDONLY)
            stdio, kinds = await opened(given, PIPE, PIPE)
            assert kinds[0] == "pipe"
            await ended(stdio)
            os.close(given)

        asyncio.run(main())

    def test_a_descriptor_that_is_not_open_is_an_error(self) -> None:
        async def main() -> None:
            for given in ((999, PIPE, PIPE), (PIPE, 999, PIPE), (PIPE, PIPE, 999)):
                with pytest.raises(OSError):
                    await Stdio.open(*given)
            await asyncio.sleep(0.01)

        asyncio.run(main())


def test_draining_does_not_wait_for_ever(tmp_path: Path) -> None:
    """A command of the environment may hold the Harness's stdout."""

    async def main() -> None:
        sink = os.open(tmp_path / "out", os.O_WRONLY | os.O_CREAT)
        stdio = await Stdio.open(PIPE, sink, PIPE)
        held = os.dup(stdio.harness_ends[1])
        stdio.close_harness_ends()
        await asyncio.wait_for(stdio.drain(), 10)
        os.close(held)
        await ended(stdio)
        os.close(sink)

    asyncio.run(main())


class TestProcess:
    def test_wait_tells_the_status_as_often_as_asked(self) -> None:
        async def main() -> None:
            loop = asyncio.get_running_loop()
            end: asyncio.Future[int] = loop.create_future()
            sent: list[int] = []

            async def send(number: int) -> None:
                sent.append(number)

            async def stop() -> None:
                end.set_result(137)

            process = Process(Stdio(), ended=end, send=send, stop=stop)
            assert (process.returncode, process.ended) == (None, False)
            waiting = asyncio.create_task(process.wait())
            process.send_signal(signal.SIGUSR1)
            process.terminate()
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            assert sent == [signal.SIGUSR1, signal.SIGTERM]
            waiting.cancel()  # one who no longer waits does not end it
            await asyncio.gather(waiting, return_exceptions=True)
            assert not process.ended
            await process.stop()
            assert (await process.wait(), await process.wait(), process.returncode) == (137, 137, 137)

        asyncio.run(main())


def _read_all(fd: int) -> bytes:
    parts = []
    while data := os.read(fd, 1 << 16):
        parts.append(data)
    return b"".join(parts)
