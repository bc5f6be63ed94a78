"""Admission: what a request cannot be is refused before any effect, and paths are looked at once."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from agenthost.errors import NotAvailableYet, RequestRefused, UnsupportedOperation
from agenthost.gateway.provider import McpServer, Provider
from agenthost.request import Admitted, Harness, SessionRequest, admit
from tests.needs import UNPRIVILEGED_UID, needs

pytestmark = needs("linux")

Request = Callable[..., SessionRequest]


@pytest.fixture
def state(tmp_path: Path) -> Path:
    return tmp_path / "state"


@pytest.fixture
def request_for(tmp_path: Path) -> Request:
    """A request that is admitted, but for what the test changes."""
    workspace = tmp_path / "workspace"
    workspace.mkdir()

    def make(**changes: object) -> SessionRequest:
        harness = Harness(Path("/usr/bin"), "true")
        return dataclasses.replace(SessionRequest(workspace=workspace, harness=harness), **changes)  # type: ignore[arg-type]

    return make


def admitted(request: SessionRequest, state: Path) -> Admitted:
    with admit(request, state) as found:
        return found


def test_what_is_right_is_admitted_and_nothing_is_made(request_for: Request, state: Path, tmp_path: Path) -> None:
    before = sorted(tmp_path.rglob("*"))
    with admit(request_for(), state) as found:
        assert found.workspace == tmp_path / "workspace"
        assert os.path.samestat(os.fstat(found.workspace_fd), found.workspace.stat())
        assert found.identity.inode == found.workspace.stat().st_ino
    assert sorted(tmp_path.rglob("*")) == before


def test_the_descriptor_is_closed_in_the_end_and_after_a_refusal(request_for: Request, state: Path) -> None:
    before = len(list(Path("/proc/self/fd").iterdir()))
    admitted(request_for(), state)
    with pytest.raises(RequestRefused):
        admitted(request_for(bind_ro=[Path("/proc")]), state)
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_links_are_resolved_once(request_for: Request, state: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("workspace")
    (tmp_path / "shown").touch()
    (tmp_path / "other-link").symlink_to("shown")
    found = admitted(request_for(workspace=tmp_path / "link", bind_ro=[tmp_path / "other-link"]), state)
    assert (found.workspace, found.bind_ro) == (tmp_path / "workspace", (tmp_path / "shown",))


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"environment": "none"}, "environment none"),
        ({"capabilities": ["x"]}, "installed Capabilities"),
        ({"hosted_skills": ["x"]}, "hosted skills"),
        ({"skills": True}, "skills option"),
        ({"skills": False}, "skills option"),
        ({"workspace": None}, "no workspace"),
    ],
)
def test_what_a_view_cannot_do(request_for: Request, state: Path, changes: dict[str, object], says: str) -> None:
    with pytest.raises(UnsupportedOperation, match=says):
        admitted(request_for(**changes), state)


def test_what_is_to_come_is_refused_and_not_ignored(request_for: Request, state: Path) -> None:
    server = McpServer(label="docs", url="https://docs.example/mcp")
    with pytest.raises(NotAvailableYet, match="not available yet"):
        admitted(request_for(mcp=[server]), state)


@pytest.mark.parametrize(
    "changes",
    [
        *({"session": name} for name in ("", ".", "..", "a/b", ".x", "-x", "_x", "é", "a" * 65, "a b", "a\n", "a\0")),
        *({"memory": memory} for memory in (-1, 0, 1 << 20)),
        *({"pids": pids} for pids in (-1, 0, 7)),
        *({"cpus": cpus} for cpus in (-1, 0, 0.001, float("nan"), float("inf"))),
        *({"grace_s": grace} for grace in (-0.1, 3600.1, float("nan"), float("inf"))),
        {"harness": None},
        {"codex": Path("/x")},
        {"model": "m"},
        {"harness": None, "provider": None},
        *({"allow_hosts": [host]} for host in ("", "a b", "host:0", "host:99999", "http://host")),
    ],
)
def test_values_that_are_wrong_in_themselves(request_for: Request, state: Path, changes: dict[str, object]) -> None:
    with pytest.raises(RequestRefused):
        admitted(request_for(**changes), state)


@pytest.mark.parametrize("name", ["a", "A9", "a.b", "a-b_c.d", "0", "a" * 64])
def test_names_of_sessions(request_for: Request, state: Path, name: str) -> None:
    assert admitted(request_for(session=name), state).request.session == name


@pytest.mark.parametrize(
    "path",
    [
        *(
            "/",
            "/proc",
            "/proc/sys",
            "/dev",
            "/dev/pts",
            "/sys",
            "/tmp",
            "/var/tmp",
            "/var",
            "/home",
            "/usr",
            "/usr/bin",
        ),
        *("/bin", "/etc/passwd", "/dev/null", "/no/such/path"),
    ],
)
def test_workspaces_that_the_view_has_no_place_for(request_for: Request, state: Path, path: str) -> None:
    with pytest.raises(RequestRefused):
        admitted(request_for(workspace=Path(path)), state)


def test_etc_has_a_place_without_codex_and_none_with_it(request_for: Request, state: Path) -> None:
    provider = Provider(base_url="http://127.0.0.1:9/v1", api_key="x")
    with pytest.raises(RequestRefused, match="overlaps /etc/codex, which is masked"):
        admitted(request_for(workspace=Path("/etc"), harness=None, provider=provider), state)


def test_a_workspace_and_the_state_directory_stay_apart(request_for: Request, tmp_path: Path) -> None:
    workspace = tmp_path / "workspace"
    (tmp_path / "link").symlink_to("workspace")
    for state in (workspace, workspace / "state", tmp_path, tmp_path / "link" / "state"):
        with pytest.raises(RequestRefused, match="overlaps the state directory"):
            admitted(request_for(), state)
    # Not a matter of how the names begin.
    admitted(request_for(), tmp_path / "workspace-state")


@pytest.mark.parametrize("path", ["/", "/proc", "/dev/null", "/tmp", "/no/such/path"])
def test_paths_that_cannot_be_shown(request_for: Request, state: Path, path: str) -> None:
    with pytest.raises(RequestRefused):
        admitted(request_for(bind_ro=[Path(path)]), state)


def test_a_path_is_shown_once(request_for: Request, state: Path, tmp_path: Path) -> None:
    workspace, other = tmp_path / "workspace", tmp_path / "other"
    (workspace / "below").mkdir()
    other.mkdir()
    for paths in ([workspace], [workspace / "below"], [other, other]):
        with pytest.raises(RequestRefused):
            admitted(request_for(bind_ro=paths), state)
    assert admitted(request_for(bind_ro=[other]), state).bind_ro == (other,)


def test_shim_paths_take_the_place_of_what_they_cover(request_for: Request, state: Path, tmp_path: Path) -> None:
    workspace = tmp_path / "workspace"
    for path in (str(workspace / "sh"), str(workspace), str(tmp_path)):
        with pytest.raises(RequestRefused, match="shim path"):
            admitted(request_for(shim_paths=[path]), state)


def test_a_workspace_that_this_user_cannot_enter_is_said(request_for: Request, state: Path, tmp_path: Path) -> None:
    (tmp_path / "closed").mkdir(mode=0)
    root = os.geteuid() == 0
    if root:
        os.seteuid(UNPRIVILEGED_UID)
    try:
        with pytest.raises(RequestRefused, match="Permission denied"):
            admitted(request_for(workspace=tmp_path / "closed" / "workspace"), state)
    finally:
        if root:
            os.seteuid(0)
