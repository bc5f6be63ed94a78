"""config.toml and managed_config.toml: what they say, and that the real Codex reads them back as they were meant."""

from __future__ import annotations

import json
import subprocess
import tomllib
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agenthost.codex.config import HttpBinding, StdioBinding, check_bindings, managed, render, requirements
from agenthost.codex.plan import OVERRIDES
from agenthost.errors import RequestRefused, UnsupportedOperation
from tests.responses_server import ResponsesServer

GATEWAY = "http://127.0.0.1:17101"
PROVIDER = {
    "name": "oac",
    "base_url": GATEWAY,
    "wire_api": "responses",
    "experimental_bearer_token": "placeholder",
}

texts = st.text(st.characters(codec="utf-8"), max_size=30)
labels = st.from_regex(r"[A-Za-z0-9_-]{1,20}", fullmatch=True)


@pytest.fixture(params=["codex_163", "codex_171"])
def codex(request: pytest.FixtureRequest) -> Path:
    path: Path = request.getfixturevalue(request.param)
    return path


@pytest.fixture
def home(open_dir: Path) -> Path:
    (open_dir / "codex").mkdir()
    (open_dir / "tmp").mkdir()
    return open_dir


def run(codex: Path, home: Path, config: bytes, *args: str) -> subprocess.CompletedProcess[bytes]:
    """Codex with this config.toml, a home of its own, and nothing of the caller's environment."""
    (home / "codex" / "config.toml").write_bytes(config)
    environment = {
        "HOME": str(home),
        "CODEX_HOME": str(home / "codex"),
        "TMPDIR": str(home / "tmp"),
        "PATH": "/nonexistent",
        "HTTPS_PROXY": "http://127.0.0.1:9",
        "NO_PROXY": "127.0.0.1",
    }
    command = [str(codex), "-c", "analytics.enabled=false", *args]
    return subprocess.run(
        command, cwd=home, env=environment, stdin=subprocess.DEVNULL, capture_output=True, timeout=60, check=False
    )


def test_the_configuration_names_the_gateway_and_the_placeholder_and_nothing_else() -> None:
    assert tomllib.loads(render(gateway=GATEWAY).decode()) == {
        "model_provider": "oac",
        "model_providers": {"oac": PROVIDER},
    }


def test_a_model_is_named_only_when_one_was_chosen() -> None:
    assert "model" not in tomllib.loads(render(gateway=GATEWAY).decode())
    assert tomllib.loads(render(gateway=GATEWAY, model="m").decode())["model"] == "m"


def test_a_verbosity_is_named_only_when_one_was_chosen() -> None:
    assert "model_verbosity" not in tomllib.loads(render(gateway=GATEWAY).decode())
    assert tomllib.loads(render(gateway=GATEWAY, model_verbosity="low").decode())["model_verbosity"] == "low"


def test_the_requirements_name_the_gateway_and_the_sessions_servers_alone() -> None:
    assert tomllib.loads(requirements().decode()) == {"model_provider": "oac", "mcp_servers": {}}
    with pytest.raises(UnsupportedOperation):
        requirements([StdioBinding("tool", ("server",))])


def test_http_servers_are_rendered_without_credentials() -> None:
    servers = (HttpBinding("docs", "http://127.0.0.1:17102/mcp"), HttpBinding("x-1_y", "http://127.0.0.1:17103/mcp"))
    parsed = tomllib.loads(render(gateway=GATEWAY, mcp=servers).decode())
    assert parsed["mcp_servers"] == {server.label: {"url": server.url} for server in servers}


def test_a_stdio_binding_is_refused() -> None:
    bindings = (HttpBinding("docs", "http://127.0.0.1:17102/mcp"), StdioBinding("tool", ("server", "--flag")))
    with pytest.raises(UnsupportedOperation, match="'tool' is a stdio binding"):
        render(gateway=GATEWAY, mcp=bindings)


