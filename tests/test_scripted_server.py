"""The scripted model as a server: its key, its steps in order, its encodings."""

from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import Callable, Coroutine
from typing import Any

import aiohttp
import pytest
import zstandard

from agenthost.errors import RequestRefused
from agenthost.gateway.provider import Provider
from agenthost.scripted.script import Script
from agenthost.scripted.server import KEPT_REQUESTS, ScriptedModel, serve_alone

pytestmark = pytest.mark.usefixtures("no_leaks")

BODY = {"model": "m", "input": [], "tools": [{"type": "function", "name": "exec_command"}]}


def run(main: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(main())


def script(*steps: object) -> Script:
    return Script.parse(json.dumps({"steps": steps}), "s.json")


async def post(
    provider: Provider, body: object = BODY, *, data: bytes | None = None, headers: dict[str, str] | None = None
) -> tuple[int, str]:
    given = {"Authorization": f"Bearer {provider.api_key}", **(headers or {})}
    payload = json.dumps(body).encode() if data is None else data
    async with (
        aiohttp.ClientSession(trust_env=False) as session,
        session.post(provider.endpoint("/responses"), data=payload, headers=given) as response,
    ):
        return response.status, await response.text()


def item(text: str) -> dict[str, Any]:
    """The one output item of a response."""
    events = [json.loads(line.removeprefix("data: ")) for line in text.splitlines() if line.startswith("data: ")]
    (found,) = events[-1]["response"]["output"]
    assert isinstance(found, dict)
    return found


def said(text: str) -> str:
    return str(item(text)["content"][0]["text"])


def test_steps_are_played_one_a_request_in_order_then_a_closing_word() -> None:
    async def main() -> None:
        async with ScriptedModel(
            script({"shell": "ls"}, {"say": "one"}, {"error": {"status": 503}}, {"say": "two"})
        ) as model:
            provider = model.provider
            assert provider.base_url == f"http://127.0.0.1:{model.port}/v1"
            assert provider.label == "scripted"
            assert item((await post(provider))[1])["name"] == "exec_command"
            assert said((await post(provider))[1]) == "one"
            status, text = await post(provider)
            assert (status, json.loads(text)["error"]["message"]) == (503, "s.json: step 3 is an error")
            assert model.steps_left == 1
            assert said((await post(provider))[1]) == "two"
            for _ in range(2):
                assert "at its end" in said((await post(provider))[1])
            assert model.steps_left == 0

    run(main)


def test_a_step_that_the_request_does_not_support_is_a_400_that_says_so() -> None:
    async def main() -> None:
        async with ScriptedModel(script({"code": "1"})) as model:
            status, text = await post(model.provider)
            assert status == 400
            assert "s.json: step 1 cannot be played: this request offers no code mode" in text

    run(main)


def test_without_its_key_it_answers_nothing_and_plays_nothing() -> None:
    async def main() -> None:
        async with ScriptedModel(script({"say": "one"})) as model:
            for bearer in ("Bearer placeholder", "", model.provider.api_key, "Bearer é"):
                status, _ = await post(model.provider, headers={"Authorization": bearer})
                assert status == 401
            assert model.requests == []
            assert model.steps_left == 1

    run(main)


def test_each_scripted_model_has_a_key_of_its_own() -> None:
    async def main() -> None:
        async with ScriptedModel(script()) as one, ScriptedModel(script()) as other:
            assert one.provider.api_key != other.provider.api_key
            assert one.port != other.port

    run(main)


@pytest.mark.parametrize(
    ("encoding", "encode"),
    [("zstd", zstandard.compress), ("gzip", gzip.compress), ("identity", bytes), ("ZSTD", zstandard.compress)],
)
def test_a_body_in_any_known_encoding_is_read(encoding: str, encode: Callable[[bytes], bytes]) -> None:
    async def main() -> None:
        async with ScriptedModel(script({"say": "one"})) as model:
            data = encode(json.dumps(BODY).encode())
            assert said((await post(model.provider, data=data, headers={"Content-Encoding": encoding}))[1]) == "one"
            (request,) = model.requests
            assert request.body == BODY
            assert request.raw_bytes == len(data)
            assert request.path == "/v1/responses"
            assert request.headers["Content-Encoding"] == encoding

    run(main)


def test_a_zstd_stream_without_its_length_in_several_frames_is_read() -> None:
    half = len(json.dumps(BODY)) // 2
    text = json.dumps(BODY).encode()
    streams = [zstandard.ZstdCompressor(write_content_size=False).compress(part) for part in (text[:half], text[half:])]

    async def main() -> None:
        async with ScriptedModel(script({"say": "one"})) as model:
            headers = {"Content-Encoding": "zstd"}
            assert said((await post(model.provider, data=b"".join(streams), headers=headers))[1]) == "one"

    run(main)


@pytest.mark.parametrize(
    ("data", "encoding", "status"),
    [
        (b"{", "identity", 400),
        (b"\xff", "identity", 400),
        (b"[]", "identity", 400),
        (b"", "identity", 400),
        (b"no zstd", "zstd", 400),
        (zstandard.compress(b"{}")[:-1], "zstd", 400),
        (b"no gzip", "gzip", 400),
        (gzip.compress(b'{"a": "bcdefg"}')[:-9], "gzip", 400),
        (zstandard.compress(bytes(65 << 20)), "zstd", 400),
        (gzip.compress(bytes(65 << 20)), "gzip", 400),
        (b"{}", "br", 415),
    ],
)
def test_a_body_that_cannot_be_read_is_an_error_and_plays_nothing(data: bytes, encoding: str, status: int) -> None:
    async def main() -> None:
        async with ScriptedModel(script({"say": "one"})) as model:
            found, text = await post(model.provider, data=data, headers={"Content-Encoding": encoding})
            assert found == status
            assert json.loads(text)["error"]["type"] == "scripted_model"
            assert model.steps_left == 1

    run(main)


def test_compaction_gets_a_summary_and_takes_no_step() -> None:
    async def main() -> None:
        async with ScriptedModel(script({"say": "one"})) as model:
            headers = {"x-codex-turn-metadata": json.dumps({"request_kind": "compaction"})}
            assert "Summary" in said((await post(model.provider, headers=headers))[1])
            trigger = {"input": [{"type": "compaction_trigger"}]}
            assert item((await post(model.provider, trigger))[1])["type"] == "compaction"
            assert said((await post(model.provider))[1]) == "one"

    run(main)


def test_models_are_none_and_other_paths_are_not_there() -> None:
    async def main() -> None:
        async with ScriptedModel(script()) as model, aiohttp.ClientSession(trust_env=False) as session:
            headers = {"Authorization": f"Bearer {model.provider.api_key}"}
            async with session.get(model.provider.endpoint("/models?client_version=1"), headers=headers) as response:
                assert (await response.json())["models"] == []
            async with session.get(model.provider.endpoint("/models")) as response:
                assert response.status == 401
            async with session.post(model.provider.endpoint("/responses/compact"), headers=headers) as response:
                assert response.status == 404

    run(main)


def test_a_delay_holds_its_own_answer_only() -> None:
    async def main() -> None:
        async with ScriptedModel(script({"say": "slow", "delay_ms": 3_600_000}, {"say": "quick"})) as model:
            slow = asyncio.create_task(post(model.provider))
            while model.steps_left == 2:
                await asyncio.sleep(0)
            assert said((await post(model.provider))[1]) == "quick"
            slow.cancel()

    run(main)


def test_only_the_last_requests_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    assert KEPT_REQUESTS == 1000
    monkeypatch.setattr("agenthost.scripted.server.KEPT_REQUESTS", 2)

    async def main() -> None:
        async with ScriptedModel(script()) as model:
            for number in range(3):
                await post(model.provider, {"n": number})
            assert [request.body["n"] for request in model.requests] == [1, 2]

    run(main)


def test_a_port_that_is_taken_and_an_address_beyond_loopback_are_refused() -> None:
    async def main() -> None:
        async with ScriptedModel(script()) as model:
            with pytest.raises(RequestRefused, match="in use"):
                async with ScriptedModel(script(), port=model.port):
                    pass
        with pytest.raises(RequestRefused, match="clear"):
            async with ScriptedModel(script(), host="0.0.0.0"):
                pass

    run(main)


def test_alone_it_announces_itself_and_ends_when_cancelled() -> None:
    async def main() -> None:
        announced: asyncio.Future[Provider] = asyncio.get_running_loop().create_future()
        serving = asyncio.create_task(serve_alone(script({"say": "one"}), "127.0.0.1", 0, announced.set_result))
        assert said((await post(await announced))[1]) == "one"
        serving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await serving

    run(main)
