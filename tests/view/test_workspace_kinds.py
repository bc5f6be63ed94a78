"""Workspaces of every kind: what may lie in one, whose it is, and that nothing of ours stays in it."""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import git
from tests.needs import needs, require
from tests.view.rig import Bench, Daemon, Refused, Session

SHARED_DAEMON = pytest.mark.usefixtures("tidy")

DEEP = 200
NOT_UTF8 = os.fsdecode(b"n\xff\xfe\n")


def listing(workspace: Path) -> dict[str, tuple[object, ...]]:
    """All that is in a workspace, and itself: kind, mode, owner, links, size, times of change, xattrs."""
    found: dict[str, tuple[object, ...]] = {}
    for directory, names, files in os.walk(workspace):
        for path in (Path(directory), *(Path(directory, name) for name in (*names, *files))):
            status = path.lstat()
            kind = (status.st_mode, status.st_uid, status.st_gid, status.st_nlink, status.st_rdev)
            size = 0 if path.is_dir() else status.st_size
            xattrs = tuple(sorted(os.listxattr(path, follow_symlinks=False)))
            found[str(path.relative_to(workspace))] = (*kind, size, status.st_mtime_ns, status.st_ctime_ns, xattrs)
    return found


def whole_turn(session: Session) -> None:
    """A view and a command write to every place that is not the workspace, read all of it, and run git."""
    session.run(
        ["ls", "."],
        ["write", "/tmp/x", "x"],
        ["write", "/.oac/home/tmp/x", "x"],
        ["write", "/home/agent/x", "x"],
        ["exec", "/bin/bash", "-c", "find . -xdev -exec stat {} + >/tmp/found; cat README.md >/dev/null; pwd"],
    )
    session.run(["exec", "/.oac/bin/git", "status", "--short"])


@SHARED_DAEMON
class TestNothingOfOursStays:
    def test_a_turn_that_changes_nothing_leaves_listing_and_git_status_as_they_were(
        self, bench: Bench, daemon: Daemon
    ) -> None:
        require("git")
        workspace = bench.workspace()
        (workspace / "README.md").write_text("# A workspace\n")
        (workspace / "directory").mkdir()
        (workspace / "directory" / NOT_UTF8).write_text("x")
        git(workspace, "init", "--quiet", "--initial-branch=main")
        git(workspace, "add", "README.md", "directory")
        git(workspace, "commit", "--quiet", "--message=Begin")
        (workspace / "untracked").write_text("x")
        for path in [workspace, *workspace.rglob("*")]:
            bench.give(path)
        status = git(workspace, "status", "--porcelain=v1", "--ignored", "-z")
        before = listing(workspace)
        for opening in (bench.open, bench.open_as_codex):
            session = opening(daemon, workspace)
            whole_turn(session)
            session.close()
        after = listing(workspace)
        # `git status` writes a fresh index in place of a stale one, as it does everywhere.
        index = {".git/index", ".git"}
        assert {name: after[name] for name in after.keys() - index} == {
            name: before[name] for name in before.keys() - index
        }
        assert git(workspace, "status", "--porcelain=v1", "--ignored", "-z") == status

    def test_what_a_turn_did_is_all_that_changed(self, bench: Bench, daemon: Daemon) -> None:
        workspace = bench.workspace()
        (workspace / "kept").write_text("x")
        bench.give(workspace / "kept")
        before = listing(workspace)
        session = bench.open(daemon, workspace)
        session.run(["write", "by-view", "x"])
        session.command(["write", "by-command", "x"])
        session.close()
        after = listing(workspace)
        assert after.keys() - before.keys() == {"by-view", "by-command"}
        assert before.keys() - after.keys() == set()
        changed = {name for name in before if before[name] != after[name]}
        assert changed == {"."}

    def test_the_builder_keeps_nothing_of_a_session_that_is_closed(self, bench: Bench, daemon: Daemon) -> None:
        """An id map is a user namespace, and each Session has one of its own."""
        held = []
        for _ in range(3):
            bench.open(daemon).close()
            held.append(len(list(Path(f"/proc/{daemon.builder()}/fd").iterdir())))
        assert held == held[:1] * 3

    def test_a_view_that_fails_to_be_built_leaves_it_as_it_was(self, bench: Bench, daemon: Daemon) -> None:
        workspace = bench.workspace()
        before = listing(workspace)
        with pytest.raises(Refused):
            bench.open(daemon, workspace, bind_ro=[str(workspace)])
        assert listing(workspace) == before


