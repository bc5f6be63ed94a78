"""Runs commands as a user without any privilege, with an agenthost of its own that this user can read."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.needs import as_unprivileged


@dataclass(frozen=True, slots=True)
class Unprivileged:
    """A user without privileges. As root, a uid that has no name; else the caller.

    `python` is an interpreter with agenthost and Codex 0.163.0 installed, readable by everybody; `home` is the user's
    own directory, empty at first. The environment is closed: `PATH`, `HOME`, `LANG` and what `env` adds.
    """

    uid: int
    gid: int
    python: Path
    home: Path
    variables: Mapping[str, str] = field(default_factory=dict)

    def agenthost(self, *args: str) -> list[str]:
        """The command `agenthost ARGS...`."""
        return [str(self.python), "-m", "agenthost", *args]

    def environment(self, env: Mapping[str, str] | None = None) -> dict[str, str]:
        path = f"{self.python.parent}:/usr/bin:/bin"
        return {"PATH": path, "HOME": str(self.home), "LANG": "C.UTF-8", **self.variables, **(env or {})}

    def run(
        self,
        command: Sequence[str],
        *,
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
        stdin: bytes = b"",
        timeout_s: float = 60,
    ) -> subprocess.CompletedProcess[bytes]:
        """Runs `command` to its end. Never raises for its exit status."""
        return subprocess.run(
            as_unprivileged(list(command)),
            cwd=cwd or self.home,
            env=self.environment(env),
            input=stdin,
            capture_output=True,
            timeout=timeout_s,
            check=False,
        )

    def start(
        self, command: Sequence[str], *, cwd: Path | None = None, env: Mapping[str, str] | None = None
    ) -> subprocess.Popen[bytes]:
        """Starts `command` with pipes for stdin, stdout and stderr; the caller ends it."""
        return subprocess.Popen(
            as_unprivileged(list(command)),
            cwd=cwd or self.home,
            env=self.environment(env),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    def own(self, tree: Path) -> Path:
        """Gives a whole tree to this user."""
        if os.geteuid() == 0:
            for path in [tree, *tree.rglob("*")]:
                os.chown(path, self.uid, self.gid, follow_symlinks=False)
        return tree
