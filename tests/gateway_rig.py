"""A gateway between a real client and a real upstream, all on loopback: for the tests of the gateway."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

from agenthost.events import Event, EventLog
from agenthost.gateway.destinations import AllowedHost
from agenthost.gateway.provider import Provider
from agenthost.gateway.server import Gateway

KEY = "sk-real-key-that-no-view-may-see"
PATIENCE_S = 30.0
"""How long a test waits for what must come. No test passes by waiting."""

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@dataclass(slots=True)
class Head:
    """An HTTP head as it came over the wire."""

    first: str
    headers: list[tuple[str, str]]

    def all(self, name: str) -> list[str]:
        return [value for header, value in self.headers if header.lower() == name.lower()]

    def one(self, name: str) -> str:
        (value,) = self.all(name)
        return value

    @property
    def status(self) -> int:
        return int(self.first.split()[1])

    @property
    def names(self) -> set[str]:
        return {name.lower() for name, _ in self.headers}


@dataclass(slots=True)
class Rig:
    """What a test needs to speak through a gateway."""

    gateway: Gateway
    model_port: int
    proxy_port: int
    events: list[Event] = field(default_factory=list)

    def of(self, type_: str) -> list[Event]:
        return [event for event in self.events if event["type"] == type_]

    def request(self, *headers: str, line: str = "POST /responses HTTP/1.1", body: bytes = b"") -> bytes:
        """A request to the model listener that is in order, but for what the test says."""
        given = {header.partition(":")[0].lower() for header in headers}
        usual = [
            f"Host: 127.0.0.1:{self.model_port}",
            "Authorization: Bearer placeholder",
            f"Content-Length: {len(body)}",
        ]
        lines = [line, *headers, *(header for header in usual if header.partition(":")[0].lower() not in given)]
        return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


@contextmanager
def event_log() -> Iterator[tuple[EventLog, list[Event]]]:
    """A real event log, and the events that it took."""
    with TemporaryDirectory() as directory:
        log = EventLog("test", os.open(Path(directory) / "events.jsonl", os.O_WRONLY | os.O_CREAT | os.O_APPEND))
        events: list[Event] = []
        log.subscribers.append(events.append)
        try:
            yield log, events
        finally:
            log.close()


def listening() -> socket.socket:
    return socket.create_server(("127.0.0.1", 0), backlog=512)


@asynccontextmanager
async def gateway(provider: Provider | None = None, allow: Sequence[str] = ()) -> AsyncIterator[Rig]:
    provider = provider or Provider(base_url="http://127.0.0.1:9/v1", api_key=KEY)
    with event_log() as (log, events):
        proxy, model = listening(), listening()
        rig = Rig(
            Gateway(provider, allow_hosts=[AllowedHost.parse(host) for host in allow], events=log),
            model.getsockname()[1],
            proxy.getsockname()[1],
            events,
        )
        await rig.gateway.start(proxy=proxy, model=model)
        try:
            async with asyncio.timeout(PATIENCE_S):
                yield rig
        finally:
            await rig.gateway.aclose()


@asynccontextmanager
async def upstream(serve: Serve) -> AsyncIterator[int]:
    """A server that does with each connection what the test says; gives its port."""
    tasks: set[asyncio.Task[None]] = set()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        try:
            await serve(reader, writer)
        except (OSError, EOFError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(connected, "127.0.0.1", 0, limit=1 << 20)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def provider_at(port: int, base: str = "/v1") -> Provider:
    return Provider(base_url=f"http://127.0.0.1:{port}{base}", api_key=KEY, label="a key of the test")


async def read_head(reader: asyncio.StreamReader) -> Head:
    text = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    first, *lines = text.removesuffix("\r\n\r\n").split("\r\n")
    return Head(first, [(name, value.strip()) for name, _, value in (line.partition(":") for line in lines)])


async def read_body(reader: asyncio.StreamReader, head: Head) -> bytes:
    if head.all("transfer-encoding"):
        body = b""
        while size := int(await reader.readuntil(b"\r\n"), 16):
            body += await reader.readexactly(size)
            await reader.readexactly(2)
        await reader.readexactly(2)
        return body
    return await reader.readexactly(int(head.one("content-length")) if head.all("content-length") else 0)


async def ask(port: int, raw: bytes) -> tuple[Head, bytes]:
    """Sends these bytes, and gives the answer."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 20)
    try:
        writer.write(raw)
        head = await read_head(reader)
        return head, await read_body(reader, head)
    finally:
        writer.close()


def answering(
    answer: bytes, seen: list[tuple[Head, bytes]] | None = None
) -> Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]:
    """Reads one request, notes it, and sends these bytes."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await read_head(reader)
        body = await read_body(reader, head)
        if seen is not None:
            seen.append((head, body))
        writer.write(answer)
        await writer.drain()

    return serve
