"""The model listener: a reverse proxy of a handful of routes, which swaps the placeholder for the key.

Bodies pass as they come, in both directions and in any encoding; a stream of events is written event by event. Nothing
is tried twice: retries are the Harness's business, and it knows more. What the view may learn of a failure is that the
provider could not be reached, and how; not where it is.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import socket
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Final

import aiohttp
from aiohttp import web
from aiohttp.abc import AbstractResolver, ResolveResult
from aiohttp.typedefs import Handler
from multidict import CIMultiDict
from yarl import URL

from agenthost.errors import GatewayFailed
from agenthost.events import EventLog
from agenthost.gateway import routes
from agenthost.gateway.listener import Listener, reset
from agenthost.gateway.provider import Provider
from agenthost.gateway.resolve import resolve

MAX_CONNECTIONS: Final = 1024
MAX_LINE: Final = 64 << 10
"""Bytes of one header line, both ways. The Harness sends the state of the workspace in one."""

SILENCE_S: Final = 15 * 60.0
"""How long a provider may think without a byte, and a client take none. The Harness's own limit is five minutes."""

CONNECT_S: Final = 30.0
BODY_S: Final = 60.0
"""How long a client may pause within a request's body."""

HEAD_S: Final = 30.0
"""How long a client may take for a request's head, and how long an idle connection is kept."""

NO_CREDENTIAL: Final = "none"

_AUTOMATIC: Final = ("Accept", "Accept-Encoding", "Content-Type", "User-Agent")
"""What the HTTP client would add of its own where the request has none."""

_NO_TYPE: Final = ""
"""Holds the place of a content type that the provider did not give, so that the HTTP server makes none up."""

_LOGGER: Final = logging.getLogger(__name__)
_LOGGER.addHandler(logging.NullHandler())  # malformed requests are the view's business, not the daemon's standard error


@dataclass(slots=True)
class _Exchange:
    """One request as it is accounted for."""

    method: str
    path: str
    started: float = field(default_factory=time.monotonic)
    credential: str = NO_CREDENTIAL
    status: int = 0
    bytes_out: int = 0
    bytes_in: int = 0
    outcome: str = "client-gone"
    """complete; refused (by the gateway); unreachable, silent, broken (the provider); client-gone, client-stalled."""
    stalled: bool = False

    def report(self, events: EventLog) -> None:
        events.write(
            "model.request",
            method=self.method,
            path=self.path,
            status=self.status,
            bytes_out=self.bytes_out,
            bytes_in=self.bytes_in,
            ms=round((time.monotonic() - self.started) * 1000),
            credential=self.credential,
            outcome=self.outcome,
        )


class ModelListener:
    """Serves one listening socket until `aclose`."""

    @classmethod
    async def open(cls, provider: Provider, sock: socket.socket, events: EventLog) -> ModelListener:
        """Takes over `sock` and begins to serve. Raises GatewayFailed, the socket closed, when it does not listen."""
        self = cls(provider, events, sock.getsockname()[1])
        try:
            self._listener = await self._listen(sock)
        except BaseException:
            await self.aclose()
            raise
        return self

    def __init__(self, provider: Provider, events: EventLog, port: int) -> None:
        """For `open`."""
        self._provider = provider
        self._events = events
        self._port = port
        self._client = _client()
        self._runner = self._make_runner()
        self._listener: Listener | None = None

    def __repr__(self) -> str:
        return f"ModelListener(provider={self._provider!r}, port={self._port})"

    async def failed(self) -> GatewayFailed:
        """As `Listener.failed`."""
        never: asyncio.Future[GatewayFailed] = asyncio.get_running_loop().create_future()
        return await (never if self._listener is None else self._listener.failed())

    async def aclose(self) -> None:
        """Ends every connection, in both directions."""
        if self._listener is not None:
            await self._listener.aclose()
        await self._runner.cleanup()
        await self._client.close()

    async def _listen(self, sock: socket.socket) -> Listener:
        await self._runner.setup()
        if self._runner.server is None:
            sock.close()
            raise GatewayFailed("the HTTP server did not start", remedy="this is a defect of agenthost; report it")
        return Listener("model", sock, self._runner.server, max_connections=MAX_CONNECTIONS)

    def _make_runner(self) -> web.AppRunner:
        @web.middleware
        async def serve(request: web.Request, handler: Handler) -> web.StreamResponse:  # noqa: ARG001 — aiohttp names it
            return await self._serve(request)

        # one middleware and no route: every request, whatever its target, comes through `_serve`
        application = web.Application(middlewares=[serve], logger=_LOGGER)
        application.on_response_prepare.append(_unbrand)
        return web.AppRunner(
            application,
            access_log=None,
            auto_decompress=False,
            debug=False,
            handler_cancellation=True,
            keepalive_timeout=HEAD_S,
            lingering_time=2.0,
            logger=_LOGGER,
            max_field_size=MAX_LINE,
            max_line_size=MAX_LINE,
            shutdown_timeout=0.1,
        )

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        headers = tuple(request.headers.items())
        exchange = _Exchange(request.method, request.raw_path.partition("?")[0][:200])
        try:
            decision = routes.decide(request.method, request.raw_path, headers, self._port)
            if isinstance(decision, routes.Refusal):
                exchange.outcome = "refused"
                return _refuse(exchange, decision)
            exchange.credential = self._provider.label
            return await self._forward(request, decision, exchange)
        finally:
            exchange.report(self._events)

    async def _forward(self, request: web.Request, forward: routes.Forward, exchange: _Exchange) -> web.StreamResponse:
        headers = CIMultiDict(forward.headers)
        headers["Authorization"] = f"Bearer {self._provider.api_key}"
        try:
            upstream = await self._client.request(
                exchange.method,
                URL(self._provider.endpoint(forward.path), encoded=True),
                headers=headers,
                data=_body(request, exchange) if request.can_read_body else None,
                allow_redirects=False,
                skip_auto_headers=_AUTOMATIC,
            )
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            if exchange.stalled:
                exchange.outcome = "client-stalled"
                return _refuse(exchange, routes.Refusal(408, "slow", "the request's body did not come"))
            refusal = _no_answer(error)
            exchange.outcome = refusal.code
            return _refuse(exchange, refusal)
        async with upstream:
            return await self._relay(request, upstream, exchange)

    async def _relay(
        self, request: web.Request, upstream: aiohttp.ClientResponse, exchange: _Exchange
    ) -> web.StreamResponse:
        key = self._provider.api_key
        response = web.StreamResponse(status=upstream.status, reason=routes.reason_phrase(upstream.reason, key))
        response.headers.extend(routes.response_headers(tuple(upstream.headers.items()), key))
        response.headers.setdefault("Content-Type", _NO_TYPE)
        exchange.status = upstream.status
        try:
            await response.prepare(request)
            async for chunk in upstream.content.iter_any():
                exchange.bytes_in += len(chunk)
                async with asyncio.timeout(SILENCE_S):
                    await response.write(chunk)
            await response.write_eof()
        except (aiohttp.ClientError, TimeoutError, ValueError) as error:
            if request.transport is None or request.transport.is_closing():
                raise ConnectionResetError("the client is gone") from error
            exchange.outcome = "broken"
            reset(request.transport)  # an end that looks like the body's end would be taken for it
            raise ConnectionResetError("the provider's answer broke off") from error
        exchange.outcome = "complete"
        return response


