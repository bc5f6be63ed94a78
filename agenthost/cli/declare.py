"""`agenthost declare`: what Codex needs in a view, or the one reason why it gets none (exit status 3)."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from agenthost.cli.terminal import printable, wrap
from agenthost.cli.usage import Parser
from agenthost.errors import NO_VIEW, NoView

if TYPE_CHECKING:
    from agenthost.codex.install import Install
    from agenthost.declaration import View

_EPILOG = """\
Exit status: 0 with a view, 3 without one: the JSON is then {"view": null, "reason": ..., "remedy": ...}.
"""


def run(arguments: Sequence[str], /) -> int:
    """The command. Raises UsageError and AgentHostError other than NoView."""
    parser = Parser(
        "declare",
        usage="[--codex PATH] [--format table|json]",
        description="Print what Codex needs in a view, or why it gets none.",
        epilog=_EPILOG,
    )
    parser.add_argument(
        "--codex", metavar="PATH", type=Path, help="the Codex to declare (default: AGENTHOST_CODEX, installed, PATH)"
    )
    parser.add_argument("--format", choices=("table", "json"), default="table", help="default: table")
    namespace = parser.parse_args(arguments)
    try:
        install, view, home = _discover(namespace.codex)
    except NoView as error:
        if namespace.format == "json":
            _print_json({"view": None, "reason": error.what, "remedy": error.remedy})
        else:
            print(printable(f"no view: {error.what}; {error.remedy}"))
        return NO_VIEW
    if namespace.format == "json":
        _print_json({"view": view.to_json(), "codex": install.to_json(), "home": home})
    else:
        print("\n".join(table(install, view, home)))
    return 0


def _discover(codex: Path | None) -> tuple[Install, View, Mapping[str, list[str]]]:
    from agenthost.codex.install import discover
    from agenthost.codex.plan import declare, treatment_of_home

    install = discover(codex, os.environ)
    return install, declare(install), treatment_of_home()


def _print_json(value: Mapping[str, object]) -> None:
    print(json.dumps(value, indent=2))


def table(install: Install, view: View, home: Mapping[str, list[str]]) -> Iterator[str]:
    """The declaration for people: one name, then its values, one a line."""
    proxy = view.proxy
    found = [] if install.found == install.binary else [f"found as {install.found}"]
    rows: list[tuple[str, list[str]]] = [
        ("codex", [f"{install.release} (by {install.origin})", str(install.binary), *found]),
        ("sha256", [f"{digest}  {name}" for name, digest in install.digests.items()]),
        ("closure", [f"{mount.path}  <-  {mount.source}" for mount in view.closure]),
        ("local exec", list(view.local_exec)),
        ("shims", list(view.shims)),
        ("shim paths", list(view.shim_paths)),
        ("masks", [f"{mask.path}  (empty {mask.kind})" for mask in view.masks]),
        ("forwarded", wrap(" ".join(view.forward_env), 80) if view.forward_env else []),
        ("proxy", [" ".join(proxy.variables)]),
        ("no proxy", [" ".join(proxy.exempt_variables) + " = " + ",".join(proxy.exempt)]),
        *((f"home {name}", wrap(" ".join(paths), 100)) for name, paths in home.items()),
    ]
    for name, values in rows:
        for index, value in enumerate(values or ["none"]):
            yield f"{name if index == 0 else '':<14}{printable(value)}"
