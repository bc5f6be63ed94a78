"""The proxy listener: CONNECT and absolute-form requests, denied unless the Session's list names the destination.

    client ──head──► parse ──► named? ──► resolve once ──► address allowed? ──► connect to that address ──► relay
                      400       403          502                403                   502, 504

Each decision is an event. A name is resolved once and the address that was judged is the one that is connected to, so
that no second answer of a name server can lead elsewhere. After that bytes pass as they come, each direction ending on
its own.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final

from agenthost.errors import GatewayFailed
from agenthost.events import EventLog
from agenthost.gateway.destinations import Address, AllowedHost, Destination, allowed, reachable
from agenthost.gateway.heads import Connect, Fetch, parse_request, parse_response
from agenthost.gateway.listener import Listener, reset
from agenthost.gateway.resolve import Resolve, resolve

_CHUNK: Final = 64 << 10
_END: Final = b"\r\n\r\n"
_PHRASES: Final = {
    400: "Bad Request",
    403: "Forbidden",
    408: "Request Timeout",
    431: "Request Header Fields Too Large",
    502: "Bad Gateway",
    504: "Gateway Timeout",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ProxyLimits:
    """What one Session may ask of the proxy. Bytes and seconds."""

    head: int = 32 << 10
    head_s: float = 10.0
    resolve_s: float = 15.0
    connect_s: float = 15.0
    idle_s: float = 15 * 60.0
    """A tunnel in which nothing moves, in either direction, ends."""
    linger_s: float = 1.0
    """How long a refused client may go on sending, so that the refusal reaches it."""
    flush_s: float = 30.0
    """How long a client that reads no more holds its connection once all was written."""
    connections: int = 512


class _Denied(Exception):
    """An answer, not a failure."""

    def __init__(self, status: int, reason: str, destination: Destination | None = None) -> None:
        super().__init__(status, reason)
        self.status = status
        self.reason = reason
        self.destination = destination


class ProxyListener:
    """Serves one listening socket until `aclose`."""

    def __init__(
        self,
        sock: socket.socket,
        allow_hosts: Sequence[AllowedHost],
        events: EventLog,
        *,
        limits: ProxyLimits | None = None,
        resolver: Resolve = resolve,
    ) -> None:
        """Takes over `sock` and begins to serve. Raises GatewayFailed, the socket closed, when it does not listen."""
        self._allow_hosts = tuple(allow_hosts)
        self._events = events
        self._limits = limits or ProxyLimits()
        self._resolve = resolver
        self._tasks: set[asyncio.Task[None]] = set()
        self._listener = Listener("proxy", sock, self._protocol, max_connections=self._limits.connections)

    async def failed(self) -> GatewayFailed:
        """As `Listener.failed`."""
        return await self._listener.failed()

    async def aclose(self) -> None:
        """Ends every connection, in both directions."""
        await self._listener.aclose()
        tasks = tuple(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _protocol(self) -> asyncio.StreamReaderProtocol:
        reader = asyncio.StreamReader(limit=self._limits.head)
        return asyncio.StreamReaderProtocol(reader, self._connected)

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._serve(reader, writer), name="gateway proxy connection")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # one of the two ends gone, or nothing moved for too long: there is nobody to tell
        with suppress(OSError, EOFError), _ending(writer, self._limits.flush_s):
            try:
                request = await self._read_request(reader)
                await self._answer(request, reader, writer)
            except _Denied as denied:
                self._report(denied.destination, "denied", denied.reason)
                await self._refuse(denied, reader, writer)

    async def _answer(
        self, request: Connect | Fetch, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        far_reader, far_writer = await self._open(request.destination)
        with _ending(far_writer, self._limits.flush_s):
            self._report(request.destination, "allowed", "named by the list of allowed hosts")
            match request:
                case Connect():
                    writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
                case Fetch(head=head):
                    far_writer.write(head)
            await self._relay(request, (reader, writer), (far_reader, far_writer))

    async def _read_request(self, reader: asyncio.StreamReader) -> Connect | Fetch:
        try:
            async with asyncio.timeout(self._limits.head_s):
                head = await reader.readuntil(_END)
        except asyncio.LimitOverrunError:
            raise _Denied(431, "the request's head is too long") from None
        except TimeoutError:
            raise _Denied(408, "the request's head did not come in time") from None
        try:
            return parse_request(head)
        except ValueError as error:
            raise _Denied(400, str(error)) from None

    async def _open(self, destination: Destination) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if not allowed(self._allow_hosts, destination):
            raise _Denied(403, "not an allowed host", destination)
        addresses = reachable(self._allow_hosts, destination, await self._addresses(destination))
        if not addresses:
            raise _Denied(403, "its name leads to an address that is not public", destination)
        failure = _Denied(502, "it does not answer", destination)
        for address in addresses:
            try:
                async with asyncio.timeout(self._limits.connect_s):
                    return await asyncio.open_connection(str(address), destination.port, limit=_CHUNK)
            except TimeoutError:
                failure = _Denied(504, "it does not answer in time", destination)
            except OSError as error:
                why = os.strerror(error.errno or 0)  # the error's own text has the address in it
                failure = _Denied(502, f"it cannot be reached ({why})", destination)
        raise failure

    async def _addresses(self, destination: Destination) -> list[Address]:
        if destination.address is not None:
            return [destination.address]
        try:
            async with asyncio.timeout(self._limits.resolve_s):
                return await self._resolve(destination.host)
        except TimeoutError:
            raise _Denied(504, "its name cannot be resolved in time", destination) from None
        except OSError:
            raise _Denied(502, "its name cannot be resolved", destination) from None

    async def _relay(
        self,
        request: Connect | Fetch,
        near: tuple[asyncio.StreamReader, asyncio.StreamWriter],
        far: tuple[asyncio.StreamReader, asyncio.StreamWriter],
    ) -> None:
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(self._limits.idle_s) as idle:

            def moved() -> None:
                if not idle.expired():
                    idle.reschedule(loop.time() + self._limits.idle_s)

            outward = _pump(near[0], far[1], moved)
            match request:
                case Connect():
                    await _both(outward, _pump(far[0], near[1], moved))
                case Fetch():
                    await _until(_pump_response(far[0], near[1], moved), outward)

    async def _refuse(self, denied: _Denied, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        text = f"agenthost gateway: {denied.destination or 'the request'}: {denied.reason}\n".encode()
        head = (
            f"HTTP/1.1 {denied.status} {_PHRASES[denied.status]}\r\nContent-Type: text/plain; charset=utf-8\r\n"
            f"Content-Length: {len(text)}\r\nConnection: close\r\n\r\n"
        )
        writer.write(head.encode("ascii") + text)
        # closing while bytes of the client are unread would reset the connection, and the answer could be lost
        writer.write_eof()
        with suppress(TimeoutError):
            async with asyncio.timeout(self._limits.linger_s):
                while await reader.read(_CHUNK):
                    pass

    def _report(self, destination: Destination | None, decision: str, reason: str) -> None:
        host, port = (destination.host, destination.port) if destination else ("", 0)
        self._events.write("proxy.connect", host=host, port=port, decision=decision, reason=reason)


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, moved: Callable[[], None]) -> None:
    while data := await reader.read(_CHUNK):
        moved()
        writer.write(data)
        await writer.drain()
    if not writer.is_closing():
        writer.write_eof()


async def _pump_response(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, moved: Callable[[], None]) -> None:
    while True:
        try:
            response = parse_response(await reader.readuntil(_END))
        except (ValueError, asyncio.LimitOverrunError, asyncio.IncompleteReadError):
            writer.write(b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
            return
        writer.write(response.head)
        if not response.interim:
            break
    await _pump(reader, writer, moved)


async def _both(one: Coroutine[Any, Any, None], other: Coroutine[Any, Any, None]) -> None:
    """Runs both to their ends; the failure of one ends the other."""
    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(one)
            group.create_task(other)
    except* OSError as errors:
        raise ConnectionError("one end of the tunnel broke") from errors


async def _until(main: Coroutine[Any, Any, None], companion: Coroutine[Any, Any, None]) -> None:
    """Runs both until `main` is done."""
    beside = asyncio.create_task(companion)
    try:
        await main
    finally:
        beside.cancel()
        await asyncio.gather(beside, return_exceptions=True)


@contextmanager
def _ending(writer: asyncio.StreamWriter, flush_s: float) -> Iterator[None]:
    """Closes a connection after use: softly when all went well, else by a reset."""
    try:
        yield
    except BaseException:
        reset(writer.transport)
        raise
    writer.close()
    if writer.transport.get_write_buffer_size():
        asyncio.get_running_loop().call_later(flush_s, writer.transport.abort)
