"""The session options: one table, read from a command line or from environment variables.

`agenthost run` and `agenthost launch` take options; `agenthost-codex` gives every argument to Codex and takes the same
options from variables: `--state-dir` is `AGENTHOST_STATE_DIR`, and so for each. A repeatable option's variable holds
one value a line: a comma or a colon can be part of a path, a URL or a host. An empty variable is an absent one, and an
`AGENTHOST_` variable that is no option is refused, because a misspelt restriction that is ignored is no restriction.

Reading options has no effect and imports nothing heavy. What contradicts itself is a `UsageError`; what a later
release brings is `NotAvailableYet`. Values that only the layers below can judge (a host name, a URL, a workspace)
go down as they are.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from agenthost.cli.usage import UsageError
from agenthost.errors import NotAvailableYet

DEFAULT_KEY_VARIABLE: Final = "OPENAI_API_KEY"
DEFAULT_PROVIDER_URL: Final = "https://api.openai.com/v1"
DEFAULT_GRACE_S: Final = 3.0
VARIABLE_PREFIX: Final = "AGENTHOST_"

NOT_OPTIONS: Final = ("AGENTHOST_MUST_WORK", "AGENTHOST_TEST_")
"""How variables begin that have our prefix and are no options: the test suite's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One session option. `later` says what is missing until a later release brings its substance."""

    name: str
    metavar: str
    help: str
    group: str
    repeatable: bool = False
    later: str | None = None

    @property
    def key(self) -> str:
        return self.name.removeprefix("--").replace("-", "_")

    @property
    def variable(self) -> str:
        return VARIABLE_PREFIX + self.key.upper()


SESSION_OPTIONS: Final = (
    Option(name="--workspace", metavar="DIR", group="session", help="what the agent works on (default: here)"),
    Option(
        name="--state-dir",
        metavar="DIR",
        group="session",
        help="where Sessions are kept (default: /var/lib/agenthost as root, else $XDG_STATE_HOME/agenthost)",
    ),
    Option(name="--session", metavar="ID", group="session", help="go on in this Session: same id, same home"),
    Option(
        name="--grace",
        metavar="SECONDS",
        group="session",
        help="from TERM to KILL when a view is stopped (default: 3)",
    ),
    Option(name="--events", metavar="FILE", group="session", help="copy the Session's events to FILE as they happen"),
    Option(
        name="--codex",
        metavar="PATH",
        group="model",
        help="the Codex to use (default: AGENTHOST_CODEX, the installed one, PATH)",
    ),
    Option(name="--model", metavar="NAME", group="model", help="the model to ask for"),
    Option(
        name="--model-verbosity",
        metavar="low|medium|high",
        group="model",
        help="how much the model says; it must be one that has the choice",
    ),
    Option(
        name="--provider-url",
        metavar="URL",
        group="model",
        help=f"base URL of the Responses API (default: {DEFAULT_PROVIDER_URL})",
    ),
    Option(
        name="--api-key-env",
        metavar="NAME",
        group="model",
        help=f"variable that holds the API key (default: {DEFAULT_KEY_VARIABLE})",
    ),
    Option(
        name="--api-key-file",
        metavar="PATH",
        group="model",
        help="file that holds the API key, closed to group and others",
    ),
    Option(
        name="--scripted",
        metavar="FILE|demo",
        group="model",
        help="play a scripted model in place of a provider: no key, no network",
    ),
    Option(
        name="--mcp",
        metavar="LABEL=URL",
        group="model",
        help="an HTTP MCP server (repeatable)",
        repeatable=True,
        later="the gateway has no MCP listener",
    ),
    Option(
        name="--mcp-bearer-env",
        metavar="LABEL=NAME",
        group="model",
        help="variable that holds that server's bearer (repeatable)",
        repeatable=True,
        later="the gateway has no MCP listener",
    ),
    Option(
        name="--allow-host",
        metavar="HOST[:PORT]",
        group="limits",
        help="let the view reach this host through the proxy (repeatable)",
        repeatable=True,
    ),
    Option(
        name="--env-network",
        metavar="none|host",
        group="limits",
        help="network of the commands (default: none)",
    ),
    Option(
        name="--shim-path",
        metavar="PATH",
        group="limits",
        help="another path whose program runs in the environment, such as /bin/sh (repeatable)",
        repeatable=True,
    ),
    Option(
        name="--bind-ro",
        metavar="PATH",
        group="limits",
        help="show this host path, read-only, to the environment (repeatable)",
        repeatable=True,
    ),
    Option(
        name="--memory",
        metavar="BYTES",
        group="limits",
        help="memory of view and environment together; needs a delegated cgroup v2",
    ),
    Option(
        name="--pids",
        metavar="N",
        group="limits",
        help="processes and threads of view and environment together; the same",
    ),
    Option(
        name="--cpus",
        metavar="N",
        group="limits",
        help="processors of view and environment together, such as 1.5; the same",
    ),
)