async def _body(request: web.Request, exchange: _Exchange) -> AsyncIterator[bytes]:
    chunks = request.content.iter_any()
    while True:
        try:
            async with asyncio.timeout(BODY_S):
                chunk = await anext(chunks, b"")
        except TimeoutError:
            exchange.stalled = True
            raise
        if not chunk:
            return
        exchange.bytes_out += len(chunk)
        yield chunk


async def _unbrand(_: web.Request, response: web.StreamResponse) -> None:
    """Takes out what the HTTP server adds where the provider sent none."""
    if response.headers.get("Server", "").startswith("Python/"):
        del response.headers["Server"]
    if response.headers.get("Content-Type") == _NO_TYPE:
        del response.headers["Content-Type"]


def _refuse(exchange: _Exchange, refusal: routes.Refusal) -> web.Response:
    exchange.status = refusal.status
    body = {"error": {"message": f"agenthost gateway: {refusal.message}", "type": "gateway", "code": refusal.code}}
    return web.Response(
        status=refusal.status,
        body=json.dumps(body).encode(),
        headers=CIMultiDict((("Content-Type", "application/json"), *refusal.headers)),
    )


def _no_answer(error: Exception) -> routes.Refusal:
    """What the view learns when the provider gave no answer. The code is also the outcome in the event."""
    match error:
        case aiohttp.ClientConnectorDNSError():
            return routes.Refusal(502, "unreachable", "the provider's name cannot be resolved")
        case aiohttp.ClientConnectorCertificateError():
            return routes.Refusal(502, "unreachable", "the provider's certificate is not trusted")
        case aiohttp.ClientConnectorError():
            # the error's own text has the address in it
            why = os.strerror(error.os_error.errno) if error.os_error.errno else "no TLS"
            return routes.Refusal(502, "unreachable", f"the provider cannot be reached ({why})")
        case aiohttp.ConnectionTimeoutError():
            return routes.Refusal(504, "unreachable", "the provider cannot be reached in time")
        case TimeoutError():
            return routes.Refusal(504, "silent", "the provider does not answer")
        case aiohttp.ClientResponseError():
            return routes.Refusal(502, "broken", "the provider's answer is not HTTP, or beyond every limit")
        case _:
            return routes.Refusal(502, "broken", "the provider broke off before it answered")


def _client() -> aiohttp.ClientSession:
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, resolver=_Resolver(), use_dns_cache=False),
        cookie_jar=aiohttp.DummyCookieJar(),
        auto_decompress=False,
        trust_env=False,
        timeout=aiohttp.ClientTimeout(total=None, connect=None, sock_connect=CONNECT_S, sock_read=SILENCE_S),
        max_line_size=MAX_LINE,
        max_field_size=MAX_LINE,
    )


class _Resolver(AbstractResolver):
    """`resolve`, for aiohttp: its own waits in the default executor."""

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        return [
            ResolveResult(
                hostname=host,
                host=str(address),
                port=port,
                family=socket.AF_INET if address.version == 4 else socket.AF_INET6,
                proto=socket.IPPROTO_TCP,
                flags=socket.AI_NUMERICHOST,
            )
            for address in await resolve(host)
            if family in {socket.AF_UNSPEC, socket.AF_INET if address.version == 4 else socket.AF_INET6}
        ]

    async def close(self) -> None:
        """Holds nothing."""
