"""The API key, read where the options say it is. It is held by the `Provider` alone and never printed."""

from __future__ import annotations

import os
import select
import stat
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from agenthost.cli.options import DEFAULT_KEY_VARIABLE, DEFAULT_PROVIDER_URL, SessionOptions
from agenthost.errors import RequestRefused
from agenthost.gateway.provider import Provider

LARGEST_KEY: Final = 16 << 10
"""Bytes. A larger file is no key but a mistake."""

PATIENCE_S: Final = 10.0
"""Seconds for a pipe (`--api-key-file <(command)`) to deliver the key."""


def real_provider(options: SessionOptions, environ: Mapping[str, str]) -> Provider | None:
    """The provider that the options name; None for another Harness that asks for none. Raises RequestRefused."""
    asked = options.provider_url or options.api_key_env or options.api_key_file
    if options.harness_dir is not None and not asked:
        # A program that is not Codex gets the use of a key only when somebody says so.
        return None
    base_url = options.provider_url or DEFAULT_PROVIDER_URL
    if options.api_key_file is not None:
        key, label = read_key(options.api_key_file), f"real key from {options.api_key_file.name}"
    else:
        name = options.api_key_env or DEFAULT_KEY_VARIABLE
        key, label = environ.get(name, "").strip(), f"real key from {name}"
        if not key:
            raise RequestRefused(
                f"there is no API key: {name} is not set",
                remedy="set it, name another variable with --api-key-env or a file with --api-key-file,"
                " or play --scripted demo",
            )
    return Provider(base_url=base_url, api_key=key, label=label)


def read_key(path: Path) -> str:
    """The key in a file or pipe that only its owner (this user, or root) can read. Raises RequestRefused."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOCTTY | os.O_NONBLOCK)
    except OSError as error:
        raise _refused(path, f"cannot be opened ({error.strerror})", "check the path of --api-key-file") from error
    try:
        _check_closed(path, os.fstat(fd))
        content = _read_bounded(path, fd)
    except OSError as error:
        raise _refused(path, f"cannot be read ({error.strerror})", "check the file of --api-key-file") from error
    finally:
        os.close(fd)
    key = content.decode("ascii", "replace").strip()
    if not key:
        raise _refused(path, "is empty", "write the key into it")
    return key


def _check_closed(path: Path, status: os.stat_result) -> None:
    if not (stat.S_ISREG(status.st_mode) or stat.S_ISFIFO(status.st_mode)):
        raise _refused(path, "is neither a file nor a pipe", "name the file that holds the key")
    if status.st_uid not in (os.geteuid(), 0):
        raise _refused(path, f"belongs to another user (uid {status.st_uid})", "use a file of your own")
    if status.st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise _refused(path, f"is open to others (mode {status.st_mode & 0o777:04o})", f"run: chmod 600 {path}")


def _read_bounded(path: Path, fd: int) -> bytes:
    content = b""
    deadline = time.monotonic() + PATIENCE_S
    while len(content) <= LARGEST_KEY:
        ready, _, _ = select.select([fd], [], [], max(0.0, deadline - time.monotonic()))
        if not ready:
            raise _refused(path, f"delivers no key within {PATIENCE_S:.0f} seconds", "check what writes into the pipe")
        chunk = os.read(fd, LARGEST_KEY)
        if not chunk:
            return content
        content += chunk
    raise _refused(path, f"is larger than {LARGEST_KEY} bytes", "name the file that holds the key and nothing else")


def _refused(path: Path, what: str, remedy: str) -> RequestRefused:
    return RequestRefused(f"the API key file {path} {what}", remedy=remedy)
