"""The declaration and the launch plan are to the letter of the specification."""

from __future__ import annotations

import subprocess
import tomllib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from agenthost.codex.catalog import ModelChoice
from agenthost.codex.config import StdioBinding, managed, render, requirements
from agenthost.codex.harness import HarnessPlan, declare_harness, plan_harness
from agenthost.codex.install import Install
from agenthost.codex.plan import (
    HELD,
    HOME_KEEP,
    MANAGED_CONFIG,
    OVERRIDES,
    REQUIREMENTS,
    declare,
    overrides,
    plan_launch,
)
from agenthost.declaration import Mask, Mount, View
from agenthost.errors import NoView, RequestRefused, UnsupportedOperation
from agenthost.layout import ViewPath
from tests.needs import needs

INSTALL = Install(
    found=Path("/usr/bin/codex"),
    origin="PATH",
    binary=Path("/opt/codex/bin/codex"),
    directory=Path("/opt/codex/bin"),
    release="0.163.0",
    code_mode_host=Path("/opt/codex/bin/codex-code-mode-host"),
    digests=MappingProxyType({"codex": "0" * 64}),
)
FORWARDED = (
    *("TERM", "COLORTERM", "NO_COLOR", "LINES", "COLUMNS"),
    *("PAGER", "GIT_PAGER", "GH_PAGER"),
    *("LANG", "LANGUAGE", "LC_ALL", "LC_COLLATE", "LC_CTYPE", "LC_MESSAGES", "LC_MONETARY", "LC_NUMERIC", "LC_TIME"),
    *("CODEX_CI", "CODEX_THREAD_ID", "CODEX_SESSION_ID", "GIT_OPTIONAL_LOCKS"),
)


def plan(args: Sequence[str] = ("exec", "hi"), **options: Any) -> HarnessPlan:
    return plan_launch(INSTALL, declare(INSTALL), workspace="/srv/work", args=args, **options)


def test_the_declaration_is_the_specifications() -> None:
    assert declare(INSTALL) == View(
        closure=(Mount(Path("/opt/codex/bin"), "codex"),),
        local_exec=(ViewPath("/.oac/codex/codex"), ViewPath("/.oac/codex/codex-code-mode-host")),
        shims=("git",),
        shim_paths=(ViewPath("/bin/bash"),),
        masks=(Mask(ViewPath("/etc/codex")),),
        forward_env=FORWARDED,
    )
    alone = declare(replace(INSTALL, code_mode_host=None))
    assert alone.local_exec == ("/.oac/codex/codex",)


def test_the_overrides_are_the_specifications() -> None:
    assert list(zip(overrides()[::2], overrides()[1::2], strict=True)) == [
        ("-c", "features.shell_snapshot=false"),
        ("-c", "features.hooks=false"),
        ("-c", "features.plugins=false"),
        ("-c", "features.memories=false"),
        ("-c", "features.skill_mcp_dependency_install=false"),
        ("-c", "allow_login_shell=false"),
        ("-c", "project_root_markers=[]"),
        ("-c", 'sandbox_mode="danger-full-access"'),
        ("-c", 'approval_policy="never"'),
        ("-c", "analytics.enabled=false"),
        ("-c", "features.unbounded_connection_retries=false"),
    ]


@pytest.mark.parametrize("args", [(), ("exec", "hi"), ("--config", "k=v", "app-server", "--listen", "stdio://")])
def test_the_callers_arguments_come_last(args: tuple[str, ...]) -> None:
    assert plan(args).argv == ("/.oac/codex/codex", *overrides(), *args)
    assert plan(args).program == "/.oac/codex/codex"


def test_the_environment_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    proxy = "http://127.0.0.1:17100"
    assert dict(plan().env) == {
        "PATH": "/.oac/bin",
        "HOME": "/.oac/home",
        "CODEX_HOME": "/.oac/home/codex",
        "TMPDIR": "/.oac/home/tmp",
        "HTTP_PROXY": proxy,
        "HTTPS_PROXY": proxy,
        "http_proxy": proxy,
        "https_proxy": proxy,
        "NO_PROXY": "127.0.0.1,localhost",
        "no_proxy": "127.0.0.1,localhost",
        "DISABLE_TELEMETRY": "1",
    }
    assert plan().cwd == "/srv/work"


