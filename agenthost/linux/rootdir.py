"""A directory whose contents somebody else may have planted, and every access to it through its descriptor.

Promise: no call here leaves the directory, follows a symbolic link, crosses a mount, opens a device, blocks on a FIFO,
or writes through a hard link, whatever stands at any name and whoever renames it meanwhile. What is asked for is done
to the name itself, or an `OSError` says why not, and what a planted link points to is untouched.

The kernel resolves each path (openat2(2), Linux 5.6, below the descriptor only); the last component is then acted on
with the *at calls, none of which follows it. Names are relative, clean paths of one or more components.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Final, Self, TypeVar

from agenthost.linux.syscalls import (
    RESOLVE_BENEATH,
    RESOLVE_NO_MAGICLINKS,
    RESOLVE_NO_SYMLINKS,
    RESOLVE_NO_XDEV,
    openat2,
)

RESOLVE: Final = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS | RESOLVE_NO_XDEV

TRIES: Final = 64
"""How often a lost race against a rename is run again."""

DEFAULT_LIMIT: Final = 1 << 20
"""Bytes that `read` returns at most."""

TEMPORARY: Final = ".oac-"
"""Prefix of the names under which files are written before they get their own, and directories before they go."""

_OPEN: Final = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Owner:
    """Who owns what is made, when the daemon is root."""

    uid: int
    gid: int


class RootDir:
    """Owns the descriptor. Not for use by several threads at once."""

    __slots__ = ("_fd",)

    def __init__(self, fd: int) -> None:
        self._fd = fd

    @classmethod
    def open(cls, path: Path) -> Self:
        """The directory at `path`, which must not be a link itself. Its parents are trusted."""
        return cls(os.open(path, os.O_RDONLY | os.O_DIRECTORY | _OPEN))

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def fileno(self) -> int:
        return self._fd

    def directory(self, name: str) -> RootDir:
        """The directory `name` as a RootDir of its own."""
        return RootDir(self._open(name, os.O_RDONLY | os.O_DIRECTORY))

    def names(self, name: str = ".") -> list[str]:
        """What is in the directory `name`, in no order."""
        return [entry for entry, _ in self.entries(name)]

    def entries(self, name: str = ".") -> list[tuple[str, os.stat_result]]:
        """What is in the directory `name`, each entry itself and not what a link points to, in no order."""
        with self.directory(name) as directory:
            return list(_entries(directory.fileno()))

    def stat(self, name: str) -> os.stat_result:
        """Of the name itself: a link is not followed."""
        with self._parent(name) as (parent, last):
            return os.stat(last, dir_fd=parent, follow_symlinks=False)

    def exists(self, name: str) -> bool:
        """Whether there is anything at the name."""
        try:
            self.stat(name)
        except FileNotFoundError:
            return False
        return True

    def read(self, name: str, *, limit: int = DEFAULT_LIMIT) -> bytes:
        """The content of a regular file with one name. EFBIG when it is longer than `limit` bytes."""
        fd = self._open_plain(name, os.O_RDONLY)
        try:
            if os.fstat(fd).st_size > limit:
                raise _error(errno.EFBIG, name)
            with open(fd, "rb", closefd=False) as file:
                data = file.read(limit + 1)
            if len(data) > limit:
                raise _error(errno.EFBIG, name)
            return data
        finally:
            os.close(fd)

    def write(self, name: str, data: bytes, *, mode: int = 0o600, owner: Owner | None = None) -> None:
        """A new regular file at the name, in place of whatever was there: a link is replaced, a directory removed.

        The file appears whole or not at all.
        """
        with self._parent(name) as (parent, last):
            temporary = TEMPORARY + secrets.token_hex(8)
            fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _OPEN, 0o600, dir_fd=parent)
            try:
                _fill(fd, data, mode, owner)
                self._put(parent, temporary, last, os.fstat(fd))
            except BaseException:
                with contextlib.suppress(OSError):
                    os.unlink(temporary, dir_fd=parent)
                raise
            finally:
                os.close(fd)

    def create(self, name: str, data: bytes, *, mode: int = 0o600, owner: Owner | None = None) -> None:
        """A new regular file. FileExistsError when there is anything at the name, a dangling link included."""
        with self._parent(name) as (parent, last):
            fd = os.open(last, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _OPEN, 0o600, dir_fd=parent)
            try:
                _fill(fd, data, mode, owner)
            except BaseException:
                with contextlib.suppress(OSError):
                    os.unlink(last, dir_fd=parent)
                raise
            finally:
                os.close(fd)

    def append(self, name: str, data: bytes) -> None:
        """At the end of a regular file with one name, which must be there."""
        fd = self._open_plain(name, os.O_WRONLY | os.O_APPEND)
        try:
            _write_all(fd, data)
        finally:
            os.close(fd)

    def mkdir(self, name: str, *, mode: int = 0o700, owner: Owner | None = None) -> None:
        """A new directory. FileExistsError when there is anything at the name."""
        with self._parent(name) as (parent, last):
            os.mkdir(last, 0o700, dir_fd=parent)
        self.own_directory(name, mode=mode, owner=owner)

    def own_directory(self, name: str, *, mode: int = 0o700, owner: Owner | None = None) -> None:
        """Gives the directory at the name this mode and owner. NotADirectoryError or ELOOP when it is none."""
        _open_up(self._fd, _clean(name))
        with self.directory(name) as directory:
            if owner is not None:
                os.fchown(directory.fileno(), owner.uid, owner.gid)
            os.fchmod(directory.fileno(), mode)

    def own_file(self, name: str, *, mode: int = 0o600, owner: Owner | None = None) -> None:
        """Gives the regular file with one name this mode and owner; what else stands there is refused."""
        handle = self._open(name, os.O_PATH)
        try:
            found = os.fstat(handle)
            if not stat.S_ISREG(found.st_mode) or found.st_nlink != 1:
                raise _not_plain(found.st_mode, name)
            if owner is not None:
                os.chown(f"/proc/self/fd/{handle}", owner.uid, owner.gid)
            os.chmod(f"/proc/self/fd/{handle}", mode)
        finally:
            os.close(handle)

    def own_tree(self, name: str, owner: Owner) -> None:
        """Gives what is below the directory at the name to another owner, the directory itself last.

        Links and files with a second name stay as they are. ENAMETOOLONG for a tree deeper than a path can be.
        """
        found = [name]
        for directory in found:
            with self.directory(directory) as opened:
                for entry, kind in _entries(opened.fileno()):
                    if stat.S_ISDIR(kind.st_mode):
                        found.append(f"{directory}/{entry}")
                    elif stat.S_ISREG(kind.st_mode) and kind.st_nlink == 1:
                        os.chown(entry, owner.uid, owner.gid, dir_fd=opened.fileno(), follow_symlinks=False)
        for directory in reversed(found):
            with self.directory(directory) as opened:
                os.fchown(opened.fileno(), owner.uid, owner.gid)

    def remove(self, name: str) -> None:
        """Whatever is at the name, a directory with all that is in it. Nothing there is fine."""
        with self._parent(name) as (parent, last):
            _again(lambda: self._remove(parent, last), errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR, errno.EISDIR)

    def _remove(self, parent: int, name: str) -> None:
        try:
            mode = os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode
            if not stat.S_ISDIR(mode):
                os.unlink(name, dir_fd=parent)
                return
            _open_up(parent, name)
            directory = _openat(parent, name, os.O_RDONLY | os.O_DIRECTORY)
        except FileNotFoundError:
            return
        try:
            _empty(directory)
        finally:
            os.close(directory)
        with contextlib.suppress(FileNotFoundError):
            os.rmdir(name, dir_fd=parent)

    def _put(self, parent: int, temporary: str, name: str, made: os.stat_result) -> None:
        for _ in range(TRIES):
            try:
                os.rename(temporary, name, src_dir_fd=parent, dst_dir_fd=parent)
            except OSError as error:
                if error.errno not in {errno.EISDIR, errno.ENOTEMPTY, errno.EEXIST}:
                    raise
                self._remove(parent, name)
                continue
            now = os.stat(name, dir_fd=parent, follow_symlinks=False)
            if (now.st_dev, now.st_ino) != (made.st_dev, made.st_ino):
                # Somebody who may write in this directory put something else at the temporary name.
                raise _error(errno.ESTALE, name)
            return
        raise _error(errno.EAGAIN, name)

    def _open(self, name: str, flags: int) -> int:
        return _openat(self._fd, _clean(name), flags)

    def _open_plain(self, name: str, flags: int) -> int:
        """A regular file that has no second name through which it is also somebody else's."""
        found = self.stat(name)
        if not stat.S_ISREG(found.st_mode):
            raise _not_plain(found.st_mode, name)
        fd = self._open(name, flags)
        opened = os.fstat(fd)
        if stat.S_ISREG(opened.st_mode) and opened.st_nlink == 1:
            return fd
        os.close(fd)
        raise _not_plain(opened.st_mode, name)

    @contextlib.contextmanager
    def _parent(self, name: str) -> Iterator[tuple[int, str]]:
        above, _, last = _clean(name).rpartition("/")
        if last == ".":
            raise _error(errno.EINVAL, name)
        fd = self._open(above or ".", os.O_RDONLY | os.O_DIRECTORY)
        try:
            yield fd, last
        finally:
            os.close(fd)


