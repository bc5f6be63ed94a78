"""What a Harness needs in a view: closure, local exec, shims, shim paths, masks, forwarded environment, proxy.

Promise: a `View` that exists keeps every rule of contracts/view.md (the ids V.. beside the checks), so that nobody who
holds one needs to check it again. `View.from_json(view.to_json()) == view`.
"""

from __future__ import annotations

import itertools
import posixpath
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, NoReturn

from agenthost.errors import DeclarationInvalid
from agenthost.layout import OAC, RESERVED, ViewPath, overlaps

COMPONENT: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._+-]{0,63}")
"""The name of a closure or a shim: one path component, visible, at most 64 characters."""

VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
"""The name of an environment variable (POSIX.1-2017, 8.1, lower case admitted)."""

OWN_COMPONENTS: Final = frozenset({"bin", "home", "run"})
"""Names below `/.oac` that belong to the view itself."""

PROXY_VARIABLES: Final = ("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy")
NO_PROXY_VARIABLES: Final = ("NO_PROXY", "no_proxy")
NOT_PROXIED: Final = ("127.0.0.1", "localhost")

SET_BY_AGENTHOST: Final = frozenset(
    {"PATH", "HOME", "TMPDIR", "CODEX_HOME", "DISABLE_TELEMETRY", *PROXY_VARIABLES, *NO_PROXY_VARIABLES}
)
"""Variables that the view or the broker sets itself, which therefore cannot be forwarded."""

MaskKind = Literal["directory", "file"]


def _invalid(what: str) -> NoReturn:
    raise DeclarationInvalid(what, remedy="correct the declaration as contracts/view.md has it")


def _check_path(path: str, what: str) -> None:
    """V01."""
    if not path.startswith("/") or "\0" in path:
        _invalid(f"{what} {path!r} is not an absolute path")
    if path.startswith("//") or posixpath.normpath(path) != path:
        _invalid(f"{what} {path!r} is not a clean path")
    if path == "/":
        _invalid(f"{what} is the root")


def _check_unique(names: Iterable[str], what: str) -> None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            _invalid(f"{what} {name!r} is declared twice")
        seen.add(name)


def _check_variable(name: str, what: str) -> None:
    if not VARIABLE.fullmatch(name):
        _invalid(f"{what} {name!r} is not the name of a variable")


@dataclass(frozen=True, slots=True)
class Mount:
    """A closure: the host directory `source`, read-only and executable at `/.oac/<name>`."""

    source: Path
    name: str

    def __post_init__(self) -> None:
        _check_path(str(self.source), "closure source")
        if not COMPONENT.fullmatch(self.name) or self.name in OWN_COMPONENTS:
            _invalid(f"closure name {self.name!r} is not a free single component")

    @property
    def path(self) -> ViewPath:
        """Where the view shows it."""
        return ViewPath(f"{OAC}/{self.name}")


@dataclass(frozen=True, slots=True)
class Mask:
    """A view path shown as an empty read-only directory or file."""

    path: ViewPath
    kind: MaskKind = "directory"

    def __post_init__(self) -> None:
        _check_path(self.path, "mask")
        if self.kind not in {"directory", "file"}:
            _invalid(f"mask kind {self.kind!r} is neither directory nor file")


