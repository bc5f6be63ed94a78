"""Racers against everything that the daemon does in home and workspace."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from agenthost.errors import HomeUnsafe
from agenthost.home import Home
from tests.needs import UNPRIVILEGED_UID, as_unprivileged, needs
from tests.view.rig import ENV, Bench, Daemon, Session

HOME = "/.oac/home"
IN_HOME = (
    "codex/config.toml",
    "codex/auth.json",
    "codex/AGENTS.md",
    "codex/rules",
    "codex/new",
    "tmp",
    "codex/sessions",
)
SECRET = "a secret of the host"


@pytest.fixture
def target(bench: Bench) -> Iterator[Path]:
    """A file of the host that links lead to: what follows one reads it, or changes it."""
    directory = bench.directory("target", owner=0)
    file = directory / "file"
    file.write_text(SECRET)
    file.chmod(0o644)
    before = state_of(directory)
    yield file
    assert state_of(directory) == before


def state_of(directory: Path) -> list[tuple[object, ...]]:
    found = [(path, path.lstat()) for path in (directory, *directory.rglob("*"))]
    return [(path, s.st_mode, s.st_uid, s.st_gid, s.st_nlink, s.st_size, s.st_mtime_ns) for path, s in found]


@pytest.fixture
def session(bench: Bench, daemon: Daemon) -> Iterator[Session]:
    session = bench.open_as_codex(daemon)
    yield session
    session.close()


def test_the_homes_descriptor_in_the_environment_plants_nothing(session: Session, rounds: int) -> None:
    """The shim carries it there as stdin; a process keeps it when the view is gone, and writes the configuration."""
    program = str(session.workspace / "probe")
    session.run(["exec-with-directory", f"{HOME}/codex", ENV, program, "keep-directory", "config.toml"])
    for _ in range(rounds):
        result = session.run(["cat", f"{HOME}/codex/config.toml"])
        assert "127.0.0.1:17101" in result[f"cat {HOME}/codex/config.toml"]


def test_a_descriptor_of_an_earlier_home_plants_nothing_in_a_later_view(session: Session) -> None:
    """From view to environment, which keeps it, and back into the next view, past what is mounted there."""
    program = str(session.workspace / "probe")
    keep = ["exec-with-directory", f"{HOME}/codex", ENV, program, "offer-directory", "/tmp/offer"]
    session.run(keep)
    result = session.run(["use-received", "/tmp/offer", "config.toml"], ["cat", f"{HOME}/codex/config.toml"])
    held = {name: value for name, value in result.facts if name.startswith("held ")}
    assert held == {
        "held create": "!EACCES",
        "held replace": "!ENOENT",
        "held write": held["held write"],
        "held link": "!EACCES",
        "held directory": "!EACCES",
        "held remove": "!EACCES",
    }
    assert held["held write"] in {"!EACCES", "!EROFS"}
    assert "127.0.0.1:17101" in result[f"cat {HOME}/codex/config.toml"]


def test_a_racer_in_the_view_against_launches(session: Session, target: Path, rounds: int) -> None:
    """Each launch ends in the middle of the race, and the next one prepares what it left."""
    names = [f"{HOME}/{name}" for name in IN_HOME]
    for _ in range(rounds):
        running = session.start(["race", str(target), *names])
        running.until("race=begun")
        running.stop()
        running.wait()
    result = session.run(["cat", f"{HOME}/codex/config.toml"])
    assert "127.0.0.1:17101" in result[f"cat {HOME}/codex/config.toml"]


def test_a_racer_in_the_workspace_against_the_reading_of_its_instructions(
    session: Session, target: Path, rounds: int
) -> None:
    """It lives through the launches: links out, FIFOs and directories take the place of AGENTS.md all the time."""
    names = [str(session.workspace / name) for name in ("AGENTS.md", "AGENTS.override.md")]
    assert session.command(["leave-racer", str(target), *names]).status == 0
    for _ in range(rounds):
        result = session.run(["cat", f"{HOME}/codex/AGENTS.md"])
        assert SECRET not in result.stdout


@contextmanager
def racing(probe: Path, directory: Path, target: Path, *names: str) -> Iterator[None]:
    command = as_unprivileged([str(probe), "race", str(target), *names])
    racer = subprocess.Popen(command, cwd=directory, stdout=subprocess.PIPE, env={})
    assert racer.stdout is not None
    try:
        assert racer.stdout.readline() == b"race=begun\n"
        yield
    finally:
        racer.kill()
        racer.stdout.close()
        racer.wait()


@needs("root")
def test_a_racer_against_all_that_the_daemon_does_in_a_home(probe_binary: Path, open_dir: Path, rounds: int) -> None:
    """Stronger than what a view can do: no view of the Session lives while the daemon prepares its home."""
    target = open_dir / "target"
    target.mkdir()
    (target / "file").write_text(SECRET)
    before = state_of(target)
    path = open_dir / "home"
    with Home.open(path, uid=UNPRIVILEGED_UID, gid=UNPRIVILEGED_UID) as home:
        with racing(probe_binary, path, target / "file", *IN_HOME):
            refused = sum(_all_of_it(home) for _ in range(rounds))
        home.prepare({"codex/config.toml": b"ours"}, ["codex/sessions/**"], empty=["codex/rules"])
        assert home.read("codex/config.toml") == b"ours"
        assert home.names("codex/rules") == []
    assert refused <= rounds
    assert state_of(target) == before


def _all_of_it(home: Home) -> bool:
    """Whether it was refused."""
    try:
        home.prepare(
            {"codex/config.toml": b"ours", "codex/AGENTS.md": b"ours"},
            ["codex/sessions/**"],
            empty=["codex/rules"],
            once={"codex/once": b"ours"},
        )
        with suppress(FileNotFoundError):
            assert SECRET.encode() not in home.read("codex/config.toml")
        home.remove("codex/once")
    except (HomeUnsafe, FileExistsError, FileNotFoundError):
        with suppress(HomeUnsafe):
            home.remove("codex/once")
        return True
    return False
