"""`agenthost sessions`: contracts/launch.md, L94 and on."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import pytest

from agenthost.layout import StateLayout
from agenthost.state import lock_session
from tests.needs import ROOT, as_unprivileged, needs
from tests.test_state import TEMPORARY, everything, make_session, plant_deep

pytestmark = needs("linux")

STARTED: Final = {"ts": "2026-01-31T12:00:00.000Z", "type": "view.started"}


@pytest.fixture
def made(tmp_path: Path) -> StateLayout:
    """Of an empty state directory."""
    layout = StateLayout(tmp_path / "state")
    for directory in (layout.root, layout.attach, layout.sessions):
        directory.mkdir(mode=0o700)
    return layout


def sessions(layout: StateLayout, name: str, *arguments: str, status: int = 0, error: str = "") -> str:
    command = [sys.executable, "-m", "agenthost", "sessions", name, "--state-dir", str(layout.root), *arguments]
    environment = {"PATH": "/usr/bin:/bin", "HOME": "/nowhere", "PYTHONPATH": str(ROOT), "LC_ALL": "C.UTF-8"}
    process = subprocess.run(command, env=environment, capture_output=True, check=False, timeout=60)
    assert process.returncode == status, process.stderr.decode()
    assert process.stderr.decode().startswith(error)
    assert bool(process.stderr) == bool(error)
    return process.stdout.decode()


def tell(directory: Path, *events: Mapping[str, Any]) -> None:
    (directory / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))


class TestList:
    def test_no_state_directory_is_no_sessions_and_makes_none(self, tmp_path: Path) -> None:
        layout = StateLayout(tmp_path / "none")
        assert sessions(layout, "list") == "no Sessions\n"
        assert json.loads(sessions(layout, "list", "--json")) == {"sessions": []}
        assert everything(tmp_path) == []

    @pytest.mark.parametrize(
        ("events", "end"),
        [
            ([], None),
            ([STARTED, {"type": "view.exited", "status": 3}], 3),
            ([STARTED, {"type": "view.exited", "status": None}], "failed"),
            ([STARTED], "cut off"),
            ([{"type": "view.exited", "status": 3}, STARTED, {"type": "session.recovered"}], "cut off"),
        ],
    )
    def test_it_says_how_the_last_launch_ended(
        self, made: StateLayout, events: list[dict[str, Any]], end: object
    ) -> None:
        tell(make_session(made, "one"), *events)
        [one] = json.loads(sessions(made, "list", "--json"))["sessions"]
        assert (one["id"], one["workspace"], one["open"], one["end"]) == ("one", "/srv/project", False, end)
        assert one["last_launch"] == (STARTED["ts"] if events else None)

    def test_an_open_session_is_open_and_looking_does_not_disturb_it(self, made: StateLayout) -> None:
        tell(make_session(made, "one"), STARTED)
        lock = lock_session(made, "one")
        [one] = json.loads(sessions(made, "list", "--json"))["sessions"]
        assert (one["open"], one["end"]) == (True, "open")
        os.close(lock)

    def test_people_get_a_line_each_and_nothing_in_it_commands_the_terminal(self, made: StateLayout) -> None:
        directory = make_session(made, "one")
        record = json.loads((directory / "session.json").read_text())
        (directory / "session.json").write_text(json.dumps({**record, "workspace": "/srv/\x1b[2Jx"}))
        make_session(made, "two")
        lines = sessions(made, "list").splitlines()
        assert [line.split()[0] for line in lines] == ["ID", "one", "two"]
        assert lines[1].endswith("/srv/\\x1b[2Jx")

    def test_what_is_no_session_is_not_listed_and_a_broken_record_is_said(
        self, made: StateLayout, tmp_path: Path
    ) -> None:
        made.session("link").symlink_to(tmp_path)
        (made.sessions / "file").touch()
        (made.sessions / TEMPORARY).mkdir()
        (make_session(made, "broken") / "session.json").write_text("{")
        (make_session(made, "torn") / "events.jsonl").write_bytes(b'\xff\xfe\n[1]\n{"type"')
        found = {one["id"]: one["problem"] for one in json.loads(sessions(made, "list", "--json"))["sessions"]}
        assert found == {"broken": "the record of Session broken cannot be read", "torn": None}

    def test_the_size_is_the_homes_alone_and_bounded(self, made: StateLayout, tmp_path: Path) -> None:
        home = make_session(made, "one") / "home"
        (home / "file").write_bytes(b"x" * 1_000_000)
        os.link(home / "file", home / "again")
        (tmp_path / "large").write_bytes(b"x" * 3_000_000)
        (home / "out").symlink_to(tmp_path)
        os.mkfifo(home / "fifo")
        [one] = json.loads(sessions(made, "list", "--json"))["sessions"]
        assert 1_000_000 <= one["home"]["bytes"] < 1_100_000
        assert one["home"]["complete"]
        plant_deep(home, 1000)
        [one] = json.loads(sessions(made, "list", "--json"))["sessions"]
        assert not one["home"]["complete"]
        assert "over 1." in sessions(made, "list")
        sessions(made, "remove", "one")  # no recursion removes it


class TestShow:
    def test_record_events_and_the_top_of_the_home(self, made: StateLayout) -> None:
        directory = make_session(made, "one")
        requests = [{"ts": f"2026-01-31T12:00:{n:02}.000Z", "type": "model.request", "n": n} for n in range(30)]
        tell(directory, STARTED, *requests, {"ts": "later", "type": "view.exited", "status": 0})
        (directory / "home" / "codex" / "config.toml").write_text("x = 1\n")
        shown = json.loads(sessions(made, "show", "--json", "one"))
        assert shown["events"]["counts"] == {"view.started": 1, "model.request": 30, "view.exited": 1}
        assert [event["type"] for event in shown["events"]["last"]][-2:] == ["model.request", "view.exited"]
        assert len(shown["events"]["last"]) == 10
        assert shown["home_listing"] == [
            {"name": "codex", "kind": "directory", "bytes": shown["home_listing"][0]["bytes"]},
            {"name": "codex/config.toml", "kind": "file", "bytes": 6},
            {"name": "codex/sessions", "kind": "directory", "bytes": shown["home_listing"][2]["bytes"]},
            {"name": "tmp", "kind": "directory", "bytes": shown["home_listing"][3]["bytes"]},
        ]
        text = sessions(made, "show", "one")
        assert "model.request 30, view.exited 1, view.started 1" in text
        assert "codex/config.toml  (file, 6 bytes)" in text

    @pytest.mark.parametrize("name", ["none", "../sessions", "file"])
    def test_an_unknown_one_is_an_error(self, made: StateLayout, name: str) -> None:
        (made.sessions / "file").touch()
        sessions(made, "show", name, status=125, error="agenthost: request: no Session")

    def test_a_link_in_place_of_the_home_is_not_followed(self, made: StateLayout, tmp_path: Path) -> None:
        directory = make_session(made, "one")
        (directory / "home").rename(tmp_path / "elsewhere")
        (directory / "home").symlink_to(tmp_path / "elsewhere")
        assert json.loads(sessions(made, "show", "--json", "one"))["home_listing"] == []


class TestRemove:
    def test_sessions_go_and_an_open_one_keeps_all(self, made: StateLayout) -> None:
        for name in ("one", "two", "three"):
            make_session(made, name)
        lock = lock_session(made, "two")
        error = "agenthost: state: Session two is open elsewhere"
        sessions(made, "remove", "one", "two", status=125, error=error)
        assert len(list(made.sessions.iterdir())) == 3
        os.close(lock)
        assert sessions(made, "remove", "one", "two") == ""
        assert [path.name for path in made.sessions.iterdir()] == ["three"]

    @needs("setpriv")
    def test_a_user_without_privileges_removes_a_home_that_closes_itself(
        self, open_dir: Path, rootless_python: Path
    ) -> None:
        """5,000 levels, each closed to its owner: only root could look into them as they are."""
        layout = StateLayout(open_dir / "state")
        for directory in (layout.root, layout.sessions):
            directory.mkdir(mode=0o700)
        home = make_session(layout, "deep") / "home"
        plant_deep(home, 5000)
        give(layout.root, 61001)
        command = [str(rootless_python), "-m", "agenthost", "sessions", "remove", "--state-dir", str(layout.root)]
        done = subprocess.run(
            as_unprivileged([*command, "deep"]), cwd="/", env={"PATH": "/usr/bin"}, capture_output=True, check=False
        )
        assert (done.returncode, done.stderr) == (0, b"")
        assert list(layout.sessions.iterdir()) == []


class TestGc:
    def test_it_says_what_it_did_and_a_dry_run_what_it_would_do(self, made: StateLayout) -> None:
        make_session(made, "cut", opened=True)
        make_session(made, "old")
        made.session("half-made").mkdir()
        (made.sessions / "note").touch()
        would = sessions(made, "gc", "--dry-run", "--older-than", "0")
        assert len(list(made.sessions.iterdir())) == 4
        did = sessions(made, "gc", "--older-than", "0")
        lines = [line for line in did.splitlines() if not line.startswith("uid ")]
        assert lines[:3] == [
            "sessions/cut: a Session whose daemon has ended: settled",
            "sessions/half-made: a Session that was not made yet: removed",
            "sessions/note: not what agenthost puts there: left alone",
        ]
        assert sorted(lines[3:]) == [f"sessions/{name}: unused for 0 days: removed" for name in ("cut", "old")]
        assert would.splitlines()[0] == "sessions/cut: a Session whose daemon has ended: would be settled"
        assert [path.name for path in made.sessions.iterdir()] == ["note"]

    def test_nothing_to_do_is_said(self, made: StateLayout) -> None:
        sessions(made, "gc")  # leases of others that ended
        make_session(made, "one")
        assert json.loads(sessions(made, "gc", "--json", "--dry-run")) == {"dry_run": True, "findings": []}
        assert sessions(made, "gc", "--dry-run") == "nothing to do\n"
        assert made.session("one").exists()


@pytest.mark.parametrize(
    "arguments", [(), ("destroy",), ("list", "--yaml"), ("show",), ("remove",), ("gc", "--older-than", "soon")]
)
def test_a_wrong_command_line_is_a_usage_error(arguments: tuple[str, ...], tmp_path: Path) -> None:
    command = [sys.executable, "-m", "agenthost", "sessions", *arguments]
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "PYTHONPATH": str(ROOT)}
    process = subprocess.run(command, env=environment, capture_output=True, check=False, timeout=60)
    assert (process.returncode, process.stdout) == (2, b"")
    assert process.stderr.startswith(b"agenthost: usage: ")
    assert everything(tmp_path) == []


def give(directory: Path, uid: int) -> None:
    """A whole tree of any depth, by descriptor, to another owner."""
    if os.geteuid() != 0:
        return
    todo = [os.open(directory, os.O_RDONLY | os.O_DIRECTORY)]
    while todo:
        here = todo.pop()
        os.fchown(here, uid, uid)
        for entry in os.scandir(here):
            if entry.is_dir(follow_symlinks=False):
                todo.append(os.open(entry.name, os.O_RDONLY | os.O_DIRECTORY, dir_fd=here))
            else:
                os.chown(entry.name, uid, uid, dir_fd=here, follow_symlinks=False)
        os.close(here)