@SHARED_DAEMON
class TestWhatLiesInIt:
    @pytest.fixture
    def own(self, bench: Bench, daemon: Daemon) -> Iterator[Session]:
        own = bench.open(daemon)
        yield own
        own.close()

    def test_hard_links_stay_one_file(self, bench: Bench, own: Session) -> None:
        (own.workspace / "one").write_text("x")
        bench.give(own.workspace / "one")
        os.link(own.workspace / "one", own.workspace / "two")
        assert own.run(["write", "two", "by the view"], ["link", "one", "three"]).facts[-1][1] == "ok"
        own.shell("echo -n more >>three")
        found = {name: (own.workspace / name).stat() for name in ("one", "two", "three")}
        assert len({status.st_ino for status in found.values()}) == 1
        assert found["one"].st_nlink == 3
        assert (own.workspace / "one").read_text() == "by the viewmore"

    def test_extended_attributes_of_the_user_pass_both_ways(self, bench: Bench, own: Session) -> None:
        file = own.workspace / "file"
        file.write_text("x")
        bench.give(file)
        os.setxattr(file, "user.of-host", b"here")
        script = (
            "import os; os.setxattr('file', 'user.of-command', b'there');"
            "print(os.getxattr('file', 'user.of-host').decode(), end='')"
        )
        assert own.shell(f'/usr/bin/python3 -c "{script}"').stdout == "here"
        assert os.getxattr(file, "user.of-command") == b"there"

    def test_those_of_security_and_trusted_cannot_be_set(self, own: Session) -> None:
        script = """
import os
open("mine", "w")
for name in ("trusted.x", "security.capability"):
    try:
        os.setxattr("mine", name, b"\\1\\0\\0\\2" + bytes(16))
        print(name, "set")
    except OSError as error:
        print(name, error.errno > 0)
"""
        (own.workspace / "script.py").write_text(script)
        told = own.shell("/usr/bin/python3 script.py").stdout.splitlines()
        assert told == [f"{name} True" for name in ("trusted.x", "security.capability")]

    def test_a_socket_of_the_host_is_seen_and_reachable_only_by_permission(self, bench: Bench, own: Session) -> None:
        """It is a file of the workspace: whoever puts one there for all to use shares it."""
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(own.workspace / "socket"))
            listener.listen()
            (own.workspace / "socket").chmod(0o600)
            if os.geteuid() == 0:
                os.chown(own.workspace / "socket", 0, 0)
            connect = "import socket; socket.socket(socket.AF_UNIX).connect('socket')"
            ran = own.shell(f'/usr/bin/python3 -c "{connect}"')
            if os.geteuid() == 0:
                assert "PermissionError" in ran.stderr
            assert own.run(["stat", "socket"]).status == 0

    def test_fifos_work_between_view_and_environment(self, own: Session) -> None:
        own.shell("mkfifo fifo")
        assert stat.S_ISFIFO((own.workspace / "fifo").stat().st_mode)
        result = own.shell("(echo through >fifo &) ; cat fifo")
        assert result.stdout == "through\n"

    def test_devices_in_it_open_for_nobody(self, bench: Bench, own: Session) -> None:
        require("root")
        for name, kind in (("character", stat.S_IFCHR), ("block", stat.S_IFBLK)):
            device = os.makedev(1, 3) if kind == stat.S_IFCHR else os.makedev(254, 0)
            os.mknod(own.workspace / name, kind, device)
            (own.workspace / name).chmod(0o666)
            bench.give(own.workspace / name)
        actions = [["cat", "character"], ["cat", "block"], ["write", "character", "x"]]
        for result in (own.run(*actions), own.command(*actions)):
            assert [value for _, value in result.facts] == ["!EACCES"] * 3
        assert "not permitted" in own.shell("mknod made c 1 3").stderr

    def test_setuid_programs_in_it_give_nothing(self, bench: Bench, own: Session) -> None:
        require("root")
        program = own.workspace / "as-root"
        program.write_bytes(Path("/usr/bin/id").read_bytes())
        os.chown(program, 0, 0)
        program.chmod(0o6755)
        assert own.shell("./as-root -u; ./as-root -g").stdout.split() == [str(own.uid)] * 2
        assert own.run(["exec", "./as-root"]).facts[0][1].startswith("!")

    def test_a_deep_tree_of_names_that_are_not_utf8(self, bench: Bench, own: Session) -> None:
        """Deeper than PATH_MAX."""
        name = os.fsencode(NOT_UTF8) * 10
        fd = os.open(own.workspace, os.O_RDONLY | os.O_DIRECTORY)
        for _ in range(DEEP):
            os.mkdir(name, dir_fd=fd)
            if os.geteuid() == 0:
                os.chown(name, bench.mode.owner, bench.mode.owner, dir_fd=fd)
            below = os.open(name, os.O_RDONLY | os.O_DIRECTORY, dir_fd=fd)
            os.close(fd)
            fd = below
        os.close(fd)
        assert DEEP * len(name) > 4096
        count = own.shell("find . -mindepth 1 -type d | tr -cd '/' | wc -c; find . -type d -name 'n*' -printf x")
        assert count.stdout.endswith("x" * DEEP)
        assert own.shell("rm -rf ./n*; ls").stdout == "probe\n"

    def test_modes_that_keep_the_owner_out_keep_the_view_out(self, bench: Bench, own: Session) -> None:
        secret = own.workspace / "secret"
        secret.write_text("x")
        bench.give(secret)
        secret.chmod(0)
        actions = [["cat", "secret"], ["chmod", "0600", "secret"], ["cat", "secret"]]
        assert [value for _, value in own.run(*actions).facts] == ["!EACCES", "ok", "x"]


