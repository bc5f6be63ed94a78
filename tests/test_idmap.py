"""The maps of an id-mapped mount: every id at most once on each side, and the owner where it belongs."""

from __future__ import annotations

import contextlib
import itertools
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from agenthost.linux.idmap import single_owner
from tests.needs import needs

LAST = (1 << 32) - 2
"""The highest id; the one above means "no change" to chown(2)."""

ids = st.integers(0, LAST)
EDGES = ((0, 0), (0, 1), (1, 0), (LAST, LAST - 1), (LAST - 1, LAST), (0, LAST), (LAST, 0))

near = st.sampled_from([0, 1, 2, 65534, 65535, LAST - 1, LAST])


def extents(text: str) -> list[tuple[int, int, int]]:
    """Of each line: the first id on disk, the first id in the mount, and how many."""
    lines = [line.split() for line in text.splitlines()]
    return [(int(disk), int(shown), int(count)) for disk, shown, count in lines]


def shown(text: str, disk: int) -> int | None:
    found = [to + disk - first for first, to, count in extents(text) if first <= disk < first + count]
    assert len(found) <= 1
    return found[0] if found else None


def disjoint(ranges: list[tuple[int, int]]) -> bool:
    ranges = sorted(ranges)
    return all(first + count <= following for (first, count), (following, _) in itertools.pairwise(ranges))


Test = Callable[..., None]


def every_map(test: Test) -> Test:
    """For any two ids, and for those at the edges."""
    for disk, as_ in EDGES:
        test = example(disk=disk, as_=as_)(test)
    return given(disk=ids | near, as_=ids | near)(test)


@every_map
def test_no_id_is_there_twice(disk: int, as_: int) -> None:
    found = extents(single_owner(disk, as_))
    assert disjoint([(first, count) for first, _, count in found])
    assert disjoint([(first, count) for _, first, count in found])


@every_map
def test_the_owner_is_shown_as_the_user(disk: int, as_: int) -> None:
    assert shown(single_owner(disk, as_), disk) == as_


@every_map
def test_who_really_is_the_user_is_shown_as_nobody(disk: int, as_: int) -> None:
    if disk != as_:
        assert shown(single_owner(disk, as_), as_) is None


@every_map
def test_the_kernel_would_take_it(disk: int, as_: int) -> None:
    """user_namespaces(7): at most 340 lines, no length of 0, no id beyond the last."""
    found = extents(single_owner(disk, as_))
    assert 1 <= len(found) <= 340
    assert all(count > 0 and first + count - 1 <= LAST and to + count - 1 <= LAST for first, to, count in found)


@given(disk=ids | near, as_=ids | near, other=ids | near)
def test_everybody_else_is_shown_as_themselves(disk: int, as_: int, other: int) -> None:
    if other not in {disk, as_}:
        assert shown(single_owner(disk, as_), other) == other


@contextlib.contextmanager
def user_namespace() -> Iterator[Path]:
    """The /proc directory of a process that has just made one."""
    with subprocess.Popen(["unshare", "--user", "sh", "-c", "echo; exec cat"], stdin=-1, stdout=-1) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield Path(f"/proc/{process.pid}")
        process.kill()


@needs("root")
@pytest.mark.parametrize(
    ("disk", "as_"), [(0, 0), (0, 1), (0, 1_900_000_000), (1000, 1_900_000_000), (LAST, 5), (5, LAST), (LAST, LAST - 1)]
)
def test_the_kernel_takes_it(disk: int, as_: int) -> None:
    with user_namespace() as process:
        (process / "uid_map").write_text(single_owner(disk, as_))
        taken = (process / "uid_map").read_text()
    assert extents(taken) == extents(single_owner(disk, as_))
