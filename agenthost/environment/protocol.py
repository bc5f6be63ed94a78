"""What an environment is to the rest: a world to look at, and a place where commands run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from agenthost.launcher.mounts import MountStep
from agenthost.layout import ViewPath
from agenthost.wire import Command, Exited, Failed


class CommandHandle(Protocol):
    """One command that was handed to the environment."""

    async def wait(self) -> Exited | Failed:
        """How it ended. Raises `EnvironmentFailed` when the environment ended first."""


class Environment(Protocol):
    """Where the commands of one Session run. Its world must show the workspace at the workspace's own path."""

    @property
    def variables(self) -> Mapping[str, str]:
        """The environment's own variables: `HOME`, `PATH` and `LANG` at least. They win over forwarded ones."""

    def world(self) -> Sequence[MountStep]:
        """The mounts that show the environment's files in a view, noexec, in the order of attaching."""

    def canonical(self, path: ViewPath) -> ViewPath:
        """Where `path` lies in the world once the links in it are resolved."""

    async def spawn(self, command: Command, fds: Sequence[int]) -> CommandHandle:
        """Hands a command over; returns when it was taken, not when it ended.

        `fds` are the open ones of 0 to 2 in order, then the shim's connection when the command has CONNECTION. All are
        sent; the caller closes its own. `command.id` is replaced by the environment's own. The status goes straight to
        the connection. Raises `EnvironmentFailed`.
        """

    async def aclose(self) -> None:
        """Ends every process of the environment and waits until they are gone."""
