"""`agenthost sessions list|show|remove|gc`: what the state directory holds, and the end of it.

Reading asks for no lock and changes nothing, the state directory's absence included. Removing takes the lock of each
Session, so it works beside a daemon, on what that has not open.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from agenthost.cli.opening import here
from agenthost.cli.terminal import encode_for, pad, printable
from agenthost.cli.usage import Parser, UsageError

if TYPE_CHECKING:
    from argparse import Namespace

    from agenthost.inventory import Details, SessionInfo, Size
    from agenthost.layout import StateLayout
    from agenthost.recovery import Finding

_OVERVIEW: Final = """\
usage: agenthost sessions list [--state-dir DIR] [--json]
       agenthost sessions show [--state-dir DIR] [--json] ID
       agenthost sessions remove [--state-dir DIR] ID...
       agenthost sessions gc [--state-dir DIR] [--older-than DAYS] [--dry-run] [--json]

What the state directory holds. 'agenthost sessions list --help' says more of list, and so for each.
"""

_WORDS: Final = {"removed": "would be removed", "settled": "would be settled", "left": "left alone"}


def run(arguments: Sequence[str], /) -> int:
    """The command. Raises UsageError and AgentHostError."""
    name = arguments[0] if arguments else ""
    if name in ("-h", "--help"):
        sys.stdout.write(_OVERVIEW)
        return 0
    act = _ACTS.get(name)
    if act is None:
        what = f"{name!r} is no command" if name else "no command is given"
        raise UsageError(f"{what} of 'agenthost sessions'", remedy="see 'agenthost sessions --help'")
    return act(arguments[1:])


def _list(arguments: Sequence[str]) -> int:
    parser = _parser("list", "[--json]", "Print each Session: last launch, how it ended, home, workspace.")
    parser.add_argument("--json", action="store_true", help="one JSON object")
    namespace = parser.parse_args(arguments)
    from agenthost.inventory import every_session

    found = every_session(_layout(namespace))
    if namespace.json:
        _print_json({"sessions": [info.to_json() for info in found]})
    else:
        _print(_table(found))
    return 0


def _show(arguments: Sequence[str]) -> int:
    parser = _parser("show", "[--json] ID", "Print a Session's record, its last events, and the top of its home.")
    parser.add_argument("--json", action="store_true", help="one JSON object")
    parser.add_argument("id", metavar="ID")
    namespace = parser.parse_args(arguments)
    from agenthost.inventory import one_session

    details = one_session(_layout(namespace), namespace.id)
    if namespace.json:
        _print_json(details.to_json())
    else:
        _print(_page(details))
    return 0


def _remove(arguments: Sequence[str]) -> int:
    parser = _parser("remove", "ID...", "Remove Sessions with their homes: all that are named, or none.")
    parser.add_argument("ids", metavar="ID", nargs="+")
    namespace = parser.parse_args(arguments)
    from agenthost.recovery import remove

    remove(_layout(namespace), namespace.ids)
    return 0


def _gc(arguments: Sequence[str]) -> int:
    parser = _parser(
        "gc",
        "[--older-than DAYS] [--dry-run] [--json]",
        "Settle what ended daemons left; with --older-than, remove Sessions that nobody has open or used since.",
    )
    parser.add_argument("--older-than", metavar="DAYS", dest="older_than", help="days since something happened in it")
    parser.add_argument("--dry-run", action="store_true", help="say what would be done, and do nothing")
    parser.add_argument("--json", action="store_true", help="one JSON object")
    namespace = parser.parse_args(arguments)
    days = None if namespace.older_than is None else _days(namespace.older_than)
    from agenthost.recovery import collect

    found = collect(_layout(namespace), older_than_days=days, dry_run=namespace.dry_run)
    if namespace.json:
        rows = [{"name": one.name, "found": one.found, "outcome": one.outcome} for one in found]
        _print_json({"dry_run": namespace.dry_run, "findings": rows})
    else:
        _print(_done(found, dry_run=namespace.dry_run))
    return 0


_ACTS: Final[Mapping[str, Callable[[Sequence[str]], int]]] = {
    "list": _list,
    "show": _show,
    "remove": _remove,
    "gc": _gc,
}


def _parser(name: str, usage: str, description: str) -> Parser:
    parser = Parser(f"sessions {name}", usage=f"[--state-dir DIR] {usage}", description=description)
    parser.add_argument(
        "--state-dir",
        metavar="DIR",
        dest="state_dir",
        help="where Sessions are kept (default: /var/lib/agenthost as root, else $XDG_STATE_HOME/agenthost)",
    )
    return parser


def _layout(namespace: Namespace) -> StateLayout:
    from agenthost.layout import StateLayout, default_state_dir

    if namespace.state_dir is None:
        return StateLayout(default_state_dir())
    if not namespace.state_dir:
        raise UsageError("--state-dir is empty", remedy="give --state-dir as DIR")
    return StateLayout((here() / Path(namespace.state_dir)).absolute())


def _days(value: str) -> float:
    try:
        days = float(value)
    except ValueError:
        days = math.nan
    if not (math.isfinite(days) and days >= 0):
        raise UsageError(f"--older-than is {value!r}, not a number of days", remedy="give --older-than as DAYS")
    return days


def _table(sessions: Sequence[SessionInfo]) -> Iterator[str]:
    if not sessions:
        yield "no Sessions"
        return
    rows = [("ID", "STATE", "LAST LAUNCH", "ENDED", "HOME", "WORKSPACE")]
    for info in sessions:
        state = "open" if info.is_open else "closed"
        place = printable(info.workspace or info.problem or "-")
        rows.append((info.id, state, printable(info.last_launch or "-"), _end(info), _bytes(info.home), place))
    widths = [max(len(row[column]) for row in rows) for column in range(5)]
    for row in rows:
        yield "  ".join([*(pad(cell, width) for cell, width in zip(row[:5], widths, strict=True)), row[5]])


def _page(details: Details) -> Iterator[str]:
    info = details.info
    launch = "never" if info.last_launch is None else f"{info.last_launch}, ended: {_end(info)}"
    rows = [
        ("session", info.id),
        ("state", "open" if info.is_open else "closed"),
        ("workspace", info.workspace or "-"),
        ("uid", "-" if info.uid is None else str(info.uid)),
        ("launch", launch),
        ("home", f"{_bytes(info.home)} in {info.home.entries} entries"),
    ]
    rows += [("problem", info.problem)] if info.problem else []
    rows += [("events", ", ".join(f"{name} {count}" for name, count in sorted(details.counts.items())) or "none")]
    for name, value in rows:
        yield f"{name:<12}{printable(value)}"
    for event in details.last_events:
        yield f"{'':<12}{printable(_event(event))}"
    for name, kind, size in details.home:
        yield f"{'':<12}{printable(name)}  ({kind}{f', {size} bytes' if kind == 'file' else ''})"


def _event(event: Mapping[str, Any]) -> str:
    rest = " ".join(f"{name}={json.dumps(value)}" for name, value in event.items() if name not in _HEAD)
    return f"{event.get('ts')} {event.get('type')} {rest}".rstrip()


_HEAD: Final = ("ts", "session", "type")


def _done(found: Sequence[Finding], *, dry_run: bool) -> Iterator[str]:
    if not found:
        yield "nothing to do"
    for one in found:
        outcome = _WORDS[one.outcome] if dry_run or one.outcome == "left" else one.outcome
        yield printable(f"{one.name}: {one.found}: {outcome}")


def _end(info: SessionInfo) -> str:
    return "-" if info.end is None else str(info.end)


def _bytes(size: Size) -> str:
    number, units = float(size.bytes), iter(("B", "KiB", "MiB", "GiB", "TiB"))
    unit = next(units)
    while number >= 1024 and unit != "TiB":
        number, unit = number / 1024, next(units)
    shown = f"{number:.0f} {unit}" if unit == "B" else f"{number:.1f} {unit}"
    return shown if size.complete else f"over {shown}"


def _print(lines: Iterator[str]) -> None:
    for line in lines:
        sys.stdout.write(encode_for(sys.stdout, line) + "\n")


def _print_json(value: Mapping[str, object]) -> None:
    print(json.dumps(value, indent=2))
