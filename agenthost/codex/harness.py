"""What one launch of a Harness is, and the plan for a Harness that is not Codex.

Promise: a `HarnessPlan` is complete and touches nothing. Its environment is closed: it is built from nothing, and no
variable of the caller's is in it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Final

from agenthost.declaration import COMPONENT, Mount, ProxyEnv, View
from agenthost.elf import why_not_static
from agenthost.errors import NoView, RequestRefused
from agenthost.layout import HOME, HOME_TMP, PROXY_PORT, SHIM_DIR, ViewPath

HARNESS_CLOSURE: Final = "harness"
"""The closure's name for a Harness that is not Codex."""

PROXY_URL: Final = f"http://127.0.0.1:{PROXY_PORT}"

PASSWD_SHELL: Final = ViewPath("/bin/bash")

TERMINAL_ENV: Final = ("TERM", "COLORTERM", "NO_COLOR", "LINES", "COLUMNS")
PAGER_ENV: Final = ("PAGER", "GIT_PAGER", "GH_PAGER")
LOCALE_ENV: Final = (
    "LANG",
    "LANGUAGE",
    "LC_ALL",
    "LC_COLLATE",
    "LC_CTYPE",
    "LC_MESSAGES",
    "LC_MONETARY",
    "LC_NUMERIC",
    "LC_TIME",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class HarnessPlan:
    """One launch of a Harness.

    home_files   written anew before the launch, shown read-only in the view; keys are paths below the Session home
    home_empty   directories that are made anew and empty, and shown read-only, so that nothing comes to be in them
    home_once    files that are created where nothing may stand, shown read-only, and removed after the launch
    home_keep    what survives of an earlier launch: paths below the Session home whose components are patterns of
                 `fnmatch`. The last one stands for regular files, those before it for directories; `**` in its place
                 for whatever there is. What matches nothing is removed
    mask_files   files that stand in a mask; keys are paths in the view
    """

    program: ViewPath
    argv: tuple[str, ...]
    env: Mapping[str, str]
    cwd: ViewPath
    home_files: Mapping[str, bytes] = field(default_factory=dict, repr=False)
    home_empty: tuple[str, ...] = ()
    home_once: Mapping[str, bytes] = field(default_factory=dict, repr=False)
    home_keep: tuple[str, ...] = ("**",)
    mask_files: Mapping[ViewPath, bytes] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        for text in (*self.argv, *self.env, *self.env.values(), self.program, self.cwd):
            if "\0" in text:
                raise RequestRefused("an argument holds a NUL byte", remedy="no program can be given one")
        for name in ("env", "home_files", "home_once", "mask_files"):
            object.__setattr__(self, name, MappingProxyType(dict(getattr(self, name))))


def closed_environment(proxy: ProxyEnv) -> dict[str, str]:
    """The variables that every Harness gets, and no other."""
    return {"PATH": SHIM_DIR, "HOME": HOME, "TMPDIR": HOME_TMP, **proxy.environment(PROXY_URL)}


def declare_harness(directory: Path, binary: str) -> View:
    """The declaration of a static program `binary` in `directory`; raises `NoView`.

    It is Codex's without what is Codex's own: one local exec, the shims git and /bin/bash, no mask.
    """
    if not COMPONENT.fullmatch(binary):
        raise NoView(f"{binary!r} does not name a file of the harness directory", remedy="give a plain file name")
    try:
        real = directory.resolve(strict=True)
    except OSError as error:
        raise NoView(
            f"the harness directory {directory} cannot be used ({error.strerror})", remedy="give an existing directory"
        ) from error
    program = real / binary
    reason = "is a symbolic link, which the view would not follow" if program.is_symlink() else why_not_static(program)
    if reason is not None:
        raise NoView(f"{program} {reason}", remedy="give a static program built for this machine")
    mount = Mount(real, HARNESS_CLOSURE)
    return View(
        closure=(mount,),
        local_exec=(ViewPath(f"{mount.path}/{binary}"),),
        shims=("git",),
        shim_paths=(PASSWD_SHELL,),
        forward_env=(*TERMINAL_ENV, *PAGER_ENV, *LOCALE_ENV, "GIT_OPTIONAL_LOCKS"),
    )


def plan_harness(view: View, *, workspace: str, args: Sequence[str]) -> HarnessPlan:
    """One launch of the program that `declare_harness` declared."""
    program = view.local_exec[0]
    return HarnessPlan(
        program=program, argv=(program, *args), env=closed_environment(view.proxy), cwd=ViewPath(workspace)
    )