@dataclass(frozen=True, slots=True)
class ProxyEnv:
    """The Harness learns of the gateway's proxy by its environment (in the specification: ViewProxyEnv)."""

    variables: tuple[str, ...] = PROXY_VARIABLES
    exempt_variables: tuple[str, ...] = NO_PROXY_VARIABLES
    exempt: tuple[str, ...] = NOT_PROXIED

    def __post_init__(self) -> None:
        for name in (*self.variables, *self.exempt_variables):
            _check_variable(name, "proxy variable")
        _check_unique((*self.variables, *self.exempt_variables), "proxy variable")
        for host in self.exempt:
            if not host or any(c in host for c in ", \t\r\n\0"):
                _invalid(f"proxy exemption {host!r} is not a host")

    def environment(self, url: str) -> dict[str, str]:
        """The variables that announce the proxy at `url`."""
        exempt = ",".join(self.exempt)
        return dict.fromkeys(self.variables, url) | dict.fromkeys(self.exempt_variables, exempt)


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """A declaration. Raises `DeclarationInvalid` when it breaks a rule of contracts/view.md."""

    closure: tuple[Mount, ...]
    local_exec: tuple[ViewPath, ...]
    shims: tuple[str, ...] = ()
    shim_paths: tuple[ViewPath, ...] = ()
    masks: tuple[Mask, ...] = ()
    forward_env: tuple[str, ...] = ()
    proxy: ProxyEnv = ProxyEnv()

    def __post_init__(self) -> None:
        self._check_closure()
        self._check_shims()
        self._check_overlaps()
        self._check_variables()

    def _check_closure(self) -> None:
        if not self.closure:
            _invalid("there is no closure, so nothing can run")  # V02
        _check_unique((mount.name for mount in self.closure), "closure name")  # V03
        if not self.local_exec:
            _invalid("there is no local exec, so nothing can run")  # V04
        for path in self.local_exec:  # V05
            _check_path(path, "local exec")
            if not any(path.startswith(f"{mount.path}/") for mount in self.closure):
                _invalid(f"local exec {path!r} lies in no closure")
        _check_unique(self.local_exec, "local exec")

    def _check_shims(self) -> None:
        for name in self.shims:  # V06
            if not COMPONENT.fullmatch(name):
                _invalid(f"shim {name!r} is not a single component")
        _check_unique(self.shims, "shim")
        for path in self.shim_paths:
            _check_path(path, "shim path")

    def _check_overlaps(self) -> None:
        """V07: each of these is mounted over the world, and one mount must not hide or hold another."""
        placed = [("shim path", str(p)) for p in self.shim_paths] + [("mask", str(m.path)) for m in self.masks]
        for what, path in placed:
            for tree in RESERVED:
                if overlaps(path, tree):
                    _invalid(f"{what} {path!r} overlaps the reserved {tree}")
        for (what, path), (other_what, other) in itertools.combinations(placed, 2):
            if overlaps(path, other):
                _invalid(f"{what} {path!r} overlaps {other_what} {other!r}")

    def _check_variables(self) -> None:
        for name in self.forward_env:  # V08
            _check_variable(name, "forwarded variable")
            if name in SET_BY_AGENTHOST or name in self.proxy.variables or name in self.proxy.exempt_variables:
                _invalid(f"forwarded variable {name!r} is set by the view or the broker")
        _check_unique(self.forward_env, "forwarded variable")

    def to_json(self) -> dict[str, object]:
        """As `$defs/view` of contracts/declaration.schema.json has it."""
        return {
            "closure": [{"source": str(mount.source), "name": mount.name} for mount in self.closure],
            "local_exec": list(self.local_exec),
            "shims": list(self.shims),
            "shim_paths": list(self.shim_paths),
            "masks": [{"path": mask.path, "kind": mask.kind} for mask in self.masks],
            "forward_env": list(self.forward_env),
            "proxy": {
                "variables": list(self.proxy.variables),
                "exempt_variables": list(self.proxy.exempt_variables),
                "exempt": list(self.proxy.exempt),
            },
        }

    @classmethod
    def from_json(cls, value: object) -> View:
        """The inverse of `to_json`. Every member must be there and no other; raises `DeclarationInvalid`."""
        members = {"closure", "local_exec", "shims", "shim_paths", "masks", "forward_env", "proxy"}
        view = _object(value, members, "the declaration")
        proxy = _object(view["proxy"], {"variables", "exempt_variables", "exempt"}, "proxy")
        mounts = [_object(item, {"source", "name"}, "a closure") for item in _list(view["closure"], "closure")]
        masks = [_object(item, {"path", "kind"}, "a mask") for item in _list(view["masks"], "masks")]
        return cls(
            closure=tuple(Mount(_host_path(m["source"]), _string(m["name"], "closure name")) for m in mounts),
            local_exec=_view_paths(view["local_exec"], "local_exec"),
            shims=_strings(view["shims"], "shims"),
            shim_paths=_view_paths(view["shim_paths"], "shim_paths"),
            masks=tuple(Mask(ViewPath(_string(m["path"], "mask")), _kind(m["kind"])) for m in masks),
            forward_env=_strings(view["forward_env"], "forward_env"),
            proxy=ProxyEnv(
                variables=_strings(proxy["variables"], "proxy variables"),
                exempt_variables=_strings(proxy["exempt_variables"], "proxy exempt_variables"),
                exempt=_strings(proxy["exempt"], "proxy exempt"),
            ),
        )


def _object(value: object, members: set[str], what: str) -> Mapping[str, object]:
    if not isinstance(value, Mapping) or set(value) != members:
        _invalid(f"{what} does not have exactly the members {', '.join(sorted(members))}")
    return value


def _list(value: object, what: str) -> Sequence[object]:
    if not isinstance(value, list | tuple):
        _invalid(f"{what} is not a list")
    return value


def _string(value: object, what: str) -> str:
    if not isinstance(value, str):
        _invalid(f"{what} {value!r} is not a string")
    return value


def _strings(value: object, what: str) -> tuple[str, ...]:
    return tuple(_string(item, what) for item in _list(value, what))


def _view_paths(value: object, what: str) -> tuple[ViewPath, ...]:
    return tuple(ViewPath(item) for item in _strings(value, what))


def _host_path(value: object) -> Path:
    text = _string(value, "closure source")
    _check_path(text, "closure source")  # before `Path` tidies it
    return Path(text)


def _kind(value: object) -> MaskKind:
    if value == "directory":
        return "directory"
    if value == "file":
        return "file"
    _invalid(f"mask kind {value!r} is neither directory nor file")