def test_the_home_gets_its_configuration() -> None:
    nothing = ("AGENTS.md", "AGENTS.override.md", ".env", "auth.json", "environments.toml")
    assert dict(plan(choice=ModelChoice("m", "low")).home_files) == {
        **{f"codex/{name}": b"" for name in nothing},
        "codex/config.toml": render(gateway="http://127.0.0.1:17101", model="m", model_verbosity="low"),
    }
    assert set(plan().home_empty) == {".agents"} | {
        f"codex/{name}" for name in ("agents", "plugins", "prompts", "rules", "skills", ".cursor-plugin")
    }
    assert plan().home_keep == HOME_KEEP
    assert plan(agents_md=b"rules").home_files["codex/AGENTS.md"] == b"rules"


def test_the_mask_carries_what_is_managed() -> None:
    expected = managed(gateway="http://127.0.0.1:17101", workspace="/srv/work", fixed=HELD)
    assert dict(plan().mask_files) == {MANAGED_CONFIG: expected, REQUIREMENTS: requirements()}
    assert HELD.items() >= OVERRIDES.items()


def test_the_catalog_that_was_read_is_the_one_of_the_launch() -> None:
    assert dict(plan().home_once) == {}
    made = plan(choice=ModelChoice("m", "low", b"{}"))
    assert dict(made.home_once) == {"codex/model-catalog.json": b"{}"}
    held = tomllib.loads(made.mask_files[MANAGED_CONFIG].decode())
    assert held["model_catalog_json"] == "/.oac/home/codex/model-catalog.json"


def test_a_stdio_binding_is_refused_when_planning() -> None:
    with pytest.raises(UnsupportedOperation):
        plan(mcp=[StdioBinding("tool", ("server",))])


def test_an_argument_that_no_program_can_be_given_is_refused() -> None:
    with pytest.raises(RequestRefused, match="NUL"):
        plan(["exec", "a\0b"])


def test_a_plan_cannot_be_changed() -> None:
    made: Any = plan()
    with pytest.raises(AttributeError):
        made.argv = ()
    for mapping in (made.env, made.home_files, made.home_once, made.mask_files):
        with pytest.raises(TypeError):
            mapping["x"] = b""


@pytest.fixture
def static_program(tmp_path: Path) -> Path:
    source = tmp_path / "probe.c"
    source.write_text("int main(void) { return 0; }\n")
    (tmp_path / "harness").mkdir()
    subprocess.run(["gcc", "-static", "-o", tmp_path / "harness/probe", source], check=True, capture_output=True)
    return tmp_path / "harness" / "probe"


@needs("linux", "gcc")
def test_any_static_program_can_be_the_harness(static_program: Path, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(static_program.parent)
    view = declare_harness(link, "probe")
    assert view.closure == (Mount(static_program.parent, "harness"),)
    assert view.local_exec == ("/.oac/harness/probe",)
    assert (view.shims, view.shim_paths, view.masks) == (("git",), ("/bin/bash",), ())
    made = plan_harness(view, workspace="/srv/work", args=["a", "b"])
    assert made.argv == ("/.oac/harness/probe", "a", "b")
    assert dict(made.env) == {k: v for k, v in plan().env.items() if k not in {"CODEX_HOME", "DISABLE_TELEMETRY"}}
    assert (dict(made.home_files), made.home_keep, dict(made.mask_files)) == ({}, ("**",), {})


@needs("linux", "gcc")
def test_what_is_no_static_program_cannot_be_the_harness(static_program: Path) -> None:
    directory = static_program.parent
    (directory / "link").symlink_to("probe")
    (directory / "script").write_text("#!/bin/sh\n")
    (directory / "script").chmod(0o755)
    for name in ("none", "link", "script", "", ".", "..", "../harness/probe", str(static_program)):
        with pytest.raises(NoView):
            declare_harness(directory, name)
    with pytest.raises(NoView, match="No such file"):
        declare_harness(directory / "none", "probe")
