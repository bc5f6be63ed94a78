"""Descriptors of a launch: what came to this process reaches the Harness, and nothing is added.

Descriptors 0, 1 and 2 are given to `Session.launch` as they are. A pipe, a socket or /dev/null becomes the Harness's
own; for anything else (a terminal, a file) the Session pumps, because such a descriptor would let the Harness reach a
device or a filesystem of the host.
"""

from __future__ import annotations

import os
from typing import Final

STDIN: Final = 0
STDOUT: Final = 1
STDERR: Final = 2


def complete_descriptors() -> None:
    """Open /dev/null wherever descriptor 0, 1 or 2 was closed by the caller.

    Otherwise the next file that this process opens, an event log say, would become somebody's stdout.
    """
    while True:
        fd = os.open(os.devnull, os.O_RDWR)
        if fd > 2:
            os.close(fd)
            return
        os.set_inheritable(fd, True)


def nothing() -> int:
    """A descriptor that delivers no byte. It is the caller's, and ends with this process."""
    return os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
