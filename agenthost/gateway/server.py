"""The gateway of one launch: its listeners, and one end for all of them."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Sequence
from typing import TYPE_CHECKING

from agenthost.errors import GatewayFailed
from agenthost.events import EventLog
from agenthost.gateway.destinations import AllowedHost
from agenthost.gateway.provider import Provider
from agenthost.gateway.proxy import ProxyListener

if TYPE_CHECKING:
    from agenthost.gateway.model import ModelListener


class Gateway:
    """Serves the proxy and the model socket of a view. Holds the credential; nothing that it shows or raises does.

    Without a provider there is no model listener: connections to it are refused.
    `start` once, `aclose` once. The sockets come from the view's network namespace and listen already.
    """

    def __init__(self, provider: Provider | None, *, allow_hosts: Sequence[AllowedHost] = (), events: EventLog) -> None:
        self.failure: GatewayFailed | None = None
        """Why a listener cannot serve any more."""
        self._provider = provider
        self._allow_hosts = tuple(allow_hosts)
        self._events = events
        self._listeners: list[ProxyListener | ModelListener] = []

    def __repr__(self) -> str:
        return f"Gateway(provider={self._provider!r}, allow_hosts={self._allow_hosts!r})"

    async def start(self, *, proxy: socket.socket, model: socket.socket) -> None:
        """Takes over both sockets and serves them. Raises GatewayFailed, with both closed."""
        from agenthost.gateway.model import ModelListener

        try:
            self._listeners.append(ProxyListener(proxy, self._allow_hosts, self._events))
            if self._provider is None:
                model.close()
            else:
                self._listeners.append(await ModelListener.open(self._provider, model, self._events))
        except BaseException:
            await self.aclose()
            proxy.close()
            model.close()
            raise

    async def failed(self) -> GatewayFailed:
        """Returns when a listener broke, and the Session cannot go on. Never returns otherwise, nor after `aclose`."""
        waiters = [asyncio.create_task(listener.failed()) for listener in self._listeners]
        try:
            done, _ = await asyncio.wait(waiters, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for waiter in waiters:
                waiter.cancel()
        self.failure = done.pop().result()
        return self.failure

    async def aclose(self) -> None:
        """Ends every connection, within a second, and closes the sockets. Again is harmless."""
        while self._listeners:
            await self._listeners.pop().aclose()