def _clean(name: str) -> str:
    parts = name.split("/")
    if name != "." and any(part in {"", ".", ".."} for part in parts):
        raise _error(errno.EINVAL, name)
    return name


def _error(number: int, name: str) -> OSError:
    return OSError(number, os.strerror(number), name)


def _not_plain(mode: int, name: str) -> OSError:
    if stat.S_ISREG(mode):
        return _error(errno.EMLINK, name)
    if stat.S_ISLNK(mode):
        return _error(errno.ELOOP, name)
    return _error(errno.EISDIR if stat.S_ISDIR(mode) else errno.ENXIO, name)


def _again(attempt: Callable[[], T], *lost: int) -> T:
    """Runs a call again when it lost a race, a bounded number of times."""
    for _ in range(TRIES - 1):
        try:
            return attempt()
        except OSError as error:
            if error.errno not in lost:
                raise
    return attempt()


def _openat(directory: int, name: str, flags: int) -> int:
    # openat2(2) refuses what open(2) ignores: O_PATH goes with nothing that is about an open file.
    extra = os.O_NOFOLLOW if flags & os.O_PATH else _OPEN
    return _again(lambda: openat2(directory, name, flags | extra, 0, RESOLVE), errno.EAGAIN)


def _fill(fd: int, data: bytes, mode: int, owner: Owner | None) -> None:
    if owner is not None:
        os.fchown(fd, owner.uid, owner.gid)
    os.fchmod(fd, mode)
    _write_all(fd, data)


