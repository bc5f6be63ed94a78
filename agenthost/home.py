"""The Session home: `codex` and `tmp` side by side, both 0700 and the Session's, everything through one RootDir.

Promise: whatever a Harness left in its home, at any name, neither redirects a read or a write of the daemon, nor blocks
it, nor steers the next launch: `prepare` writes anew or removes all that a plan does not keep.
"""

from __future__ import annotations

import contextlib
import errno
import fnmatch
import stat
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Final, Self

from agenthost.errors import HomeUnsafe, StateUnusable
from agenthost.linux.rootdir import DEFAULT_LIMIT, TEMPORARY, Owner, RootDir

DIRECTORIES: Final = ("codex", "tmp")

DIRECTORIES_STAY: Final = tuple(f"{name}/" for name in DIRECTORIES)
"""As patterns: a last component that is empty matches nothing."""

EVERYTHING: Final = "**"
"""As the last component of a pattern: whatever is in the directory stays as it is."""

_REMEDY: Final = "remove the Session (agenthost sessions remove ID), or start another one"


class Home:
    """An open Session home. Raises `HomeUnsafe` where something is not what it must be, `StateUnusable` when full."""

    __slots__ = ("_owner", "_root", "path")

    def __init__(self, path: Path, root: RootDir, owner: Owner | None) -> None:
        self.path = path
        self._root = root
        self._owner = owner

    @classmethod
    def open(cls, path: Path, *, uid: int | None = None, gid: int | None = None) -> Self:
        """Makes the home if it is not there. `uid` and `gid` own it and what is in it; without them the caller does.

        What an earlier launch left under another uid is given to the new one. The directory above must be the daemon's.
        """
        owner = None if uid is None or gid is None else Owner(uid, gid)
        try:
            with contextlib.suppress(FileExistsError):
                path.mkdir(mode=0o700)
                path.chmod(0o700)  # whatever the umask
            root = RootDir.open(path)
        except OSError as error:
            raise HomeUnsafe(f"the Session home {path} cannot be opened ({error.strerror})", remedy=_REMEDY) from error
        home = cls(path, root, owner)
        try:
            with _unsafe("."):
                root.own_directory(".", owner=owner)
            for name in DIRECTORIES:
                home._settle_directory(name)
        except BaseException:
            root.close()
            raise
        return home

    def close(self) -> None:
        self._root.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def prepare(
        self,
        files: Mapping[str, bytes],
        keep: Sequence[str],
        *,
        empty: Sequence[str] = (),
        once: Mapping[str, bytes] = MappingProxyType({}),
    ) -> None:
        """Before each launch, while no view of the Session lives.

        files   what is written anew, by path below the home
        keep    patterns of the paths that survive; see `HarnessPlan.home_keep`
        empty   directories that are made anew
        once    files that are created, and are the caller's to remove after the launch
        """
        for name in DIRECTORIES:
            self._settle_directory(name)
        self._sweep(".", [tuple(pattern.split("/")) for pattern in (*DIRECTORIES_STAY, *keep)])
        for name, data in files.items():
            self.write(name, data)
        for name in empty:
            self.remove(name)
            self.mkdir(name)
        for name, data in once.items():
            self.create(name, data)

    def read(self, name: str, *, limit: int = DEFAULT_LIMIT) -> bytes:
        """A regular file's content; FileNotFoundError when there is nothing at the name."""
        with _unsafe(name):
            return self._root.read(name, limit=limit)

    def write(self, name: str, data: bytes) -> None:
        """In place of whatever is at the name."""
        with _unsafe(name):
            self._root.write(name, data, owner=self._owner)

    def create(self, name: str, data: bytes) -> None:
        """FileExistsError when there is anything at the name."""
        with _unsafe(name):
            self._root.create(name, data, owner=self._owner)

    def append(self, name: str, data: bytes) -> None:
        """To a regular file that is there; fails through a link."""
        with _unsafe(name):
            self._root.append(name, data)

    def remove(self, name: str) -> None:
        """Whatever is at the name, if anything."""
        with _unsafe(name):
            self._root.remove(name)

    def mkdir(self, name: str) -> None:
        """FileExistsError when there is anything at the name."""
        with _unsafe(name):
            self._root.mkdir(name, owner=self._owner)

    def names(self, name: str = ".") -> list[str]:
        """What is in the directory at the name, sorted."""
        with _unsafe(name):
            return sorted(self._root.names(name))

    def _settle_directory(self, name: str) -> None:
        with _unsafe(name):
            if self._root.exists(name) and not stat.S_ISDIR(self._root.stat(name).st_mode):
                self._root.remove(name)
            if not self._root.exists(name):
                self._root.mkdir(name, owner=self._owner)
            if self._owner is not None and self._root.stat(name).st_uid != self._owner.uid:
                self._root.own_tree(name, self._owner)
            self._root.own_directory(name, owner=self._owner)

    def _sweep(self, directory: str, patterns: Sequence[tuple[str, ...]]) -> None:
        """Removes from the directory what no pattern, a tuple of components, lets stay."""
        if (EVERYTHING,) in patterns:
            return
        with _unsafe(directory):
            found = self._root.entries(directory)
        for entry, kind in found:
            path = entry if directory == "." else f"{directory}/{entry}"
            matching = [pattern[1:] for pattern in patterns if fnmatch.fnmatchcase(entry, pattern[0])]
            below = [pattern for pattern in matching if pattern]
            if entry.startswith(TEMPORARY):
                self.remove(path)
            elif below and stat.S_ISDIR(kind.st_mode):
                with _unsafe(path):
                    self._root.own_directory(path, owner=self._owner)
                self._sweep(path, below)
            elif () in matching and stat.S_ISREG(kind.st_mode) and kind.st_nlink == 1:
                with _unsafe(path):
                    self._root.own_file(path, owner=self._owner)
            else:
                self.remove(path)


@contextlib.contextmanager
def _unsafe(name: str) -> Iterator[None]:
    """Turns what a RootDir refuses into `HomeUnsafe`, a full disk into `StateUnusable`; absence and presence stay."""
    try:
        yield
    except (FileNotFoundError, FileExistsError):
        raise
    except OSError as error:
        if error.errno in _NO_ROOM:
            raise StateUnusable(
                f"{name} in the Session home cannot be written ({error.strerror})",
                remedy="make room on the disk of the state directory, or use another --state-dir",
            ) from error
        why = _MEANING.get(error.errno or 0, error.strerror or "unknown error")
        raise HomeUnsafe(f"{name} in the Session home {why}", remedy=_REMEDY) from error


_NO_ROOM: Final = (errno.ENOSPC, errno.EDQUOT)
_MEANING: Final = {
    errno.ELOOP: "is, or lies behind, a symbolic link",
    errno.EXDEV: "lies on another mount",
    errno.EMLINK: "has a second name (hard link)",
    errno.ENXIO: "is a FIFO, a socket or a device",
    errno.EISDIR: "is a directory",
    errno.ENOTDIR: "is not a directory",
    errno.EFBIG: "is larger than it may be",
    errno.ESTALE: "was exchanged while it was written",
    errno.EINVAL: "is not a name below the home",
}
