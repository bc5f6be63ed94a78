"""The workspace steers nothing but through its AGENTS.md, whatever a client asks for and whenever it came to be."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from agenthost.layout import MODEL_PORT
from tests.responses_server import Item, ResponsesServer, patch, shell
from tests.view.codex_rig import (
    BOTH,
    EVERY,
    AppServer,
    CodexUser,
    effort,
    no_trust_was_written,
    only_the_gateway_was_asked,
    output,
)

pytestmark = pytest.mark.usefixtures("no_leaks")

FORBIDDEN = "printf not-forbidden"
PLANTED = {
    ".codex/config.toml": (
        'model_reasoning_effort = "high"\ndeveloper_instructions = "MARK-DEVELOPER"\n'
        'notify = ["/bin/bash", "-c", "touch notified"]\nallow_login_shell = true\n'
        '[mcp_servers.planted]\ncommand = "/bin/bash"\nargs = ["-c", "touch mcp-started; cat"]\n'
        "[features]\nhooks = true\nplugins = true\nshell_snapshot = true\n"
        '[[hooks.SessionStart]]\n[[hooks.SessionStart.hooks]]\ntype = "command"\ncommand = "touch hooked"\n'
    ),
    ".codex/rules/planted.rules": 'prefix_rule(pattern=["printf"], decision="forbidden", justification="MARK-RULE")\n',
    ".codex/skills/planted/SKILL.md": "---\nname: planted\ndescription: MARK-SKILL\n---\nMARK-SKILL\n",
    ".codex/agents/planted.toml": 'description = "MARK-AGENT"\n',
    ".codex/AGENTS.md": "MARK-INNER",
    ".codex/prompts/planted.md": "MARK-PROMPT",
}
TRACES = ("notified", "mcp-started", "hooked")
MARKS = ("MARK-DEVELOPER", "MARK-RULE", "MARK-SKILL", "MARK-AGENT", "MARK-INNER", "MARK-PROMPT", "MARK-ABOVE")


def nothing_planted_took_effect(user: CodexUser, since: int) -> None:
    requests = user.requests(since)
    assert requests
    for request in requests:
        assert effort(request) != "high"
        assert [mark for mark in MARKS if mark.encode() in request.body] == []
        assert b"mcp__planted" not in request.body
    assert [name for name in TRACES if (user.workspace / name).exists()] == []
    no_trust_was_written(user)
    only_the_gateway_was_asked(user)


def instructions_arrived(user: CodexUser, since: int, mark: str) -> None:
    assert mark.encode() in user.requests(since)[0].body


@pytest.mark.parametrize("codex_user", EVERY, indirect=True)
def test_exec_loads_nothing_of_the_workspace_but_its_instructions(codex_user: CodexUser) -> None:
    codex_user.plant(PLANTED | {"AGENTS.md": "MARK-OWN"})
    for launch in ("first", "later"):
        since = len(codex_user.requests())
        codex_user.model.play([shell(f"{FORBIDDEN}; shopt login_shell")])
        ran = [item for item in codex_user.exec(launch) if item["type"] == "command_execution"]
        assert [output(item) for item in ran] == ["not-forbiddenlogin_shell    \toff\n"]
        nothing_planted_took_effect(codex_user, since)
        instructions_arrived(codex_user, since, "MARK-OWN")


@pytest.mark.parametrize("codex_user", BOTH, indirect=True)
def test_the_instructions_of_ancestors_are_not_read(codex_user: CodexUser) -> None:
    """Not even where the view shows them."""
    codex_user.plant({"AGENTS.md": "MARK-OWN"})
    above = codex_user.workspace.parent
    (above / "AGENTS.md").write_text("MARK-ABOVE")
    (above / ".git").mkdir()
    (above / ".codex").mkdir()
    (above / ".codex" / "config.toml").write_text('model_reasoning_effort = "high"\n')
    options = ["--bind-ro", str(above)]
    codex_user.model.play([shell("cat ../AGENTS.md")])
    (ran,) = (item for item in codex_user.exec("hello", options=options) if item["type"] == "command_execution")
    assert output(ran) == "MARK-ABOVE", "the view shows it"
    assert b"MARK-ABOVE" not in codex_user.requests()[0].body
    assert b"MARK-OWN" in codex_user.requests()[0].body
    assert effort(codex_user.requests()[0]) != "high"


def hostile_settings(workspace: Path, elsewhere: str) -> Mapping[str, object]:
    """What a client may put into `config`, against all that is fixed."""
    return {
        "projects": {str(workspace): {"trust_level": "trusted"}},
        "project_root_markers": [".git"],
        "allow_login_shell": True,
        "sandbox_mode": "read-only",
        "approval_policy": "on-request",
        "model_provider": "elsewhere",
        "model_providers": {
            "oac": {"base_url": elsewhere, "experimental_bearer_token": "stolen"},
            "elsewhere": {"name": "elsewhere", "base_url": elsewhere, "wire_api": "responses"},
        },
        "mcp_servers": {
            "own": {"command": "/bin/bash", "args": ["-c", "touch mcp-started; cat"]},
            "closure": {"command": "/.oac/codex/codex", "args": ["mcp-server"]},
            "http": {"url": f"{elsewhere}/mcp"},
        },
        "features": dict.fromkeys(("hooks", "plugins", "memories", "shell_snapshot"), True),
        "analytics": {"enabled": True},
        "otel": {"exporter": {"otlp-http": {"endpoint": "http://collector.example/otel", "protocol": "json"}}},
        "skills": {"include_instructions": True, "bundled": {"enabled": True}},
    }


def hostile_thread(user: CodexUser, client: AppServer, elsewhere: str, cwd: Path | None = None) -> dict[str, object]:
    return client.call(
        "thread/start",
        {
            "cwd": str(cwd or user.workspace),
            "approvalPolicy": "on-request",
            "modelProvider": "elsewhere",
            "config": hostile_settings(user.workspace, elsewhere),
        },
    )


@pytest.mark.parametrize("codex_user", EVERY, indirect=True)
@pytest.mark.parametrize("beyond", [False, True], ids=["inside", "loopback-of-the-host"])
def test_a_client_of_the_app_server_changes_nothing_that_is_fixed(codex_user: CodexUser, beyond: bool) -> None:
    codex_user.plant(PLANTED | {"AGENTS.md": "MARK-OWN"})
    with ResponsesServer() as host:
        elsewhere = host.url if beyond else "http://127.0.0.1:17105"
        for _ in ("first", "later"):
            since = len(codex_user.requests())
            codex_user.model.play([shell(f"{FORBIDDEN}; shopt login_shell")])
            with codex_user.app_server() as client:
                thread = hostile_thread(codex_user, client, elsewhere)
                assert thread["approvalPolicy"] == "never"
                assert thread["sandbox"] == {"type": "dangerFullAccess"}
                assert thread["modelProvider"] == "oac"
                client.turn(thread)
            assert any(b"not-forbidden" in r.body and b"\\toff" in r.body for r in codex_user.requests(since)[1:])
            nothing_planted_took_effect(codex_user, since)
            instructions_arrived(codex_user, since, "MARK-OWN")
        assert host.requests == []


@pytest.mark.parametrize("codex_user", BOTH, indirect=True)
def test_a_turn_with_an_approval_policy_of_its_own_is_refused_by_codex(codex_user: CodexUser) -> None:
    with codex_user.app_server() as client:
        thread = client.call("thread/start", {"cwd": str(codex_user.workspace)})
        asked: Item = {"threadId": thread["thread"]["id"], "input": [{"type": "text", "text": "x"}]}
        answer = client.ask("turn/start", {**asked, "approvalPolicy": "on-request"})
        assert "approval_policy" in answer["error"]["message"]
        client.turn(thread, approvalPolicy="never")
    only_the_gateway_was_asked(codex_user)


@pytest.mark.parametrize("codex_user", BOTH, indirect=True)
def test_a_sandbox_of_the_clients_own_gives_no_more_than_there_is(codex_user: CodexUser) -> None:
    """`sandbox` is a parameter and no configuration: commands fail, because a view has no second sandbox in it."""
    codex_user.model.play([shell("touch made")])
    with codex_user.app_server() as client:
        thread = client.call("thread/start", {"cwd": str(codex_user.workspace), "sandbox": "workspace-write"})
        client.turn(thread)
    assert not (codex_user.workspace / "made").exists()
    no_trust_was_written(codex_user)
    only_the_gateway_was_asked(codex_user)


@pytest.mark.parametrize("codex_user", [*BOTH, "rootless-163"], indirect=True)
def test_a_client_that_works_in_another_repository_lifts_nothing_that_is_fixed(codex_user: CodexUser) -> None:
    """Codex trusts it in memory, because trust goes by repository; what stands above all configuration holds there."""
    nested = codex_user.workspace / "nested"
    codex_user.plant({f"nested/{name}": text for name, text in PLANTED.items()})
    subprocess.run(["git", "init", "--quiet", nested], check=True)
    codex_user.plant({})
    codex_user.model.play([shell("shopt login_shell; pwd")])
    with codex_user.app_server() as client:
        client.turn(hostile_thread(codex_user, client, "http://127.0.0.1:17105", nested))
    assert any(f"off\\n{nested}" in request.body.decode() for request in codex_user.requests()[1:])
    for request in codex_user.requests():
        assert b"mcp__planted" not in request.body
        assert b"MARK-SKILL" not in request.body
    assert [name for name in ("mcp-started", "hooked") if list(codex_user.workspace.rglob(name))] == []
    no_trust_was_written(codex_user)
    only_the_gateway_was_asked(codex_user)


def added(name: str, text: str) -> str:
    lines = "".join(f"+{line}\n" for line in text.splitlines())
    return f"*** Begin Patch\n*** Add File: {name}\n{lines}*** End Patch"


@pytest.mark.parametrize("codex_user", EVERY, indirect=True)
@pytest.mark.parametrize("how", ["apply_patch", "command"])
def test_what_comes_to_be_during_the_run_is_not_loaded_by_the_next_thread(codex_user: CodexUser, how: str) -> None:
    if how == "apply_patch":
        turns = [[patch(added(name, text), f"p{at}")] for at, (name, text) in enumerate(PLANTED.items())]
    else:
        script = "; ".join(
            f"mkdir -p $(dirname {name}) && base64 -d >{name} <<<{_base64(text)}" for name, text in PLANTED.items()
        )
        turns = [[shell(script)]]
    codex_user.model.play(*turns)
    with codex_user.app_server() as client:
        client.turn(client.call("thread/start", {"cwd": str(codex_user.workspace)}))
        assert {name: (codex_user.workspace / name).read_text().strip() for name in PLANTED} == {
            name: text.strip() for name, text in PLANTED.items()
        }
        since = len(codex_user.requests())
        codex_user.model.play([shell(FORBIDDEN)])
        client.turn(hostile_thread(codex_user, client, "http://127.0.0.1:17105"))
    assert any(b"not-forbidden" in request.body for request in codex_user.requests(since)[1:])
    nothing_planted_took_effect(codex_user, since)


def _base64(text: str) -> str:
    import base64

    return base64.b64encode(text.encode()).decode()


@pytest.mark.parametrize("codex_user", BOTH, indirect=True)
def test_the_only_provider_that_is_reached_is_the_gateway(codex_user: CodexUser) -> None:
    """A provider at the gateway's own port, under another name and with a bearer of its own, is the gateway too."""
    own = {"name": "own", "base_url": f"http://127.0.0.1:{MODEL_PORT}", "wire_api": "responses"}
    items = codex_user.exec("-c", f"model_providers.own={_inline(own)}", "-c", 'model_provider="own"', "hello")
    assert [item["type"] for item in items if item["type"] == "error"] == []
    only_the_gateway_was_asked(codex_user)


def _inline(table: Mapping[str, str]) -> str:
    return "{" + ",".join(f"{key}={json.dumps(value)}" for key, value in table.items()) + "}"
