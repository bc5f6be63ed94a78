"""The executor launches in the Session's view: program, overrides, environment, configuration, home, catalog."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import threading
import time
import tomllib
from pathlib import Path
from typing import Any

import psutil
import pytest

import agenthost.view
from agenthost.codex.catalog import ModelChoice
from agenthost.codex.install import discover
from agenthost.codex.plan import CATALOG_FILE, HELD, overrides
from agenthost.gateway.provider import Provider
from agenthost.layout import PLACEHOLDER
from agenthost.session import AgentHost, SessionRequest
from tests.needs import ROOT
from tests.responses_server import shell
from tests.view.codex_rig import BOTH, EVERY, KEY, MODEL, CodexUser, effort, only_the_gateway_was_asked
from tests.view.rig import Bench, Daemon, Session

CONFIG = "/.oac/home/codex/config.toml"


class TestViewExecutorLaunchesInTheSessionView:
    """With a program of ours that is taken for Codex and tells what it got; as root and not."""

    def test_the_program_and_the_overrides(self, codex_session: Session) -> None:
        live = codex_session.start(["say", "ready"], ["wait"])
        live.until("ready")
        commands = [psutil.Process(pid).cmdline() for pid in codex_session.daemon.children()]
        live.stop()
        live.wait()
        arguments = ["say", "ready", "++", "wait"]
        assert ["/.oac/codex/probe", *overrides(), *arguments] in commands

    def test_the_environment_is_closed(self, codex_session: Session) -> None:
        proxy, direct = "http://127.0.0.1:17100", "127.0.0.1,localhost"
        assert sorted(codex_session.run(["facts"]).all("env")) == sorted(
            [
                *("PATH=/.oac/bin", "HOME=/.oac/home", "TMPDIR=/.oac/home/tmp", "CODEX_HOME=/.oac/home/codex"),
                *(f"{name}={proxy}" for name in ("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy")),
                *(f"{name}={direct}" for name in ("NO_PROXY", "no_proxy")),
                "DISABLE_TELEMETRY=1",
            ]
        )

    def test_the_configuration_is_the_gateways(self, codex_session: Session) -> None:
        config = tomllib.loads(codex_session.run(["cat", CONFIG])[f"cat {CONFIG}"])
        assert config == {
            "model_provider": "oac",
            "model_providers": {
                "oac": {
                    "name": "oac",
                    "base_url": "http://127.0.0.1:17101",
                    "wire_api": "responses",
                    "experimental_bearer_token": PLACEHOLDER,
                }
            },
        }

    def test_what_is_fixed_stands_above_every_other_layer(self, codex_session: Session) -> None:
        names = ("managed_config.toml", "requirements.toml")
        result = codex_session.run(["ls", "/etc/codex"], *(["cat", f"/etc/codex/{name}"] for name in names))
        managed, required = (tomllib.loads(result[f"cat /etc/codex/{name}"]) for name in names)
        assert result["ls /etc/codex"].split("/") == sorted(names)
        assert required == {"model_provider": "oac", "mcp_servers": {}}
        assert managed["projects"] == {str(codex_session.workspace): {"trust_level": "untrusted"}}
        for key, value in HELD.items():
            found: Any = managed
            for part in key.split("."):
                found = found[part]
            assert found == value, key

    def test_home_and_tmp_are_siblings_and_closed(self, codex_session: Session) -> None:
        codex_session.run(["ls", "/.oac/home"])
        for name in ("", "codex", "tmp"):
            found = (codex_session.home / name).stat()
            assert (found.st_mode & 0o7777, found.st_uid) == (0o700, codex_session.uid)

    @pytest.mark.parametrize("name", ["config.toml", "AGENTS.md", ".env", "auth.json", "environments.toml"])
    def test_what_codex_reads_as_configuration_cannot_be_changed(self, codex_session: Session, name: str) -> None:
        path = f"/.oac/home/codex/{name}"
        result = codex_session.run(
            *(["write", path, "x"], ["unlink", path], ["rename", path, "/.oac/home/codex/other"]),
            ["rename", "/.oac/home/codex", "/.oac/home/moved"],
        )
        assert [value for _, value in result.facts] == ["!EROFS", "!EBUSY", "!EBUSY", "!EBUSY"]

    @pytest.mark.parametrize("name", ["codex/rules", "codex/skills", "codex/agents", "codex/plugins", ".agents"])
    def test_nothing_comes_to_be_where_codex_looks_for_more(self, codex_session: Session, name: str) -> None:
        path = f"/.oac/home/{name}"
        result = codex_session.run(
            ["mkdir", f"{path}/x"], ["write", f"{path}/x", "x"], ["rename", path, f"{path}-other"]
        )
        assert [value for _, value in result.facts] == ["!EROFS", "!EROFS", "!EBUSY"]

    def test_a_link_planted_at_config_toml_is_replaced_never_followed(
        self, bench: Bench, codex_session: Session
    ) -> None:
        outside = bench.directory("outside") / "config.toml"
        outside.write_text("untouched")
        config = codex_session.home / "codex" / "config.toml"
        codex_session.run(["say", "first"])
        for target in (str(outside), "../tmp/inside", "config.toml", "/dev/null"):
            config.unlink()
            config.symlink_to(target)
            assert "model_provider" in codex_session.run(["cat", CONFIG])[f"cat {CONFIG}"]
            assert not config.is_symlink()
        assert outside.read_text() == "untouched"

    def test_nothing_else_of_an_install_directory_runs(self, bench: Bench, daemon: Daemon) -> None:
        """Codex in a shared directory: what lies beside it is shown, and only local exec is executed."""
        directory = bench.directory("shared")
        for name in ("probe", "other"):
            (directory / name).write_bytes(bench.probe.read_bytes())
            (directory / name).chmod(0o755)
        session = daemon.open(bench.workspace(), as_codex=directory / "probe", provider="http://127.0.0.1:9/v1")
        runs = session.run(*(["spawn", f"/.oac/codex/{name}", "exit", "7"] for name in ("probe", "other")))
        session.close()
        assert [value for _, value in runs.facts] == ["exit 7", "!EACCES"]


class TestModelVerbosity:
    """Asked of the host's own Codex, outside of any view; used by the one in the view."""

    @pytest.mark.parametrize("codex_user", EVERY, indirect=True)
    def test_the_choice_arrives_and_the_catalog_is_there_for_the_launch_alone(
        self, codex_user: CodexUser, tmp_path: Path
    ) -> None:
        expected = _catalog(codex_user.codex, tmp_path)
        catalog, go = codex_user.home / CATALOG_FILE, codex_user.workspace / "go"
        for verbosity in ("low", "high"):
            since = len(codex_user.requests())
            codex_user.model.play([shell("while [ ! -e go ]; do sleep 0.02; done; rm go")])
            turn = threading.Thread(target=codex_user.exec, args=("x",), kwargs={"options": _verbose(verbosity)})
            turn.start()
            try:
                _until_more_requests(codex_user, since)
                assert catalog.read_bytes() == expected
                assert catalog.stat().st_mode & 0o777 == 0o600
            finally:
                go.touch()
                turn.join()
            assert not catalog.exists()
            assert [request.json["text"] for request in codex_user.requests(since)] == [{"verbosity": verbosity}] * 2
        only_the_gateway_was_asked(codex_user)

    @pytest.mark.parametrize("codex_user", BOTH, indirect=True)
    def test_medium_needs_no_catalog(self, codex_user: CodexUser) -> None:
        codex_user.model.play([shell("true")])
        codex_user.exec("x", options=_verbose("medium"))
        assert {str(request.json["text"]) for request in codex_user.requests()} == {"{'verbosity': 'medium'}"}
        assert not (codex_user.home / CATALOG_FILE).exists()

    @pytest.mark.parametrize("codex_user", EVERY, indirect=True)
    def test_a_model_without_the_choice_is_an_error_before_any_effect(self, codex_user: CodexUser) -> None:
        before = sorted(codex_user.workspace.rglob("*"))
        done = codex_user.launch("exec", "x", options=[*_verbose("low"), "--model", "no-such-model"], status=125)
        assert done.stderr.startswith(b"agenthost: unsupported: the model 'no-such-model' has no choice of verbosity")
        assert done.stderr.count(b"\n") == 1
        assert sorted(codex_user.workspace.rglob("*")) == before
        assert not codex_user.state.exists() or not (codex_user.state / "sessions").exists()

    @pytest.mark.parametrize("codex_user", ["root-163"], indirect=True)
    def test_agenthost_codex_takes_it_from_a_variable(self, codex_user: CodexUser) -> None:
        code = "import sys; from agenthost.cli.codex import main; sys.exit(main())"
        variables = {
            "AGENTHOST_STATE_DIR": str(codex_user.state),
            "AGENTHOST_CODEX": str(codex_user.codex),
            "AGENTHOST_MODEL": MODEL,
            "AGENTHOST_MODEL_VERBOSITY": "low",
            "AGENTHOST_PROVIDER_URL": f"{codex_user.model.url}/v1",
            "OPENAI_API_KEY": KEY,
        }
        command = [sys.executable, "-c", code, "exec", "--json", "--skip-git-repo-check", "hello"]
        environment = {"PATH": "/usr/bin:/bin", "HOME": str(codex_user.state), "PYTHONPATH": str(ROOT), **variables}
        subprocess.run(command, cwd=codex_user.workspace, env=environment, stdin=subprocess.DEVNULL, check=True)
        assert codex_user.requests()[0].json["text"] == {"verbosity": "low"}

    @pytest.mark.parametrize("codex_user", BOTH, indirect=True)
    def test_the_launch_uses_the_catalog_that_was_read(
        self, codex_user: CodexUser, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A catalog that no release has: only whoever uses it knows its model."""
        install = discover(codex_user.codex, {}, state_dir=tmp_path)
        models = json.loads(_catalog(codex_user.codex, tmp_path))["models"]
        only = next(model for model in models if model["slug"] == MODEL) | {"slug": "only-here"}
        catalog = json.dumps({"models": [only]}).encode()
        choice = ModelChoice("only-here", "low", catalog)
        monkeypatch.setattr(agenthost.view, "choose_model", lambda *_: choice)

        async def turn() -> None:
            request = SessionRequest(
                workspace=codex_user.workspace,
                provider=Provider(base_url=f"{codex_user.model.url}/v1", api_key=KEY),
                codex=install.binary,
            )
            async with AgentHost(codex_user.state) as host, host.open(request) as session:
                process = await session.launch(["exec", "--skip-git-repo-check", "hello"], stdin=null)
                assert await process.wait() == 0

        null = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        asyncio.run(turn())
        os.close(null)
        (request,) = codex_user.requests()
        assert (request.json["model"], request.json["text"]) == ("only-here", {"verbosity": "low"})
        assert effort(request)


def _catalog(codex: Path, home: Path) -> bytes:
    environment = {"HOME": str(home), "CODEX_HOME": str(home)}
    return subprocess.run([codex, "debug", "models"], env=environment, capture_output=True, check=True).stdout


def _verbose(verbosity: str) -> list[str]:
    return ["--model-verbosity", verbosity]


def _until_more_requests(user: CodexUser, since: int) -> None:
    deadline = time.monotonic() + 60
    while not user.requests(since):
        assert time.monotonic() < deadline
        time.sleep(0.01)
