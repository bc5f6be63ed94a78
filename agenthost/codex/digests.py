"""SHA-256 of a program of 300 MB: a quarter of a second, so it is remembered while the file is provably the same one.

A remembered digest stands for a file with the same device, inode, size, mtime and ctime. The kernel sets ctime at every
change of content and nobody without a clock of his own can set it back, so an equal ctime means an unchanged file,
unless the change fell into the same tick of the clock: a file that changed less than `SETTLED_NS` ago is not
remembered. The memory is a file in the state directory, which only its owner can write; elsewhere it is not used.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import stat
import time
from pathlib import Path
from typing import Final

from agenthost.linux.rootdir import RootDir

MEMORY: Final = "codex-digests.json"
SETTLED_NS: Final = 2_000_000_000
"""Nanoseconds; also above the two seconds of the coarsest timestamps (FAT)."""

MAX_REMEMBERED: Final = 64
_CHUNK: Final = 1 << 20


class Digests:
    """Digests of open files, remembered in a state directory when that is private to this user."""

    __slots__ = ("_directory", "_known", "_learned")

    def __init__(self, state_dir: Path | None = None) -> None:
        self._directory = state_dir if state_dir is not None and _is_private(state_dir) else None
        self._known = {} if self._directory is None else _load(self._directory)
        self._learned: dict[str, str] = {}

    def sha256(self, fd: int) -> str:
        """Of the whole file behind `fd`. Raises OSError when it cannot be read, or changes meanwhile."""
        before = os.fstat(fd)
        key = _key(before)
        if key in self._known:
            return self._known[key]
        started = time.time_ns()
        digest = _sha256(fd)
        if _key(os.fstat(fd)) != key:
            raise OSError("the file changed while it was read")
        if started - before.st_ctime_ns > SETTLED_NS:
            self._learned[key] = digest
        return digest

    def save(self) -> None:
        """Remembers what was learned. A state directory that cannot be written only costs the time again."""
        if self._directory is None or not self._learned:
            return
        known = {**self._known, **self._learned}
        kept = dict(list(known.items())[-MAX_REMEMBERED:])
        with contextlib.suppress(OSError), RootDir.open(self._directory) as root:
            root.write(MEMORY, json.dumps(kept, indent=1).encode() + b"\n")


def _sha256(fd: int) -> str:
    digest = hashlib.sha256()
    buffer = bytearray(_CHUNK)
    view = memoryview(buffer)
    offset = 0
    while count := os.preadv(fd, [buffer], offset):
        digest.update(view[:count])
        offset += count
    return digest.hexdigest()


def _key(found: os.stat_result) -> str:
    return f"{found.st_dev}:{found.st_ino}:{found.st_size}:{found.st_mtime_ns}:{found.st_ctime_ns}"


def _is_private(directory: Path) -> bool:
    try:
        found = directory.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & 0o022


def _load(directory: Path) -> dict[str, str]:
    """What is remembered; a memory that is absent, unsafe or broken is an empty one."""
    try:
        with RootDir.open(directory) as root:
            found = json.loads(root.read(MEMORY))
    except (OSError, ValueError, RecursionError):
        return {}
    if not isinstance(found, dict):
        return {}
    return {key: value for key, value in found.items() if isinstance(value, str)}
