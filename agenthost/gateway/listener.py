"""Accepts on a socket that someone else made, and tells when it cannot any more.

asyncio's own servers log an accept(2) that fails and try again for ever; here a broken listener ends the Session.
A shortage (of descriptors, of memory) and an error of one connection are waited out, as accept(2) advises.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
import struct
from collections.abc import Callable
from typing import Final

from agenthost.errors import GatewayFailed

SHORTAGE: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
SHORTAGE_PAUSE_S: Final = 0.1

OF_ONE_CONNECTION: Final = frozenset(
    {
        errno.ECONNABORTED,
        errno.ECONNRESET,
        errno.EPERM,
        errno.EPROTO,
        errno.ENETDOWN,
        errno.ENETUNREACH,
        errno.EHOSTDOWN,
        errno.EHOSTUNREACH,
        errno.ENOPROTOOPT,
    }
)
"""accept(2), "Error handling": what was pending on the new connection."""

_RESET: Final = struct.pack("ii", 1, 0)
"""struct linger: on, no time at all (socket(7))."""

_LOGGER: Final = logging.getLogger(__name__)


class Listener:
    """Owns one listening socket and every connection that comes of it."""

    def __init__(
        self, name: str, sock: socket.socket, factory: Callable[[], asyncio.BaseProtocol], *, max_connections: int
    ) -> None:
        """Takes over `sock` and begins to accept. Raises GatewayFailed, the socket closed, when it does not listen.

        One connection more than `max_connections` is reset at once.
        """
        if not sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
            sock.close()
            raise GatewayFailed(f"the {name} socket does not listen", remedy="this is a defect of agenthost; report it")
        sock.setblocking(False)
        self.name = name
        self._sock = sock
        self._factory = factory
        self._max_connections = max_connections
        self._transports: list[asyncio.Transport] = []
        self._task = asyncio.create_task(self._accept(), name=f"gateway {name} listener")

    async def failed(self) -> GatewayFailed:
        """Returns when the listener broke. Never returns for one that was closed."""
        await asyncio.wait([self._task])
        if self._task.cancelled():
            await asyncio.get_running_loop().create_future()
        return self._task.result()

    async def aclose(self) -> None:
        """Closes the socket and resets every connection. Their protocols have heard of it when this returns."""
        self._task.cancel()
        await asyncio.wait([self._task])
        self._sock.close()
        transports, self._transports = self._transports, []
        for transport in transports:
            reset(transport)
        await asyncio.sleep(0)  # abort() closes in the next round of the loop

    async def _accept(self) -> GatewayFailed:
        loop = asyncio.get_running_loop()
        while True:
            try:
                connection, _ = await loop.sock_accept(self._sock)
            except OSError as error:
                if error.errno in SHORTAGE:
                    _LOGGER.warning("the %s listener waits: %s", self.name, error.strerror)
                    await asyncio.sleep(SHORTAGE_PAUSE_S)
                elif error.errno not in OF_ONE_CONNECTION:
                    return GatewayFailed(
                        f"the {self.name} listener cannot accept any more: {error.strerror}",
                        remedy="start the Session again",
                    )
            except ValueError:  # asyncio's word for a descriptor that is closed
                return GatewayFailed(
                    f"the {self.name} listener was closed under the gateway", remedy="start the Session again"
                )
            else:
                await self._take(loop, connection)

    async def _take(self, loop: asyncio.AbstractEventLoop, connection: socket.socket) -> None:
        if len(self._transports) >= self._max_connections:
            self._transports = [transport for transport in self._transports if _is_open(transport)]
        if len(self._transports) >= self._max_connections:
            _reset(connection)
            return
        try:
            transport, _ = await loop.connect_accepted_socket(self._factory, connection)
        except OSError:
            connection.close()
        else:
            self._transports.append(transport)


def _is_open(transport: asyncio.Transport) -> bool:
    """A transport that is closing still holds its descriptor until what it has to send is sent."""
    sock: socket.socket = transport.get_extra_info("socket")
    return sock.fileno() >= 0


def reset(transport: asyncio.WriteTransport) -> None:
    """Ends a connection with a TCP reset, dropping what is not sent yet: the peer cannot take it for a regular end."""
    sock: socket.socket | None = transport.get_extra_info("socket")
    if sock is not None and sock.fileno() >= 0:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    transport.abort()


def _reset(connection: socket.socket) -> None:
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    connection.close()
