"""What a view of Codex cannot be asked for is refused before any effect: nothing is looked for, made or started."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest

import agenthost.view
from agenthost.codex.config import HttpBinding, McpBinding, StdioBinding, check_bindings
from agenthost.errors import AgentHostError, RequestRefused, UnsupportedOperation
from agenthost.gateway.provider import Provider
from agenthost.session import AgentHost, Harness, SessionRequest
from tests.needs import needs

pytestmark = needs("linux")

PROVIDER = Provider(base_url="http://127.0.0.1:9/v1", api_key="not-a-key")


def refusal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, **request: Any) -> AgentHostError:
    """What opening a Session raises. Fails when anything was done before."""
    workspace = tmp_path / "workspace"
    workspace.mkdir(exist_ok=True)
    before = sorted(tmp_path.rglob("*")), _descriptors()

    def looked(*_: object) -> None:
        raise AssertionError("Codex was looked for")

    monkeypatch.setattr(agenthost.view, "discover", looked)

    async def open_it() -> None:
        values = {"workspace": workspace, "provider": PROVIDER, **request}
        async with AgentHost(tmp_path / "state", exclusive=False) as host, host.open(SessionRequest(**values)):
            raise AssertionError("it was opened")

    with pytest.raises(AgentHostError) as caught:
        asyncio.run(open_it())
    assert (sorted(tmp_path.rglob("*")), _descriptors()) == before
    assert Path(f"/proc/self/task/{os.getpid()}/children").read_text() == ""
    assert caught.value.what
    assert caught.value.remedy
    return caught.value


def _descriptors() -> list[str]:
    return sorted(entry.name for entry in Path("/proc/self/fd").iterdir())


@pytest.mark.parametrize(
    ("asked", "named"),
    [
        ({"environment": "none"}, "environment none"),
        ({"workspace": None}, "no workspace"),
        ({"capabilities": ["github"]}, "installed Capabilities"),
        ({"hosted_skills": ["pdf"]}, "hosted skills"),
        ({"skills": True}, "the skills option"),
        ({"skills": False}, "the skills option"),
    ],
)
def test_what_the_specification_rejects(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked: dict[str, object], named: str
) -> None:
    error = refusal(tmp_path, monkeypatch, **asked)
    assert type(error) is UnsupportedOperation
    assert named in error.what


@pytest.mark.parametrize(
    "asked",
    [
        {"model_verbosity": "loud"},
        {"model_verbosity": ""},
        {"harness": Harness(Path("/nonexistent"), "x"), "model_verbosity": "low"},
        {"harness": Harness(Path("/nonexistent"), "x"), "model_verbosity": "medium"},
        {"harness": Harness(Path("/nonexistent"), "x"), "codex": Path("/nonexistent")},
        {"provider": None},
    ],
)
def test_what_contradicts_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked: dict[str, object]) -> None:
    assert isinstance(refusal(tmp_path, monkeypatch, **asked), RequestRefused)


def test_a_stdio_binding_among_others_is_refused_whole() -> None:
    bindings: list[McpBinding] = [
        HttpBinding("one", "http://127.0.0.1:17102/mcp"),
        StdioBinding("two", ("server", "--stdio")),
    ]
    with pytest.raises(UnsupportedOperation, match="'two' is a stdio binding"):
        check_bindings(bindings)
