"""What the real Codex asks for from inside a view: responses of the gateway, and nothing else."""

from __future__ import annotations

import json

import pytest

from tests.responses_server import Item, patch, shell
from tests.view.codex_rig import BOTH, EVERY, CodexUser, only_the_gateway_was_asked, output
from tests.view.test_codex_trust import added

pytestmark = pytest.mark.usefixtures("no_leaks")


def kind(metadata: str) -> str:
    return str(json.loads(metadata).get("request_kind"))


@pytest.mark.parametrize("codex_user", EVERY, indirect=True)
def test_a_plain_turn_of_exec(codex_user: CodexUser) -> None:
    codex_user.model.play([shell("git status; echo done")], [patch(added("made.txt", "made"))])
    items = codex_user.exec("hello")
    assert [item["exit_code"] for item in items if item["type"] == "command_execution"] == [0]
    assert (codex_user.workspace / "made.txt").read_text() == "made\n"
    assert len(codex_user.requests()) == 3
    only_the_gateway_was_asked(codex_user)


@pytest.mark.parametrize("codex_user", EVERY, indirect=True)
def test_an_app_server_that_is_asked_for_all_it_knows(codex_user: CodexUser) -> None:
    codex_user.model.play([shell("true")])
    with codex_user.app_server() as client:
        for method in ("model/list", "account/read", "skills/list", "plugin/list", "app/list", "mcpServerStatus/list"):
            client.ask(method, {})
        client.turn(client.call("thread/start", {"cwd": str(codex_user.workspace)}))
    only_the_gateway_was_asked(codex_user)


@pytest.mark.parametrize("codex_user", BOTH, indirect=True)
def test_an_exporter_of_the_callers_own_is_not_even_tried(codex_user: CodexUser) -> None:
    exporter = '{otlp-http={endpoint="http://collector.example/otel",protocol="json"}}'
    kinds = ("exporter", "trace_exporter", "metrics_exporter")
    options = [part for kind in kinds for part in ("-c", f"otel.{kind}={exporter}")]
    codex_user.exec(*options, "-c", "analytics.enabled=true", "hello")
    only_the_gateway_was_asked(codex_user)


@pytest.mark.parametrize("codex_user", BOTH, indirect=True)
def test_a_long_conversation_is_compacted_here_and_never_by_the_provider(codex_user: CodexUser) -> None:
    codex_user.model.tokens = 100_000
    codex_user.model.play([shell("true")])
    codex_user.exec("-c", "model_auto_compact_token_limit=20000", "hello")
    kinds = [kind(request.headers["x-codex-turn-metadata"]) for request in codex_user.requests()]
    assert "compaction" in kinds
    assert {request.path for request in codex_user.requests()} == {"/v1/responses"}
    only_the_gateway_was_asked(codex_user)


@pytest.mark.parametrize("codex_user", EVERY, indirect=True)
def test_danger_full_access_and_never_are_what_codex_runs_with(codex_user: CodexUser) -> None:
    """It says so to the model, and asks nobody before a command that wants more."""
    escalated = {"cmd": "touch made", "sandbox_permissions": "require_escalated", "justification": "x"}
    call: Item = {"type": "function_call", "call_id": "c", "name": "exec_command", "arguments": json.dumps(escalated)}
    codex_user.model.play([shell("touch ../beside; id -u; touch inside && echo ok")], [call])
    (ran, *_) = (item for item in codex_user.exec("hello") if item["type"] == "command_execution")
    assert output(ran).endswith("ok\n")
    assert (codex_user.workspace / "inside").exists()
    assert not (codex_user.workspace.parent / "beside").exists(), "the environment, not Codex, keeps commands inside"
    first = codex_user.requests()[0]
    assert json.loads(first.headers["x-codex-turn-metadata"])["sandbox_mode"] == "danger-full-access"
    assert b"Approval policy is currently never" in first.body
    only_the_gateway_was_asked(codex_user)
