"""The closing summary and the progress lines, as text. Pure: values and a `Style` in, a string out.

Every value that came from a model, a workspace or Codex goes through `printable` before it is laid out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from agenthost.cli import turn
from agenthost.cli.changes import Change
from agenthost.cli.summary import Command, Request, Summary, how_it_ended, signal_name
from agenthost.cli.terminal import Style, columns, cut, pad, printable, wrap

MOST_COMMANDS: Final = 30
MOST_FILES: Final = 30
"""Lines of a list in the summary; the rest is counted."""

OUTPUT_LINES: Final = 3
FAILED_OUTPUT_LINES: Final = 8
"""Last lines of a command's output, in the progress."""

_TITLE: Final = 22
_STATUS: Final = 12
_TIME: Final = 9

_MARKS: Final = {"added": "+", "changed": "~", "removed": "-", "renamed": ">"}
_PATCH_WORDS: Final = {"add": "added", "update": "changed", "delete": "removed"}


def render(summary: Summary, style: Style) -> str:
    """The closing summary, with its last line end."""
    parts = [
        [style.dim(style.rule)],
        _view(summary, style),
        _environment(summary, style),
        _gateway(summary, style),
        _files(summary, style),
        _ending(summary, style),
        [style.dim(style.rule)],
    ]
    return "".join(line + "\n" for part in parts for line in part)


def duration(ms: float) -> str:
    """Milliseconds as people say them."""
    if ms < 1000:
        return f"{ms:.0f} ms"
    if ms < 60_000:
        return f"{ms / 1000:.1f} s"
    minutes, seconds = divmod(round(ms / 1000), 60)
    return f"{minutes} min {seconds:02} s"


def size(count: int) -> str:
    """Bytes as people say them."""
    if count < 1000:
        return f"{count} B"
    value = float(count)
    for unit in ("kB", "MB", "GB"):
        value /= 1000
        if value < 999.5 or unit == "GB":
            break
    return f"{value:.1f} {unit}" if value < 10 else f"{value:.0f} {unit}"


def number(count: int, singular: str, plural: str = "") -> str:
    """ "1 file", "2 files"."""
    return f"{count} {singular if count == 1 else plural or singular + 's'}"


def _heading(title: str, text: str, style: Style) -> str:
    return f"{style.bold(pad(title, _TITLE))}{text}"


def _row(mark: str, text: str, right: str, style: Style) -> str:
    """`mark` may be painted already. What stands at the right edge gets a line of its own where it would need half."""
    room = style.width - 4
    if not right:
        return f"  {mark} {cut(text, room, style)}"
    if columns(right) > style.width // 2 and columns(text) + columns(right) + 2 > room:
        return f"  {mark} {cut(text, room, style)}\n      {style.dim(cut(right, room - 2, style))}"
    room -= columns(right) + 2
    return f"  {mark} {pad(cut(text, room, style), room)}  {style.dim(right)}".rstrip()


def _view(summary: Summary, style: Style) -> Iterator[str]:
    yield _heading("In the view", printable(summary.harness), style)
    if summary.patched:
        yield _row(style.good(style.tick), patch_text(summary.patched), "", style)
    yield ""


def _environment(summary: Summary, style: Style) -> Iterator[str]:
    asked = [command for command in summary.commands if command.scripted]
    own = [command for command in summary.commands if not command.scripted]
    failed = sum(not command.succeeded for command in asked)
    text = number(len(asked), "command") if asked else "no command"
    if failed:
        text += ", " + style.bad(f"{failed} failed")
    yield _heading("In the environment", text, style)
    for command in asked[:MOST_COMMANDS]:
        yield _command(command, style)
    if len(asked) > MOST_COMMANDS:
        yield f"    {style.more} and {len(asked) - MOST_COMMANDS} more: see the events of the Session"
    for program, calls in _by_program(own):
        yield _own_calls(program, calls, style)
    yield ""


def patch_text(files: Sequence[tuple[str, str]]) -> str:
    """The files of a patch and what it did to each."""
    return "patch: " + ", ".join(
        printable(path if kind == "update" else f"{path} ({_PATCH_WORDS.get(kind, kind)})") for path, kind in files
    )


def _by_program(commands: Sequence[Command]) -> Iterator[tuple[str, list[Command]]]:
    for program in dict.fromkeys(command.program for command in commands):
        yield program, [command for command in commands if command.program == program]


def _own_calls(program: str, calls: Sequence[Command], style: Style) -> str:
    """What Codex asks git about the workspace is one line: its statuses are answers, no successes or failures."""
    text = f"{printable(program)} {style.times} {len(calls)}, by Codex for itself"
    refused = [call.note for call in calls if call.note]
    if refused:
        text += f": {printable(refused[-1])}"
    mark = style.bad(style.cross) if refused else style.dim("·" if style.unicode else ".")
    return _row(mark, text, duration(sum(call.ms or 0 for call in calls)), style)


def _command(command: Command, style: Style) -> str:
    mark = style.good(style.tick) if command.succeeded else style.bad(style.cross)
    time = "" if command.ms is None else duration(command.ms)
    right = pad(_status(command), _STATUS) + time.rjust(_TIME)
    text = one_line(command.text, style)
    if command.note:
        text += f"  ({printable(command.note)})"
    return _row(mark, text, right, style)


