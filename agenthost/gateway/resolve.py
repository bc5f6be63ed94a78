"""Turns a name into addresses without ever holding up the end of the program.

`loop.getaddrinfo` runs in the default executor, which a closing loop waits for: a resolver that answers nobody would
keep a Session from ending. A daemon thread is left behind instead.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import threading
from collections.abc import Awaitable, Callable
from typing import Final

from agenthost.gateway.destinations import LOCALHOST, Address

Resolve = Callable[[str], Awaitable[list[Address]]]
"""Gives the addresses of a canonical host, best first. Raises OSError when there are none."""

LOOPBACK: Final[tuple[Address, ...]] = (ipaddress.IPv4Address("127.0.0.1"), ipaddress.IPv6Address("::1"))


async def resolve(host: str) -> list[Address]:
    """Asks the system's resolver. `localhost` is loopback whatever that says (RFC 6761, 6.3)."""
    if host == LOCALHOST:
        return list(LOOPBACK)
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[list[Address]] = loop.create_future()

    def settle(result: list[Address] | OSError) -> None:
        if answer.done():
            return
        if isinstance(result, OSError):
            answer.set_exception(result)
        else:
            answer.set_result(result)

    def work() -> None:
        try:
            result: list[Address] | OSError = _ask(host)
        except OSError as error:
            result = error
        try:
            loop.call_soon_threadsafe(settle, result)
        except RuntimeError:  # the loop closed meanwhile: nobody waits for the answer
            return

    threading.Thread(target=work, name=f"resolve {host}", daemon=True).start()
    return await answer


def _ask(host: str) -> list[Address]:
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except UnicodeError as error:  # a label that IDNA does not take
        raise socket.gaierror(socket.EAI_NONAME, "not a host name") from error
    addresses = [ipaddress.ip_address(str(entry[4][0])) for entry in found]
    return list(dict.fromkeys(addresses))
