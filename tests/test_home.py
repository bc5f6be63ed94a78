"""The Session home: what a Harness left in it neither redirects, nor blocks, nor steers the next launch."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from agenthost.errors import HomeUnsafe
from agenthost.home import Home
from tests.needs import needs

pytestmark = needs("linux")

KEEP = ("codex/sessions/[0-9]*/*/*.jsonl", "codex/*.keep", "tmp/**")


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    path = tmp_path / "outside"
    path.mkdir()
    (path / "config.toml").write_text("untouched")
    return path


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "home"


def entries(path: Path) -> list[str]:
    return sorted(entry.name for entry in path.iterdir())


def mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


@pytest.mark.parametrize("mask", [0o000, 0o022, 0o077, 0o777])
def test_codex_and_tmp_are_siblings_closed_to_everybody_else(path: Path, mask: int) -> None:
    before = os.umask(mask)
    try:
        home = Home.open(path)
    finally:
        os.umask(before)
    with home:
        assert entries(path) == ["codex", "tmp"]
        assert [mode(path), mode(path / "codex"), mode(path / "tmp")] == [0o700] * 3


@needs("root")
def test_the_home_belongs_to_the_session(path: Path) -> None:
    with Home.open(path, uid=61001, gid=61002) as home:
        home.write("codex/config.toml", b"x")
        home.mkdir("codex/sessions")
        for name in ("", "codex", "tmp", "codex/config.toml", "codex/sessions"):
            assert ((path / name).stat().st_uid, (path / name).stat().st_gid) == (61001, 61002)
        assert mode(path / "codex/config.toml") == 0o600


@needs("root")
def test_the_home_is_given_to_a_later_sessions_uid(path: Path) -> None:
    with Home.open(path, uid=61001, gid=61001) as home:
        home.mkdir("codex/sessions")
        home.write("codex/sessions/rollout", b"thread")
    with Home.open(path, uid=61002, gid=61002) as home:
        assert (path / "codex/sessions/rollout").stat().st_uid == 61002
        assert home.read("codex/sessions/rollout") == b"thread"


def test_a_link_planted_at_config_toml_is_replaced_never_followed(path: Path, outside: Path) -> None:
    with Home.open(path) as home:
        (path / "codex/config.toml").symlink_to(outside / "config.toml")
        home.write("codex/config.toml", b"ours")
        assert not (path / "codex/config.toml").is_symlink()
        assert home.read("codex/config.toml") == b"ours"
    assert (outside / "config.toml").read_text() == "untouched"


def test_an_append_through_a_planted_link_fails(path: Path, outside: Path) -> None:
    with Home.open(path) as home:
        (path / "codex/config.toml").symlink_to(outside / "config.toml")
        with pytest.raises(HomeUnsafe, match="symbolic link"):
            home.append("codex/config.toml", b"more")
    assert (outside / "config.toml").read_text() == "untouched"


def test_the_error_names_the_entry_the_reason_and_the_remedy(path: Path) -> None:
    with Home.open(path) as home:
        os.mkfifo(path / "codex/auth.json")
        with pytest.raises(HomeUnsafe) as caught:
            home.read("codex/auth.json")
    assert str(caught.value).startswith("home: codex/auth.json in the Session home is a FIFO, a socket or a device; ")


@pytest.mark.parametrize("name", ["codex", "tmp"])
def test_what_replaced_a_directory_of_the_home_is_replaced(path: Path, outside: Path, name: str) -> None:
    with Home.open(path) as home:
        (path / name).rmdir()
        (path / name).symlink_to(outside)
        with pytest.raises(HomeUnsafe):
            home.write(f"{name}/config.toml", b"x")
        home.prepare({f"{name}/made": b"x"}, ["**"])
        assert not (path / name).is_symlink()
        assert mode(path / name) == 0o700
    (path / name / "made").unlink()
    (path / name).rmdir()
    os.mkfifo(path / name)
    with Home.open(path):
        assert (path / name).is_dir()
    assert entries(outside) == ["config.toml"]


def test_a_home_that_is_itself_a_link_is_refused(path: Path, outside: Path) -> None:
    path.symlink_to(outside)
    with pytest.raises(HomeUnsafe, match="cannot be opened"):
        Home.open(path)
    assert entries(outside) == ["config.toml"]


def test_a_home_without_the_directory_above_it_is_refused(tmp_path: Path) -> None:
    with pytest.raises(HomeUnsafe, match="cannot be opened"):
        Home.open(tmp_path / "none" / "home")


def test_what_an_earlier_launch_left_is_removed_or_written_anew(path: Path, outside: Path) -> None:
    with Home.open(path) as home:
        for name in (".env", "auth.json", "environments.toml", "AGENTS.md", "AGENTS.override.md", "x.config.toml"):
            (path / "codex" / name).write_text("planted")
        for name in ("rules", "agents", "skills", "prompts"):
            (path / "codex" / name / "deep").mkdir(parents=True)
            (path / "codex" / name / "deep" / "link").symlink_to(outside)
        (path / "codex/config.toml").symlink_to(outside / "config.toml")
        (path / ".agents").mkdir()
        (path / "codex/sessions/2026/11").mkdir(parents=True)
        (path / "codex/sessions/2026/11/rollout.jsonl").write_text("thread")
        (path / "tmp/any/thing").mkdir(parents=True)
        (path / "codex/a.keep").write_text("kept")
        home.prepare({"codex/config.toml": b"ours"}, KEEP)
        assert home.names() == ["codex", "tmp"]
        assert home.names("codex") == ["a.keep", "config.toml", "sessions"]
        assert home.read("codex/config.toml") == b"ours"
        assert home.read("codex/sessions/2026/11/rollout.jsonl") == b"thread"
        assert home.names("tmp/any") == ["thing"]
    assert (outside / "config.toml").read_text() == "untouched"
    assert entries(outside) == ["config.toml"]


def test_a_kept_name_survives_only_as_what_it_must_be(path: Path, outside: Path) -> None:
    with Home.open(path) as home:
        (path / "codex/link.keep").symlink_to(outside / "config.toml")
        (path / "codex/hard.keep").hardlink_to(outside / "config.toml")
        os.mkfifo(path / "codex/fifo.keep")
        (path / "codex/sessions").symlink_to(outside)
        (path / "codex/directory.keep").mkdir()
        (path / "codex/plain.keep").write_text("x")
        (path / "codex/plain.keep").chmod(0)
        home.prepare({}, KEEP)
        assert mode(path / "codex/plain.keep") == 0o600
        assert home.names("codex") == ["plain.keep"]
    assert (outside / "config.toml").read_text() == "untouched"


def test_what_is_kept_holds_only_plain_files_and_directories(path: Path, outside: Path) -> None:
    with Home.open(path) as home:
        day = path / "codex/sessions/2026/11"
        day.mkdir(parents=True)
        (day / "rollout.jsonl").write_text("thread")
        os.mkfifo(day / "rollout-fifo.jsonl")
        (day / "link.jsonl").symlink_to(outside / "config.toml")
        (day / "hard.jsonl").hardlink_to(outside / "config.toml")
        (day / "directory.jsonl").mkdir()
        (day.parent / "12").symlink_to(outside)
        (day.parent / "13").write_text("a file")
        (day.parent / "10").mkdir()
        (day.parent / "10/closed.jsonl").write_text("thread")
        (day.parent / "10/closed.jsonl").chmod(0)
        (day.parent / "10").chmod(0)
        (day.parent / "09").mkdir(mode=0o555)
        deep = os.open(path / "codex/sessions", os.O_RDONLY)
        for _ in range(2500):
            os.mkdir("d", dir_fd=deep)
            below = os.open("d", os.O_RDONLY, dir_fd=deep)
            os.close(deep)
            deep = below
        os.close(deep)
        home.prepare({}, KEEP)
        assert home.names("codex/sessions") == ["2026"]
        assert home.names("codex/sessions/2026") == ["09", "10", "11"]
        assert home.names("codex/sessions/2026/11") == ["rollout.jsonl"]
        assert home.read("codex/sessions/2026/10/closed.jsonl") == b"thread"
        assert mode(day.parent / "09") == 0o700
        home.remove("codex/sessions")
    assert (outside / "config.toml").read_text() == "untouched"
    assert entries(outside) == ["config.toml"]


def test_a_plan_that_keeps_nothing_in_particular_removes_nothing(path: Path) -> None:
    with Home.open(path) as home:
        (path / "codex/state").write_text("x")
        (path / ".profile").write_text("x")
        home.prepare({}, ["**"])
        assert home.names("codex") == ["state"]
        assert home.names() == [".profile", "codex", "tmp"]


def test_what_is_made_empty_or_for_once_is_new(path: Path, outside: Path) -> None:
    with Home.open(path) as home:
        (path / "codex/rules").symlink_to(outside)
        (path / "codex/models.json").symlink_to(outside / "made")
        home.prepare({}, [], empty=["codex/rules", ".agents"], once={"codex/models.json": b"{}"})
        assert (home.names("codex/rules"), home.names(".agents")) == ([], [])
        assert mode(path / "codex/rules") == 0o700
        with pytest.raises(FileExistsError):
            home.prepare({}, ["codex/models.json"], once={"codex/models.json": b"{}"})
    assert entries(outside) == ["config.toml"]


def test_a_temporary_name_left_by_a_crash_goes(path: Path) -> None:
    with Home.open(path) as home:
        (path / "codex/.oac-0123.keep").write_text("half")
        home.prepare({}, KEEP)
        assert home.names("codex") == []


def test_create_is_exclusive_also_against_a_dangling_link(path: Path, outside: Path) -> None:
    with Home.open(path) as home:
        (path / "codex/models.json").symlink_to(outside / "made")
        with pytest.raises(FileExistsError):
            home.create("codex/models.json", b"{}")
        home.remove("codex/models.json")
        home.create("codex/models.json", b"{}")
        assert home.read("codex/models.json") == b"{}"
    assert entries(outside) == ["config.toml"]


def test_absence_is_no_danger(path: Path) -> None:
    with Home.open(path) as home:
        with pytest.raises(FileNotFoundError):
            home.read("codex/none")
        home.remove("codex/none")