@SHARED_DAEMON
class TestALinkInItsPath:
    def test_a_link_above_it_is_resolved_once_and_told(self, bench: Bench, daemon: Daemon) -> None:
        parent = bench.directory("real")
        workspace = bench.workspace(parent=parent)
        link = bench.directory("links") / "parent"
        link.symlink_to(parent)
        session = bench.open(daemon, link / "workspace")
        opened = next(event for event in session.events() if event["type"] == "session.opened")
        link.unlink()
        link.symlink_to("/etc")
        result = session.run(["facts"], ["write", "made", "x"], ["ls", str(link.parent)])
        command = session.command(["facts"])
        session.close()
        assert (opened["workspace"], opened["asked"]) == (str(workspace), str(link / "workspace"))
        assert result["cwd"] == command["cwd"] == str(workspace)
        assert result[f"ls {link.parent}"] == "!ENOENT"
        assert (workspace / "made").exists()

    def test_a_link_that_leads_nowhere_or_in_a_circle_is_refused(self, bench: Bench, daemon: Daemon) -> None:
        links = bench.directory("links")
        (links / "nowhere").symlink_to("not-there")
        (links / "circle").symlink_to("circle")
        for name in ("nowhere", "circle"):
            with pytest.raises(Refused) as caught:
                bench.open(daemon, links / name)
            assert caught.value.type == "RequestRefused"

    def test_a_link_in_the_workspace_leads_nowhere_that_the_view_does_not_show(
        self, bench: Bench, daemon: Daemon
    ) -> None:
        workspace = bench.workspace()
        secret = bench.directory("outside") / "secret"
        secret.write_text("secret")
        (workspace / "link").symlink_to(secret)
        (workspace / "up").symlink_to(Path("..") / ".." / secret.relative_to(bench.base))
        session = bench.open(daemon, workspace)
        actions = [["cat", "link"], ["cat", "up"]]
        for result in (session.run(*actions), session.command(*actions)):
            assert [value for _, value in result.facts] == ["!ENOENT", "!ENOENT"]
        session.close()


@needs("root")
@SHARED_DAEMON
class TestMixedOwners:
    def test_each_keeps_its_own_and_only_the_owners_are_writable(self, bench: Bench, daemon: Daemon) -> None:
        for owner in (0, 1000, 4242) if bench.mode.root else (bench.mode.uid,):
            workspace = bench.workspace(owner=owner)
            others = sorted({0, 1000, 4242, 65534} - {owner})
            for other in others:
                (workspace / f"of-{other}").mkdir()
                (workspace / f"of-{other}/file").write_text("x")
                os.chown(workspace / f"of-{other}/file", other, other)
                os.chown(workspace / f"of-{other}", other, other)
            before = listing(workspace)
            session = bench.open(daemon, workspace)
            result = session.run(
                *(["write", f"of-{other}/file", "y"] for other in others),
                *(["write", f"of-{other}/new", "y"] for other in others),
                *(["chmod", "0777", f"of-{other}/file"] for other in others),
            )
            session.shell("echo y >of-0/file; chown $(id -u) of-1000 of-0; rm -rf of-*")
            session.close()
            told = [value for _, value in result.facts]
            assert told == ["!EACCES"] * 2 * len(others) + ["!EPERM"] * len(others)
            assert {name: value[:3] for name, value in listing(workspace).items()} == {
                name: value[:3] for name, value in before.items()
            }
