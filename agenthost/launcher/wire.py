"""What daemon and builder say to each other, over one socket: REQUEST and REPLY frames with a JSON body.

build    steps and set-up of one tree, with the descriptors of `BuildRequest` -> ok, with the shim listener; or failure
forget   a Session, whose private mounts end -> ok
"""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass
from typing import Any

from agenthost.errors import LaunchFailed
from agenthost.launcher.mounts import MountStep, dump, load, to_json
from agenthost.layout import ViewPath
from agenthost.wire import Setup


@dataclass(frozen=True, slots=True)
class BuildRequest:
    """One tree and its init.

    The descriptors that come with it: init's end of the control socket and, when there are limits, the entrance of the
    cgroup that init belongs into.
    """

    session: str
    steps: tuple[MountStep, ...]
    setup: Setup
    shim_socket: ViewPath | None

    def body(self) -> bytes:
        return to_json(
            {
                "do": "build",
                "session": self.session,
                "steps": dump(self.steps),
                "setup": base64.b64encode(self.setup.body()).decode("ascii"),
                "shim_socket": self.shim_socket,
            }
        )


@dataclass(frozen=True, slots=True)
class ForgetRequest:
    """Ends the private mounts of a Session."""

    session: str

    def body(self) -> bytes:
        return to_json({"do": "forget", "session": self.session})


def parse_request(body: bytes) -> BuildRequest | ForgetRequest:
    """What a REQUEST asks for."""
    match json.loads(body):
        case {"do": "build", "session": session, "steps": steps, "setup": setup, "shim_socket": shim_socket}:
            return BuildRequest(session, load(steps), Setup.parse(base64.b64decode(setup)), shim_socket)
        case {"do": "forget", "session": session}:
            return ForgetRequest(session)
        case other:
            raise ValueError(f"not a request: {other!r}")


def reply_ok() -> bytes:
    """The body of a REPLY when all went well."""
    return to_json({"ok": True})


def reply_failure(step: str, reason: str, remedy: str) -> bytes:
    """The body of a REPLY when `step` failed."""
    return to_json({"ok": False, "step": step, "reason": reason, "remedy": remedy})


def check_reply(body: bytes) -> None:
    """Raises `LaunchFailed` when the builder says that it failed."""
    reply: Any = json.loads(body)
    if not reply["ok"]:
        raise LaunchFailed(f"{reply['step']}: {reply['reason']}", remedy=reply["remedy"])
