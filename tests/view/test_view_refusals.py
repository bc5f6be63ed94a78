"""What cannot have a view is one clear error, and leaves nothing: no process, no mount, no directory, no descriptor."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.view.rig import Bench, Daemon, Refused, Session, eventually


@pytest.fixture
def fresh(bench: Bench) -> Iterator[Daemon]:
    """A daemon that has done nothing yet, and after the test has still done nothing."""
    with bench.daemon() as daemon:
        daemon.call("idle")
        descriptors = daemon.descriptors()
        yield daemon
        assert daemon.children() == {}
        assert daemon.descriptors() == descriptors
        # Its lock, and digests of what it looked at.
        assert {path.name for path in daemon.state.iterdir()} <= {"lock", "codex-digests.json"}


def refused(daemon: Daemon, workspace: Path | None, **request: Any) -> Refused:
    with pytest.raises(Refused) as caught:
        daemon.open(workspace, **request)
    assert caught.value.what
    assert caught.value.remedy
    return caught.value


class TestHarness:
    def test_no_codex(self, bench: Bench, fresh: Daemon) -> None:
        missing = bench.base / "no-codex-here"
        error = refused(fresh, bench.workspace(), codex=str(missing), provider="http://127.0.0.1:9/v1")
        assert (error.type, error.kind) == ("NoView", "no-view")
        assert str(missing) in error.what

    def test_an_unpinned_codex(self, bench: Bench, fresh: Daemon) -> None:
        """Static, and nothing but its digest says that it is no release."""
        codex = bench.directory("codex") / "codex"
        shutil.copy(bench.probe, codex)
        error = refused(fresh, bench.workspace(), codex=str(codex), provider="http://127.0.0.1:9/v1")
        assert error.type == "NoView"
        assert "pinned" in error.remedy

    def test_a_dynamic_program(self, bench: Bench, fresh: Daemon) -> None:
        directory = bench.directory("dynamic")
        shutil.copy("/usr/bin/true", directory / "true")
        error = refused(fresh, bench.workspace(), harness=[str(directory), "true"])
        assert error.type == "NoView"
        assert "static" in error.remedy

    @pytest.mark.parametrize("name", ["missing", "../probe", "", "a/b"])
    def test_a_program_that_is_not_there(self, bench: Bench, fresh: Daemon, name: str) -> None:
        assert refused(fresh, bench.workspace(), harness=[str(bench.probe.parent), name]).type == "NoView"

    def test_a_harness_directory_that_is_not_there(self, bench: Bench, fresh: Daemon) -> None:
        assert refused(fresh, bench.workspace(), harness=[str(bench.base / "missing"), "probe"]).type == "NoView"

    def test_no_provider_for_codex(self, bench: Bench, fresh: Daemon) -> None:
        assert refused(fresh, bench.workspace()).type == "RequestRefused"


class TestWorkspace:
    def test_none(self, bench: Bench, fresh: Daemon) -> None:
        assert refused(fresh, None, harness=bench.harness()).type == "UnsupportedOperation"

    @pytest.mark.parametrize(
        "path",
        [
            *("/", "/proc", "/proc/sys", "/dev", "/dev/shm", "/sys", "/sys/fs", "/tmp", "/var/tmp", "/var", "/home"),
            *("/usr", "/usr/bin", "/bin", "/no/such/directory", "/etc/passwd"),
        ],
    )
    def test_one_that_the_view_has_no_place_for(self, bench: Bench, fresh: Daemon, path: str) -> None:
        error = refused(fresh, Path(path), harness=bench.harness())
        assert error.type == "RequestRefused"
        assert path in error.what or os.path.realpath(path) in error.what

    @pytest.mark.parametrize("path", ["/etc", "/proc/1/root"])
    def test_one_that_codex_has_no_place_for(self, bench: Bench, fresh: Daemon, path: str) -> None:
        assert (
            refused(fresh, Path(path), as_codex=bench.probe, provider="http://127.0.0.1:9/v1").type == "RequestRefused"
        )

    def test_a_link_to_one_of_those(self, bench: Bench, fresh: Daemon) -> None:
        link = bench.directory("links") / "link"
        link.symlink_to("/proc")
        assert "/proc" in refused(fresh, link, harness=bench.harness()).what

    @pytest.mark.parametrize("where", [".", "..", "sessions/s-1/home"])
    def test_one_that_overlaps_the_state_directory(self, bench: Bench, fresh: Daemon, where: str) -> None:
        shown = Path(os.path.normpath(fresh.state / where))
        made = [path for path in (shown, *shown.parents) if not path.exists()]
        for path in reversed(made):
            path.mkdir()
            bench.give(path, bench.mode.uid)
        error = refused(fresh, shown, harness=bench.harness())
        for path in made:
            path.rmdir()
        assert error.type == "RequestRefused"
        assert "state directory" in error.what


class TestRequest:
    @pytest.mark.parametrize(
        "request_",
        [
            {"environment": "none"},
            {"capabilities": ["x"]},
            {"hosted_skills": ["x"]},
            {"skills": True},
            {"skills": False},
        ],
    )
    def test_what_a_view_cannot_do(self, bench: Bench, fresh: Daemon, request_: dict[str, object]) -> None:
        error = refused(fresh, bench.workspace(), harness=bench.harness(), **request_)
        assert (error.type, error.kind) == ("UnsupportedOperation", "unsupported")

    @pytest.mark.parametrize(
        "request_",
        [
            *({"session": name} for name in ("", ".", "..", "a/b", ".hidden", "-x", "x" * 65, "new\nline")),
            *({"grace_s": grace} for grace in (-1, 3601)),
            {"model": "m"},
            {"allow_hosts": ["not a host"]},
            *({"bind_ro": [path]} for path in ("/", "/proc", "/tmp", "/no/such/path", "/dev/null")),
        ],
    )
    def test_what_is_wrong_in_itself(self, bench: Bench, fresh: Daemon, request_: dict[str, object]) -> None:
        assert refused(fresh, bench.workspace(), harness=bench.harness(), **request_).type == "RequestRefused"

    @pytest.mark.parametrize("path", ["/.oac/bin/x", "/proc/x", "relative", "/usr/../bin/x", "/"])
    def test_a_shim_path_that_cannot_be(self, bench: Bench, fresh: Daemon, path: str) -> None:
        error = refused(fresh, bench.workspace(), harness=bench.harness(), shim_paths=[path])
        assert error.type in {"DeclarationInvalid", "RequestRefused"}

    def test_the_workspace_again_as_bind_ro(self, bench: Bench, fresh: Daemon) -> None:
        workspace = bench.workspace()
        for path in (workspace, workspace / "probe"):
            assert refused(fresh, workspace, harness=bench.harness(), bind_ro=[str(path)]).type == "RequestRefused"


class TestState:
    """Found out only when the state directory is looked at."""

    @pytest.mark.parametrize("mode", [0o755, 0o770, 0o701])
    def test_one_that_is_open_to_others(self, bench: Bench, mode: int) -> None:
        state = bench.state()
        state.mkdir()
        bench.give(state, bench.mode.uid)
        state.chmod(mode)
        with bench.daemon(state, shared=True) as daemon:
            assert refused(daemon, bench.workspace(), harness=bench.harness()).type == "StateUnusable"
            assert daemon.children() == {}

    def test_one_that_cannot_be_made(self, bench: Bench) -> None:
        file = bench.directory("file") / "file"
        file.touch()
        with bench.daemon(file / "state", shared=True) as daemon:
            assert refused(daemon, bench.workspace(), harness=bench.harness()).type == "StateUnusable"
            assert daemon.children() == {}

    def test_an_events_file_that_cannot_be_written(self, bench: Bench, daemon: Daemon, tidy: None) -> None:
        before = set((daemon.state / "sessions").iterdir())
        error = refused(daemon, bench.workspace(), harness=bench.harness(), events_copy="/proc/nope")
        assert error.type in {"StateUnusable", "RequestRefused"}
        assert set((daemon.state / "sessions").iterdir()) == before

    def test_a_record_that_cannot_be_read(self, bench: Bench, daemon: Daemon, tidy: None) -> None:
        session = bench.open(daemon)
        session.close()
        for text in ("", "{", "[]", '{"version": 99}'):
            (session.directory / "session.json").write_text(text)
            assert (
                refused(daemon, session.workspace, harness=bench.harness(), session=session.id).type == "StateUnusable"
            )


class TestLaunch:
    """What fails while a tree is built: the Session stays usable, and nothing of the tree is left."""

    def test_a_shim_path_that_the_world_does_not_have(self, bench: Bench, daemon: Daemon, tidy: None) -> None:
        session = bench.open(daemon, shim_paths=["/usr/bin/no-such-program"])
        children, descriptors = set(daemon.children()), daemon.descriptors()
        for _ in range(3):
            with pytest.raises(Refused, match=r"LaunchFailed: .*/usr/bin/no-such-program"):
                session.run(["say", "hello"])
        eventually(lambda: set(daemon.children()) == children, "a failed launch left processes")
        eventually(lambda: daemon.descriptors() == descriptors, "a failed launch left descriptors")
        session.close()

    def test_a_closure_that_was_removed(self, bench: Bench, daemon: Daemon, tidy: None) -> None:
        directory = bench.directory("closure")
        shutil.copy(bench.probe, directory / "probe")
        session = daemon.open(bench.workspace(), harness=[str(directory), "probe"])
        shutil.rmtree(directory)
        with pytest.raises(Refused, match=r"LaunchFailed: .*closure"):
            session.run(["say", "hello"])
        session.close()

    def test_a_program_that_was_replaced_by_a_dynamic_one(self, bench: Bench, daemon: Daemon, tidy: None) -> None:
        directory = bench.directory("closure")
        shutil.copy(bench.probe, directory / "probe")
        session = daemon.open(bench.workspace(), harness=[str(directory), "probe"])
        (directory / "probe").unlink()
        shutil.copy("/usr/bin/true", directory / "probe")
        with pytest.raises(Refused, match=r"LaunchFailed: .*Permission denied"):
            session.run(["say", "hello"])
        session.close()

    def test_a_way_to_the_workspace_that_a_command_replaced(self, bench: Bench, daemon: Daemon, tidy: None) -> None:
        """/var/tmp is the Session's own, and its commands may rename in it: the next launch fails closed, or works."""
        session = bench.open(daemon)
        way = f"/var/tmp/{bench.base.name}"
        moved = session.shell(f"mv {way} {way}-moved && ln -s /usr {way}").status
        if moved == 0:
            with pytest.raises(Refused, match="LaunchFailed"):
                session.run(["say", "hello"])
        else:
            assert session.run(["say", "hello"])["say"] == "hello"
        session.close()


def test_the_same_requests_without_what_was_wrong_are_not_refused(bench: Bench, daemon: Daemon) -> None:
    """The control of this whole module."""
    session: Session = bench.open(
        daemon, session="ok.1", grace_s=0, allow_hosts=["example.com:443"], bind_ro=["/etc/passwd"]
    )
    assert session.run(["say", "hello"])["say"] == "hello"
    session.close()