def _write_all(fd: int, data: bytes) -> None:
    left = memoryview(data)
    while left:
        left = left[os.write(fd, left) :]


def _entries(directory: int) -> Iterator[tuple[str, os.stat_result]]:
    for entry in os.listdir(directory):
        with contextlib.suppress(FileNotFoundError):
            yield entry, os.stat(entry, dir_fd=directory, follow_symlinks=False)


def _open_up(parent: int, name: str) -> None:
    """Makes a directory listable and writable for its owner, who may have taken that from himself."""
    handle = _openat(parent, name, os.O_PATH | os.O_DIRECTORY)
    try:
        mode = os.fstat(handle).st_mode
        if mode & stat.S_IRWXU != stat.S_IRWXU:
            os.chmod(f"/proc/self/fd/{handle}", stat.S_IMODE(mode) | stat.S_IRWXU)
    finally:
        os.close(handle)


def _empty(directory: int) -> None:
    """Removes everything in a directory with a constant number of descriptors, however deep it is.

    What a subdirectory holds is moved up before the subdirectory goes: depth costs time and nothing else.
    """
    while names := os.listdir(directory):
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                _take_apart(directory, name)


def _take_apart(directory: int, name: str) -> None:
    if not stat.S_ISDIR(os.stat(name, dir_fd=directory, follow_symlinks=False).st_mode):
        os.unlink(name, dir_fd=directory)
        return
    _open_up(directory, name)
    inner = _openat(directory, name, os.O_RDONLY | os.O_DIRECTORY)
    try:
        for entry, kind in _entries(inner):
            if stat.S_ISDIR(kind.st_mode):
                _open_up(inner, entry)  # to move a directory is to write in it: its ".." changes
                os.rename(entry, TEMPORARY + secrets.token_hex(8), src_dir_fd=inner, dst_dir_fd=directory)
            else:
                os.unlink(entry, dir_fd=inner)
    finally:
        os.close(inner)
    os.rmdir(name, dir_fd=directory)
