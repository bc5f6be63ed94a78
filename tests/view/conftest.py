"""Whole views with the probe as the Harness: each test once with a daemon that is root, once with one that is not."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import prctl
import pytest

from tests.leaks import Held
from tests.needs import ROOT, require
from tests.view.codex_rig import codex_user
from tests.view.rig import Bench, Daemon, Session, eventually, root_mode, rootless_mode

__all__ = ["codex_user"]

HERE = Path(__file__).parent
SOURCES = ("probe.c", *sorted(str(path) for path in (ROOT / "shims").glob("attack_*.c")), str(ROOT / "shims/wire.c"))
WARNINGS = [
    "-Wall",
    "-Wextra",
    "-Wconversion",
    "-Wshadow",
    "-Wstrict-prototypes",
    "-Wmissing-prototypes",
    "-Wvla",
    "-Werror",
]


@pytest.fixture(scope="session")
def probe_binary() -> Iterator[Path]:
    """`probe`, static, alone in a directory that every user can read."""
    require("linux", "compiler")
    compiler = "musl-gcc" if shutil.which("musl-gcc") else "cc"
    directory = Path(tempfile.mkdtemp(prefix="agenthost-probe-", dir="/var/tmp"))
    directory.chmod(0o755)
    command = [compiler, "-std=c11", "-D_GNU_SOURCE", "-Os", "-s", "-static", *WARNINGS, "-o", str(directory / "probe")]
    subprocess.run([*command, *SOURCES], cwd=HERE, check=True)
    yield directory / "probe"
    shutil.rmtree(directory)


@pytest.fixture(scope="module", params=["root", "rootless"])
def bench(request: pytest.FixtureRequest, probe_binary: Path) -> Iterator[Bench]:
    """Where the tests of a module work, in one mode. In the end nothing may be left that they made."""
    require("root") if request.param == "root" else require("linux", "setpriv", "user-namespaces")
    base = Path(tempfile.mkdtemp(prefix="agenthost-view-", dir="/var/tmp"))
    base.chmod(0o755)
    if request.param == "root":
        mode = root_mode(base)
    else:
        mode = rootless_mode(base, request.getfixturevalue("rootless_python"))
    prctl.set_child_subreaper(True)
    before = Held.now()
    yield Bench(mode, base, probe_binary)
    left = before.left_behind()
    prctl.set_child_subreaper(False)
    shutil.rmtree(base)
    assert not left, "left behind: " + "; ".join(left)


@pytest.fixture(scope="module")
def daemon(bench: Bench) -> Iterator[Daemon]:
    """A daemon for the whole module."""
    with bench.daemon() as daemon:
        yield daemon


@pytest.fixture(scope="module")
def session(bench: Bench, daemon: Daemon) -> Iterator[Session]:
    """A Session for the whole module, with the probe as its Harness and as `probe` in its workspace."""
    session = bench.open(daemon)
    yield session
    session.close()


@pytest.fixture(scope="module")
def codex_session(bench: Bench, daemon: Daemon) -> Iterator[Session]:
    """As `session`, but the probe is taken for Codex."""
    session = bench.open_as_codex(daemon)
    yield session
    session.close()


@pytest.fixture(scope="module")
def warm(session: Session) -> None:
    """What a daemon makes once, it has made."""
    session.shell("true")


@pytest.fixture
def tidy(daemon: Daemon, warm: None) -> Iterator[None]:
    """Fails a test after which the module's daemon has other children or more descriptors than before."""
    children, descriptors = set(daemon.children()), daemon.descriptors()
    yield
    eventually(lambda: set(daemon.children()) == children, f"processes left: {daemon.children()}, before: {children}")
    eventually(lambda: daemon.descriptors() <= descriptors, f"{daemon.descriptors()} descriptors, before {descriptors}")