HARNESS_OPTIONS: Final = (
    Option(name="--harness-dir", metavar="DIR", group="harness", help="closure of another Harness than Codex"),
    Option(name="--binary", metavar="NAME", group="harness", help="the static program in DIR to start"),
)
"""Of `agenthost launch` alone."""

GROUP_TITLES: Final = {
    "session": "session",
    "model": "model and tools",
    "limits": "what view and environment may do",
    "harness": "another Harness",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionOptions:
    """What a Session is asked for. Host paths are absolute, not resolved; nothing has been looked at yet."""

    workspace: Path
    state_dir: Path | None = None
    session: str | None = None
    codex: Path | None = None
    model: str | None = None
    model_verbosity: Literal["low", "medium", "high"] | None = None
    provider_url: str | None = None
    api_key_env: str | None = None
    api_key_file: Path | None = None
    scripted: str | None = None
    mcp: Mapping[str, str]
    mcp_bearer_env: Mapping[str, str]
    allow_hosts: tuple[str, ...] = ()
    env_network: Literal["none", "host"] = "none"
    shim_paths: tuple[str, ...] = ()
    bind_ro: tuple[Path, ...] = ()
    memory: int | None = None
    pids: int | None = None
    cpus: float | None = None
    grace_s: float = DEFAULT_GRACE_S
    events: Path | None = None
    harness_dir: Path | None = None
    binary: str | None = None


def add_options(parser: argparse.ArgumentParser, options: Sequence[Option]) -> None:
    """Declare options; every value stays the string that was given until `SessionOptions` is made of it."""
    groups: dict[str, argparse._ArgumentGroup] = {}
    for option in options:
        if option.group not in groups:
            groups[option.group] = parser.add_argument_group(GROUP_TITLES[option.group])
        text = option.help if option.later is None else f"{option.help}; not available yet"
        groups[option.group].add_argument(
            option.name, metavar=option.metavar, dest=option.key, action="append", help=text.replace("%", "%%")
        )


def from_arguments(namespace: argparse.Namespace, options: Sequence[Option], *, here: Path) -> SessionOptions:
    """The options of a parsed command line. Relative paths are relative to `here`; of two values the last counts.

    Raises UsageError, NotAvailableYet.
    """
    given = {option.key: tuple(values) for option in options if (values := getattr(namespace, option.key))}
    return _resolve(_Given(given, lambda option: option.name, here))


def from_variables(environ: Mapping[str, str], *, here: Path) -> SessionOptions:
    """The options of `agenthost-codex`. Raises UsageError, NotAvailableYet."""
    by_variable = {option.variable: option for option in SESSION_OPTIONS}
    given: dict[str, tuple[str, ...]] = {}
    for name, value in sorted(environ.items()):
        if not name.startswith(VARIABLE_PREFIX) or name.startswith(NOT_OPTIONS) or not value:
            continue
        option = by_variable.get(name)
        if option is None:
            raise UsageError(
                f"{name} is no option of agenthost-codex",
                remedy="unset it; the options are those of 'agenthost run --help', AGENTHOST_STATE_DIR for --state-dir",
            )
        given[option.key] = tuple(line for line in value.split("\n") if line) if option.repeatable else (value,)
    return _resolve(_Given(given, lambda option: option.variable, here))


_BY_KEY: Final = {option.key: option for option in (*SESSION_OPTIONS, *HARNESS_OPTIONS)}


@dataclass(frozen=True, slots=True)
class _Given:
    """The values as they were given, and how their source names an option."""

    values: Mapping[str, tuple[str, ...]]
    label: Callable[[Option], str]
    here: Path

    def named(self, key: str) -> str:
        return self.label(_BY_KEY[key])

    def many(self, key: str) -> tuple[str, ...]:
        values = self.values.get(key, ())
        if "" in values:
            raise self.wrong(key, "is empty")
        return values

    def one(self, key: str) -> str | None:
        values = self.many(key)
        return values[-1] if values else None

    def path(self, key: str) -> Path | None:
        value = self.one(key)
        return None if value is None else self.here / value

    def count(self, key: str) -> int | None:
        value = self.one(key)
        if value is None:
            return None
        if not value.isascii() or not value.isdigit() or int(value) == 0:
            raise self.wrong(key, f"is {value!r}, not a whole number above 0")
        return int(value)

    def number(self, key: str) -> float | None:
        value = self.one(key)
        if value is None:
            return None
        try:
            number = float(value)
        except ValueError:
            number = math.nan
        if not (math.isfinite(number) and number > 0):
            raise self.wrong(key, f"is {value!r}, not a number above 0")
        return number

    def labelled(self, key: str) -> dict[str, str]:
        pairs: dict[str, str] = {}
        for value in self.many(key):
            label, separator, rest = value.partition("=")
            if not (label and separator and rest):
                raise self.wrong(key, f"is {value!r}, not {_BY_KEY[key].metavar}")
            if label in pairs:
                raise self.wrong(key, f"names {label!r} twice")
            pairs[label] = rest
        return pairs

    def wrong(self, key: str, what: str) -> UsageError:
        option = _BY_KEY[key]
        return UsageError(f"{self.named(key)} {what}", remedy=f"give {self.named(key)} as {option.metavar}")

    def excludes(self, one: str, other: str, remedy: str) -> None:
        if one in self.values and other in self.values:
            raise UsageError(f"{self.named(one)} and {self.named(other)} contradict each other", remedy=remedy)


def _resolve(given: _Given) -> SessionOptions:
    options = SessionOptions(
        workspace=given.path("workspace") or given.here,
        state_dir=given.path("state_dir"),
        session=given.one("session"),
        codex=given.path("codex"),
        model=given.one("model"),
        model_verbosity=_verbosity(given),
        provider_url=given.one("provider_url"),
        api_key_env=given.one("api_key_env"),
        api_key_file=given.path("api_key_file"),
        scripted=_scripted(given),
        mcp=given.labelled("mcp"),
        mcp_bearer_env=given.labelled("mcp_bearer_env"),
        allow_hosts=given.many("allow_host"),
        env_network=_network(given),
        shim_paths=_shim_paths(given),
        bind_ro=tuple(given.here / value for value in given.many("bind_ro")),
        memory=given.count("memory"),
        pids=given.count("pids"),
        cpus=given.number("cpus"),
        grace_s=_grace(given),
        events=given.path("events"),
        harness_dir=given.path("harness_dir"),
        binary=given.one("binary"),
    )
    _refuse_contradictions(given, options)
    _refuse_later(given)
    return options


def _scripted(given: _Given) -> str | None:
    value = given.one("scripted")
    return value if value in (None, "demo") else str(given.here / str(value))


def _verbosity(given: _Given) -> Literal["low", "medium", "high"] | None:
    match given.one("model_verbosity"):
        case None | "low" | "medium" | "high" as value:
            return value
        case other:
            raise given.wrong("model_verbosity", f"is {other!r}")


def _network(given: _Given) -> Literal["none", "host"]:
    match given.one("env_network"):
        case None | "none":
            return "none"
        case "host":
            return "host"
        case other:
            raise given.wrong("env_network", f"is {other!r}")


def _shim_paths(given: _Given) -> tuple[str, ...]:
    paths = given.many("shim_path")
    for path in paths:
        if not path.startswith("/"):
            raise given.wrong("shim_path", f"is {path!r}, which is no absolute path inside a view")
    return paths


def _grace(given: _Given) -> float:
    value = given.one("grace")
    if value is None:
        return DEFAULT_GRACE_S
    try:
        seconds = float(value)
    except ValueError:
        seconds = math.nan
    if not (math.isfinite(seconds) and seconds >= 0):
        raise given.wrong("grace", f"is {value!r}, not a number of seconds")
    return seconds


def _refuse_contradictions(given: _Given, options: SessionOptions) -> None:
    for other in ("provider_url", "api_key_env", "api_key_file"):
        given.excludes("scripted", other, "a scripted model brings its own URL and key; leave one of the two out")
    given.excludes("api_key_env", "api_key_file", "say in one place where the key is")
    for other in ("codex", "model", "model_verbosity"):
        given.excludes("harness_dir", other, "these are settings of Codex; leave one of the two out")
    if (options.harness_dir is None) != (options.binary is None):
        present, absent = ("harness_dir", "binary") if options.harness_dir else ("binary", "harness_dir")
        raise UsageError(
            f"{given.named(present)} without {given.named(absent)}",
            remedy=f"add {given.named(absent)} {_BY_KEY[absent].metavar}",
        )
    if options.binary is not None and ("/" in options.binary or options.binary in (".", "..")):
        raise given.wrong("binary", f"is {options.binary!r}, not the name of a file in DIR")
    for label in options.mcp_bearer_env:
        if label not in options.mcp:
            raise UsageError(
                f"{given.named('mcp_bearer_env')} names {label!r}, which no {given.named('mcp')} brings",
                remedy=f"add {given.named('mcp')} {label}=URL",
            )


def _refuse_later(given: _Given) -> None:
    for key in given.values:
        option = _BY_KEY[key]
        if option.later is not None:
            raise NotAvailableYet(
                f"{given.named(key)} is not available yet: {option.later}", remedy=f"leave {given.named(key)} out"
            )
