"""A daemon for the tests of whole views: does with agenthost what it is told, one JSON object a line in, one out.

It is started as root or as an unprivileged user, with an interpreter and an agenthost of that user, so that one test
body serves both, and so that a test can kill it. `{"id": 1, "do": "open", ...}` is answered by `{"id": 1, "ok": {...}}`
or `{"id": 1, "error": {...}}`; requests run at the same time. It ends when its stdin does.

It imports nothing from the tests: an unprivileged user cannot read them where they are.
"""

from __future__ import annotations

import array
import asyncio
import contextlib
import hashlib
import json
import os
import pty
import random
import socket
import sys
import tempfile
import termios
import traceback
import tty
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Final
from unittest import mock

import agenthost.view
from agenthost.codex.install import Install
from agenthost.errors import AgentHostError
from agenthost.gateway.provider import Provider
from agenthost.process import PIPE, Process
from agenthost.session import AgentHost, Harness, Session, SessionRequest

CHUNK: Final = 1 << 18


class Running:
    """A Harness, and all that it wrote so far."""

    def __init__(self, process: Process) -> None:
        self.process = process
        self.written: list[bytearray] = [bytearray(), bytearray()]
        self.more = asyncio.Event()
        streams = (process.stdout, process.stderr)
        self.readers = [asyncio.create_task(self._read(at, stream)) for at, stream in enumerate(streams)]

    async def _read(self, at: int, stream: asyncio.StreamReader | None) -> None:
        while stream is not None and (data := await stream.read(CHUNK)):
            self.written[at] += data
            self.more.set()
        self.more.set()

    async def until(self, text: bytes) -> None:
        while text not in self.written[0]:
            if all(reader.done() for reader in self.readers):
                raise EOFError(f"the Harness ended without {text!r}: {bytes(self.written[0])!r}")
            self.more.clear()
            await self.more.wait()

    async def end(self) -> dict[str, Any]:
        status = await self.process.wait()
        await asyncio.gather(*self.readers)
        stdout, stderr = (bytes(written).decode("latin-1") for written in self.written)
        return {"status": status, "stdout": stdout, "stderr": stderr}


