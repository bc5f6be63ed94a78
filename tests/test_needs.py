"""The suite's own rule: what is missing is said, and nothing passes by not running."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.needs import CATALOGUE, ROOT, needs

SUITE = """
import pytest
from tests import needs as catalogue

catalogue.CATALOGUE["a-unicorn"] = lambda: "there is no unicorn here"

@catalogue.needs("a-unicorn")
def test_it_runs():
    raise AssertionError("it ran")

@pytest.fixture
def unicorn():
    catalogue.require("a-unicorn")

def test_its_fixture_runs(unicorn):
    raise AssertionError("it ran")
"""


def outcome(directory: Path, must_work: str, suite: str = SUITE) -> str:
    """The report of a suite with one test for a need, and one for a fixture's, that this machine lacks."""
    (directory / "conftest.py").write_text(
        "from tests.conftest import pytest_runtest_setup\n__all__ = ['pytest_runtest_setup']"
    )
    (directory / "pytest.ini").write_text("[pytest]\nmarkers = needs")
    (directory / "test_unicorn.py").write_text(suite)
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-ra",
        "-p",
        "no:cacheprovider",
        "--rootdir",
        str(directory),
        str(directory),
    ]
    environment = {"PYTHONPATH": str(ROOT), "AGENTHOST_MUST_WORK": must_work, "PATH": "/usr/bin:/bin"}
    return subprocess.run(command, cwd=directory, env=environment, capture_output=True, text=True, check=False).stdout


def test_a_missing_need_skips_the_test_and_says_why(tmp_path: Path) -> None:
    report = outcome(tmp_path, must_work="0")
    assert "2 skipped" in report
    assert "there is no unicorn here" in report


def test_a_missing_need_fails_the_test_where_everything_must_work(tmp_path: Path) -> None:
    report = outcome(tmp_path, must_work="1")
    assert "passed" not in report
    assert "skipped" not in report
    assert "AGENTHOST_MUST_WORK=1 and there is no unicorn here" in report
    assert "it ran" not in report


def test_what_no_package_brings_may_be_lacking_even_there(tmp_path: Path) -> None:
    report = outcome(tmp_path, must_work="1", suite=f"{SUITE}\ncatalogue.MAY_LACK.add('a-unicorn')\n")
    assert "2 skipped" in report
    assert "there is no unicorn here" in report


def test_a_need_that_nobody_knows_is_an_error() -> None:
    with pytest.raises(ValueError, match="no such need: rot"):
        needs("rot")


def test_every_need_can_be_looked_for() -> None:
    assert all(reason is None or " " in reason for reason in (check() for check in CATALOGUE.values()))
