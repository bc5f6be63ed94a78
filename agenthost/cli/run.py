"""`agenthost run [options] [--json] PROMPT`: one Codex turn in a view.

People see what happens as it happens, and a closing summary. With `--json` stdout is Codex's own, untouched.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, TextIO

from agenthost.cli import turn
from agenthost.cli.changes import MOST_ENTRIES, Change, Snapshot, compare, look
from agenthost.cli.launch import pass_through
from agenthost.cli.opening import here, in_session
from agenthost.cli.options import SESSION_OPTIONS, add_options, from_arguments
from agenthost.cli.render import opening, progress, render
from agenthost.cli.stdio import STDIN, nothing
from agenthost.cli.summary import commands, summarise
from agenthost.cli.terminal import Style, encode_for, printable
from agenthost.cli.usage import Parser

if TYPE_CHECKING:
    from agenthost.cli.signals import Signals
    from agenthost.events import Event
    from agenthost.process import Process
    from agenthost.session import Session

NOTICE = b"Reading additional input from stdin..."
"""Codex says so whenever stdin is no terminal; here there never is any additional input."""

DRAIN_S = 2.0
"""Seconds for the last output to arrive after the Harness has ended."""

_EPILOG = """\
PROMPT '-' is read from stdin. The summary says what ran in the view, what ran in the environment, which requests left
through the gateway and with which kind of credential, which files changed, and how it ended.

Exit status: Codex's own; 128+n when signal n ended it; 125 when agenthost failed; 2 for a wrong command line.
"""


def run(arguments: Sequence[str], /) -> int:
    """The command. Raises UsageError and AgentHostError."""
    parser = Parser(
        "run",
        usage="[options] [--json] PROMPT",
        description="One Codex turn in a view, with progress and a closing summary.",
        epilog=_EPILOG,
    )
    parser.add_argument("prompt", metavar="PROMPT", help="what the agent is asked to do")
    parser.add_argument("--json", action="store_true", help="print Codex's own JSONL, and nothing else, on stdout")
    add_options(parser, SESSION_OPTIONS)
    namespace = parser.parse_args(arguments)
    options = from_arguments(namespace, SESSION_OPTIONS, here=here())
    codex_arguments = turn_arguments(namespace.prompt)
    stdin = STDIN if namespace.prompt == "-" else nothing()
    if namespace.json:
        return pass_through(options, codex_arguments, stdin=stdin)
    return in_session(options, lambda session, signals: _Turn(session).play(codex_arguments, stdin, signals))


def turn_arguments(prompt: str) -> tuple[str, ...]:
    """The arguments of Codex for one turn. `--` keeps a prompt such as "resume" from being taken for a command."""
    return ("exec", "--json", "--skip-git-repo-check", "--", prompt)


class _Turn:
    """One turn that people watch."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._workspace = session.workspace
        self._style = Style.of(sys.stdout, os.environ)
        self._events: list[Event] = []
        self._lines: list[turn.Line] = []
        session.events.subscribers.append(self._events.append)

    async def play(self, arguments: Sequence[str], stdin: int, signals: Signals) -> int:
        began = time.monotonic()
        _print(opening(self._session.id, str(self._workspace), self._style) + "\n\n", sys.stdout)
        before = await asyncio.to_thread(look, self._workspace)
        process = await self._session.launch(
            arguments, stdin=stdin, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
        )
        with signals.forwarded_to(process):
            status = await self._watch(process)
        after = await asyncio.to_thread(look, self._workspace)
        self._close(status, time.monotonic() - began, before, after)
        return status

    async def _watch(self, process: Process) -> int:
        """Show both streams until the Harness has ended. When stdout's reader leaves, the Harness is stopped."""
        out = asyncio.ensure_future(_each_line(process.stdout, self._codex_said))
        err = asyncio.ensure_future(_each_line(process.stderr, self._codex_wrote))
        ended = asyncio.ensure_future(process.wait())
        try:
            pending = {out, err, ended}
            while not ended.done():
                done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
                _raise_from(done)
            done, _ = await asyncio.wait({out, err}, timeout=DRAIN_S)
            _raise_from(done)
            return ended.result()
        except BaseException:
            await process.stop()
            raise
        finally:
            for task in (out, err, ended):
                task.cancel()

    def _codex_said(self, raw: bytes) -> None:
        line = turn.read(raw)
        if line is None:
            return
        self._lines.append(line)
        ms = None
        if isinstance(line, turn.Ran):
            same = [command.ms for command in commands(self._events, ()) if command.text == line.command]
            ms = same[-1] if same else None
        for text in progress(line, ms, str(self._workspace), self._style):
            _print(text + "\n", sys.stdout)

    def _codex_wrote(self, raw: bytes) -> None:
        if raw.strip() and raw.strip() != NOTICE:
            _print(f"  {printable(raw.decode('utf-8', 'surrogateescape'))}\n", sys.stderr)

    def _close(self, status: int, seconds: float, before: Snapshot, after: Snapshot) -> None:
        changes, note = compared(before, after)
        summary = summarise(
            session=self._session.id,
            workspace=str(self._workspace),
            status=status,
            seconds=seconds,
            events=self._events,
            lines=self._lines,
            changes=changes,
            changes_note=note,
        )
        _print(render(summary, self._style), sys.stdout)


def compared(before: Snapshot, after: Snapshot) -> tuple[tuple[Change, ...] | None, str]:
    """What changed, or None when that is not known; and what limits the statement."""
    if before.too_large or after.too_large:
        return None, f"the workspace holds more than {MOST_ENTRIES:_} files".replace("_", " ")
    unread = max(before.unread, after.unread)
    return compare(before, after), f"directories that could not be read: {unread}" if unread else ""


def _raise_from(done: Iterable[asyncio.Future[None]] | Iterable[asyncio.Future[int | None]]) -> None:
    for task in done:
        task.result()


async def _each_line(stream: asyncio.StreamReader | None, tell: Callable[[bytes], None]) -> None:
    if stream is None:
        return
    lines = turn.Lines()
    while chunk := await stream.read(64 << 10):
        for line in lines.feed(chunk):
            tell(line)
    tell(lines.rest())


def _print(text: str, stream: TextIO) -> None:
    stream.write(encode_for(stream, text))
    stream.flush()