class Driver:
    def __init__(self, host: AgentHost) -> None:
        self.host = host
        self.open_sessions: dict[str, tuple[Session, AsyncExitStack]] = {}
        self.running: dict[int, Running] = {}

    async def open(self, request: dict[str, Any], as_codex: str | None) -> dict[str, Any]:
        stack = AsyncExitStack()
        with contextlib.nullcontext() if as_codex is None else _stand_in(Path(as_codex)):
            session = await stack.enter_async_context(self.host.open(_request(request)))
        self.open_sessions[session.id] = session, stack
        return {"session": session.id, "workspace": str(session.workspace)}

    async def idle(self) -> dict[str, Any]:
        return {}

    async def recovered(self) -> dict[str, Any]:
        return {"findings": [[one.name, one.found, one.outcome] for one in self.host.recovered]}

    async def close(self, session: str) -> dict[str, Any]:
        _, stack = self.open_sessions.pop(session)
        await stack.aclose()
        return {}

    async def start(self, session: str, args: list[str], stdin: str | None) -> dict[str, Any]:
        process = await self.open_sessions[session][0].launch(args)
        running = Running(process)
        self.running[id(running)] = running
        if stdin is not None and process.stdin is not None:
            process.stdin.write(stdin.encode("latin-1"))
            process.stdin.close()
        return {"process": id(running)}

    async def until(self, process: int, text: str) -> dict[str, Any]:
        await self.running[process].until(text.encode("latin-1"))
        return {}

    async def wait(self, process: int) -> dict[str, Any]:
        running = self.running[process]
        try:
            return await running.end()
        finally:
            if running.process.stdin is not None:
                running.process.stdin.close()
            del self.running[process]

    async def until_end(self, process: int) -> dict[str, Any]:
        await self.running[process].process.wait()
        return {}

    async def close_stdin(self, process: int) -> dict[str, Any]:
        stdin = self.running[process].process.stdin
        if stdin is not None:
            stdin.close()
        return {}

    async def signal(self, process: int, number: int) -> dict[str, Any]:
        self.running[process].process.send_signal(number)
        return {}

    async def stop(self, process: int) -> dict[str, Any]:
        started = asyncio.get_running_loop().time()
        await self.running[process].process.stop()
        return {"seconds": asyncio.get_running_loop().time() - started}

    async def transfer(self, session: str, source: str, sink: str, size: int) -> dict[str, Any]:
        """`size` bytes through `probe copy`, in and out by descriptors of these kinds."""
        data = _lines(size) if source == "terminal" else random.Random(size).randbytes(size)
        loop = asyncio.get_running_loop()
        with contextlib.ExitStack() as stack:
            stdin, feed = _source(source, data, stack)
            stdout, collect = _sink(sink, size, stack)
            process = await self.open_sessions[session][0].launch(["copy"], stdin=stdin, stdout=stdout)
            for fd in {stdin, stdout} - {PIPE}:
                os.close(fd)
            jobs: list[Awaitable[Any]] = []
            if process.stdin is not None:
                jobs.append(_feed(process.stdin, data))
            elif feed is not None:
                jobs.append(loop.run_in_executor(None, feed))
            if process.stdout is not None:
                jobs.append(process.stdout.read())
                read = -1
            else:
                read = len(jobs)
                jobs.append(loop.run_in_executor(None, collect))
            jobs.append(process.wait())
            done = await asyncio.gather(*jobs)
            received = done[read] if read >= 0 else done[-2]
            if sink == "file":
                received = collect()
        return {
            "status": done[-1],
            "received": len(received),
            "same": hashlib.sha256(received).digest() == hashlib.sha256(data).digest(),
        }

    async def hand_in(self, session: str, path: str, args: list[str]) -> dict[str, Any]:
        """Runs the Harness with a socket as stdin, on which it gets `path`, open for reading."""
        here, there = socket.socketpair()
        with here:
            with there:
                process = await self.open_sessions[session][0].launch(args, stdin=there.fileno())
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            here.sendmsg([b"\0"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [fd]).tobytes())])
            os.close(fd)
            return await Running(process).end()

    async def do(self, line: bytes) -> bytes:
        asked = json.loads(line)
        number, name = asked.pop("id"), asked.pop("do")
        try:
            return _answer({"id": number, "ok": await getattr(self, name)(**asked)})
        except AgentHostError as error:
            what = {"type": type(error).__name__, "kind": error.kind, "what": error.what, "remedy": error.remedy}
            return _answer({"id": number, "error": what})
        except Exception:  # noqa: BLE001 - told to the test, which fails by it
            what = {"type": "Exception", "kind": "", "what": traceback.format_exc(), "remedy": ""}
            return _answer({"id": number, "error": what})


def _stand_in(binary: Path) -> contextlib.AbstractContextManager[object]:
    """For one opening: this static program is taken for a pinned Codex, as nothing but its digest tells."""
    install = Install(
        found=binary,
        origin="--codex",
        binary=binary,
        directory=binary.parent,
        release="0.163.0",
        code_mode_host=None,
        digests={},
    )
    return mock.patch.object(agenthost.view, "discover_codex", return_value=install)


def _request(values: dict[str, Any]) -> SessionRequest:
    for name in ("workspace", "codex", "events_copy"):
        if values.get(name) is not None:
            values[name] = Path(values[name])
    if "bind_ro" in values:
        values["bind_ro"] = [Path(path) for path in values["bind_ro"]]
    if "harness" in values:
        values["harness"] = Harness(Path(values["harness"][0]), values["harness"][1])
    if "provider" in values:
        values["provider"] = Provider(base_url=values["provider"], api_key="not-a-key")
    return SessionRequest(**values)


def _answer(value: dict[str, Any]) -> bytes:
    return json.dumps(value).encode("ascii") + b"\n"