def _status(command: Command) -> str:
    if command.status is None:
        return "did not run" if command.note else "unfinished"
    return signal_name(command.status) or f"exit {command.status}"


def one_line(text: str, style: Style) -> str:
    """A script on one line."""
    lines = [printable(line.strip()) for line in text.splitlines() if line.strip()]
    return (" ↵ " if style.unicode else r" \n ").join(lines)


def _gateway(summary: Summary, style: Style) -> Iterator[str]:
    left = sum(request.count for request in summary.requests if request.left)
    refused = sum(request.count for request in summary.requests if not request.left)
    text = f"{number(left, 'request')} went out" if left else "nothing went out"
    if refused:
        text += ", " + style.bad(f"{refused} refused")
    yield _heading("Through the gateway", text, style)
    for request in summary.requests:
        yield _request(request, style)
    yield ""


def _request(request: Request, style: Style) -> str:
    good = request.left and not request.outcome.startswith(("4", "5"))
    mark = style.good(style.tick) if good else style.bad(style.cross)
    text = printable(request.target)
    if request.count > 1:
        text += f" {style.times} {request.count}"
    details = [printable(request.outcome)]
    if request.credential:
        details.append(f"credential: {printable(request.credential)}")
    return _row(mark, text, ", ".join(details), style)


def _files(summary: Summary, style: Style) -> Iterator[str]:
    changes = summary.changes or ()
    count: int | str = sum(change.count for change in changes) or "none"
    text = f"{'not compared' if summary.changes is None else count} in {printable(summary.workspace)}"
    yield _heading("Files changed", cut(text, style.width - _TITLE, style), style)
    for change in changes[:MOST_FILES]:
        yield _change(change, style)
    if len(changes) > MOST_FILES:
        yield f"    {style.more} and {sum(change.count for change in changes[MOST_FILES:])} more"
    if summary.changes_note:
        yield f"    {style.dim(printable(summary.changes_note))}"
    yield ""


def _change(change: Change, style: Style) -> str:
    mark = _MARKS[change.kind]
    painted = style.bad(mark) if change.kind == "removed" else style.good(mark) if change.kind == "added" else mark
    text = printable(change.path)
    if change.origin is not None:
        text = f"{printable(change.origin)} -> {text}"
    details: list[str] = [change.kind]
    if change.count > 1:
        details.append(number(change.count, "file"))
    elif change.size is not None:
        details.append(size(change.size))
    right = ", ".join(details)
    return _row(painted, text, right, style)


def _ending(summary: Summary, style: Style) -> Iterator[str]:
    words = how_it_ended(summary.status)
    painted = style.good(words) if summary.status == 0 else style.bad(words)
    yield _heading("How it ended", f"{painted}, after {duration(summary.seconds * 1000)}", style)
    for line in wrap(summary.failure, style.width - _TITLE) if summary.failure else ():
        yield " " * _TITLE + style.bad(line)
    details = []
    if summary.tokens is not None:
        details.append(f"{summary.tokens[0]:_} tokens in, {summary.tokens[1]:_} out".replace("_", " "))
    details.append(f"go on with --session {printable(summary.session)}")
    yield " " * _TITLE + style.dim("; ".join(details))


def opening(session: str, workspace: str, style: Style) -> str:
    """The first line of the progress: that it has begun, and where."""
    text = f"A view of {printable(workspace)} opens; session {printable(session)}"
    return style.dim(cut(text, style.width, style))


def progress(line: turn.Line, ms: float | None, workspace: str, style: Style) -> Iterable[str]:
    """The lines that tell of one of Codex's lines while the turn goes on."""
    match line:
        case turn.Ran():
            command = Command(text=line.command, program="", scripted=True, status=line.exit_status, ms=ms)
            yield _command(command, style)
            yield from _tail(line.output, OUTPUT_LINES if line.exit_status == 0 else FAILED_OUTPUT_LINES, style)
        case turn.Patched():
            prefix = workspace.rstrip("/") + "/"
            files = [(path.removeprefix(prefix), kind) for path, kind in line.files]
            mark = style.good(style.tick) if line.applied else style.bad(style.cross)
            yield _row(mark, patch_text(files), "" if line.applied else "not applied", style)
        case turn.Called():
            mark = style.good(style.tick) if line.succeeded else style.bad(style.cross)
            yield _row(mark, printable(f"{line.tool} of MCP server {line.server}"), "", style)
        case turn.Said():
            yield ""
            yield from (f"  {style.bold(text)}" if text else "" for text in wrap(line.text.strip(), style.width - 4))
            yield ""
        case turn.Complained():
            first, *rest = wrap(line.text, style.width - 4)
            yield f"  {style.bad('!')} {first}"
            yield from (f"    {text}" for text in rest)


def _tail(output: str, most: int, style: Style) -> Iterator[str]:
    lines = [line for line in output.splitlines() if line.strip()]
    if len(lines) > most:
        yield style.dim(f"      {style.more}")
    for line in lines[-most:]:
        yield style.dim(f"      {cut(printable(line.expandtabs(4)), style.width - 6, style)}")
