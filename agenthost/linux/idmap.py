"""The maps of an id-mapped mount (mount_setattr(2), MOUNT_ATTR_IDMAP, Linux 5.12)."""

from __future__ import annotations

from typing import Final

_IDS: Final = (1 << 32) - 1
"""Ids 0 to 2^32-2; the last one means "no change" to chown(2)."""


def single_owner(disk: int, shown: int) -> str:
    """The text of a uid_map or gid_map that shows `disk` as `shown`, and every other id as itself.

    Left stands the id on disk, right the id in the mount. A file that really belongs to `shown` would collide, and is
    left without a mapping: it shows as the overflow id and cannot be changed.
    """
    lines = [f"{disk} {shown} 1"]
    start = 0
    for hole in sorted({disk, shown}):
        if hole > start:
            lines.append(f"{start} {start} {hole - start}")
        start = hole + 1
    if start < _IDS:
        lines.append(f"{start} {start} {_IDS - start}")
    return "\n".join(lines) + "\n"
