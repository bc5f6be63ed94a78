"""Frames with descriptors over a Unix stream socket, inside a running event loop."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Sequence

from agenthost.errors import WireError
from agenthost.linux.fdpass import CHUNK, close_fds, receive_some, rights_of
from agenthost.wire import HEADER, MAX_BODY, MAX_FDS, Frame, FrameType, decode_header, encode


class FrameStream:
    """Frames over a Unix stream socket, inside a running event loop. Owns the socket.

    One task may receive while others send; sends are whole frames in the order of the calls. `max_body` (bytes) and
    `max_fds` bound what a peer may send: beyond them `receive` raises `WireError`, and the stream is of no more use.
    """

    __slots__ = ("_buffer", "_fds", "_loop", "_max_body", "_max_fds", "_send_lock", "_sock", "_waiting", "closed")

    def __init__(self, sock: socket.socket, *, max_body: int = MAX_BODY, max_fds: int = MAX_FDS) -> None:
        sock.setblocking(False)
        self._sock = sock
        self._loop = asyncio.get_running_loop()
        self._max_body = max_body
        self._max_fds = max_fds
        self._buffer = bytearray()
        self._fds: list[int] = []
        self._send_lock = asyncio.Lock()
        self._waiting: set[asyncio.Future[None]] = set()
        self.closed = False

    @property
    def socket(self) -> socket.socket:
        """The socket itself, for its options and for passing it on."""
        return self._sock

    async def receive(self) -> Frame | None:
        """The next frame; None when the peer has closed between two frames. The caller owns its descriptors."""
        header = await self._exact(HEADER.size)
        if header is None:
            return None
        length, kind, count = decode_header(header)
        if length > self._max_body or count > self._max_fds:
            raise WireError("a frame beyond this connection's limits")
        body = await self._exact(length) if length else b""
        if body is None or len(self._fds) != count:
            raise WireError("a frame cut short, or with other descriptors than it says")
        fds, self._fds = tuple(self._fds), []
        return Frame(kind, body, fds)

    async def send(self, kind: FrameType, body: bytes, fds: Sequence[int] = ()) -> None:
        """Sends one frame. The caller keeps its descriptors, and must keep them open until this returns."""
        data = memoryview(encode(kind, body, len(fds)))
        async with self._send_lock:
            rights = rights_of(fds)
            while data:
                try:
                    sent = self._sock.sendmsg([data], rights, socket.MSG_NOSIGNAL)
                except BlockingIOError:
                    await self._writable()
                    continue
                data, rights = data[sent:], []

    def close(self) -> None:
        """Closes the socket and what was received but not taken; whoever waits gets `ConnectionResetError`."""
        if self.closed:
            return
        self.closed = True
        self._loop.remove_reader(self._sock.fileno())
        self._loop.remove_writer(self._sock.fileno())
        self._sock.close()
        close_fds(self._fds)
        self._fds.clear()
        for ready in self._waiting:
            if not ready.done():
                ready.set_exception(ConnectionResetError("the stream was closed"))

    async def _exact(self, size: int) -> bytes | None:
        while len(self._buffer) < size:
            try:
                data = receive_some(self._sock, min(size - len(self._buffer), CHUNK), self._fds, self._max_fds)
            except BlockingIOError:
                await self._readable()
                continue
            if not data:
                if self._buffer or size != HEADER.size:
                    raise WireError("a frame cut short")
                return None
            self._buffer += data
        taken = bytes(self._buffer[:size])
        del self._buffer[:size]
        return taken

    async def _readable(self) -> None:
        await self._wait(reading=True)

    async def _writable(self) -> None:
        await self._wait(reading=False)

    async def _wait(self, *, reading: bool) -> None:
        if self.closed:
            raise ConnectionResetError("the stream is closed")
        ready: asyncio.Future[None] = self._loop.create_future()
        self._waiting.add(ready)
        fd = self._sock.fileno()
        add, remove = (
            (self._loop.add_reader, self._loop.remove_reader)
            if reading
            else (self._loop.add_writer, self._loop.remove_writer)
        )
        add(fd, _wake, ready)
        try:
            await ready
        finally:
            self._waiting.discard(ready)
            if not self.closed:
                remove(fd)


def _wake(ready: asyncio.Future[None]) -> None:
    if not ready.done():
        ready.set_result(None)
