"""The model listener between a real client and a real upstream, byte for byte."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
import zstandard
from aiohttp import web

from tests.gateway_rig import (
    KEY,
    Head,
    answering,
    ask,
    gateway,
    listening,
    provider_at,
    read_body,
    read_head,
    upstream,
)

pytestmark = pytest.mark.usefixtures("no_leaks")

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


def run(main: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(main())


def test_the_placeholder_goes_in_and_the_key_comes_out() -> None:
    seen: list[tuple[Head, bytes]] = []

    async def main() -> None:
        async with upstream(answering(OK, seen)) as port, gateway(provider_at(port, "/openai/v1/")) as rig:
            raw = rig.request("X-Api-Key: planted", "Cookie: a=b", "X-Thread: 7", body=b'{"a":1}')
            head, body = await ask(rig.model_port, raw)
            assert (head.status, body) == (200, b"ok")
            assert head.names == {"content-length", "date"}
            (sent, sent_body) = seen[0]
            assert sent.first == "POST /openai/v1/responses HTTP/1.1"
            assert sent.all("authorization") == [f"Bearer {KEY}"]
            assert sent.one("host") == f"127.0.0.1:{port}"
            assert sent.one("x-thread") == "7"
            assert sent.names == {"authorization", "host", "x-thread", "content-length"}
            assert sent_body == b'{"a":1}'
            (event,) = rig.of("model.request")
            fields = ("method", "path", "status", "bytes_out", "bytes_in", "credential", "outcome")
            values = ["POST", "/responses", 200, 7, 2, "a key of the test", "complete"]
            assert [event[name] for name in fields] == values
            assert KEY not in json.dumps(event)

    run(main)


@pytest.mark.parametrize("chunked", [False, True])
def test_a_zstd_body_arrives_unchanged(chunked: bool) -> None:
    body = zstandard.compress(json.dumps({"input": "x" * 200_000}).encode())
    seen: list[tuple[Head, bytes]] = []

    async def main() -> None:
        async with upstream(answering(OK, seen)) as port, gateway(provider_at(port)) as rig:
            if chunked:
                framed = b"".join(b"%x\r\n%s\r\n" % (1, body[i : i + 1]) for i in range(len(body))) + b"0\r\n\r\n"
                raw = rig.request("Content-Encoding: zstd", "Transfer-Encoding: chunked").replace(
                    b"Content-Length: 0\r\n", b""
                )
                await ask(rig.model_port, raw + framed)
            else:
                await ask(rig.model_port, rig.request("Content-Encoding: zstd", body=body))
            ((head, arrived),) = seen
            assert arrived == body
            assert head.one("content-encoding") == "zstd"

    run(main)


@pytest.mark.parametrize("encoding", ["gzip", "zstd", "br", "nonsense"])
def test_an_encoded_answer_passes_unchanged(encoding: str) -> None:
    body = bytes(range(256)) * 10
    answer = f"HTTP/1.1 200 OK\r\nContent-Encoding: {encoding}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body

    async def main() -> None:
        async with upstream(answering(answer)) as port, gateway(provider_at(port)) as rig:
            head, arrived = await ask(rig.model_port, rig.request("Accept-Encoding: zstd,gzip"))
            assert head.one("content-encoding") == encoding
            assert arrived == body

    run(main)


def test_events_are_passed_on_one_by_one() -> None:
    """A handshake, no clock: the upstream sends its next event when the client has had the one before."""
    had = asyncio.Event()

    async def main() -> None:
        async def respond(request: web.Request) -> web.StreamResponse:
            response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
            await response.prepare(request)
            for number in range(3):
                await response.write(f"data: {number}\n\n".encode())
                await had.wait()
                had.clear()
            return response

        application = web.Application()
        application.router.add_post("/v1/responses", respond)
        runner = web.AppRunner(application)
        await runner.setup()
        sock = listening()
        await web.SockSite(runner, sock).start()
        try:
            async with gateway(provider_at(sock.getsockname()[1])) as rig:
                reader, writer = await asyncio.open_connection("127.0.0.1", rig.model_port)
                writer.write(rig.request())
                head = await read_head(reader)
                assert head.one("content-type") == "text/event-stream"
                for number in range(3):
                    assert await reader.readuntil(b"data: %d\n\n" % number)
                    had.set()
                await reader.readuntil(b"0\r\n\r\n")
                writer.close()
        finally:
            await runner.cleanup()

    run(main)


def test_a_body_streams_out_before_it_is_whole() -> None:
    first = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await read_head(reader)
        assert await reader.readexactly(3) == b"one"
        first.set()
        assert await reader.readexactly(int(head.one("content-length")) - 3) == b"two"
        writer.write(OK)

    async def main() -> None:
        async with upstream(serve) as port, gateway(provider_at(port)) as rig:
            reader, writer = await asyncio.open_connection("127.0.0.1", rig.model_port)
            writer.write(rig.request("Content-Length: 6") + b"one")
            await first.wait()
            writer.write(b"two")
            head = await read_head(reader)
            assert head.status == 200
            writer.close()

    run(main)


@pytest.mark.parametrize("status", [301, 302, 307, 308])
def test_a_redirect_is_passed_on_and_not_followed(status: int) -> None:
    seen: list[tuple[Head, bytes]] = []
    answer = f"HTTP/1.1 {status} Elsewhere\r\nLocation: /v1/other\r\nContent-Length: 0\r\n\r\n".encode()

    async def main() -> None:
        async with upstream(answering(answer, seen)) as port, gateway(provider_at(port)) as rig:
            head, _ = await ask(rig.model_port, rig.request())
            assert head.first == f"HTTP/1.1 {status} Elsewhere"
            assert head.one("location") == "/v1/other"
            assert len(seen) == 1

    run(main)


@pytest.mark.parametrize("status", [400, 401, 429, 500, 503])
def test_an_error_of_the_provider_is_the_harness_to_read(status: int) -> None:
    body = b'{"error":{"message":"no"}}'
    answer = f"HTTP/1.1 {status} X\r\nRetry-After: 7\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body

    async def main() -> None:
        async with upstream(answering(answer)) as port, gateway(provider_at(port)) as rig:
            head, arrived = await ask(rig.model_port, rig.request())
            assert (head.status, head.one("retry-after"), arrived) == (status, "7", body)

    run(main)


def test_headers_that_echo_the_key_are_withheld_and_the_rest_passes_as_it_is() -> None:
    lines = [
        f"HTTP/1.1 200 Hi {KEY}",
        f"X-Echo: Bearer {KEY}",
        "Set-Cookie: s=1",
        "Keep-Alive: timeout=5",
        "Connection: X-Hop",
        "X-Hop: 1",
        "X-Request-Id: r7",
        "X-Twice: a",
        "X-Twice: b",
        "Content-Length: 0",
    ]
    answer = ("\r\n".join(lines) + "\r\n\r\n").encode()

    async def main() -> None:
        async with upstream(answering(answer)) as port, gateway(provider_at(port)) as rig:
            head, _ = await ask(rig.model_port, rig.request())
            assert head.first == "HTTP/1.1 200 OK"
            assert head.all("x-twice") == ["a", "b"]
            assert head.names == {"x-request-id", "x-twice", "content-length", "date"}

    run(main)


@pytest.mark.parametrize(
    ("line", "headers", "status"),
    [
        ("POST /v1/responses HTTP/1.1", [], 404),
        ("GET /responses HTTP/1.1", [], 405),
        ("TRACE /responses HTTP/1.1", [], 405),
        ("POST http://127.0.0.1:1/responses HTTP/1.1", [], 400),
        ("POST //evil/responses HTTP/1.1", [], 400),
        ("POST /%2e%2e/responses HTTP/1.1", [], 400),
        ("POST /x/../responses HTTP/1.1", [], 400),
        ("POST /responses HTTP/1.1", ["Authorization: Bearer sk-planted"], 401),
        ("POST /responses HTTP/1.1", ["Authorization;: x", "X: y"], 400),
        ("POST /responses HTTP/1.1", ["Host: evil.example"], 421),
        ("POST /responses HTTP/1.1", ["Upgrade: websocket", "Connection: upgrade"], 400),
        ("CONNECT 127.0.0.1:22 HTTP/1.1", [], 400),
        ("OPTIONS * HTTP/1.1", [], 400),
        ("nonsense", [], 400),
    ],
)
def test_what_is_not_the_protocol_never_reaches_the_provider(line: str, headers: list[str], status: int) -> None:
    seen: list[tuple[Head, bytes]] = []

    async def main() -> None:
        async with upstream(answering(OK, seen)) as port, gateway(provider_at(port)) as rig:
            head, body = await ask(rig.model_port, rig.request(*headers, line=line))
            assert head.status == status
            assert KEY.encode() not in body
            assert seen == []
            assert all(event["outcome"] == "refused" for event in rig.of("model.request"))
            assert all(event["credential"] == "none" for event in rig.of("model.request"))

    run(main)


def test_a_refusal_is_json_that_says_why() -> None:
    async def main() -> None:
        async with gateway() as rig:
            head, body = await ask(rig.model_port, rig.request("Authorization: Bearer x"))
            assert head.one("content-type") == "application/json"
            assert head.one("www-authenticate") == "Bearer"
            error = json.loads(body)["error"]
            assert error["type"] == "gateway"
            assert "placeholder" in error["message"]

    run(main)


def test_the_environments_proxies_and_netrc_are_not_for_the_gateway(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)

    async def main() -> None:
        async with upstream(answering(OK)) as port, gateway(provider_at(port)) as rig:
            head, _ = await ask(rig.model_port, rig.request())
            assert head.status == 200

    run(main)


def test_many_headers_in_a_long_line_pass() -> None:
    seen: list[tuple[Head, bytes]] = []

    async def main() -> None:
        async with upstream(answering(OK, seen)) as port, gateway(provider_at(port)) as rig:
            state = json.dumps({"remotes": ["ü" * 100] * 150}, ensure_ascii=False)
            raw = rig.request().replace(b"\r\n\r\n", f"\r\nX-State: {state}\r\n\r\n".encode())
            head, _ = await ask(rig.model_port, raw)
            assert head.status == 200
            assert seen[0][0].one("x-state").encode("latin-1").decode() == state

    run(main)


def test_a_header_that_is_not_utf_8_is_left_out_and_the_request_passes() -> None:
    seen: list[tuple[Head, bytes]] = []
    answer = OK.replace(b"\r\n\r\n", b"\r\nX-Odd: \xff\r\n\r\n")

    async def main() -> None:
        async with upstream(answering(answer, seen)) as port, gateway(provider_at(port)) as rig:
            head, _ = await ask(rig.model_port, rig.request().replace(b"\r\n\r\n", b"\r\nX-Bad: \xff\r\n\r\n"))
            assert head.status == 200
            assert "x-odd" not in head.names
            assert "x-bad" not in seen[0][0].names

    run(main)


def test_requests_one_after_another_share_a_connection() -> None:
    async def main() -> None:
        async with upstream(answering(OK)) as port, gateway(provider_at(port)) as rig:
            reader, writer = await asyncio.open_connection("127.0.0.1", rig.model_port)
            for _ in range(3):
                writer.write(rig.request(body=b"x"))
                head = await read_head(reader)
                assert await read_body(reader, head) == b"ok"
            writer.close()

    run(main)


def test_many_clients_at_once_are_served() -> None:
    async def main() -> None:
        async with upstream(answering(OK)) as port, gateway(provider_at(port)) as rig:
            answers = await asyncio.gather(*(ask(rig.model_port, rig.request(body=b"x")) for _ in range(200)))
            assert {head.status for head, _ in answers} == {200}
            assert len(rig.of("model.request")) == 200

    run(main)
