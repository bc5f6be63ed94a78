"""The policy: what an invocation may become (contracts/shim.md, S40 to S49). No processes, no sockets."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agenthost.broker import Policy, Program, Refusal, Rule
from agenthost.broker.policy import shown
from agenthost.declaration import Mount, View
from agenthost.layout import ViewPath
from agenthost.wire import Command, CommandFlag, Invocation

ENVIRONMENT = {"HOME": "/home/agent", "PATH": "/usr/bin:/bin", "LANG": "C.UTF-8"}
POLICY = Policy(
    programs={"/.oac/bin/git": Program("git", "git"), "/usr/bin/bash": Program("/bin/bash", "/bin/bash")},
    forward_env=frozenset({"TERM", "LC_ALL", "LANG"}),
    environment=ENVIRONMENT,
)
BASH = Invocation(
    descriptors=7,
    umask=0o022,
    nice=0,
    flags=CommandFlag(0),
    executable=b"/usr/bin/bash",
    cwd=b"/work",
    argv=(b"bash", b"-c", b"true"),
    env=(),
)


def accepted(invocation: Invocation, descriptors: int = 3) -> Command:
    decision = POLICY.decide(invocation, descriptors)
    assert isinstance(decision, Command)
    return decision


def refused(invocation: Invocation, descriptors: int = 3) -> Refusal:
    decision = POLICY.decide(invocation, descriptors)
    assert isinstance(decision, Refusal)
    return decision


def test_a_declared_path_runs_its_program_as_it_was_called() -> None:
    own = (b"HOME=/home/agent", b"PATH=/usr/bin:/bin", b"LANG=C.UTF-8")
    assert accepted(BASH) == Command(
        id=0,
        descriptors=7,
        umask=0o022,
        nice=0,
        flags=CommandFlag.CONNECTION,
        program=b"/bin/bash",
        cwd=b"/work",
        argv=(b"bash", b"-c", b"true"),
        env=own,
    )


def test_a_shim_by_name_is_searched_in_the_environments_path() -> None:
    assert accepted(replace(BASH, executable=b"/.oac/bin/git")).program == b"git"


@pytest.mark.parametrize(
    "executable",
    [
        b"/bin/bash",
        b"bash",
        b"",
        b"/usr/bin/bash/",
        b"//usr/bin/bash",
        b"/usr/bin/../bin/bash",
        b"/usr/bin/sh",
        b"/\xff",
        b"/usr/bin/bash (deleted)",
        b"/.oac/bin/",
        b"/.oac/bin/git\n",
        b"/.OAC/bin/git",
    ],
)
def test_every_other_path_is_refused_by_the_rule_program(executable: bytes) -> None:
    refusal = refused(replace(BASH, executable=executable))
    assert (refusal.rule, refusal.status) == (Rule.PROGRAM, 126)
    assert refusal.message.startswith("refused by the rule 'program': ")
    assert refusal.message.endswith("is not a declared program (declared: /bin/bash, git)")
    assert "\n" not in refusal.message


def test_argv0_decides_nothing() -> None:
    assert accepted(replace(BASH, argv=(b"/.oac/bin/git",))).program == b"/bin/bash"
    assert accepted(replace(BASH, argv=(b"\xff",))).argv == (b"\xff",)
    assert refused(replace(BASH, executable=b"/usr/bin/env", argv=(b"/usr/bin/bash",))).rule is Rule.PROGRAM


def test_an_invocation_without_argv0_is_refused() -> None:
    assert refused(replace(BASH, argv=())).rule is Rule.ARGUMENTS
    assert accepted(replace(BASH, argv=(b"",))).argv == (b"",)


@pytest.mark.parametrize("cwd", [b"", b"work", b"./work", b"\xff"])
def test_a_working_directory_that_is_not_absolute_is_refused(cwd: bytes) -> None:
    assert refused(replace(BASH, cwd=cwd)).rule is Rule.DIRECTORY


@pytest.mark.parametrize("cwd", [b"/", b"/work/\xff\xfe", b"/work/../etc", b"/a\nb"])
def test_an_absolute_working_directory_passes_unchanged(cwd: bytes) -> None:
    assert accepted(replace(BASH, cwd=cwd)).cwd == cwd


@pytest.mark.parametrize(("bits", "count"), [(7, 2), (0, 1), (8, 1), (15, 4), (1 << 31, 1), (0xFFFFFFFF, 32), (1, 3)])
def test_descriptors_that_do_not_fit_what_is_said_are_refused(bits: int, count: int) -> None:
    assert refused(replace(BASH, descriptors=bits), count).rule is Rule.DESCRIPTORS


@pytest.mark.parametrize("bits", range(8))
def test_any_of_the_three_descriptors_may_be_closed(bits: int) -> None:
    assert accepted(replace(BASH, descriptors=bits), bits.bit_count()).descriptors == bits


def test_only_the_terminal_flag_can_come_from_the_view() -> None:
    every = CommandFlag(0xFFFFFFFF)
    assert accepted(replace(BASH, flags=every)).flags == CommandFlag.TERMINAL | CommandFlag.CONNECTION
    assert accepted(replace(BASH, flags=CommandFlag.MAIN)).flags == CommandFlag.CONNECTION


@pytest.mark.parametrize(("asked", "given"), [(-20, 0), (-1, 0), (0, 0), (7, 7), (19, 19), (1 << 30, 19)])
def test_a_priority_can_be_lowered_only(asked: int, given: int) -> None:
    assert accepted(replace(BASH, nice=asked)).nice == given


def test_the_umask_has_permission_bits_only() -> None:
    assert accepted(replace(BASH, umask=0xFFFFFFFF)).umask == 0o777


def test_only_declared_variables_are_forwarded_and_the_environments_own_win() -> None:
    env = (b"PATH=/evil", b"TERM=dumb", b"LD_PRELOAD=/evil", b"LANG=evil", b"TERMINAL=x", b"TER=x", b"term=x", b"HOME=")
    assert POLICY.command_environment(env) == (
        b"TERM=dumb",
        b"HOME=/home/agent",
        b"PATH=/usr/bin:/bin",
        b"LANG=C.UTF-8",
    )


def test_the_first_entry_of_a_name_counts_and_one_without_equals_is_none() -> None:
    env = (b"TERM", b"TERM=", b"TERM=second", b"LC_ALL=a=b\n\xff", b"=TERM", b"")
    assert POLICY.command_environment(env)[:2] == (b"TERM=", b"LC_ALL=a=b\n\xff")
    assert len(POLICY.command_environment(env)) == 2 + len(ENVIRONMENT)


def test_an_environment_may_hold_what_is_not_utf8() -> None:
    policy = replace(POLICY, environment={"HOME": "/home/\udcff"})
    assert policy.command_environment(()) == (b"HOME=/home/\xff",)


def test_a_declaration_gives_the_policy() -> None:
    view = View(
        closure=(Mount(Path("/opt/codex"), "codex"),),
        local_exec=(ViewPath("/.oac/codex/codex"),),
        shims=("git",),
        shim_paths=(ViewPath("/bin/bash"), ViewPath("/opt/sh")),
        forward_env=("TERM", "LC_ALL", "LANG"),
    )
    links = {"/bin/bash": "/usr/bin/bash"}
    policy = Policy.of(view, canonical=lambda path: ViewPath(links.get(path, path)), environment=ENVIRONMENT)
    assert policy.programs == {**POLICY.programs, "/opt/sh": Program("/opt/sh", "/opt/sh")}
    assert (policy.forward_env, policy.environment) == (POLICY.forward_env, ENVIRONMENT)


strings = st.binary(max_size=20).map(lambda value: value.replace(b"\0", b""))
invocations = st.builds(
    Invocation,
    descriptors=st.integers(0, 9),
    umask=st.integers(0, 0xFFFFFFFF),
    nice=st.integers(-(1 << 31), (1 << 31) - 1),
    flags=st.integers(0, 0xFFFFFFFF).map(CommandFlag),
    executable=st.sampled_from([b"/usr/bin/bash", b"/.oac/bin/git", b"/bin/sh"]) | strings,
    cwd=st.sampled_from([b"/", b"/work"]) | strings,
    argv=st.lists(strings, max_size=3).map(tuple),
    env=st.lists(strings | st.sampled_from([b"TERM=a", b"PATH=/x", b"LANG=b"]), max_size=5).map(tuple),
)


@given(invocation=invocations, descriptors=st.integers(0, 4))
def test_whatever_comes_is_refused_in_one_line_or_stays_within_the_declaration(
    invocation: Invocation, descriptors: int
) -> None:
    decision = POLICY.decide(invocation, descriptors)
    if isinstance(decision, Refusal):
        assert decision.message.isprintable()
        return
    assert decision.program in {b"git", b"/bin/bash"}
    assert decision.flags & ~CommandFlag.TERMINAL == CommandFlag.CONNECTION
    assert decision.descriptors.bit_count() == descriptors <= 3
    assert 0 <= decision.nice <= 19
    names = [entry.partition(b"=")[0] for entry in decision.env]
    assert len(set(names)) == len(names)
    assert set(names) <= {b"TERM", b"LC_ALL", b"LANG", b"HOME", b"PATH"}


@given(st.binary(max_size=2000))
def test_what_is_shown_is_one_short_printable_line(value: bytes) -> None:
    assert shown(value).isprintable()
    assert len(shown(value)) <= 256
