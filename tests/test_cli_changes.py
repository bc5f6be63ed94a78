"""Which files changed, by two looks at a real directory. contracts/launch.md, L53."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from agenthost.cli.changes import DEEPEST, Change, Snapshot, compare, look
from agenthost.cli.run import compared


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    tree = tmp_path / "tree"
    (tree / "src").mkdir(parents=True)
    for name in ("README.md", "src/one.py", "src/two.py"):
        (tree / name).write_text(name)
    return tree


def told(changes: tuple[Change, ...]) -> set[tuple[str, str]]:
    return {(change.kind, change.path) for change in changes}


def test_nothing_changed_is_nothing(tree: Path) -> None:
    assert compare(look(tree), look(tree)) == ()


def test_added_changed_removed(tree: Path) -> None:
    before = look(tree)
    (tree / "new.txt").write_text("12345")
    (tree / "src/one.py").write_text("longer than before")
    (tree / "src/two.py").unlink()
    assert compare(before, look(tree)) == (
        Change("added", "new.txt", 5),
        Change("changed", "src/one.py", 18),
        Change("removed", "src/two.py"),
    )


def test_a_rename_is_one_change(tree: Path) -> None:
    before = look(tree)
    (tree / "README.md").rename(tree / "src/READ.md")
    assert compare(before, look(tree)) == (Change("renamed", "src/READ.md", 9, origin="README.md"),)


def test_a_file_whose_size_and_times_were_set_back_has_changed_all_the_same(tree: Path) -> None:
    before = look(tree)
    path = tree / "README.md"
    stat = path.stat()
    path.write_text("readme.MD")
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert path.stat().st_mtime_ns == stat.st_mtime_ns
    assert told(compare(before, look(tree))) == {("changed", "README.md")}


def test_a_mode_is_part_of_a_file(tree: Path) -> None:
    before = look(tree)
    (tree / "src/one.py").chmod(0o755)
    assert told(compare(before, look(tree))) == {("changed", "src/one.py")}


def test_new_and_vanished_directories_are_one_change_each(tree: Path) -> None:
    before = look(tree)
    (tree / "lib/deep").mkdir(parents=True)
    for number in range(5):
        (tree / "lib/deep" / f"{number}.js").write_text("")
    for name in ("one.py", "two.py"):
        (tree / "src" / name).unlink()
    (tree / "src").rmdir()
    assert compare(before, look(tree)) == (Change("added", "lib/", count=5), Change("removed", "src/", count=2))


def test_a_file_alone_in_a_new_directory_is_named(tree: Path) -> None:
    before = look(tree)
    (tree / "lib").mkdir()
    (tree / "lib/only.js").write_text("")
    assert compare(before, look(tree)) == (Change("added", "lib/only.js", 0),)


def test_links_are_files_and_never_followed(tree: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    before = look(tree)
    (tree / "link").symlink_to(outside)
    (outside / "secret").write_text("x")
    after = look(tree)
    assert told(compare(before, after)) == {("added", "link")}
    assert "link/secret" not in after.files


def test_a_fifo_does_not_block(tree: Path) -> None:
    before = look(tree)
    os.mkfifo(tree / "pipe")
    assert told(compare(before, look(tree))) == {("added", "pipe")}


def test_names_that_are_not_utf8_are_names(tree: Path) -> None:
    before = look(tree)
    Path(os.fsdecode(os.fsencode(tree) + b"/caf\xe9")).write_text("")
    assert told(compare(before, look(tree))) == {("added", "caf\udce9")}


def test_of_a_repository_only_what_can_run_programs_is_seen_and_nothing_is_run(workspace: Path) -> None:
    ran = workspace.parent / "ran"
    monitor = workspace.parent / "monitor"
    monitor.write_text(f"#!/bin/sh\ntouch {ran}\n")
    monitor.chmod(0o755)
    before = look(workspace)
    subprocess.run(["git", "config", "core.fsmonitor", str(monitor)], cwd=workspace, check=True)
    (workspace / ".git/hooks").mkdir(exist_ok=True)
    (workspace / ".git/hooks/post-commit").write_text("#!/bin/sh\n")
    (workspace / ".git/COMMIT_EDITMSG").write_text("bookkeeping")
    assert told(compare(before, look(workspace))) == {("changed", ".git/config"), ("added", ".git/hooks/post-commit")}
    assert not ran.exists()


def test_a_tree_too_large_is_not_compared_and_says_so(tree: Path) -> None:
    assert look(tree, most=3).too_large
    changes, note = compared(look(tree, most=3), look(tree))
    assert changes is None
    assert "more than 200 000 files" in note


def test_what_cannot_be_entered_is_counted(tree: Path) -> None:
    deep = tree
    for _ in range(DEEPEST + 5):
        deep /= "d"
    deep.mkdir(parents=True)
    snapshot = look(tree)
    assert snapshot.unread == 1
    assert "could not be read: 1" in compared(snapshot, snapshot)[1]


def test_a_workspace_that_is_gone_is_no_error(tmp_path: Path) -> None:
    assert look(tmp_path / "gone") == Snapshot({}, frozenset(), unread=1)


def test_no_descriptor_is_left_open(tree: Path) -> None:
    (tree / "a/b/c").mkdir(parents=True)
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208 — counts, needs no paths
    look(tree)
    look(tree, most=1)
    assert len(os.listdir("/proc/self/fd")) == before  # noqa: PTH208 — the same
