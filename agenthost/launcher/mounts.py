"""Mount steps: what a tree is made of, as values.

A tree is a root, which is an empty read-only tmpfs of its own, and steps that are attached in their order. The builder
applies a step, a dump shows it, tests read it. Every mount is nosuid and private (mount_setattr(2): MS_PRIVATE), so
that nothing that is mounted outside later appears inside; every mount but `Devices` is nodev.

Targets are canonical: no component of a target is a symbolic link in the finished tree.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from agenthost.layout import ViewPath


@dataclass(frozen=True, slots=True)
class Identity:
    """Which file a path stood for when it was admitted. The builder refuses another one under the same path."""

    device: int
    inode: int

    @classmethod
    def of(cls, status: os.stat_result) -> Identity:
        return cls(status.st_dev, status.st_ino)


@dataclass(frozen=True, slots=True)
class IdMap:
    """One owner on disk, shown as another: files of `disk_uid` look as `uid`'s and the other way round."""

    disk_uid: int
    disk_gid: int
    uid: int
    gid: int


@dataclass(frozen=True, slots=True)
class Bind:
    """A file or directory of the host with everything mounted below it."""

    source: str
    target: ViewPath
    readonly: bool = True
    executable: bool = False
    identity: Identity | None = None
    idmap: IdMap | None = None

    def describe(self) -> str:
        rights = ("ro" if self.readonly else "rw") + ("" if self.executable else ",noexec")
        return f"bind {self.source} ({rights})"


@dataclass(frozen=True, slots=True)
class Private:
    """A tmpfs of the Session: the same files in every tree of the Session that has a step of this name."""

    name: str
    target: ViewPath
    executable: bool = False
    mode: int = 0o700
    size: int = 1 << 30
    uid: int = 0
    gid: int = 0

    def describe(self) -> str:
        return f"private {self.name} (rw{'' if self.executable else ',noexec'}, {self.size >> 20} MiB)"


@dataclass(frozen=True, slots=True)
class Content:
    """A small read-only tree made of the values here: file bytes, link texts, empty directories and empty files.

    Names are relative to the target. `mount_points` are made beside: directories, or empty files where the value is
    True.
    """

    name: str
    target: ViewPath
    files: Mapping[str, bytes] = field(default_factory=dict)
    links: Mapping[str, str] = field(default_factory=dict)
    directories: Sequence[str] = ()

    def describe(self) -> str:
        return f"content {self.name} (ro,noexec, {len(self.files)} files)"


@dataclass(frozen=True, slots=True)
class Overlay:
    """A directory of the world under a read-only layer of ours, whose opaque directories and files hide what is below.

    The mask cannot be lifted by renaming below: a whiteout under it ends the search for what lies there (overlayfs).
    `below` is what would stand at the target without the overlay; submounts of a bind are not seen through it.
    """

    name: str
    target: ViewPath
    below: Bind | Content
    opaque: Mapping[str, Mapping[str, bytes]] = field(default_factory=dict)
    files: Mapping[str, bytes] = field(default_factory=dict)

    def describe(self) -> str:
        masked = ", ".join([*self.opaque, *self.files])
        return f"overlay masking {masked} (ro,noexec) of {self.below.describe()}"


@dataclass(frozen=True, slots=True)
class Devices:
    """A minimal `/dev`: null, zero, full, random, urandom, tty, pts, ptmx, shm and the fd links."""

    target: ViewPath = ViewPath("/dev")
    executable: bool = False
    shm_size: int = 256 << 20

    def describe(self) -> str:
        return "devices"


@dataclass(frozen=True, slots=True)
class Link:
    """A symbolic link in the root."""

    target: ViewPath
    text: str

    def describe(self) -> str:
        return f"link to {self.text}"


@dataclass(frozen=True, slots=True)
class Directory:
    """An empty directory in the root."""

    target: ViewPath

    def describe(self) -> str:
        return "directory"


MountStep = Bind | Private | Content | Overlay | Devices | Link | Directory
_KINDS: Final[Mapping[str, type[Any]]] = {
    kind.__name__: kind for kind in (Bind, Private, Content, Overlay, Devices, Link, Directory, Identity, IdMap)
}


def dump(steps: Sequence[MountStep]) -> list[Any]:
    """As JSON values, for the wire."""
    return [_dump(step) for step in steps]


def load(values: Sequence[Any]) -> tuple[MountStep, ...]:
    """What `dump` made of steps."""
    return tuple(_load(value) for value in values)


def table(steps: Sequence[MountStep]) -> list[tuple[str, str]]:
    """Target and description of each step, in order of attaching."""
    return [(step.target, step.describe()) for step in steps]


def _dump(value: Any) -> Any:
    match value:
        case bytes():
            return {"!": "bytes", "hex": value.hex()}
        case Mapping():
            return {"!": "map", "items": [[key, _dump(item)] for key, item in value.items()]}
        case list() | tuple():
            return [_dump(item) for item in value]
        case _ if type(value).__name__ in _KINDS:
            names = type(value).__dataclass_fields__
            return {"!": type(value).__name__, **{name: _dump(getattr(value, name)) for name in names}}
        case _:
            return value


def _load(value: Any) -> Any:
    match value:
        case {"!": "bytes", "hex": text}:
            return bytes.fromhex(text)
        case {"!": "map", "items": items}:
            return {key: _load(item) for key, item in items}
        case {"!": name, **fields}:
            return _KINDS[name](**{str(key): _load(item) for key, item in fields.items()})
        case list():
            return tuple(_load(item) for item in value)
        case _:
            return value


def to_json(value: Any) -> bytes:
    """JSON in ASCII: surrogate escapes of names that are not UTF-8 survive."""
    return json.dumps(value, separators=(",", ":")).encode("ascii")
