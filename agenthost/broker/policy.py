"""Which command a shim's invocation becomes, or why it becomes none. Pure: no files, no sockets, no clock.

An invocation comes from inside the view, so nothing in it is believed: the result can only be a declared program, with
the declared variables and the environment's own. The path by which the shim was called decides; `argv[0]` is forwarded
as it is and means nothing here. The ids S.. are the clauses of contracts/shim.md.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from agenthost.declaration import View
from agenthost.layout import SHIM_DIR, ViewPath
from agenthost.wire import Command, CommandFlag, Invocation

UNABLE: Final = 126
"""Exit status of a command that is refused, as a shell says "found, but cannot run"."""

DESCRIPTORS: Final = 0b111
"""Descriptors 0 to 2: the bits that `Invocation.descriptors` may have."""

MAX_NICE: Final = 19


class Rule(enum.Enum):
    """What an invocation can be refused by. The value stands in the refusal's line."""

    PROGRAM = "program"  # S40: the path is neither a declared shim nor a declared shim path
    ARGUMENTS = "arguments"  # S41: there is no argv[0]
    DIRECTORY = "directory"  # S42: the working directory is not an absolute path
    DESCRIPTORS = "descriptors"  # S43: other descriptors than 0 to 2, or not those that came


@dataclass(frozen=True, slots=True)
class Program:
    """A declared program: `name` as the declaration has it, `run` as the environment finds it (path, or name)."""

    name: str
    run: str


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why an invocation becomes no command: one line, and the shim's exit status."""

    rule: Rule
    message: str
    status: int = UNABLE


@dataclass(frozen=True, slots=True)
class Policy:
    """What the commands of one Session may be.

    `programs` maps the canonical view path of each shim (what `/proc/self/exe` says there) to the program it stands
    for. `forward_env` are the names whose values come from the view; `environment` are the environment's own variables.
    """

    programs: Mapping[str, Program]
    forward_env: frozenset[str]
    environment: Mapping[str, str]
    _wanted: frozenset[bytes] = field(init=False, repr=False, compare=False)
    _own: tuple[bytes, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        own = tuple(_bytes(f"{name}={value}") for name, value in self.environment.items())
        wanted = frozenset(_bytes(name) for name in self.forward_env - self.environment.keys())
        # Once, and not for each command: every command of the Session waits for `decide`.
        object.__setattr__(self, "_own", own)
        object.__setattr__(self, "_wanted", wanted)

    @classmethod
    def of(cls, view: View, *, canonical: Callable[[ViewPath], ViewPath], environment: Mapping[str, str]) -> Policy:
        """The policy of a declaration.

        `canonical` tells where a shim path lies in the world once its links are resolved: `/bin/bash` is mounted over,
        and executed as, `/usr/bin/bash` where `/bin` is a link. A shim by name runs what the environment's `PATH` has
        under that name; a shim path runs that very path there.
        """
        programs = {f"{SHIM_DIR}/{name}": Program(name, name) for name in view.shims}
        programs |= {canonical(path): Program(path, path) for path in view.shim_paths}
        return cls(programs=programs, forward_env=frozenset(view.forward_env), environment=environment)

    def decide(self, invocation: Invocation, descriptors: int) -> Command | Refusal:
        """The command, with id 0 for the environment to replace. `descriptors` is how many came with the frame."""
        program = self.programs.get(invocation.executable.decode("utf-8", "surrogateescape"))
        if program is None:
            return self._undeclared(invocation.executable)
        if not invocation.argv:
            return Refusal(Rule.ARGUMENTS, _line(Rule.ARGUMENTS, "the invocation has no argv[0]"))
        if not invocation.cwd.startswith(b"/"):
            what = f"the working directory {shown(invocation.cwd)} is not an absolute path"
            return Refusal(Rule.DIRECTORY, _line(Rule.DIRECTORY, what))
        if invocation.descriptors & ~DESCRIPTORS or invocation.descriptors.bit_count() != descriptors:
            what = f"bits {invocation.descriptors:#x} came with {descriptors} descriptors"
            return Refusal(Rule.DESCRIPTORS, _line(Rule.DESCRIPTORS, what))
        return Command(
            id=0,
            descriptors=invocation.descriptors,
            umask=invocation.umask & 0o777,
            nice=min(max(invocation.nice, 0), MAX_NICE),  # S46: nobody in the view can raise a priority
            flags=invocation.flags & CommandFlag.TERMINAL | CommandFlag.CONNECTION,
            program=_bytes(program.run),
            cwd=invocation.cwd,
            argv=invocation.argv,
            env=self.command_environment(invocation.env),
        )

    def command_environment(self, env: Sequence[bytes]) -> tuple[bytes, ...]:
        """The declared variables that `env` has, each once, then the environment's own, which win.

        Of several entries with one name the first counts, as for getenv(3). An entry without `=` has no name.
        """
        forwarded: dict[bytes, bytes] = {}
        for entry in env:
            name, equals, _ = entry.partition(b"=")
            if equals and name in self._wanted:
                forwarded.setdefault(name, entry)
        return (*forwarded.values(), *self._own)

    def _undeclared(self, executable: bytes) -> Refusal:
        declared = ", ".join(sorted(program.name for program in self.programs.values())) or "nothing"
        what = f"{shown(executable)} is not a declared program (declared: {declared})"
        return Refusal(Rule.PROGRAM, _line(Rule.PROGRAM, what))


def shown(value: bytes) -> str:
    """`value` for a person to read: one line, without control characters, at most 256 characters."""
    text = value[:1024].decode("utf-8", "backslashreplace")
    text = "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)
    return text if len(text) <= 256 else f"{text[:255]}…"


def _bytes(value: str) -> bytes:
    return value.encode("utf-8", "surrogateescape")


def _line(rule: Rule, what: str) -> str:
    return f"refused by the rule '{rule.value}': {what}"
