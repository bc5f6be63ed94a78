"""The declaration of Codex and the plan of one launch. Pure: nothing here touches a file.

Promise: the declaration, the overrides and the environment are spec/agent-host-view to the letter. What the real
releases do beyond it is held down by `managed_config`, which no argument and no app-server client can override.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final

from agenthost.codex import config
from agenthost.codex.catalog import CODEXS_OWN, ModelChoice
from agenthost.codex.harness import (
    LOCALE_ENV,
    PAGER_ENV,
    PASSWD_SHELL,
    TERMINAL_ENV,
    HarnessPlan,
    closed_environment,
)
from agenthost.codex.install import Install
from agenthost.declaration import Mask, Mount, View
from agenthost.layout import CODEX_CLOSURE, CODEX_HOME, HOME, MODEL_PORT, ViewPath

CODEX_MASK: Final = ViewPath("/etc/codex")
MANAGED_CONFIG: Final = ViewPath("/etc/codex/managed_config.toml")
REQUIREMENTS: Final = ViewPath("/etc/codex/requirements.toml")

GATEWAY: Final = f"http://127.0.0.1:{MODEL_PORT}"
"""Without a path: the gateway adds the provider's."""

CONFIG_FILE: Final = "codex/config.toml"
AGENTS_FILE: Final = "codex/AGENTS.md"
CATALOG_FILE: Final = "codex/model-catalog.json"
"""Paths below the Session home."""

EMPTY_FILES: Final = ("codex/AGENTS.override.md", "codex/.env", "codex/auth.json", "codex/environments.toml")
EMPTY_DIRECTORIES: Final = (
    *("codex/agents", "codex/plugins", "codex/prompts", "codex/rules", "codex/skills"),
    *("codex/.cursor-plugin", ".agents"),
)
"""What Codex looks for in its home and reads as configuration (strace, both releases). Each stands there, empty and
read-only: were it absent, the model could make it, and the next thread of the same process would obey. Both releases
take an empty one for none; an `auth.json` of `{}` would be a login."""

CODEX_ENV: Final = ("CODEX_CI", "CODEX_THREAD_ID", "CODEX_SESSION_ID", "GIT_OPTIONAL_LOCKS")

FEATURES_OFF: Final = ("shell_snapshot", "hooks", "plugins", "memories", "skill_mcp_dependency_install")

OVERRIDES: Final[Mapping[str, str | bool | list[str]]] = MappingProxyType(
    {
        **{f"features.{name}": False for name in FEATURES_OFF},
        "allow_login_shell": False,
        "project_root_markers": [],
        "sandbox_mode": "danger-full-access",
        "approval_policy": "never",
        # Not in the specification, which assumes both by themselves: `codex exec` reports metrics to its maker through
        # the proxy, and a refused connection is retried without end.
        "analytics.enabled": False,
        "features.unbounded_connection_retries": False,
    }
)
"""What `-c` sets before the caller's own arguments, and managed_config.toml keeps set after them."""

HELD: Final[Mapping[str, str | bool | list[str]]] = MappingProxyType(
    {
        **OVERRIDES,
        # Codex offers the skills of `<workspace>/.codex` to the model however untrusted it is, and unpacks its own to
        # where no command can read them.
        "skills.include_instructions": False,
        "skills.bundled.enabled": False,
        # A client's own exporter would be tried through the proxy.
        "otel.exporter": "none",
        "otel.trace_exporter": "none",
        "otel.metrics_exporter": "none",
    }
)
"""What managed_config.toml holds."""

HOME_KEEP: Final = (
    "codex/sessions/[0-9][0-9][0-9][0-9]/[0-9][0-9]/[0-9][0-9]/rollout-*",
    "codex/archived_sessions/rollout-*",
    "codex/session_index.jsonl",
    "codex/installation_id",
)
"""What of an earlier launch survives: the threads, so that they can be resumed. Whatever else Codex would read again
(config.toml, .env, auth.json, environments.toml, AGENTS*.md, rules, agents, skills, prompts, profiles, credentials,
caches, and whatever name a later release adds) goes, because the model can write all of it."""


def declare(install: Install) -> View:
    """The declaration of an installed, pinned, static Codex."""
    mount = Mount(install.directory, CODEX_CLOSURE.rpartition("/")[2])
    programs = [install.binary] + ([install.code_mode_host] if install.code_mode_host else [])
    return View(
        closure=(mount,),
        local_exec=tuple(ViewPath(f"{mount.path}/{program.name}") for program in programs),
        shims=("git",),
        shim_paths=(PASSWD_SHELL,),
        masks=(Mask(CODEX_MASK),),
        forward_env=(*TERMINAL_ENV, *PAGER_ENV, *LOCALE_ENV, *CODEX_ENV),
    )


def treatment_of_home() -> dict[str, list[str]]:
    """What becomes of the Session home at each launch: as `$defs/home` of contracts/declaration.schema.json has it."""
    return {
        "written": [CONFIG_FILE, AGENTS_FILE],
        "emptied": [*EMPTY_FILES, *EMPTY_DIRECTORIES],
        "kept": list(HOME_KEEP),
    }


def overrides() -> tuple[str, ...]:
    """The `-c` arguments. A JSON value of these kinds is the same TOML value."""
    return tuple(part for key, value in OVERRIDES.items() for part in ("-c", f"{key}={json.dumps(value)}"))


def plan_launch(
    install: Install,
    view: View,
    *,
    workspace: str,
    args: Sequence[str],
    choice: ModelChoice = CODEXS_OWN,
    mcp: Sequence[config.McpBinding] = (),
    agents_md: bytes | None = None,
) -> HarnessPlan:
    """One launch of Codex with `args`, which may put options before the subcommand.

    `agents_md` is the workspace's own AGENTS.md: Codex does not read the one of an untrusted project, but does read
    the one of its home. Raises `UnsupportedOperation` for a binding that a view cannot have.
    """
    program = ViewPath(f"{view.closure[0].path}/{install.binary.name}")
    configured = config.render(gateway=GATEWAY, model=choice.model, model_verbosity=choice.verbosity, mcp=mcp)
    catalog = {} if choice.catalog is None else {"model_catalog_json": f"{HOME}/{CATALOG_FILE}"}
    return HarnessPlan(
        program=program,
        argv=(program, *overrides(), *args),
        env={**closed_environment(view.proxy), "CODEX_HOME": CODEX_HOME, "DISABLE_TELEMETRY": "1"},
        cwd=ViewPath(workspace),
        home_files={**dict.fromkeys(EMPTY_FILES, b""), CONFIG_FILE: configured, AGENTS_FILE: agents_md or b""},
        home_empty=EMPTY_DIRECTORIES,
        home_once={} if choice.catalog is None else {CATALOG_FILE: choice.catalog},
        home_keep=HOME_KEEP,
        mask_files={
            MANAGED_CONFIG: config.managed(gateway=GATEWAY, workspace=workspace, fixed={**HELD, **catalog}),
            REQUIREMENTS: config.requirements(mcp),
        },
    )