@pytest.mark.parametrize("label", ["", "a b", "a.b", 'a"b', "ä", "a\n", "x" * 65])
def test_a_label_that_codex_would_not_take_is_refused(label: str) -> None:
    with pytest.raises(RequestRefused):
        check_bindings([HttpBinding(label, "http://127.0.0.1:17102/mcp")])


def test_a_label_is_bound_once() -> None:
    with pytest.raises(RequestRefused, match="twice"):
        check_bindings([HttpBinding("a", "http://127.0.0.1:1/"), HttpBinding("a", "http://127.0.0.1:2/")])


def test_a_name_that_is_not_utf8_is_refused() -> None:
    with pytest.raises(RequestRefused, match="not UTF-8"):
        managed(gateway=GATEWAY, workspace="/srv/\udcff", fixed={})
    with pytest.raises(RequestRefused, match="not UTF-8"):
        render(gateway=GATEWAY, model="\udcff")


@given(model=texts, servers=st.dictionaries(labels, texts, max_size=4), workspace=texts)
def test_values_of_any_content_survive(model: str, servers: dict[str, str], workspace: str) -> None:
    bindings = [HttpBinding(label, url) for label, url in servers.items()]
    parsed = tomllib.loads(render(gateway=GATEWAY, model=model, mcp=bindings).decode())
    assert parsed["model"] == model
    assert parsed.get("mcp_servers", {}) == {label: {"url": url} for label, url in servers.items()}
    required = tomllib.loads(requirements(bindings).decode())
    assert required["mcp_servers"] == {label: {"identity": {"url": url}} for label, url in servers.items()}
    above = tomllib.loads(managed(gateway=GATEWAY, workspace=workspace, fixed=OVERRIDES).decode())
    assert above["projects"] == {workspace: {"trust_level": "untrusted"}}


def test_what_is_managed_holds_every_override() -> None:
    parsed = tomllib.loads(managed(gateway=GATEWAY, workspace="/srv/w", fixed=OVERRIDES).decode())
    flat = {k: v for k, v in parsed.items() if not isinstance(v, dict)}
    flat |= {f"features.{k}": v for k, v in parsed["features"].items()}
    flat |= {f"analytics.{k}": v for k, v in parsed["analytics"].items()}
    assert flat == {**OVERRIDES, "model_provider": "oac"}
    assert parsed["model_providers"] == {"oac": PROVIDER}


@given(servers=st.dictionaries(labels, texts, min_size=1, max_size=20))
@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_the_real_codex_reads_back_values_of_any_content(codex: Path, home: Path, servers: dict[str, str]) -> None:
    bindings = [HttpBinding(label, url) for label, url in servers.items()]
    shown = run(codex, home, render(gateway=GATEWAY, mcp=bindings), "mcp", "list", "--json")
    assert shown.returncode == 0, shown.stderr
    assert {row["name"]: row["transport"]["url"] for row in json.loads(shown.stdout)} == servers


@pytest.mark.parametrize("model", ["gpt-5.5", "vendor/model", 'a"b\\c', "ä 😀\t\x7f\x00", "'''", "[x]\n#y"])
def test_the_real_codex_asks_the_gateway_with_the_placeholder(codex: Path, home: Path, model: str) -> None:
    with ResponsesServer() as server:
        config = render(gateway=server.url, model=model)
        done = run(codex, home, config, "exec", "--json", "--skip-git-repo-check", "hello")
    assert done.returncode == 0, done.stderr
    request = server.requests[0]
    assert {(r.method, r.path) for r in server.requests} == {("POST", "/responses")}
    assert request.headers["authorization"] == "Bearer placeholder"
    assert request.json["model"] == model


def test_without_a_model_the_real_codex_takes_its_own_default(codex: Path, home: Path) -> None:
    with ResponsesServer() as server:
        done = run(codex, home, render(gateway=server.url), "exec", "--json", "--skip-git-repo-check", "hello")
    assert done.returncode == 0, done.stderr
    assert server.requests[0].json["model"]
