"""The declaration and the launch plan: to the letter of the specification, and what the real Codex does with them."""

from __future__ import annotations

import json
import shlex
import subprocess
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from agenthost.codex.config import StdioBinding, managed, render
from agenthost.codex.harness import HarnessPlan, declare_harness, plan_harness
from agenthost.codex.install import Install
from agenthost.codex.plan import HOME_KEEP, MANAGED_CONFIG, OVERRIDES, declare, overrides, plan_launch
from agenthost.declaration import Mask, Mount, View
from agenthost.errors import NoView, RequestRefused, UnsupportedOperation
from agenthost.home import Home
from agenthost.layout import ViewPath
from tests.needs import needs
from tests.responses_server import Item, Request, ResponsesServer, shell

INSTALL = Install(
    found=Path("/usr/bin/codex"),
    origin="PATH",
    binary=Path("/opt/codex/bin/codex"),
    directory=Path("/opt/codex/bin"),
    release="0.163.0",
    code_mode_host=Path("/opt/codex/bin/codex-code-mode-host"),
    digests=MappingProxyType({"codex": "0" * 64}),
)
FORWARDED = (
    *("TERM", "COLORTERM", "NO_COLOR", "LINES", "COLUMNS"),
    *("PAGER", "GIT_PAGER", "GH_PAGER"),
    *("LANG", "LANGUAGE", "LC_ALL", "LC_COLLATE", "LC_CTYPE", "LC_MESSAGES", "LC_MONETARY", "LC_NUMERIC", "LC_TIME"),
    *("CODEX_CI", "CODEX_THREAD_ID", "CODEX_SESSION_ID", "GIT_OPTIONAL_LOCKS"),
)


def plan(args: Sequence[str] = ("exec", "hi"), **options: Any) -> HarnessPlan:
    return plan_launch(INSTALL, declare(INSTALL), workspace="/srv/work", args=args, **options)


def test_the_declaration_is_the_specifications() -> None:
    assert declare(INSTALL) == View(
        closure=(Mount(Path("/opt/codex/bin"), "codex"),),
        local_exec=(ViewPath("/.oac/codex/codex"), ViewPath("/.oac/codex/codex-code-mode-host")),
        shims=("git",),
        shim_paths=(ViewPath("/bin/bash"),),
        masks=(Mask(ViewPath("/etc/codex")),),
        forward_env=FORWARDED,
    )
    alone = declare(replace(INSTALL, code_mode_host=None))
    assert alone.local_exec == ("/.oac/codex/codex",)


def test_the_overrides_are_the_specifications() -> None:
    assert list(zip(overrides()[::2], overrides()[1::2], strict=True)) == [
        ("-c", "features.shell_snapshot=false"),
        ("-c", "features.hooks=false"),
        ("-c", "features.plugins=false"),
        ("-c", "features.memories=false"),
        ("-c", "features.skill_mcp_dependency_install=false"),
        ("-c", "allow_login_shell=false"),
        ("-c", "project_root_markers=[]"),
        ("-c", 'sandbox_mode="danger-full-access"'),
        ("-c", 'approval_policy="never"'),
        ("-c", "analytics.enabled=false"),
        ("-c", "features.unbounded_connection_retries=false"),
    ]


@pytest.mark.parametrize("args", [(), ("exec", "hi"), ("--config", "k=v", "app-server", "--listen", "stdio://")])
def test_the_callers_arguments_come_last(args: tuple[str, ...]) -> None:
    assert plan(args).argv == ("/.oac/codex/codex", *overrides(), *args)
    assert plan(args).program == "/.oac/codex/codex"


def test_the_environment_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    proxy = "http://127.0.0.1:17100"
    assert dict(plan().env) == {
        "PATH": "/.oac/bin",
        "HOME": "/.oac/home",
        "CODEX_HOME": "/.oac/home/codex",
        "TMPDIR": "/.oac/home/tmp",
        "HTTP_PROXY": proxy,
        "HTTPS_PROXY": proxy,
        "http_proxy": proxy,
        "https_proxy": proxy,
        "NO_PROXY": "127.0.0.1,localhost",
        "no_proxy": "127.0.0.1,localhost",
        "DISABLE_TELEMETRY": "1",
    }
    assert plan().cwd == "/srv/work"


def test_the_home_gets_its_configuration() -> None:
    assert dict(plan(model="m").home_files) == {
        "codex/config.toml": render(gateway="http://127.0.0.1:17101", model="m")
    }
    assert plan().home_keep == HOME_KEEP
    assert plan(agents_md=b"rules").home_files["codex/AGENTS.md"] == b"rules"


