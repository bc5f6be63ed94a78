"""The model listener when one of its two ends does not do its part."""

from __future__ import annotations

import asyncio
import json
import shutil
import socket
import ssl
import subprocess
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from agenthost.gateway import model
from agenthost.gateway.provider import Provider
from tests.gateway_rig import (
    KEY,
    answering,
    ask,
    gateway,
    listening,
    provider_at,
    read_body,
    read_head,
    upstream,
)
from tests.needs import lacking

pytestmark = pytest.mark.usefixtures("no_leaks")

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


def run(main: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(main())


def test_a_provider_that_cannot_be_reached_is_a_502_without_its_address() -> None:
    async def main() -> None:
        closed = listening()
        port = closed.getsockname()[1]
        closed.close()
        async with gateway(provider_at(port)) as rig:
            head, body = await ask(rig.model_port, rig.request())
            assert head.status == 502
            assert "Connection refused" in json.loads(body)["error"]["message"]
            assert KEY.encode() not in body
            assert str(port).encode() not in body
            assert rig.of("model.request")[0]["outcome"] == "unreachable"

    run(main)


def test_a_name_that_does_not_resolve_is_a_502_without_the_name() -> None:
    async def main() -> None:
        async with gateway(Provider(base_url="https://nowhere.invalid/v1", api_key=KEY)) as rig:
            head, body = await ask(rig.model_port, rig.request())
            assert head.status == 502
            assert b"nowhere" not in body

    run(main)


@pytest.mark.parametrize(
    "answer", [b"", b"garbage\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-Le", b"HTTP/1.1 200 OK\r\nX: " + b"y" * 200_000]
)
def test_a_provider_that_speaks_no_http_is_a_502(answer: bytes) -> None:
    async def main() -> None:
        async with upstream(answering(answer)) as port, gateway(provider_at(port)) as rig:
            head, _ = await ask(rig.model_port, rig.request())
            assert head.status == 502

    run(main)


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nonly this",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n9\r\nonly this\r\n",
    ],
)
def test_an_answer_that_breaks_off_does_not_look_whole(answer: bytes) -> None:
    async def main() -> None:
        async with upstream(answering(answer)) as port, gateway(provider_at(port)) as rig:
            with pytest.raises((asyncio.IncompleteReadError, ConnectionResetError)):
                await ask(rig.model_port, rig.request())
            assert rig.of("model.request")[0]["outcome"] == "broken"

    run(main)


def test_a_client_that_vanishes_ends_the_request_upstream() -> None:
    gone = asyncio.Event()
    started = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_body(reader, await read_head(reader))
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        started.set()
        assert await reader.read(1) == b""
        gone.set()

    async def main() -> None:
        async with upstream(serve) as port, gateway(provider_at(port)) as rig:
            _, writer = await asyncio.open_connection("127.0.0.1", rig.model_port)
            writer.write(rig.request())
            await started.wait()
            writer.close()
            await gone.wait()
            while not rig.of("model.request"):
                await asyncio.sleep(0)
            assert rig.of("model.request")[0]["outcome"] == "client-gone"

    run(main)


def test_a_client_that_sends_no_request_is_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model, "HEAD_S", 0.2)

    async def main() -> None:
        async with gateway() as rig:
            reader, writer = await asyncio.open_connection("127.0.0.1", rig.model_port)
            writer.write(b"POST /responses HTTP/1.1\r\nHost: ")
            assert await reader.read() == b""
            writer.close()

    run(main)


def test_a_body_that_does_not_come_is_a_408(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model, "BODY_S", 0.2)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()

    async def main() -> None:
        async with upstream(serve) as port, gateway(provider_at(port)) as rig:
            head, _ = await ask(rig.model_port, rig.request("Content-Length: 10"))
            assert head.status == 408
            assert rig.of("model.request")[0]["outcome"] == "client-stalled"

    run(main)


def test_a_provider_that_says_nothing_is_a_504(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model, "SILENCE_S", 0.2)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()

    async def main() -> None:
        async with upstream(serve) as port, gateway(provider_at(port)) as rig:
            head, _ = await ask(rig.model_port, rig.request())
            assert head.status == 504

    run(main)


def test_the_patience_with_a_provider_is_ten_minutes_at_least() -> None:
    assert model.SILENCE_S >= 600


def test_a_provider_with_a_certificate_of_its_own_making_gets_no_request(tmp_path: Path) -> None:
    if shutil.which("openssl") is None:
        lacking("there is no openssl here (Debian package openssl)")
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    names = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
    command: list[str | Path] = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "rsa:2048",
        "-nodes",
        "-keyout",
        key,
        "-out",
        certificate,
        *names,
    ]
    subprocess.run(command, check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    heard: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heard.append(await reader.read())
        writer.close()

    async def main() -> None:
        server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
        port = server.sockets[0].getsockname()[1]
        async with server, gateway(Provider(base_url=f"https://127.0.0.1:{port}/v1", api_key=KEY)) as rig:
            head, body = await ask(rig.model_port, rig.request())
            assert head.status == 502
            assert b"certificate" in body
            assert heard == []

    run(main)


def test_a_reset_of_the_provider_is_a_502() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_head(reader)
        sock: socket.socket = writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")

    async def main() -> None:
        async with upstream(serve) as port, gateway(provider_at(port)) as rig:
            head, _ = await ask(rig.model_port, rig.request())
            assert head.status == 502

    run(main)
