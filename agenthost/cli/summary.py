"""What a turn did, gathered from the Session's events and from Codex's own lines. Pure.

Where a fact comes from: commands, requests and refusals from the events (the broker and the gateway saw them, whatever
Codex says); patches, messages and tokens from Codex's lines; changed files from two looks at the workspace.
"""

from __future__ import annotations

import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from agenthost.cli import turn
from agenthost.cli.changes import Change

LONG_SCRIPT: Final = 1024
"""Characters. A script this long that another begins with is taken for the same one, cut short in an event."""

STAYED: Final = frozenset({"refused", "unreachable"})
"""Outcomes of a model request that did not leave the host."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """One program that ran, or should have run, in the environment."""

    text: str
    """The script of a shell; of any other program its arguments."""

    program: str
    """Last component of argv[0]."""

    scripted: bool
    """Whether a shell ran it: then the model asked for it. Anything else Codex ran for itself."""

    status: int | None = None
    """Exit status, 128+n for a signal; None while unknown."""

    ms: float | None = None
    note: str = ""
    """Why it did not run, or how it ended other than by an exit."""

    @property
    def succeeded(self) -> bool:
        return self.status == 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """Requests of one kind, taken together."""

    target: str
    """Method and path, or `CONNECT host:port`."""

    outcome: str
    """HTTP status, "allowed", or why it was refused."""

    left: bool
    """Whether it left through the gateway."""

    credential: str
    """Kind of the credential that the gateway put in, never the credential; empty when none was."""

    count: int
    ms: float
    """Of all of them together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """Everything that the closing summary shows."""

    session: str
    workspace: str
    harness: str
    status: int
    seconds: float
    commands: tuple[Command, ...]
    requests: tuple[Request, ...]
    changes: tuple[Change, ...] | None
    """None when the workspace was not compared."""

    changes_note: str
    """What limits the comparison of the workspace; empty when it is whole."""

    patched: tuple[tuple[str, str], ...]
    tokens: tuple[int, int] | None
    failure: str
    """Codex's own word for why the turn failed; empty otherwise."""


def how_it_ended(status: int) -> str:
    """An exit status in words."""
    if status == 0:
        return "finished, exit status 0"
    name = signal_name(status)
    return f"ended by {name}, exit status {status}" if name else f"failed, exit status {status}"


def signal_name(status: int) -> str:
    """ "SIGTERM" for 143, and so on; empty for what is no signal's status."""
    try:
        return signal.Signals(status - 128).name if status > 128 else ""
    except ValueError:
        return ""


def commands(events: Sequence[Mapping[str, object]], lines: Sequence[turn.Line]) -> tuple[Command, ...]:
    """Every command that the broker was asked for, in order; then those that Codex reports and the broker never saw."""
    found: dict[object, Command] = {}
    for index, event in enumerate(events):
        match event:
            case {"type": "command.started", "command": key, "argv": list() as argv}:
                found[key] = _command(argv)
            case {"type": "command.exited", "command": key} if key in found:
                found[key] = _ended(found[key], event, event.get("message"))
            case {"type": "command.refused", "argv": list() as argv}:
                found["refused", index] = _ended(_command(argv), event, event.get("reason"))
    return (*found.values(), *_unseen(list(found.values()), lines))


def _command(argv: Sequence[object]) -> Command:
    words = [str(word) for word in argv]
    script = turn.shell_script(words)
    program = words[0].rpartition("/")[2] if words else ""
    return Command(text=script or " ".join([program, *words[1:]]), program=program, scripted=script is not None)


def _ended(command: Command, event: Mapping[str, object], note: object) -> Command:
    status, ms = event.get("status"), event.get("ms")
    return replace(
        command,
        status=status if isinstance(status, int) else None,
        ms=float(ms) if isinstance(ms, int | float) else None,
        note=str(note or ""),
    )


def _unseen(seen: list[Command], lines: Sequence[turn.Line]) -> list[Command]:
    """Failed commands that Codex reports and that match none of `seen`: they never left the view."""
    unseen: list[Command] = []
    for line in lines:
        if not isinstance(line, turn.Ran):
            continue
        # An event holds no more than the beginning of a long script.
        match = next((one for one in seen if line.command == one.text or _begins(line.command, one.text)), None)
        if match is not None:
            seen.remove(match)
        elif line.exit_status != 0:
            command = Command(text=line.command, program="", scripted=True, status=line.exit_status)
            unseen.append(replace(command, note="did not reach the environment"))
    return unseen


def _begins(script: str, text: str) -> bool:
    return len(text) >= LONG_SCRIPT and script.startswith(text)


def harness_of(events: Sequence[Mapping[str, object]]) -> str:
    """What runs in the view, from the event that says it started."""
    for event in events:
        if event.get("type") == "view.started":
            name = str(event.get("harness") or event.get("program") or "the Harness")
            return f"{name}, uid {event['uid']}" if "uid" in event else name
    return "nothing ran"


def requests(events: Sequence[Mapping[str, object]]) -> tuple[Request, ...]:
    """The requests that reached the gateway, alike ones together: first those that left, then those refused."""
    found: dict[tuple[str, str, bool, str], tuple[int, float]] = {}
    for event in events:
        match event:
            case {"type": "model.request" | "mcp.request", "method": method, "path": path}:
                ending, status = str(event.get("outcome", "complete")), str(event.get("status", ""))
                left = ending not in STAYED
                outcome = status if ending == "complete" else f"{status}, {ending}" if left else ending
                key = (f"{method} {path}", outcome, left, str(event.get("credential", "")) if left else "")
            case {"type": "proxy.connect", "host": host, "decision": decision}:
                left = decision == "allowed"
                outcome = "allowed" if left else str(event.get("reason") or decision)
                key = (f"CONNECT {host}:{event.get('port', '')}", outcome, left, "")
            case _:
                continue
        count, total = found.get(key, (0, 0.0))
        ms = event.get("ms")
        found[key] = (count + 1, total + (float(ms) if isinstance(ms, int | float) else 0.0))
    every = [
        Request(target=target, outcome=outcome, left=left, credential=credential, count=count, ms=ms)
        for (target, outcome, left, credential), (count, ms) in found.items()
    ]
    return tuple(sorted(every, key=lambda request: not request.left))


def summarise(
    *,
    session: str,
    workspace: str,
    status: int,
    seconds: float,
    events: Sequence[Mapping[str, object]],
    lines: Sequence[turn.Line],
    changes: Sequence[Change] | None,
    changes_note: str = "",
) -> Summary:
    """Put together what is known at the end."""
    used = [line for line in lines if isinstance(line, turn.Used)]
    patched = {file: None for line in lines if isinstance(line, turn.Patched) and line.applied for file in line.files}
    fatal = [line.text for line in lines if isinstance(line, turn.Complained) and line.fatal]
    prefix = workspace.rstrip("/") + "/"
    return Summary(
        session=session,
        workspace=workspace,
        harness=harness_of(events),
        status=status,
        seconds=seconds,
        commands=commands(events, lines),
        requests=requests(events),
        changes=None if changes is None else tuple(changes),
        changes_note=changes_note,
        patched=tuple((path.removeprefix(prefix), kind) for path, kind in patched),
        tokens=(sum(line.tokens_in for line in used), sum(line.tokens_out for line in used)) if used else None,
        failure=fatal[-1] if fatal else "",
    )
