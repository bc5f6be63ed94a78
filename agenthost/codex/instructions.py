"""The workspace's own AGENTS.md, read by the daemon for Codex's home.

Codex does not read the AGENTS.md of an untrusted project, so the plan presents it as `$CODEX_HOME/AGENTS.md`.

Promise: what is read lies in the workspace and is the workspace owner's to read: a link out of it, a file of somebody
else's that is closed to the owner, a FIFO or a device is as good as absent.
"""

from __future__ import annotations

import errno
import os
import stat
from typing import Final

from agenthost.linux.syscalls import RESOLVE_BENEATH, RESOLVE_NO_MAGICLINKS, RESOLVE_NO_XDEV, openat2

NAMES: Final = ("AGENTS.override.md", "AGENTS.md")
"""Codex takes the first that is a file, be it empty, and follows a link at either name (observed)."""

LIMIT: Final = 32768
"""Bytes: Codex reads as much of a project's file, and all of the one in its home (observed; project_doc_max_bytes)."""

_RESOLVE: Final = RESOLVE_BENEATH | RESOLVE_NO_MAGICLINKS | RESOLVE_NO_XDEV
_TRIES: Final = 64


def workspace_instructions(workspace: int) -> bytes | None:
    """What Codex would have read of the trusted workspace behind the descriptor (O_PATH will do), or None.

    Ancestors of the workspace are not looked at.
    """
    owner = os.fstat(workspace)
    found = (_read(workspace, name, owner) for name in NAMES)
    return next((content for content in found if content is not None), None)


def _read(directory: int, name: str, owner: os.stat_result) -> bytes | None:
    try:
        handle = _find(directory, name)
    except OSError:
        return None
    try:
        if not _may_read(os.fstat(handle), owner):
            return None
        # Only now: opening a FIFO or a device would act on it.
        with open(f"/proc/self/fd/{handle}", "rb") as file:  # noqa: PTH123 - a descriptor, not a path
            return file.read(LIMIT)
    except OSError:
        return None
    finally:
        os.close(handle)


def _find(directory: int, name: str) -> int:
    for _ in range(_TRIES - 1):
        try:
            return openat2(directory, name, os.O_PATH, 0, _RESOLVE)
        except OSError as error:
            if error.errno != errno.EAGAIN:
                raise
    return openat2(directory, name, os.O_PATH, 0, _RESOLVE)


def _may_read(found: os.stat_result, owner: os.stat_result) -> bool:
    if not stat.S_ISREG(found.st_mode):
        return False
    if found.st_uid == owner.st_uid:
        return bool(found.st_mode & stat.S_IRUSR)
    if found.st_gid == owner.st_gid:
        return bool(found.st_mode & stat.S_IRGRP)
    return bool(found.st_mode & stat.S_IROTH)
