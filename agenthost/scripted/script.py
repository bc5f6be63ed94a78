"""The script: what the model does, one step a request. A file is JSON, read strictly.

{"steps": [STEP, ...]}        STEP is one of the below, each with an optional "delay_ms"

{"shell": "cmd"}              runs a command
{"code": "javascript"}        runs a code-mode script
{"patch": "*** Begin Patch…"} applies a patch
{"mcp": {"server": L, "tool": T, "arguments": {…}}}   calls an MCP tool
{"say": "text"}               says something, and so ends the turn
{"error": {"status": 500}}    answers with an HTTP error
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NoReturn

from agenthost.errors import ScriptInvalid

MAX_DELAY_MS: Final = 3_600_000
MAX_FILE: Final = 16 << 20
"""Bytes."""

_REMEDY: Final = 'write {"steps": [STEP, ...]}, with steps as contracts/scripted-model.md has them'


@dataclass(frozen=True, slots=True)
class Shell:
    """Run `command` with the shell."""

    command: str


@dataclass(frozen=True, slots=True)
class Code:
    """Run `source` in code mode."""

    source: str


@dataclass(frozen=True, slots=True)
class Patch:
    """Apply `patch`, in the notation of apply_patch."""

    patch: str


@dataclass(frozen=True, slots=True)
class McpCall:
    """Call `tool` of MCP server `server`."""

    server: str
    tool: str
    arguments: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Say:
    """Say `text`."""

    text: str


@dataclass(frozen=True, slots=True)
class HttpError:
    """Answer with HTTP `status` in place of a response."""

    status: int


Action = Shell | Code | Patch | McpCall | Say | HttpError


@dataclass(frozen=True, slots=True)
class Step:
    """One answer of the model, `delay_ms` milliseconds after the request."""

    action: Action
    delay_ms: int = 0


@dataclass(frozen=True, slots=True)
class Script:
    """The steps, in order. `name` says in messages where they come from."""

    steps: tuple[Step, ...]
    name: str = "script"

    @classmethod
    def load(cls, path: Path) -> Script:
        """Reads a file. Raises ScriptInvalid, naming the file, the step (from 1) and what is wrong with it."""
        try:
            with path.open("rb") as file:
                data = file.read(MAX_FILE + 1)
        except OSError as error:
            raise ScriptInvalid(f"cannot read {path}: {error.strerror}", remedy="check the path") from error
        if len(data) > MAX_FILE:
            raise ScriptInvalid(f"{path} is larger than {MAX_FILE >> 20} MiB", remedy="shorten it")
        return cls.parse(data, str(path))

    @classmethod
    def parse(cls, data: bytes | str, name: str = "script") -> Script:
        """Reads JSON. Raises ScriptInvalid."""
        try:
            document = json.loads(data, object_pairs_hook=_unique, parse_constant=_no_constant)
        except (ValueError, RecursionError) as error:
            raise ScriptInvalid(f"{name} is not JSON: {error}", remedy=_REMEDY) from error
        if not isinstance(document, dict):
            _refuse(name, f"holds {_kind(document)}, not an object")
        if unknown := sorted(document.keys() - {"steps"}):
            _refuse(name, f"has an unknown key {unknown[0]!r}")
        steps = document.get("steps")
        if not isinstance(steps, list):
            _refuse(name, "has no steps" if steps is None else f"has {_kind(steps)} for steps, not a list")
        return cls(tuple(_step(step, f"{name}: step {number}") for number, step in enumerate(steps, 1)), name)

    @classmethod
    def demo(cls) -> Script:
        """The script of `--scripted demo`: a command, git, a code-mode script with a command and a patch, a word."""
        return cls(
            (
                Step(Shell("echo Hello from $(uname -s), as $(id -un), in $PWD; ls")),
                Step(Shell("git log --oneline -n 3; git status --short --branch")),
                Step(Code(_DEMO_CODE)),
                Step(Say("A command, git, and a script that ran a command and applied a patch: all done.")),
            ),
            "demo",
        )


_DEMO_CODE: Final = """\
const listing = await tools.exec_command({cmd: "git ls-files | wc -l"});
const files = listing.output.trim();
const patch = [
  "*** Begin Patch",
  "*** Add File: agenthost-demo.txt",
  "+Written by a code-mode script through apply_patch.",
  `+git tracks ${files} file(s) here.`,
  "*** End Patch",
].join("\\n");
await tools.apply_patch(patch);
text(`git tracks ${files} file(s); wrote agenthost-demo.txt`);
"""


def _step(value: object, where: str) -> Step:
    if not isinstance(value, dict):
        _refuse(where, f"is {_kind(value)}, not an object")
    if unknown := sorted(value.keys() - _ACTIONS.keys() - {"delay_ms"}):
        _refuse(where, f"has an unknown key {unknown[0]!r} (there are {', '.join(_ACTIONS)} and delay_ms)")
    kinds = [kind for kind in _ACTIONS if kind in value]
    if len(kinds) != 1:
        _refuse(where, f"has {' and '.join(kinds)}: one is allowed" if kinds else "says nothing to do")
    delay = value.get("delay_ms", 0)
    if type(delay) is not int or not 0 <= delay <= MAX_DELAY_MS:
        _refuse(where, f"has a delay_ms that is not a whole number from 0 to {MAX_DELAY_MS}")
    kind = kinds[0]
    return Step(_ACTIONS[kind](value[kind], f"{where}: {kind}"), delay)


def _text(value: object, where: str) -> str:
    if not isinstance(value, str):
        _refuse(where, f"is {_kind(value)}, not a string")
    if not value.strip():
        _refuse(where, "is empty")
    return value


def _mcp(value: object, where: str) -> McpCall:
    fields = _object(value, where, required={"server", "tool"}, optional={"arguments"})
    arguments = fields.get("arguments", {})
    if not isinstance(arguments, dict):
        _refuse(f"{where}: arguments", f"is {_kind(arguments)}, not an object")
    return McpCall(_text(fields["server"], f"{where}: server"), _text(fields["tool"], f"{where}: tool"), arguments)


def _error(value: object, where: str) -> HttpError:
    status = _object(value, where, required={"status"}, optional=set())["status"]
    if type(status) is not int or not 400 <= status <= 599:
        _refuse(f"{where}: status", "is not a whole number from 400 to 599")
    return HttpError(status)


def _object(value: object, where: str, *, required: set[str], optional: set[str]) -> dict[str, object]:
    if not isinstance(value, dict):
        _refuse(where, f"is {_kind(value)}, not an object")
    if missing := sorted(required - value.keys()):
        _refuse(where, f"lacks {missing[0]!r}")
    if unknown := sorted(value.keys() - required - optional):
        _refuse(where, f"has an unknown key {unknown[0]!r}")
    return value


_ACTIONS: Final[Mapping[str, Callable[[object, str], Action]]] = {
    "shell": lambda value, where: Shell(_text(value, where)),
    "code": lambda value, where: Code(_text(value, where)),
    "patch": lambda value, where: Patch(_text(value, where)),
    "mcp": _mcp,
    "say": lambda value, where: Say(_text(value, where)),
    "error": _error,
}


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    result = dict(pairs)
    if len(result) != len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"an object names {next(name for name in names if names.count(name) > 1)!r} twice")
    return result


def _no_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is not JSON")


def _kind(value: object) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "true or false"
        case str():
            return "a string"
        case int() | float():
            return "a number"
        case list():
            return "a list"
        case _:
            return "an object"


def _refuse(where: str, what: str) -> NoReturn:
    raise ScriptInvalid(f"{where} {what}", remedy=_REMEDY)
