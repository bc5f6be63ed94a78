"""What a Harness left in its home: the next launch of the real Codex works, obeys none of it, touches nothing else."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from agenthost.codex.plan import (
    AGENTS_FILE,
    CATALOG_FILE,
    CONFIG_FILE,
    EMPTY_DIRECTORIES,
    EMPTY_FILES,
)
from tests.needs import require
from tests.responses_server import patch, shell
from tests.view.codex_rig import BOTH, MODEL, CodexUser, no_trust_was_written, only_the_gateway_was_asked
from tests.view.conftest import HERE, WARNINGS
from tests.view.test_codex_trust import added

pytestmark = pytest.mark.usefixtures("no_leaks")

BELOW: Final = (
    *(CONFIG_FILE, AGENTS_FILE, CATALOG_FILE),
    *EMPTY_FILES,
    *EMPTY_DIRECTORIES,
    *("codex/sessions", "codex/archived_sessions", "codex/session_index.jsonl", "codex/installation_id"),
    *("codex/tmp", "codex/log", "codex/state_5.sqlite", "codex/.oac-planted", ".oac-planted", ".codex", ".gitconfig"),
)
"""Every name that the daemon touches, and some that Codex does."""

KINDS: Final = (
    *("link", "link-to-directory", "link-inside", "loop", "hard-link", "fifo", "socket", "file", "closed-file"),
    *("directory", "closed-directory", "read-only-directory", "setgid-directory", "deep", "many"),
)


PLANTED_FILE: Final = 'model = "planted"\nMARK-PLANTED\n'
"""What tests/view/planter.c writes."""


@pytest.fixture(scope="session")
def planter() -> Iterator[Path]:
    """A directory that every user can read, with the static program `planter`."""
    require("linux", "compiler")
    directory = Path(tempfile.mkdtemp(prefix="agenthost-planter-", dir="/var/tmp"))
    directory.chmod(0o755)
    compiler = shutil.which("musl-gcc") or "cc"
    options = ["-std=c11", "-D_GNU_SOURCE", "-Os", "-static", *WARNINGS, "-Wno-unused-result"]
    subprocess.run([compiler, *options, "-o", directory / "planter", HERE / "planter.c"], check=True)
    yield directory
    shutil.rmtree(directory)


@pytest.fixture
def target(open_dir: Path) -> Path:
    """On the host, open to everybody: whatever writes through a link changes it."""
    directory = open_dir / "host"
    directory.mkdir()
    (directory / "file").write_text("untouched")
    (directory / "inner").mkdir()
    for path in (directory, directory / "inner", directory / "file"):
        path.chmod(0o777)
    return directory


def state_of(directory: Path) -> list[tuple[object, ...]]:
    paths = [directory, *sorted(directory.rglob("*"))]
    found = [(str(path), path.lstat()) for path in paths]
    return [(name, s.st_mode, s.st_uid, s.st_gid, s.st_size, s.st_mtime_ns, s.st_ctime_ns) for name, s in found]


def plant(user: CodexUser, planter: Path, kind: str, target: str, *names: str) -> int:
    """How many of the names got it."""
    options = ["--harness-dir", str(planter), "--binary", "planter"]
    done = user.launch(kind, target, *names, options=options)
    return int(done.stdout.decode().rpartition("planted ")[2])


def works_and_obeys_nothing(user: CodexUser) -> None:
    since = len(user.requests())
    user.model.play([shell("echo worked")])
    items = user.exec("hello", options=["--model-verbosity", "low"])
    assert [item["aggregated_output"] for item in items if item["type"] == "command_execution"] == ["worked\n"]
    for request in user.requests(since):
        assert request.json["model"] == MODEL
        assert request.json["text"] == {"verbosity": "low"}
        assert b"MARK-PLANTED" not in request.body
    only_the_gateway_was_asked(user)
    no_trust_was_written(user)
    home = {path.name: path.lstat() for path in user.home.iterdir()}
    assert set(home) == {"codex", "tmp", ".agents"}
    assert {stat.S_IMODE(found.st_mode) for found in home.values()} == {0o700}
    assert not (user.home / CATALOG_FILE).exists()


@pytest.mark.parametrize("codex_user", ["root-163", "rootless-171"], indirect=True)
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_planted_at_every_name(codex_user: CodexUser, planter: Path, target: Path, kind: str) -> None:
    points = {
        "link": str(target / "file"),
        "link-to-directory": str(target),
        "link-inside": "/.oac/home/codex/session_index.jsonl",
        "hard-link": "codex/session_index.jsonl",
    }
    names = set(BELOW)
    if kind in {"link-inside", "hard-link"}:
        assert plant(codex_user, planter, "file", "-", "codex/session_index.jsonl") == 1
        names.remove("codex/session_index.jsonl")
    before = state_of(target)
    assert plant(codex_user, planter, _kind(kind), points.get(kind, "-"), *names) == len(names)
    works_and_obeys_nothing(codex_user)
    assert state_of(target) == before
    if kind == "link-inside":
        assert (codex_user.home / "codex" / "session_index.jsonl").read_text() == PLANTED_FILE


@pytest.mark.parametrize("codex_user", ["root-171", "rootless-163"], indirect=True)
@pytest.mark.parametrize(
    "kind", ["link", "link-to-directory", "link-inside", "fifo", "file", "closed-directory", "setgid-directory", "deep"]
)
def test_what_is_planted_in_place_of_the_directories(
    codex_user: CodexUser, planter: Path, target: Path, kind: str
) -> None:
    before = state_of(target)
    points = {"link": str(target / "file"), "link-to-directory": str(target), "link-inside": "elsewhere"}
    assert plant(codex_user, planter, _kind(kind), points.get(kind, "-"), "codex", "tmp", "elsewhere") == 3
    works_and_obeys_nothing(codex_user)
    assert state_of(target) == before


def _kind(kind: str) -> str:
    return "link" if kind.startswith("link") else kind


@pytest.mark.parametrize("codex_user", ["root-163", "rootless-163"], indirect=True)
def test_a_launch_while_a_view_of_the_session_lives_is_refused(codex_user: CodexUser, planter: Path) -> None:
    options = ["--harness-dir", str(planter), "--binary", "planter"]
    command = codex_user.command("wait", options=options)
    with codex_user.start(command) as live:
        assert live.stdout is not None
        assert live.stdout.readline() == b"ready\n"
        names = sorted(path.name for path in codex_user.home.iterdir())
        refused = codex_user.launch("exec", "hello", status=125)
        assert refused.stderr.startswith(b"agenthost: state: Session s is open elsewhere")
        assert sorted(path.name for path in codex_user.home.iterdir()) == names
        live.terminate()
    assert codex_user.requests() == []
    works_and_obeys_nothing(codex_user)


HOME_FILES: Final = {
    "config.toml": 'model = "planted"\n[projects."/"]\ntrust_level = "trusted"\n',
    ".env": "HTTPS_PROXY=http://127.0.0.1:9\nHTTP_PROXY=http://127.0.0.1:9\nNO_PROXY=\nRUST_LOG=trace\n",
    "AGENTS.md": "MARK-PLANTED",
    "AGENTS.override.md": "MARK-PLANTED",
    "auth.json": '{"tokens": {"access_token": "a.b.c", "refresh_token": "r", "id_token": "a.b.c"}}',
    "environments.toml": "MARK-PLANTED",
    "rules/default.rules": 'prefix_rule(pattern=["echo"], decision="forbidden")',
    "agents/planted.toml": 'description = "MARK-PLANTED"',
    "prompts/planted.md": "MARK-PLANTED",
    "skills/planted/SKILL.md": "---\nname: planted\ndescription: MARK-PLANTED\n---\n",
    "plugins/planted/.codex-plugin/plugin.json": '{"name": "planted"}',
    ".cursor-plugin/plugin.json": '{"name": "planted"}',
    "../.agents/skills/planted/SKILL.md": "---\nname: planted\ndescription: MARK-PLANTED\n---\n",
    "model-catalog.json": '{"models": []}',
    "hooks.json": "{}",
    "planted.config.toml": 'model = "planted"\n',
}
"""What the model can write with apply_patch, which is done by Codex and with its rights."""

CLOSED: Final = set(HOME_FILES) - {"model-catalog.json", "hooks.json", "planted.config.toml"}
"""What it cannot even write."""


@pytest.mark.parametrize("codex_user", [*BOTH, "rootless-163"], indirect=True)
def test_what_the_model_writes_into_the_home_steers_nothing(codex_user: CodexUser) -> None:
    """Neither the next thread of the same process, nor the next launch."""
    user = codex_user
    writes = [[patch(_overwritten(name, text), f"p{at}")] for at, (name, text) in enumerate(HOME_FILES.items())]
    user.model.play(*writes)
    with user.app_server() as client:
        client.turn(client.call("thread/start", {"cwd": str(user.workspace)}))
        assert len(user.requests()) == len(HOME_FILES) + 1
        found = {name: (user.home / "codex" / name) for name in HOME_FILES}
        assert {name for name, path in found.items() if path.is_file() and path.read_text() == _ended(name)} == (
            set(HOME_FILES) - CLOSED
        )
        since = len(user.requests())
        user.model.play([shell("echo worked")])
        client.turn(client.call("thread/start", {"cwd": str(user.workspace)}))
        assert any(b"worked" in request.body for request in user.requests(since)[1:])
        for request in user.requests(since):
            assert b"MARK-PLANTED" not in request.body
            assert request.json["model"] == MODEL
    works_and_obeys_nothing(user)
    # A name that no release is known to read may stay until the launch after; then it is gone.
    assert not (user.home / "codex" / "hooks.json").exists()
    assert not (user.home / "codex" / "planted.config.toml").exists()


def _overwritten(name: str, text: str) -> str:
    path = os.path.normpath(f"/.oac/home/codex/{name}")
    return added(path, text)


def _ended(name: str) -> str:
    return HOME_FILES[name].rstrip("\n") + "\n"
