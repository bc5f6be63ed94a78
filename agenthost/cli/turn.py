"""The lines that `codex exec --json` prints, as values. Pure; tolerant of what a later Codex adds.

Observed with the pinned releases: `thread.started`, `turn.started`, `turn.completed` (with `usage`), `turn.failed`,
`error`, and `item.started`/`item.completed` with an item of type `command_execution`, `file_change`, `agent_message`,
`reasoning`, `mcp_tool_call`, `web_search`, `todo_list` or `error`.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

LONGEST_LINE: Final = 32 << 20
"""Bytes. A command's whole output is one line; what is longer is left out of the rendering."""


@dataclass(frozen=True, slots=True)
class Ran:
    """A command that the model ran, as Codex reports it. `exit_status` None: it did not start, or was declined."""

    command: str
    exit_status: int | None
    output: str


@dataclass(frozen=True, slots=True)
class Patched:
    """Files that Codex itself wrote: path and "add", "update" or "delete"."""

    files: tuple[tuple[str, str], ...]
    applied: bool


@dataclass(frozen=True, slots=True)
class Said:
    """The model's message."""

    text: str


@dataclass(frozen=True, slots=True)
class Called:
    """A tool of an MCP server."""

    server: str
    tool: str
    succeeded: bool


@dataclass(frozen=True, slots=True)
class Complained:
    """Codex's own error or warning; `fatal` when the turn failed by it."""

    text: str
    fatal: bool


@dataclass(frozen=True, slots=True)
class Used:
    """Tokens of a finished turn."""

    tokens_in: int
    tokens_out: int


Line = Ran | Patched | Said | Called | Complained | Used


@dataclass(slots=True)
class Lines:
    """Cuts a byte stream into lines."""

    _pending: bytearray = field(default_factory=bytearray)
    _skipping: bool = False

    def feed(self, chunk: bytes) -> Iterator[bytes]:
        """The lines that `chunk` completes, without their ends."""
        *ends, rest = chunk.split(b"\n")
        for end in ends:
            if not self._skipping:
                yield bytes(self._pending + end)
            self._pending.clear()
            self._skipping = False
        if not self._skipping:
            self._pending += rest
        if len(self._pending) > LONGEST_LINE:
            self._pending.clear()
            self._skipping = True

    def rest(self) -> bytes:
        """What came after the last line end."""
        return bytes(self._pending)


def read(line: bytes) -> Line | None:
    """What a line says, or None when it says nothing that a person needs."""
    try:
        value = json.loads(line)
    except ValueError:
        return Complained(line.decode("utf-8", "replace"), fatal=False) if line.strip() else None
    match value:
        case {"type": "item.completed", "item": {"type": str() as kind, **item}}:
            return _item(kind, item)
        case {"type": "turn.completed", "usage": {"input_tokens": int() as used, "output_tokens": int() as made}}:
            return Used(used, made)
        case {"type": "turn.failed", "error": {"message": str() as text}} | {"type": "error", "message": str() as text}:
            return Complained(text, fatal=value["type"] == "turn.failed")
    return None


def _item(kind: str, item: Mapping[object, object]) -> Line | None:
    match kind, item:
        case "command_execution", {"command": str() as command}:
            status = item.get("exit_code")
            return Ran(
                inner_command(command), status if isinstance(status, int) else None, str(item.get("aggregated_output"))
            )
        case "file_change", {"changes": list() as changes}:
            files = tuple((str(one.get("path")), str(one.get("kind"))) for one in changes if isinstance(one, dict))
            return Patched(files, item.get("status") == "completed")
        case "agent_message", {"text": str() as text}:
            return Said(text)
        case "mcp_tool_call", {"server": str() as server, "tool": str() as tool}:
            return Called(server, tool, item.get("status") == "completed")
        case "error", {"message": str() as text}:
            return Complained(text, fatal=False)
    return None


def inner_command(command: str) -> str:
    """`/bin/bash -lc 'CMD'` as CMD; anything else as it is."""
    try:
        words = shlex.split(command)
    except ValueError:
        return command
    return shell_script(words) or command


def shell_script(argv: list[str]) -> str | None:
    """The script of a shell started as Codex starts it, or None when `argv` is something else."""
    match argv:
        case [str() as shell, "-c" | "-lc", str() as script]:
            return script if shell.rpartition("/")[2] in ("bash", "sh", "zsh") else None
    return None
