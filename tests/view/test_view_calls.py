"""Which system calls fail in a view and in an environment, and with which errno; what must work beside them does."""

from __future__ import annotations

import subprocess

import pytest

from agenthost.attack.catalogue import CATALOGUE, Mode, Place, cases
from tests.needs import UNPRIVILEGED_UID, as_unprivileged
from tests.view.rig import Bench, Result, Session

pytestmark = pytest.mark.usefixtures("tidy")

SIBLINGS = (
    "clone_plain",
    "unshare_files",
    "chmod_plain",
    "make_fifo",
    "memfd_sealed",
    "map_anonymous",
    "terminal_size",
)
"""What must work beside what must not: as above, but harmless."""

SOCKETS = ("socket_unix", "socket_inet", "socket_inet6", "socket_netlink")


def wanted(session: Session, place: Place) -> dict[str, str]:
    """The catalogue's outcomes of every attempt that the program knows, and the siblings'."""
    mode: Mode = "root" if session.daemon.mode.root else "rootless"
    facts = {attack.fact: outcome for attack, at, outcome in cases(mode) if at == place}
    named = {fact.removeprefix("try "): outcome for fact, outcome in facts.items() if fact.startswith("try ")}
    # To ask for the personality (0xffffffff) has the bit of READ_IMPLIES_EXEC too.
    return (
        named | dict.fromkeys((*SIBLINGS, *SOCKETS), "ok") | {"ask_personality": "EPERM" if place == "view" else "ok"}
    )


def as_wanted(tried: dict[str, str], wanted: dict[str, str]) -> dict[str, str]:
    """What was found, but the catalogue's word where several outcomes are right."""
    return {name: wanted[name] if found in wanted.get(name, "").split("|") else found for name, found in tried.items()}


def test_in_a_view(session: Session) -> None:
    expected = wanted(session, "view")
    assert as_wanted(session.run(["cd", "/tmp"], ["try"]).tried(), expected) == expected


def test_in_an_environment(session: Session) -> None:
    expected = wanted(session, "environment")
    assert as_wanted(session.command(["cd", "/tmp"], ["try"]).tried(), expected) == expected


@pytest.mark.parametrize("name", [attack.fact.removeprefix("try ") for attack in CATALOGUE if attack.control])
def test_the_attempt_succeeds_where_nothing_forbids_it(bench: Bench, name: str) -> None:
    directory = bench.directory("outside", owner=UNPRIVILEGED_UID)
    command = as_unprivileged([str(bench.probe), "try", name])
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=directory, env={})
    assert Result(0, done.stdout, done.stderr).tried() == {name: "ok"}
