"""The small mounts that trees are made of, and the names in them. Everything here works on descriptors."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import socket
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import PurePosixPath
from typing import Final

from agenthost.layout import ViewPath, overlaps
from agenthost.linux.syscalls import (
    AT_EMPTY_PATH,
    AT_FDCWD,
    AT_RECURSIVE,
    MOUNT_ATTR_IDMAP,
    MOUNT_ATTR_NOEXEC,
    MOUNT_ATTR_NOSUID,
    MS_PRIVATE,
    OPEN_TREE_CLONE,
    RESOLVE_NO_MAGICLINKS,
    RESOLVE_NO_SYMLINKS,
    fsconfig_create,
    fsconfig_set_string,
    fsmount,
    fsopen,
    mount_setattr,
    open_tree,
    openat2,
)

_LEAST_INODES: Final = 4096

NO_LINKS: Final = RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS


@contextlib.contextmanager
def closing(fd: int) -> Iterator[int]:
    """Closes the descriptor at the end of the block."""
    try:
        yield fd
    finally:
        os.close(fd)


def tmpfs(attributes: int, *, mode: int, size: int, uid: int = 0, gid: int = 0) -> int:
    """A detached tmpfs of at most `size` bytes (tmpfs(5)), and a file for each page of them: names cost memory too."""
    with closing(fsopen("tmpfs")) as fs:
        fsconfig_set_string(fs, "size", str(size))
        fsconfig_set_string(fs, "nr_inodes", str(max(size >> 12, _LEAST_INODES)))
        fsconfig_set_string(fs, "mode", f"{mode:o}")
        if (uid, gid) != (0, 0):
            fsconfig_set_string(fs, "uid", str(uid))
            fsconfig_set_string(fs, "gid", str(gid))
        fsconfig_create(fs)
        return fsmount(fs, attributes)


def devpts() -> int:
    """A detached instance of its own: every devpts mount is one since Linux 4.7."""
    with closing(fsopen("devpts")) as fs:
        fsconfig_set_string(fs, "mode", "620")
        fsconfig_set_string(fs, "ptmxmode", "666")
        fsconfig_create(fs)
        return fsmount(fs, MOUNT_ATTR_NOSUID | MOUNT_ATTR_NOEXEC)


def clone_of(fd: int, attributes: int) -> int:
    """A detached copy of an attached mount and of what is mounted below it, with more MOUNT_ATTR_* attributes."""
    clone = open_tree(fd, "", OPEN_TREE_CLONE | AT_EMPTY_PATH | AT_RECURSIVE)
    try:
        mount_setattr(clone, set_=attributes, propagation=MS_PRIVATE)
    except BaseException:
        os.close(clone)
        raise
    return clone


def unmappable(source: str, namespace: int) -> tuple[str, str] | None:
    """The first mount at or below `source` that takes no id map, and its filesystem: proc_pid_mountinfo(5)."""
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
        mounts = [line.split(" ") for line in file]
    inside = [fields for fields in mounts if overlaps(source, _unescaped(fields[4]))]
    # The one that `source` lies on is the last, and deepest, of those above it.
    above = [fields for fields in inside if len(_unescaped(fields[4])) <= len(source)]
    for fields in [*above[-1:], *(fields for fields in inside if fields not in above)]:
        place = source if fields in above else _unescaped(fields[4])
        with closing(open_tree(AT_FDCWD, place, OPEN_TREE_CLONE)) as clone:
            try:
                mount_setattr(clone, set_=MOUNT_ATTR_IDMAP, userns_fd=namespace, recursive=False)
            except OSError:
                return place, fields[fields.index("-") + 1]
    return None


def _unescaped(text: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), text)


def ground_of(grounds: Sequence[tuple[ViewPath, int | None]], target: ViewPath) -> tuple[int | None, str]:
    """What `target` will lie on: a directory that is ours to write in, or None; and the name below it."""
    for place, fd in reversed(grounds):
        if target.startswith(place.rstrip("/") + "/"):
            return fd, target[len(place.rstrip("/")) + 1 :]
    raise ValueError(f"{target} is not an absolute path below the root")


def put(ground: int | None, name: str, make: Callable[[int, str], None]) -> None:
    """Makes the parents of `name` below `ground`, then the thing itself; what is there already is left."""
    if ground is None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), name)
    parts = PurePosixPath(name).parts
    at = os.dup(ground)
    try:
        for part in parts[:-1]:
            make_directory(at, part)
            below = openat2(at, part, os.O_PATH | os.O_DIRECTORY, resolve=NO_LINKS)
            os.close(at)
            at = below
        make(at, parts[-1])
    finally:
        os.close(at)


def make_link(text: str, at: int, name: str) -> None:
    """A symbolic link that says `text`."""
    os.symlink(text, name, dir_fd=at)


def make_directory(at: int, name: str) -> None:
    """A directory, unless the name is taken."""
    with contextlib.suppress(FileExistsError):
        os.mkdir(name, 0o755, dir_fd=at)


def make_file(at: int, name: str) -> None:
    """An empty file, unless the name is taken."""
    with contextlib.suppress(FileExistsError):
        os.close(os.open(name, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o644, dir_fd=at))


def make_whiteout(at: int, name: str) -> None:
    """What overlayfs takes for "nothing here": device 0:0, which anybody may make (Linux 5.8)."""
    os.mknod(name, stat.S_IFCHR, 0, dir_fd=at)


def make_content(content: bytes, at: int, name: str) -> None:
    """A new file."""
    flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC
    with open(os.open(name, flags, 0o644, dir_fd=at), "wb") as file:
        file.write(content)


def write_files(directory: int, files: Mapping[str, bytes]) -> None:
    """New files, by names relative to the directory."""
    for name, content in files.items():
        put(directory, name, partial(make_content, content))


def listen(root: int, path: ViewPath) -> int:
    """A listening socket in the tree. connect(2) needs write permission on it: the shim runs as the Session's user."""
    put(root, path.lstrip("/").rpartition("/")[0], make_directory)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(f"/proc/self/fd/{root}{path}")
    listener.listen(socket.SOMAXCONN)
    return listener.detach()


def remove_tree(at: int, name: str) -> None:
    """Removes what this process made; nobody else writes there."""
    with closing(os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW, dir_fd=at)) as fd:
        with os.scandir(fd) as entries:
            found = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries]
        for child, directory in found:
            if directory:
                remove_tree(fd, child)
            else:
                os.unlink(child, dir_fd=fd)
    os.rmdir(name, dir_fd=at)
