"""The scripted model as an HTTP server: `POST /v1/responses` and `GET /v1/models`, for whoever holds its key.

Every request for a response takes the next step of the script, whoever sends it and over how many turns and launches;
what the Harness asks on its own account (compaction) takes none. After the last step each request gets a closing word.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import socket
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Self

import zstandard
from aiohttp import web

from agenthost.errors import RequestRefused
from agenthost.gateway.provider import Provider
from agenthost.scripted import responses
from agenthost.scripted.script import HttpError, Script

BASE: Final = "/v1"
LABEL: Final = "scripted"
MAX_BODY: Final = 64 << 20
"""Bytes of a request, decoded."""

KEPT_REQUESTS: Final = 1000


@dataclass(frozen=True, slots=True)
class RecordedRequest:
    """A request as it arrived."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: Any
    """The decoded JSON; None when there was none."""
    raw_bytes: int
    """Length of the body on the wire."""


class ScriptedModel:
    """Plays `script` on a loopback address between `async with` and its end."""

    def __init__(self, script: Script, *, host: str = "127.0.0.1", port: int = 0) -> None:
        """Port 0: any free one."""
        self.script = script
        self.requests: list[RecordedRequest] = []
        """What arrived with the key, oldest first; the last thousand."""
        self._host = host
        self._port = port
        self._key = f"scripted-{secrets.token_urlsafe(24)}"
        self._played = 0
        self._answered = 0
        self._runner: web.AppRunner | None = None

    @property
    def port(self) -> int:
        """Where it listens. Known once entered."""
        return self._port

    @property
    def provider(self) -> Provider:
        """How to reach it. Known once entered."""
        host = f"[{self._host}]" if ":" in self._host else self._host
        return Provider(base_url=f"http://{host}:{self._port}{BASE}", api_key=self._key, label=LABEL)

    @property
    def steps_left(self) -> int:
        """Steps not played yet."""
        return len(self.script.steps) - self._played

    async def __aenter__(self) -> Self:
        """Begins to listen. Raises RequestRefused when it cannot, or when the address is not a loopback one."""
        _ = self.provider  # refuses an address beyond loopback
        application = web.Application()
        application.router.add_post(f"{BASE}/responses", self._respond)
        application.router.add_get(f"{BASE}/models", self._models)
        self._runner = web.AppRunner(
            application, access_log=None, auto_decompress=False, handler_cancellation=True, shutdown_timeout=0.2
        )
        await self._runner.setup()
        try:
            sock = _listen(self._host, self._port)
            self._port = sock.getsockname()[1]
            await web.SockSite(self._runner, sock).start()
        except BaseException:
            await self._runner.cleanup()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._runner is not None:
            await self._runner.cleanup()

    async def _models(self, request: web.Request) -> web.Response:
        await self._admit(request)
        return web.json_response({"object": "list", "data": [], "models": []})

    async def _respond(self, request: web.Request) -> web.StreamResponse:
        body = await self._admit(request)
        if not isinstance(body, dict):
            raise _refusal(400, "the body is not a JSON object")
        self._answered += 1
        number = f"{self._answered:06}"
        if responses.wants_compaction_item(body):
            item = responses.compaction(number)
        elif responses.is_compaction(body, request.headers.get("x-codex-turn-metadata")):
            item = responses.message(responses.SUMMARY, number)
        else:
            item = await self._play(body, number)
        return await _send(request, item, f"resp_{number}", body)

    async def _play(self, body: responses.Json, number: str) -> responses.Item:
        """The next step as an item, after its delay. Raises the HTTP error that a step asks for, or that it meets."""
        if self._played == len(self.script.steps):
            return responses.message(responses.CLOSING, number)
        step = self.script.steps[self._played]
        self._played += 1
        where = f"{self.script.name}: step {self._played}"
        await asyncio.sleep(step.delay_ms / 1000)
        if isinstance(step.action, HttpError):
            raise _refusal(step.action.status, f"{where} is an error")
        try:
            return responses.render(step.action, responses.offered_tools(body), number)
        except responses.NotOffered as error:
            # 400 is what Codex does not try again: the turn fails with this message
            raise _refusal(400, f"{where} cannot be played: {error}") from error

    async def _admit(self, request: web.Request) -> object:
        """The request's JSON, recorded, for who holds the key."""
        bearer = request.headers.get("Authorization", "")
        if not secrets.compare_digest(bearer.encode(), f"Bearer {self._key}".encode()):
            raise _refusal(401, "the key is not this scripted model's")
        raw = bytearray()
        async for chunk in request.content.iter_any():
            raw += chunk
            if len(raw) > MAX_BODY:
                raise _refusal(413, "the body is too large")
        try:
            data = _decoded(bytes(raw), request.headers.get("Content-Encoding", "identity").strip().lower())
            body = json.loads(data) if data else None
        except LookupError as error:
            raise _refusal(415, str(error.args[0])) from error
        except (ValueError, zlib.error, zstandard.ZstdError) as error:
            raise _refusal(400, f"the body cannot be read: {error}") from error
        record = RecordedRequest(request.method, request.raw_path, dict(request.headers), body, len(raw))
        self.requests.append(record)
        del self.requests[:-KEPT_REQUESTS]
        return body


async def serve_alone(script: Script, host: str, port: int, announce: Callable[[Provider], None]) -> None:
    """Plays `script` until it is cancelled. `announce` hears where, and with which key, once it listens."""
    async with ScriptedModel(script, host=host, port=port) as model:
        announce(model.provider)
        await asyncio.get_running_loop().create_future()


async def _send(
    request: web.Request, item: responses.Item, response_id: str, body: responses.Json
) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-cache"})
    await response.prepare(request)
    input_tokens = max(1, (request.content_length or 0) // 4)
    for event in responses.stream(response_id, str(body.get("model", "scripted")), item, input_tokens):
        await response.write(event)
    await response.write_eof()
    return response


def _decoded(data: bytes, encoding: str) -> bytes:
    """Raises LookupError for an encoding that is not known, and what its decoder raises."""
    match encoding:
        case "" | "identity":
            return data
        case "zstd":
            with zstandard.ZstdDecompressor().stream_reader(data, read_across_frames=True) as reader:
                result = reader.read(MAX_BODY + 1)
        case "gzip" | "deflate":
            decoder = zlib.decompressobj(zlib.MAX_WBITS | 32)
            result = decoder.decompress(data, MAX_BODY + 1)
            if not decoder.eof and len(result) <= MAX_BODY:
                raise ValueError("it is cut short")
        case _:
            raise LookupError(f"content-encoding {encoding!r} is not known here; use zstd, gzip or none")
    if len(result) > MAX_BODY:
        raise ValueError("it is too large")
    return result


def _refusal(status: int, message: str) -> web.HTTPException:
    error = {"error": {"message": message, "type": "scripted_model", "param": None, "code": None}}
    return _Answer(status, json.dumps(error))


class _Answer(web.HTTPException):
    """An HTTP answer of any status."""

    def __init__(self, status: int, text: str) -> None:
        self.status_code = status
        super().__init__(text=text, content_type="application/json")


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=128)
    except (OSError, OverflowError) as error:
        why = error.strerror if isinstance(error, OSError) else "no such port"
        raise RequestRefused(
            f"the scripted model cannot listen on {host}:{port}: {why}", remedy="choose another port, or 0 for any"
        ) from error
