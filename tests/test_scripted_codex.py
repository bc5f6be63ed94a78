"""The scripted model with the real Codex, both pinned releases: it takes every kind of step, over one turn and several.

Codex runs natively, in a home and a workspace of its own, with nothing but loopback to speak to.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest
from aiohttp import web

from agenthost.gateway.provider import Provider
from agenthost.layout import PLACEHOLDER
from agenthost.scripted.script import Script
from agenthost.scripted.server import RecordedRequest, ScriptedModel
from tests.conftest import MakeWorkspace
from tests.gateway_rig import gateway, listening
from tests.needs import codex_release, needs

CODE_MODE_ONLY: Final = "gpt-6.1-sol"
"""Both releases know it, and offer it nothing but code mode: the model of the demo."""

DIRECT: Final = "gpt-5.5"
"""Both releases know it, and offer it tools of their own."""

RELEASES = [pytest.param(name, marks=needs(f"codex-{name}")) for name in ("163", "171")]
pytestmark = [pytest.mark.slow, needs("git"), pytest.mark.parametrize("release", RELEASES)]

PATIENCE_S = 60.0
PATCH = "*** Begin Patch\n*** Add File: patched.txt\n+by a patch\n*** End Patch"
CODE = """\
const r = await tools.exec_command({cmd: "echo from-code; exit 4"});
await tools.apply_patch("*** Begin Patch\\n*** Add File: coded.txt\\n+by code\\n*** End Patch");
text(r.output);
"""


@dataclass(frozen=True)
class Turn:
    status: int
    events: list[dict[str, Any]]
    stderr: str

    def items(self, kind: str) -> list[dict[str, Any]]:
        done = (event["item"] for event in self.events if event["type"] == "item.completed")
        return [item for item in done if item["type"] == kind]

    @property
    def said(self) -> list[str]:
        return [item["text"] for item in self.items("agent_message")]


def script(*steps: object) -> Script:
    return Script.parse(json.dumps({"steps": steps}))


async def turn(release: str, workspace: Path, provider: Provider, *args: str, words: Sequence[str] = ("go",)) -> Turn:
    """`codex exec --json` with this provider."""
    binary = codex_release(release)
    assert binary is not None
    home = workspace.parent / f"home-{workspace.name}"
    home.mkdir(exist_ok=True)
    url, key = provider.base_url, provider.api_key
    settings = [
        "model_provider=t",
        f'model_providers.t={{name="t",base_url="{url}",experimental_bearer_token="{key}",wire_api="responses"}}',
        "approval_policy=never",
        "sandbox_mode=danger-full-access",
        "analytics.enabled=false",
        "features.plugins=false",
        "features.shell_snapshot=false",
        "features.unbounded_connection_retries=false",
    ]
    options = [word for setting in settings for word in ("-c", setting)]
    process = await asyncio.create_subprocess_exec(
        binary,
        "exec",
        "--json",
        "--skip-git-repo-check",
        *options,
        *args,
        *words,
        cwd=workspace,
        env={
            "PATH": "/usr/bin:/bin",
            "HOME": str(home),
            "CODEX_HOME": str(home),
            "HTTPS_PROXY": "http://127.0.0.1:9",
            "HTTP_PROXY": "http://127.0.0.1:9",
            "NO_PROXY": "127.0.0.1",
        },
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    try:
        out, err = await asyncio.wait_for(process.communicate(), PATIENCE_S)
    finally:
        if process.returncode is None:
            process.kill()
    assert process.returncode is not None
    return Turn(process.returncode, [json.loads(line) for line in out.splitlines()], err.decode())


def outputs(requests: Sequence[RecordedRequest]) -> list[str]:
    """What Codex gave back for each call, as JSON text."""
    last = (request.body["input"][-1] for request in requests)
    return [json.dumps(item["output"]) for item in last if "output" in item]


@pytest.mark.parametrize("model", [DIRECT, CODE_MODE_ONLY])
def test_commands_and_patches_work_and_exit_codes_are_shown(release: str, model: str, workspace: Path) -> None:
    steps = script({"shell": "echo hi; pwd; exit 3"}, {"patch": PATCH}, {"shell": "cat patched.txt"}, {"say": "done"})

    async def main() -> None:
        async with ScriptedModel(steps) as scripted:
            found = await turn(release, workspace, scripted.provider, "-m", model)
            assert found.status == 0, found.stderr
            first, second = found.items("command_execution")
            assert first["exit_code"] == 3
            assert first["status"] == "failed"
            assert first["aggregated_output"] == f"hi\n{workspace}\n"
            assert second["aggregated_output"] == "by a patch\n"
            assert found.said == ["done"]
            assert len(scripted.requests) == 4
            assert "by a patch" in outputs(scripted.requests)[-1]

    asyncio.run(main())
    assert (workspace / "patched.txt").read_text() == "by a patch\n"


def test_code_mode_runs_a_command_and_a_patch(release: str, workspace: Path) -> None:
    async def main() -> None:
        async with ScriptedModel(script({"code": CODE}, {"say": "done"})) as scripted:
            found = await turn(release, workspace, scripted.provider, "-m", CODE_MODE_ONLY)
            assert found.status == 0, found.stderr
            (command,) = found.items("command_execution")
            assert command["exit_code"] == 4
            assert "from-code" in outputs(scripted.requests)[0]

    asyncio.run(main())
    assert (workspace / "coded.txt").read_text() == "by code\n"


def test_code_where_there_is_no_code_mode_fails_the_turn_and_says_why(release: str, workspace: Path) -> None:
    async def main() -> None:
        async with ScriptedModel(script({"code": CODE})) as scripted:
            found = await turn(release, workspace, scripted.provider, "-m", DIRECT)
            assert found.status == 1
            assert "step 1 cannot be played: this request offers no code mode" in json.dumps(found.events[-1])
            assert len(scripted.requests) == 1

    asyncio.run(main())


def test_the_demo_runs_twice_in_one_workspace(release: str, workspace: Path) -> None:
    async def main() -> None:
        for _ in range(2):
            async with ScriptedModel(Script.demo()) as scripted:
                found = await turn(release, workspace, scripted.provider, "-m", CODE_MODE_ONLY)
                assert found.status == 0, found.stderr
                assert [item["exit_code"] for item in found.items("command_execution")] == [0, 0, 0]
                assert len(found.items("file_change")) == 1
                assert scripted.steps_left == 0

    asyncio.run(main())
    assert "git tracks 1 file" in (workspace / "agenthost-demo.txt").read_text()


def test_several_turns_play_one_script_and_an_error_is_tried_again(release: str, workspace: Path) -> None:
    steps = script(
        {"say": "one"}, {"error": {"status": 503}}, {"say": "two", "delay_ms": 50}, {"error": {"status": 400}}
    )

    async def main() -> None:
        async with ScriptedModel(steps) as scripted:
            first = await turn(release, workspace, scripted.provider, "-m", DIRECT)
            assert (first.status, first.said) == (0, ["one"])
            second = await turn(release, workspace, scripted.provider, "-m", DIRECT, words=("resume", "--last", "more"))
            assert (second.status, second.said) == (0, ["two"])
            third = await turn(release, workspace, scripted.provider, "-m", DIRECT)
            assert third.status == 1
            last = await turn(release, workspace, scripted.provider, "-m", DIRECT)
            assert (last.status, last.said) == (0, ["The script is at its end."])

    asyncio.run(main())


@pytest.mark.parametrize("model", [DIRECT, CODE_MODE_ONLY])
def test_compaction_takes_no_step(release: str, model: str, workspace: Path) -> None:
    async def main() -> None:
        async with ScriptedModel(script({"shell": "echo a"}, {"shell": "echo b"}, {"say": "done"})) as scripted:
            found = await turn(
                release, workspace, scripted.provider, "-m", model, "-c", "model_auto_compact_token_limit=5000"
            )
            assert found.status == 0, found.stderr
            assert [item["aggregated_output"] for item in found.items("command_execution")] == ["a\n", "b\n"]
            assert found.said == ["done"]
            assert len(scripted.requests) > 3
            assert {request.path for request in scripted.requests} == {"/v1/responses"}

    asyncio.run(main())


@pytest.mark.parametrize("model", [DIRECT, CODE_MODE_ONLY])
def test_an_mcp_tool_is_called(release: str, model: str, workspace: Path) -> None:
    calls: list[dict[str, Any]] = []

    async def serve(request: web.Request) -> web.Response:
        if request.method != "POST":
            return web.Response(status=405)
        message = await request.json()
        calls.append(message)
        results = {
            "initialize": {
                "protocolVersion": "2025-06-18",
                "capabilities": {"tools": {}},
                "serverInfo": {"name": "s", "version": "1"},
            },
            "tools/list": {"tools": [{"name": "ping-it", "description": "ping", "inputSchema": {"type": "object"}}]},
            "tools/call": {"content": [{"type": "text", "text": "pong"}]},
        }
        if "id" not in message:
            return web.Response(status=202)
        return web.json_response({"jsonrpc": "2.0", "id": message["id"], "result": results[message["method"]]})

    async def main() -> None:
        application = web.Application()
        application.router.add_route("*", "/mcp", serve)
        runner = web.AppRunner(application)
        await runner.setup()
        sock = listening()
        await web.SockSite(runner, sock).start()
        url = f"http://127.0.0.1:{sock.getsockname()[1]}/mcp"
        step = {"mcp": {"server": "my-srv", "tool": "ping-it", "arguments": {"n": 3}}}
        try:
            async with ScriptedModel(script(step, {"say": "done"})) as scripted:
                server = f'mcp_servers.my-srv={{url="{url}"}}'
                found = await turn(release, workspace, scripted.provider, "-m", model, "-c", server)
                assert found.status == 0, found.stderr
                (call,) = found.items("mcp_tool_call")
                assert (call["server"], call["tool"], call["status"]) == ("my-srv", "ping-it", "completed")
                assert "pong" in outputs(scripted.requests)[0]
        finally:
            await runner.cleanup()

    asyncio.run(main())
    (sent,) = (call["params"] for call in calls if call["method"] == "tools/call")
    assert (sent["name"], sent["arguments"]) == ("ping-it", {"n": 3})


def test_through_the_gateway_codex_holds_only_the_placeholder(release: str, make_workspace: MakeWorkspace) -> None:
    workspace = make_workspace("wörk space")
    steps = script({"shell": "env; cat /proc/$PPID/environ | tr '\\0' '\\n'"}, {"say": "done"})

    async def main() -> None:
        async with ScriptedModel(steps) as scripted, gateway(scripted.provider) as rig:
            inside = Provider(base_url=f"http://127.0.0.1:{rig.model_port}", api_key=PLACEHOLDER)
            found = await turn(release, workspace, inside, "-m", CODE_MODE_ONLY)
            assert found.status == 0, found.stderr
            assert found.said == ["done"]
            key = scripted.provider.api_key
            assert [request.headers["Authorization"] for request in scripted.requests] == [f"Bearer {key}"] * 2
            assert key not in json.dumps(found.events)
            asked = [(event["method"], event["path"], event["status"]) for event in rig.of("model.request")]
            assert asked == [("POST", "/responses", 200)] * 2

    asyncio.run(main())
    home = workspace.parent / f"home-{workspace.name}"
    assert not [path for path in home.rglob("*") if path.is_file() and b"scripted-" in path.read_bytes()]
