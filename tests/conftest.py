"""Fixtures for every test, and the rule that what is missing is said: see tests/needs.py."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

import hypothesis
import prctl
import pytest

from tests.leaks import Held, left_in_state
from tests.needs import ROOT, UNPRIVILEGED_UID, codex_release, lacking, needs, require
from tests.unprivileged import Unprivileged

__all__ = ["MakeWorkspace", "needs", "require"]

hypothesis.settings.register_profile("check", deadline=None, derandomize=True)
hypothesis.settings.register_profile(
    "fuzz", deadline=None, max_examples=20_000, suppress_health_check=list(hypothesis.HealthCheck)
)
hypothesis.settings.load_profile(os.environ.get("AGENTHOST_TEST_HYPOTHESIS", "check"))

FOLDERS = {"view": "view", "escape": "view", "soak": "soak"}
"""Marks that the folder below tests/ gives."""

FIXTURES = {"codex_163": "codex", "codex_171": "codex", "unprivileged": "rootless"}
"""Marks that a fixture gives."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        folder = item.path.relative_to(ROOT / "tests").parts[0]
        names = {FOLDERS.get(folder), *(FIXTURES.get(name) for name in getattr(item, "fixturenames", ()))}
        names |= {"codex" for mark in item.iter_markers("needs") for need in mark.args if need.startswith("codex-")}
        for name in sorted(filter(None, names)):
            item.add_marker(name)


def pytest_runtest_setup(item: pytest.Item) -> None:
    require(*(name for mark in item.iter_markers("needs") for name in mark.args))


@pytest.fixture(scope="session")
def codex_163() -> Path:
    """The binary of Codex 0.163.0."""
    return _codex("163")


@pytest.fixture(scope="session")
def codex_171() -> Path:
    """The binary of Codex 0.171.0."""
    return _codex("171")


def _codex(release: str) -> Path:
    require(f"codex-{release}")
    path = codex_release(release)
    assert path is not None
    return path


@pytest.fixture(scope="session")
def shim_build() -> Iterator[Path]:
    """A directory, readable by everybody, with freshly compiled `oac-shim` and `oac-init`."""
    require("linux", "compiler", "make")
    with _reachable_directory() as directory:
        subprocess.run(["/bin/sh", "scripts/build-shims.sh", str(directory)], cwd=ROOT, check=True, capture_output=True)
        yield directory


@pytest.fixture
def open_dir() -> Iterator[Path]:
    """A fresh directory that every user can reach (those of `tmp_path` are closed to all but the owner)."""
    with _reachable_directory() as directory:
        yield directory


@contextmanager
def _reachable_directory() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="agenthost-test-", dir="/var/tmp") as name:
        directory = Path(name)
        directory.chmod(0o755)
        yield directory


class MakeWorkspace(Protocol):
    """Makes a git repository; `owner` is the uid (and gid) that it belongs to, the caller's by default."""

    def __call__(
        self, name: str = "workspace", *, owner: int | None = None, files: Mapping[str, str] | None = None
    ) -> Path: ...


@pytest.fixture
def make_workspace(open_dir: Path) -> MakeWorkspace:
    """Makes fresh git repositories with one commit, each in a directory of its own that every user can reach."""
    require("git")

    def make(name: str = "workspace", *, owner: int | None = None, files: Mapping[str, str] | None = None) -> Path:
        workspace = open_dir / name
        workspace.mkdir()
        for relative, text in {"README.md": "# A workspace\n", **(files or {})}.items():
            path = workspace / relative
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        git(workspace, "init", "--quiet", "--initial-branch=main")
        git(workspace, "add", "--all")
        git(workspace, "commit", "--quiet", "--message=Begin")
        if owner is not None:
            for path in [workspace, *workspace.rglob("*")]:
                os.chown(path, owner, owner, follow_symlinks=False)
        return workspace

    return make


def git(workspace: Path, *args: str) -> str:
    """What `git ARGS...` prints in `workspace`; its configuration is nobody's."""
    environment = {
        "PATH": os.environ["PATH"],
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_AUTHOR_NAME": "A U Thor",
        "GIT_AUTHOR_EMAIL": "author@example.com",
        "GIT_COMMITTER_NAME": "C O Mitter",
        "GIT_COMMITTER_EMAIL": "committer@example.com",
        "GIT_AUTHOR_DATE": "2020-01-01T00:00:00Z",
        "GIT_COMMITTER_DATE": "2020-01-01T00:00:00Z",
    }
    command = ["git", "-c", f"safe.directory={workspace}", *args]
    return subprocess.run(command, cwd=workspace, env=environment, check=True, capture_output=True, text=True).stdout


@pytest.fixture
def workspace(make_workspace: MakeWorkspace) -> Path:
    """A fresh git repository with one commit, owned by the caller."""
    return make_workspace()


@pytest.fixture
def state_dir(tmp_path: Path) -> Iterator[Path]:
    """Where a state directory can be made. What an idle one must not hold is a failure of the test that left it."""
    path = tmp_path / "state"
    yield path
    # pytest removes what it keeps by a recursion that ends in trees as deep as some homes here are.
    subprocess.run(["rm", "-rf", "--", path], check=True)


@pytest.fixture(scope="session")
def rootless_python() -> Path:
    """An interpreter with agenthost and the extra `codex` installed, in a place that every user can read."""
    if os.geteuid() != 0:
        return Path(sys.executable)
    environment = os.environ.get("AGENTHOST_TEST_ROOTLESS_ENV", "")
    if not environment:
        made = subprocess.run(["/bin/sh", "scripts/rootless-env.sh"], cwd=ROOT, stdout=subprocess.PIPE, check=False)
        if made.returncode != 0:
            lacking("scripts/rootless-env.sh could not make an environment for unprivileged users")
        environment = made.stdout.decode().rstrip("\n")
    return Path(environment) / "bin" / "python"


@pytest.fixture
def unprivileged(rootless_python: Path, open_dir: Path) -> Unprivileged:
    """A user without privileges who has agenthost, a home, and can make user namespaces."""
    require("linux", "setpriv", "user-namespaces")
    uid, gid = (UNPRIVILEGED_UID, UNPRIVILEGED_UID) if os.geteuid() == 0 else (os.geteuid(), os.getegid())
    home = open_dir / "home"
    home.mkdir(mode=0o700)
    os.chown(home, uid, gid)
    return Unprivileged(uid, gid, rootless_python, home)


@pytest.fixture
def no_leaks(state_dir: Path) -> Iterator[Callable[[], list[str]]]:
    """Fails a test that leaves a process, a mount, a descriptor, or an untidy state directory behind.

    Asked for by name or, for a whole module, `pytestmark = pytest.mark.usefixtures("no_leaks")`. The value tells what
    is left so far. While it is active, orphans of the test become children of this process, so that none is missed.
    """
    prctl.set_child_subreaper(True)
    before = Held.now()

    def left() -> list[str]:
        return before.left_behind() + left_in_state(state_dir)

    yield left
    remaining = left()
    prctl.set_child_subreaper(False)
    assert not remaining, "left behind: " + "; ".join(remaining)