async def _feed(stream: asyncio.StreamWriter, data: bytes) -> None:
    for at in range(0, len(data), CHUNK):
        stream.write(data[at : at + CHUNK])
        await stream.drain()
    stream.close()


def _temporary(stack: contextlib.ExitStack, data: bytes = b"") -> Path:
    fd, name = tempfile.mkstemp()
    with os.fdopen(fd, "wb") as file:
        file.write(data)
    stack.callback(os.unlink, name)
    return Path(name)


def _terminal(stack: contextlib.ExitStack) -> tuple[int, int]:
    main, side = pty.openpty()
    stack.callback(os.close, main)
    tty.setraw(side)
    return main, side


def _lines(size: int) -> bytes:
    """What a terminal takes as it is."""
    return (b"0123456789abcdef" * 4 + b"\n") * (size // 65) + b"x" * (size % 65 - 1) + b"\n"


def _write_lines(fd: int, data: bytes) -> None:
    for line in data.splitlines(keepends=True):
        os.write(fd, line)


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    with open(fd, "wb", buffering=0) as file:
        while view:
            view = view[file.write(view) or 0 :]


def _source(kind: str, data: bytes, stack: contextlib.ExitStack) -> tuple[int, Callable[[], None] | None]:
    """The Harness's end, and what writes the data to the other one."""
    match kind:
        case "pipe":
            return PIPE, None
        case "null":
            return os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC), None
        case "file":
            return os.open(_temporary(stack, data), os.O_RDONLY | os.O_CLOEXEC), None
        case "own-pipe":
            reading, writing = os.pipe()
            return reading, lambda: _write_all(writing, data)
        case "socket":
            here, there = socket.socketpair()
            return there.detach(), lambda: _write_all(here.detach(), data)
        case "terminal":
            main, side = _terminal(stack)
            attributes = termios.tcgetattr(side)
            attributes[3] |= termios.ICANON  # so that ^D ends it
            termios.tcsetattr(side, termios.TCSANOW, attributes)
            return side, lambda: _write_lines(main, data + b"\x04")
    raise ValueError(kind)


def _read_all(fd: int, size: int) -> bytes:
    parts = []
    with open(fd, "rb", buffering=0) as file:
        while size > 0 and (data := file.read(CHUNK)):
            parts.append(data)
            size -= len(data)
    return b"".join(parts)


def _sink(kind: str, size: int, stack: contextlib.ExitStack) -> tuple[int, Callable[[], bytes]]:
    """The Harness's end, and what reads all of it from the other one."""
    match kind:
        case "pipe":
            return PIPE, lambda: b""
        case "null":
            return os.open("/dev/null", os.O_WRONLY | os.O_CLOEXEC), lambda: b""
        case "file":
            path = _temporary(stack)
            return os.open(path, os.O_WRONLY | os.O_CLOEXEC), path.read_bytes
        case "own-pipe":
            reading, writing = os.pipe()
            return writing, lambda: _read_all(reading, size + 1)
        case "socket":
            here, there = socket.socketpair()
            return there.detach(), lambda: _read_all(here.detach(), size + 1)
        case "terminal":
            main, side = _terminal(stack)
            return side, lambda: _read_all(os.dup(main), size)
    raise ValueError(kind)


async def main(state_dir: str, *how: str) -> None:
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=1 << 24)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    tasks: set[asyncio.Task[None]] = set()
    async with AgentHost(Path(state_dir), exclusive="shared" not in how) as host:
        driver = Driver(host)

        async def serve(line: bytes) -> None:
            answer = await driver.do(line)
            sys.stdout.buffer.write(answer)
            sys.stdout.buffer.flush()

        while line := await reader.readline():
            task = asyncio.create_task(serve(line))
            tasks.add(task)
            task.add_done_callback(tasks.discard)
        for session in list(driver.open_sessions):
            await driver.close(session)
        await asyncio.gather(*tasks)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
