"""The real Codex outside any view, with the plan's home, overrides, managed configuration and requirements."""

from __future__ import annotations

import json
import shlex
import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self

import pytest

from agenthost.codex.config import HttpBinding, McpBinding, managed, render, requirements
from agenthost.codex.plan import HELD, HOME_KEEP, overrides
from agenthost.home import Home
from tests.needs import needs
from tests.responses_server import Item, Request, ResponsesServer, shell


class AppServer:
    """A client of `codex app-server` over its standard streams."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self._last = 0

    def call(self, method: str, params: Item) -> dict[str, Any]:
        assert self._process.stdin is not None
        self._last += 1
        self._process.stdin.write(json.dumps({"id": self._last, "method": method, "params": params}) + "\n")
        self._process.stdin.flush()
        answer = next(m for m in self.messages() if m.get("id") == self._last and "method" not in m)
        assert "result" in answer, answer
        result: dict[str, Any] = answer["result"]
        return result

    def turn(self, thread: dict[str, Any]) -> None:
        turn: Item = {"threadId": thread["thread"]["id"], "input": [{"type": "text", "text": "hello"}]}
        self.call("turn/start", turn)
        ended = next(m for m in self.messages() if m.get("method") == "turn/completed")
        assert ended["params"]["turn"]["status"] == "completed"

    def messages(self) -> Iterator[dict[str, Any]]:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            yield json.loads(line)


@dataclass
class Native:
    """A home, a workspace and the real Codex."""

    codex: Path
    home: Path
    workspace: Path
    etc: Path
    mcp: Sequence[McpBinding] = ()

    def prepare(self, gateway: str, *, agents_md: bytes | None = None) -> None:
        files = {"codex/config.toml": render(gateway=gateway, mcp=self.mcp)}
        files |= {} if agents_md is None else {"codex/AGENTS.md": agents_md}
        with Home.open(self.home) as home:
            home.prepare(files, HOME_KEEP)

    def environment(self) -> dict[str, str]:
        return {
            "PATH": "/usr/bin:/bin",
            "HOME": str(self.home),
            "CODEX_HOME": str(self.home / "codex"),
            "TMPDIR": str(self.home / "tmp"),
            "HTTPS_PROXY": "http://127.0.0.1:9",
            "NO_PROXY": "127.0.0.1,localhost",
        }

    def run(self, *args: str) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [self.codex, *overrides(), *args],
            cwd=self.workspace,
            env=self.environment(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done

    def managed_command(self, gateway: str, args: Sequence[str]) -> list[str]:
        """The command line that runs Codex with the managed configuration in an /etc/codex of its own."""
        (self.etc / "codex").mkdir(parents=True, exist_ok=True)
        content = managed(gateway=gateway, workspace=str(self.workspace), fixed=HELD)
        (self.etc / "codex" / "managed_config.toml").write_bytes(content)
        (self.etc / "codex" / "requirements.toml").write_bytes(requirements(self.mcp))
        options = f"lowerdir={self.etc}:/etc"
        codex = shlex.join([str(self.codex), *overrides(), *args])
        return ["unshare", "--mount", "sh", "-c", f"mount -t overlay overlay -o {options} /etc && exec {codex}"]

    @contextmanager
    def app_server(self, gateway: str) -> Iterator[AppServer]:
        with subprocess.Popen(
            self.managed_command(gateway, ["app-server", "--listen", "stdio://"]),
            cwd=self.workspace,
            env=self.environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        ) as process:
            client = AppServer(process)
            client.call("initialize", {"clientInfo": {"name": "test", "version": "1"}})
            yield client
            assert process.stdin is not None
            process.stdin.close()
            assert process.wait(30) == 0


@pytest.fixture(params=["codex_163", "codex_171"])
def native(request: pytest.FixtureRequest, make_workspace: Callable[..., Path], open_dir: Path) -> Native:
    codex: Path = request.getfixturevalue(request.param)
    workspace = make_workspace(
        files={"AGENTS.md": "MARK-WORKSPACE", ".codex/config.toml": 'model_reasoning_effort = "high"\n'}
    )
    return Native(codex, open_dir / "home", workspace, open_dir / "etc")


def metadata(request: Request) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(request.headers["x-codex-turn-metadata"])
    return found


def test_nothing_that_codex_reads_as_configuration_survives(native: Native) -> None:
    with ResponsesServer() as gateway, ResponsesServer() as elsewhere:
        native.prepare(gateway.url)
        native.run("exec", "--json", "hello")
        home = native.home / "codex"
        hostile = render(gateway=elsewhere.url, model="planted").decode() + "\n[features]\nhooks = true\n"
        (home / "config.toml").write_text(hostile)
        (home / ".env").write_text("HTTPS_PROXY=http://127.0.0.1:10\nRUST_LOG=trace\n")
        (home / "AGENTS.md").write_text("MARK-PLANTED")
        (home / "auth.json").write_text('{"OPENAI_API_KEY": "planted"}')
        for name in ("skills/evil/SKILL.md", "rules/evil.rules", "agents/evil.toml", "prompts/evil.md"):
            (home / name).parent.mkdir(parents=True, exist_ok=True)
            (home / name).write_text("---\nname: evil\ndescription: MARK-PLANTED\n---\n")
        (native.home / ".agents/skills/evil").mkdir(parents=True)
        (native.home / ".agents/skills/evil/SKILL.md").write_text("---\nname: evil\ndescription: MARK-PLANTED\n---\n")
        before = len(gateway.requests)
        native.prepare(gateway.url)
        native.run("exec", "--json", "again")
        assert not elsewhere.requests
        assert len(gateway.requests) > before
        for request in gateway.requests[before:]:
            assert b"MARK-PLANTED" not in request.body
            assert request.headers["authorization"] == "Bearer placeholder"
            assert request.json["model"] != "planted"


def test_a_thread_is_resumed_in_a_later_launch(native: Native) -> None:
    with ResponsesServer() as gateway:
        native.prepare(gateway.url)
        first = native.run("exec", "--json", "the first question")
        native.prepare(gateway.url)
        assert sorted(entry.name for entry in (native.home / "codex").iterdir()) == [
            "config.toml",
            "installation_id",
            "sessions",
        ]
        second = native.run("exec", "--json", "resume", "--last", "the second question")
        body = gateway.requests[-1].body
    assert json.loads(first.stdout.splitlines()[0]) == json.loads(second.stdout.splitlines()[0])
    assert b"the first question" in body
    assert b"the second question" in body


def test_commands_run_without_a_login_shell(native: Native) -> None:
    with ResponsesServer([[shell("shopt login_shell; exit 3")]]) as gateway:
        native.prepare(gateway.url)
        events = [json.loads(line) for line in native.run("exec", "--json", "go").stdout.splitlines()]
    ended = [e["item"] for e in events if e["type"] == "item.completed" and e["item"]["type"] == "command_execution"]
    assert [(e["exit_code"], e["aggregated_output"].split()) for e in ended] == [(3, ["login_shell", "off"])]


@needs("root")
def test_no_argument_overrides_what_is_managed(native: Native) -> None:
    with ResponsesServer() as gateway, ResponsesServer() as elsewhere:
        native.prepare(gateway.url, agents_md=b"MARK-HOME")
        config = (native.home / "codex" / "config.toml").read_bytes()
        provider = f'{{name="evil",base_url="{elsewhere.url}",wire_api="responses"}}'
        hostile = [
            *("-c", 'model_provider="evil"', "-c", f"model_providers.evil={provider}"),
            *("-c", f'model_providers.oac.base_url="{elsewhere.url}"'),
            *("-c", 'sandbox_mode="read-only"', "-c", 'approval_policy="on-request"', "-c", "allow_login_shell=true"),
            *("-c", f'projects={{"{native.workspace}"={{trust_level="trusted"}}}}'),
        ]
        subprocess.run(
            native.managed_command(gateway.url, [*hostile, "exec", "--json", "hello"]),
            cwd=native.workspace,
            env=native.environment(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=60,
            check=True,
        )
    assert not elsewhere.requests
    request = gateway.requests[0]
    assert request.headers["authorization"] == "Bearer placeholder"
    assert metadata(request)["sandbox_mode"] == "danger-full-access"
    assert metadata(request)["analytics_enabled"] is False
    assert b"Approval policy is currently never" in request.body
    assert request.json["reasoning"] != {"effort": "high"}
    assert "high" not in str(request.json["reasoning"]), "the workspace's configuration was loaded"
    assert b"MARK-HOME" in request.body
    assert b"MARK-WORKSPACE" not in request.body
    assert (native.home / "codex" / "config.toml").read_bytes() == config


@needs("root")
def test_no_app_server_client_overrides_what_is_managed(native: Native) -> None:
    with ResponsesServer([[shell("shopt login_shell")]]) as gateway, ResponsesServer() as elsewhere:
        native.prepare(gateway.url, agents_md=b"MARK-HOME")
        config = (native.home / "codex" / "config.toml").read_bytes()
        with native.app_server(gateway.url) as client:
            settings = {
                "projects": {str(native.workspace): {"trust_level": "trusted"}},
                "allow_login_shell": True,
                "sandbox_mode": "read-only",
                "model_providers": {"oac": {"base_url": elsewhere.url}},
                "features": {"hooks": True, "plugins": True, "shell_snapshot": True},
            }
            started = client.call(
                "thread/start", {"cwd": str(native.workspace), "approvalPolicy": "on-request", "config": settings}
            )
            assert started["approvalPolicy"] == "never"
            assert started["sandbox"] == {"type": "dangerFullAccess"}
            client.turn(started)
    assert not elsewhere.requests
    assert "high" not in str(gateway.requests[0].json["reasoning"]), "the workspace's configuration was loaded"
    assert b"MARK-HOME" in gateway.requests[0].body
    assert any(b"login_shell" in r.body and b"off" in r.body for r in gateway.requests[1:])
    assert (native.home / "codex" / "config.toml").read_bytes() == config


@needs("root")
def test_a_workspace_of_any_name_stays_untrusted(
    codex_163: Path, make_workspace: Callable[..., Path], open_dir: Path
) -> None:
    """0.163 trusts a workspace by itself, so that a name that were written wrongly would be seen."""
    for name in ('a"b.c', "a'b [c] = d", "ä 😀", "a\\b\tc", "#x"):
        workspace = make_workspace(name, files={".codex/config.toml": 'model_reasoning_effort = "high"\n'})
        native = Native(codex_163, open_dir / "home", workspace, open_dir / "etc")
        with ResponsesServer() as gateway:
            native.prepare(gateway.url)
            subprocess.run(
                native.managed_command(gateway.url, ["exec", "--json", "hello"]),
                cwd=workspace,
                env=native.environment(),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=60,
                check=True,
            )
        assert "high" not in str(gateway.requests[0].json["reasoning"]), name
        assert b"projects" not in (native.home / "codex" / "config.toml").read_bytes(), name


class McpServer:
    """An MCP server over HTTP, with one tool, that records which methods it was asked for."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                request = json.loads(self.rfile.read(int(self.headers["content-length"])))
                outer.asked.append(request["method"])
                self._send(202 if "id" not in request else 200, outer.answer(request))

            def do_GET(self) -> None:
                self._send(405, b"")

            def _send(self, status: int, body: bytes) -> None:
                self.send_response(status)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the standard library's name
                """Says nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))

    def answer(self, request: dict[str, Any]) -> bytes:
        initialized = {
            "protocolVersion": "2025-06-18",
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "x", "version": "1"},
        }
        tools = {"tools": [{"name": "ping", "inputSchema": {"type": "object"}}]}
        pong = {"content": [{"type": "text", "text": "pong-from-the-server"}]}
        results = {"initialize": initialized, "tools/list": tools, "tools/call": pong}
        if "id" not in request:
            return b""
        answer = {"jsonrpc": "2.0", "id": request["id"], "result": results.get(request["method"], {})}
        return json.dumps(answer).encode()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}/mcp"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@needs("root")
def test_the_sessions_own_mcp_servers_work_and_no_other_is_started(native: Native, tmp_path: Path) -> None:
    """Neither one of the client's, be it a program or over HTTP, nor one of ours with another URL."""
    started = tmp_path / "started"
    with ResponsesServer() as gateway, McpServer() as own, McpServer() as second, McpServer() as other:
        native.mcp = [HttpBinding("own", own.url), HttpBinding("second", second.url)]
        native.prepare(gateway.url)
        with native.app_server(gateway.url) as client:
            servers = {
                "program": {"command": "/bin/sh", "args": ["-c", f"touch {started}; cat"]},
                "closure": {"command": str(native.codex), "args": ["mcp-server"]},
                "elsewhere": {"url": other.url},
                "second": {"url": other.url},
            }
            thread = client.call("thread/start", {"cwd": str(native.workspace), "config": {"mcp_servers": servers}})
            client.turn(thread)
            call: Item = {
                "type": "function_call",
                "call_id": "c",
                "name": "ping",
                "namespace": "mcp__own",
                "arguments": "{}",
            }
            gateway.play([call])
            client.turn(thread)
            listed = {
                server["name"]: set(server["tools"]) for server in client.call("mcpServerStatus/list", {})["data"]
            }
        assert b"pong-from-the-server" in gateway.requests[-1].body
    assert {"initialize", "tools/list", "tools/call"} <= set(own.asked)
    assert other.asked == []
    assert not started.exists()
    assert listed["own"] == {"ping"}
    assert not {"program", "closure", "elsewhere"} & {name for name, tools in listed.items() if tools}
