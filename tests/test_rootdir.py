"""`RootDir`: whatever is planted at a name, the directory is not left, nothing blocks, no target is touched."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import stat
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from agenthost.linux.rootdir import TEMPORARY, Owner, RootDir
from tests.needs import needs

pytestmark = needs("linux")

SECRET = b"outside\n"


@pytest.fixture
def inside(tmp_path: Path) -> Path:
    path = tmp_path / "inside"
    path.mkdir()
    (path / "sub").mkdir()
    return path


@pytest.fixture
def target(tmp_path: Path) -> Path:
    """A file outside, which nothing may reach."""
    path = tmp_path / "outside"
    path.mkdir()
    (path / "secret").write_bytes(SECRET)
    return path / "secret"


@pytest.fixture
def root(inside: Path) -> Iterator[RootDir]:
    with RootDir.open(inside) as opened:
        yield opened


def entries(path: Path) -> list[str]:
    return sorted(entry.name for entry in path.iterdir())


Plant = Callable[[Path, Path], None]


def link(path: Path, target: Path) -> None:
    path.symlink_to(target)


def relative_link(path: Path, target: Path) -> None:
    path.symlink_to(os.path.relpath(target, path.parent))


def link_inside(path: Path, target: Path) -> None:
    other = path.with_name("other")
    other.write_bytes(SECRET)
    path.symlink_to("other")


def dangling_link(path: Path, target: Path) -> None:
    path.symlink_to(target.parent / "made")


def loop(path: Path, target: Path) -> None:
    path.symlink_to(path.name)


def magic_link(path: Path, target: Path) -> None:
    path.symlink_to("/proc/self/cwd")


def hard_link(path: Path, target: Path) -> None:
    path.hardlink_to(target)


def fifo(path: Path, target: Path) -> None:
    os.mkfifo(path, 0o666)


def unix_socket(path: Path, target: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(os.path.relpath(path))


def directory(path: Path, target: Path) -> None:
    path.mkdir()


def full_directory(path: Path, target: Path) -> None:
    (path / "a" / "b").mkdir(parents=True)
    (path / "a" / "file").write_text("x")
    (path / "a" / "link").symlink_to(target.parent)
    os.mkfifo(path / "a" / "b" / "fifo")


def closed_directory(path: Path, target: Path) -> None:
    (path / "a").mkdir(parents=True)
    (path / "a" / "file").write_text("x")
    (path / "a").chmod(0)
    path.chmod(0)


PLANTS: list[tuple[Plant, int]] = [
    (link, errno.ELOOP),
    (relative_link, errno.ELOOP),
    (link_inside, errno.ELOOP),
    (dangling_link, errno.ELOOP),
    (loop, errno.ELOOP),
    (magic_link, errno.ELOOP),
    (hard_link, errno.EMLINK),
    (fifo, errno.ENXIO),
    (unix_socket, errno.ENXIO),
    (directory, errno.EISDIR),
    (full_directory, errno.EISDIR),
    (closed_directory, errno.EISDIR),
]

planted = pytest.mark.parametrize(("plant", "number"), PLANTS, ids=[plant.__name__ for plant, _ in PLANTS])
named = pytest.mark.parametrize("name", ["name", "sub/name"])


def assert_untouched(target: Path) -> None:
    assert target.read_bytes() == SECRET
    assert entries(target.parent) == ["secret"]


@planted
@named
def test_reading_what_is_planted_fails(
    root: RootDir, inside: Path, target: Path, plant: Plant, number: int, name: str
) -> None:
    plant(inside / name, target)
    with pytest.raises(OSError) as caught:
        root.read(name)
    assert caught.value.errno == number
    assert_untouched(target)


@planted
@named
def test_appending_to_what_is_planted_fails(
    root: RootDir, inside: Path, target: Path, plant: Plant, number: int, name: str
) -> None:
    plant(inside / name, target)
    with pytest.raises(OSError) as caught:
        root.append(name, b"more")
    assert caught.value.errno == number
    assert_untouched(target)


@planted
@named
def test_writing_replaces_what_is_planted(
    root: RootDir, inside: Path, target: Path, plant: Plant, number: int, name: str
) -> None:
    plant(inside / name, target)
    root.write(name, b"new")
    found = (inside / name).lstat()
    assert stat.S_ISREG(found.st_mode)
    assert (found.st_nlink, stat.S_IMODE(found.st_mode)) == (1, 0o600)
    assert root.read(name) == b"new"
    assert_untouched(target)
    assert not [entry for entry in entries((inside / name).parent) if entry.startswith(TEMPORARY)]


@planted
@named
def test_creating_over_what_is_planted_fails(
    root: RootDir, inside: Path, target: Path, plant: Plant, number: int, name: str
) -> None:
    plant(inside / name, target)
    with pytest.raises(FileExistsError):
        root.create(name, b"new")
    with pytest.raises(FileExistsError):
        root.mkdir(name)
    assert_untouched(target)


@planted
@named
def test_removing_removes_what_is_planted(
    root: RootDir, inside: Path, target: Path, plant: Plant, number: int, name: str
) -> None:
    plant(inside / name, target)
    root.remove(name)
    assert not os.path.lexists(inside / name)
    assert_untouched(target)


@pytest.mark.parametrize("plant", [link, relative_link], ids=lambda plant: str(plant.__name__))
def test_a_link_in_the_middle_of_a_path_is_never_followed(
    root: RootDir, inside: Path, target: Path, plant: Plant
) -> None:
    plant(inside / "middle", target.parent)
    attempts: list[Callable[[], object]] = [
        lambda: root.read("middle/secret"),
        lambda: root.write("middle/secret", b"new"),
        lambda: root.create("middle/made", b"new"),
        lambda: root.append("middle/secret", b"new"),
        lambda: root.remove("middle/secret"),
        lambda: root.mkdir("middle/made"),
        lambda: root.names("middle"),
        lambda: root.stat("middle/secret"),
        lambda: root.directory("middle"),
        lambda: root.own_directory("middle"),
        lambda: root.own_tree("middle", Owner(os.geteuid(), os.getegid())),
    ]
    for attempt in attempts:
        with pytest.raises(OSError) as caught:
            attempt()
        assert caught.value.errno in {errno.ELOOP, errno.ENOTDIR}
    assert_untouched(target)


def test_a_link_higher_up_is_not_followed_even_to_somewhere_inside(root: RootDir, inside: Path) -> None:
    (inside / "real" / "deep").mkdir(parents=True)
    (inside / "real" / "deep" / "secret").write_bytes(SECRET)
    (inside / "middle").symlink_to("real")
    for attempt in (root.read, root.remove, root.mkdir, root.names, lambda n: root.write(n, b""), root.directory):
        with pytest.raises(OSError) as caught:
            attempt("middle/deep/secret")
        assert caught.value.errno == errno.ELOOP
    assert (inside / "real" / "deep" / "secret").read_bytes() == SECRET


@pytest.mark.parametrize("name", ["", ".", "..", "/etc/passwd", "a/../b", "./a", "a//b", "a/", "../outside/secret"])
def test_a_name_that_is_no_clean_relative_path_is_refused(root: RootDir, name: str) -> None:
    for attempt in (root.read, root.remove, lambda n: root.write(n, b""), lambda n: root.create(n, b""), root.mkdir):
        with pytest.raises(OSError) as caught:
            attempt(name)
        assert caught.value.errno == errno.EINVAL


@needs("root")
def test_another_mount_is_not_entered(root: RootDir) -> None:
    with RootDir.open(Path("/")) as system, pytest.raises(OSError) as caught:
        system.read("proc/version")
    assert caught.value.errno == errno.EXDEV


def test_a_plain_file_is_written_read_appended_and_removed(root: RootDir, inside: Path) -> None:
    root.mkdir("new")
    assert stat.S_IMODE((inside / "new").stat().st_mode) == 0o700
    root.write("new/file", b"one", mode=0o640)
    root.append("new/file", b" two")
    assert root.read("new/file") == b"one two"
    assert stat.S_IMODE((inside / "new/file").stat().st_mode) == 0o640
    root.create("new/other", b"three")
    assert sorted(root.names("new")) == ["file", "other"]
    assert root.exists("new/file")
    root.remove("new")
    assert not root.exists("new")
    root.remove("new")
    for attempt in (root.read, lambda name: root.append(name, b"x")):
        with pytest.raises(FileNotFoundError):
            attempt("new")


def test_a_file_is_read_up_to_a_limit(root: RootDir, inside: Path) -> None:
    (inside / "file").write_bytes(b"12345")
    assert root.read("file", limit=5) == b"12345"
    with pytest.raises(OSError) as caught:
        root.read("file", limit=4)
    assert caught.value.errno == errno.EFBIG
    os.truncate(inside / "file", 1 << 40)
    with pytest.raises(OSError) as caught:
        root.read("file")
    assert caught.value.errno == errno.EFBIG


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(
    root: RootDir, inside: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root.write("file", b"old")

    def full(fd: int, data: object) -> int:
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(OSError):
        root.write("file", b"new")
    with pytest.raises(OSError):
        root.create("made", b"new")
    monkeypatch.undo()
    assert root.read("file") == b"old"
    assert entries(inside) == ["file", "sub"]


def test_a_very_deep_tree_is_removed(root: RootDir, inside: Path) -> None:
    deep = os.open(inside, os.O_RDONLY)
    for _ in range(5000):  # deeper than a path can be long and than Python recurses
        os.mkdir("d", dir_fd=deep)
        below = os.open("d", os.O_RDONLY, dir_fd=deep)
        os.close(deep)
        deep = below
    os.close(deep)
    before = len(entries(Path("/proc/self/fd")))
    root.remove("d")
    assert entries(inside) == ["sub"]
    assert len(entries(Path("/proc/self/fd"))) == before


def test_no_descriptor_is_left_open(root: RootDir, inside: Path, target: Path) -> None:
    before = len(entries(Path("/proc/self/fd")))
    for plant, _ in PLANTS:
        plant(inside / "name", target)
        for attempt in (root.read, lambda n: root.append(n, b""), lambda n: root.create(n, b""), root.directory):
            with contextlib.suppress(OSError):
                made = attempt("name")
                if isinstance(made, RootDir):
                    made.close()
        root.write("name", b"")
        root.remove("name")
        root.remove("other")
    assert len(entries(Path("/proc/self/fd"))) == before


@needs("root")
def test_what_is_made_belongs_to_its_owner(root: RootDir, inside: Path) -> None:
    owner = Owner(61001, 61002)
    root.mkdir("home", owner=owner)
    root.write("home/file", b"x", owner=owner)
    root.create("home/made", b"x", owner=owner)
    for path in (inside / "home", inside / "home/file", inside / "home/made"):
        assert (path.stat().st_uid, path.stat().st_gid) == (61001, 61002)


@needs("root")
def test_a_tree_changes_its_owner_and_no_file_with_a_second_name_does(
    root: RootDir, inside: Path, target: Path
) -> None:
    full_directory(inside / "tree", target)
    hard_link(inside / "tree" / "hard", target)
    root.own_tree("tree", Owner(61001, 61001))
    for name in ("tree", "tree/a", "tree/a/b", "tree/a/file"):
        assert (inside / name).stat().st_uid == 61001
    assert target.stat().st_uid == 0
    assert target.parent.stat().st_uid == 0


def test_exchanging_names_meanwhile_never_reaches_outside(root: RootDir, inside: Path, target: Path) -> None:
    """A hostile owner of the directory swaps a file, a link and a directory at the name as fast as it can."""
    stop = threading.Event()
    victim = inside / "sub" / "name"

    def exchange() -> None:
        count = 0
        while not stop.is_set():
            count += 1
            made = inside / f"made-{count % 3}"
            with contextlib.suppress(OSError):
                if count % 3 == 0:
                    made.symlink_to(target)
                elif count % 3 == 1:
                    made.write_bytes(b"plain")
                else:
                    made.symlink_to(target.parent)
            with contextlib.suppress(OSError):
                made.replace(victim)
            with contextlib.suppress(OSError):
                (inside / "sub").rename(inside / "away")
                (inside / "sub").symlink_to(target.parent)
                (inside / "sub").unlink()
                (inside / "away").rename(inside / "sub")

    attempts: list[Callable[[], object]] = [
        lambda: root.write("sub/name", b"new"),
        lambda: root.append("sub/name", b"more"),
        lambda: root.create("sub/secret", b"new"),
        lambda: root.remove("sub/secret"),
        lambda: root.remove("sub/name"),
    ]
    thread = threading.Thread(target=exchange)
    thread.start()
    try:
        for _ in range(400):
            for attempt in attempts:
                with contextlib.suppress(OSError):
                    attempt()
            with contextlib.suppress(OSError):
                assert root.read("sub/name") != SECRET
            with contextlib.suppress(OSError):
                assert root.read("sub/secret") != SECRET
    finally:
        stop.set()
        thread.join()
    assert_untouched(target)