def test_the_mask_carries_what_is_managed() -> None:
    expected = managed(gateway="http://127.0.0.1:17101", workspace="/srv/work", fixed=OVERRIDES)
    assert dict(plan().mask_files) == {MANAGED_CONFIG: expected}


def test_a_stdio_binding_is_refused_when_planning() -> None:
    with pytest.raises(UnsupportedOperation):
        plan(mcp=[StdioBinding("tool", ("server",))])


def test_an_argument_that_no_program_can_be_given_is_refused() -> None:
    with pytest.raises(RequestRefused, match="NUL"):
        plan(["exec", "a\0b"])


def test_a_plan_cannot_be_changed() -> None:
    made: Any = plan()
    with pytest.raises(AttributeError):
        made.argv = ()
    for mapping in (made.env, made.home_files, made.mask_files, made.home_keep):
        with pytest.raises(TypeError):
            mapping["x"] = b""


@pytest.fixture
def static_program(tmp_path: Path) -> Path:
    source = tmp_path / "probe.c"
    source.write_text("int main(void) { return 0; }\n")
    (tmp_path / "harness").mkdir()
    subprocess.run(["gcc", "-static", "-o", tmp_path / "harness/probe", source], check=True, capture_output=True)
    return tmp_path / "harness" / "probe"


@needs("linux", "gcc")
def test_any_static_program_can_be_the_harness(static_program: Path, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(static_program.parent)
    view = declare_harness(link, "probe")
    assert view.closure == (Mount(static_program.parent, "harness"),)
    assert view.local_exec == ("/.oac/harness/probe",)
    assert (view.shims, view.shim_paths, view.masks) == (("git",), ("/bin/bash",), ())
    made = plan_harness(view, workspace="/srv/work", args=["a", "b"])
    assert made.argv == ("/.oac/harness/probe", "a", "b")
    assert dict(made.env) == {k: v for k, v in plan().env.items() if k not in {"CODEX_HOME", "DISABLE_TELEMETRY"}}
    assert (dict(made.home_files), dict(made.home_keep), dict(made.mask_files)) == ({}, {}, {})


@needs("linux", "gcc")
def test_what_is_no_static_program_cannot_be_the_harness(static_program: Path) -> None:
    directory = static_program.parent
    (directory / "link").symlink_to("probe")
    (directory / "script").write_text("#!/bin/sh\n")
    (directory / "script").chmod(0o755)
    for name in ("none", "link", "script", "", ".", "..", "../harness/probe", str(static_program)):
        with pytest.raises(NoView):
            declare_harness(directory, name)
    with pytest.raises(NoView, match="No such file"):
        declare_harness(directory / "none", "probe")


# What follows runs the real Codex, outside any view, with the plan's home, overrides and managed configuration.


@dataclass
class Native:
    """A home, a workspace and the real Codex."""

    codex: Path
    home: Path
    workspace: Path
    etc: Path

    def prepare(self, gateway: str, *, agents_md: bytes | None = None) -> None:
        files = {"codex/config.toml": render(gateway=gateway)}
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
        content = managed(gateway=gateway, workspace=str(self.workspace), fixed=OVERRIDES)
        (self.etc / "codex" / "managed_config.toml").write_bytes(content)
        options = f"lowerdir={self.etc}:/etc"
        codex = shlex.join([str(self.codex), *overrides(), *args])
        return ["unshare", "--mount", "sh", "-c", f"mount -t overlay overlay -o {options} /etc && exec {codex}"]


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

    def messages(self) -> Iterator[dict[str, Any]]:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            yield json.loads(line)


@needs("root")
def test_no_app_server_client_overrides_what_is_managed(native: Native) -> None:
    with ResponsesServer([[shell("shopt login_shell")]]) as gateway, ResponsesServer() as elsewhere:
        native.prepare(gateway.url, agents_md=b"MARK-HOME")
        config = (native.home / "codex" / "config.toml").read_bytes()
        with subprocess.Popen(
            native.managed_command(gateway.url, ["app-server", "--listen", "stdio://"]),
            cwd=native.workspace,
            env=native.environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        ) as process:
            client = AppServer(process)
            client.call("initialize", {"clientInfo": {"name": "test", "version": "1"}})
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
            turn: Item = {"threadId": started["thread"]["id"], "input": [{"type": "text", "text": "hello"}]}
            client.call("turn/start", turn)
            ended = next(m for m in client.messages() if m.get("method") == "turn/completed")
            assert ended["params"]["turn"]["status"] == "completed"
            assert process.stdin is not None
            process.stdin.close()
            assert process.wait(30) == 0
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
