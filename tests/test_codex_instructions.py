"""The workspace's AGENTS.md reaches the plan as Codex would have read it, and nothing else does."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from agenthost.codex.instructions import LIMIT, workspace_instructions
from tests.needs import needs

pytestmark = needs("linux")


@pytest.fixture
def place(tmp_path: Path) -> Path:
    path = tmp_path / "place"
    path.mkdir()
    (tmp_path / "secret").write_text("secret")
    return path


def read_in(place: Path) -> bytes | None:
    fd = os.open(place, os.O_PATH | os.O_DIRECTORY)
    try:
        return workspace_instructions(fd)
    finally:
        os.close(fd)


def test_a_workspace_without_instructions_has_none(place: Path) -> None:
    (place.parent / "AGENTS.md").write_text("of the directory above")
    assert read_in(place) is None


def test_the_file_is_read_up_to_what_codex_reads(place: Path) -> None:
    (place / "AGENTS.md").write_bytes(b"x" * (LIMIT + 1))
    assert read_in(place) == b"x" * LIMIT


@pytest.mark.parametrize("override", [b"override", b"", b" \n"])
def test_the_override_comes_first_whatever_it_says(place: Path, override: bytes) -> None:
    (place / "AGENTS.md").write_bytes(b"plain")
    (place / "AGENTS.override.md").write_bytes(override)
    assert read_in(place) == override


def test_a_link_inside_the_workspace_is_followed(place: Path) -> None:
    (place / "docs").mkdir()
    (place / "docs" / "rules.md").write_text("rules")
    (place / "AGENTS.md").symlink_to("docs/rules.md")
    assert read_in(place) == b"rules"


@pytest.mark.parametrize("target", ["/etc/passwd", "../secret", "none", "AGENTS.override.md", "/proc/self/environ"])
def test_what_is_not_the_workspaces_is_not_read(place: Path, target: str) -> None:
    (place / "AGENTS.override.md").symlink_to(target)
    (place / "AGENTS.md").write_text("plain")
    assert read_in(place) == b"plain"


def test_nothing_but_a_file_is_read(place: Path) -> None:
    os.mkfifo(place / "AGENTS.override.md")
    (place / "AGENTS.md").mkdir()
    assert read_in(place) is None


@needs("root")
def test_a_file_that_is_closed_to_the_workspaces_owner_is_not_read(place: Path) -> None:
    os.chown(place, 61001, 61001)
    file = place / "AGENTS.md"
    file.write_text("root's own")
    file.chmod(0o600)
    assert read_in(place) is None
    file.chmod(0o644)
    assert read_in(place) == b"root's own"
    file.chmod(0o640)
    os.chown(file, 0, 61001)
    assert read_in(place) == b"root's own"
    os.chown(file, 61001, 0)
    file.chmod(0o200)
    assert read_in(place) is None
