"""The one door: `make` and the scripts behind it, in directories whose names are awkward."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.needs import ROOT, needs

AWKWARD = 'it\'s a "place" for $HOME & more'


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A copy of what `make` needs, in an awkward place."""
    place = tmp_path / AWKWARD
    for folder in ("scripts", "shims"):
        shutil.copytree(ROOT / folder, place / folder)
    shutil.copy(ROOT / "Makefile", place)
    return place


@needs("make")
def test_help_is_the_default_and_names_every_target(clone: Path) -> None:
    shown = subprocess.run(["make"], cwd=clone, check=True, capture_output=True, text=True).stdout
    phony = re.search(r"^\.PHONY: (.*)$", (clone / "Makefile").read_text(), flags=re.MULTILINE)
    assert phony is not None
    assert re.findall(r"^  make (\w+) ", shown, flags=re.MULTILINE) == phony[1].split()


@needs("linux", "make", "compiler")
@pytest.mark.slow
def test_the_programs_are_built_where_the_path_is_awkward(clone: Path) -> None:
    subprocess.run(["make", "shims"], cwd=clone, check=True)
    programs = [clone / "agenthost" / "bin" / name for name in ("oac-shim", "oac-init", "oac-attack")]
    assert [oct(program.stat().st_mode & 0o777) for program in programs] == ["0o755"] * len(programs)
    times = [program.stat().st_mtime_ns for program in programs]
    subprocess.run(["make", "shims"], cwd=clone, check=True)
    assert [program.stat().st_mtime_ns for program in programs] == times, "built again although nothing changed"


@needs("git")
def test_the_demo_workspace_is_a_clean_repository(tmp_path: Path) -> None:
    workspace = tmp_path / AWKWARD / "workspace"
    subprocess.run([str(ROOT / "scripts" / "demo-workspace.sh"), str(workspace)], check=True)
    command = ["git", "status", "--porcelain", "--branch"]
    status = subprocess.run(command, cwd=workspace, check=True, capture_output=True, text=True)
    assert status.stdout == "## main\n"
