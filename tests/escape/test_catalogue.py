"""Every attack of the catalogue has the outcome it must have, in view and environment, as root and rootless."""

from __future__ import annotations

import json
import re
import subprocess
from collections import Counter
from pathlib import Path

import pytest

from agenthost.attack.catalogue import CATALOGUE, cases
from tests.needs import ROOT, as_unprivileged, needs
from tests.view.rig import Bench

MANY = 80
"""At least as many attacks."""

CASES = [(attack.id, place) for attack, place, _ in cases("root")]

Outcomes = dict[tuple[str, str], tuple[str, str, bool]]


def run_catalogue(bench: Bench, *only: str) -> Outcomes:
    command = [str(bench.mode.python), "-m", "agenthost.attack", *only]
    done = subprocess.run(
        command if bench.mode.root else as_unprivileged(command),
        capture_output=True,
        env=bench.mode.environment,
        cwd="/",
        check=False,
    )
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert lines, done.stderr.decode()
    return {(line["id"], line["place"]): (line["found"], line["expected"], line["held"]) for line in lines}


@pytest.fixture(scope="module")
def outcomes(bench: Bench) -> Outcomes:
    return run_catalogue(bench)


@pytest.mark.parametrize(("attack", "place"), CASES, ids=[f"{attack}-{place}" for attack, place in CASES])
def test_it_has_the_outcome_that_it_must_have(outcomes: Outcomes, attack: str, place: str) -> None:
    found, expected, held = outcomes[attack, place]
    assert held, f"{found} instead of {expected}"


def test_it_is_tried_whole_in_both_modes(outcomes: Outcomes) -> None:
    assert set(outcomes) == set(CASES) == {(attack.id, place) for attack, place, _ in cases("rootless")}


def test_one_attack_can_be_tried_alone(bench: Bench) -> None:
    assert set(run_catalogue(bench, "host-secret")) == {("host-secret", "view"), ("host-secret", "environment")}


class TestTheTable:
    def test_there_are_many_and_each_has_a_name_of_its_own(self) -> None:
        names = Counter(attack.id for attack in CATALOGUE)
        assert len(names) >= MANY
        assert [name for name, count in names.items() if count > 1] == []

    def test_each_says_what_it_tries_and_where(self) -> None:
        for attack in CATALOGUE:
            assert re.fullmatch(r"[a-z0-9-]+", attack.id)
            assert attack.tries
            assert attack.view is not None or attack.environment is not None

    def test_what_security_md_names_is_in_it(self) -> None:
        text = (ROOT / "SECURITY.md").read_text()
        named = {name for line in re.findall(r"\[attacks: ([^\]]*)\]", text) for name in line.split(", ")}
        known = {attack.id for attack in CATALOGUE}
        groups = {attack.group for attack in CATALOGUE}
        assert named
        assert sorted(named - known - groups) == []
        assert sorted(groups - named) == []


@needs("root", "compiler")
def test_the_program_refuses_to_run_with_privileges(shim_build: Path, tmp_path: Path) -> None:
    """By mistake as root outside a view it would do real harm."""
    done = subprocess.run(
        [shim_build / "oac-attack", "write", str(tmp_path / "x"), "x"], capture_output=True, check=False, env={}
    )
    assert (done.returncode, done.stdout) == (99, b"")
    assert done.stderr == b"oac-attack: refuses to run with capabilities\n"
    assert list(tmp_path.iterdir()) == []
