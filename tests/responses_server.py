"""A loopback Responses server that records what Codex sends and plays fixed outputs, one list a request.

Smaller than `agenthost.scripted` on purpose: the tests of the Codex adapter lean on nothing that stands above it.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Self

Item = dict[str, object]


@dataclass(frozen=True)
class Request:
    method: str
    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> dict[str, object]:
        found = json.loads(self.body)
        assert isinstance(found, dict)
        return found


def say(text: str) -> Item:
    return {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": text}]}


def shell(command: str, call: str = "call-1") -> Item:
    arguments = json.dumps({"cmd": command})
    return {"type": "function_call", "call_id": call, "name": "exec_command", "arguments": arguments}


def patch(text: str, call: str = "call-1") -> Item:
    return {"type": "custom_tool_call", "call_id": call, "name": "apply_patch", "input": text}


class ResponsesServer:
    """Listens while it is entered. After the last of `turns` it says `done` to everything."""

    def __init__(self, turns: Sequence[Sequence[Item]] = (), *, port: int = 0) -> None:
        self.requests: list[Request] = []
        self.tokens = 2
        """What each answer says that the conversation has used so far."""
        self._turns = list(turns)
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers.get("content-length", "0")))
                headers = {name.lower(): value for name, value in self.headers.items()}
                outer.requests.append(Request(self.command, self.path, headers, body))
                payload = outer._answer()
                self.send_response(200)
                self.send_header("content-type", "text/event-stream")
                self.send_header("content-length", str(len(payload)))
                self.end_headers()
                self.wfile.write(payload)

            def do_GET(self) -> None:
                self.do_POST()

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the standard library's name
                """Says nothing: the tests read what was recorded."""

        self._server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))

    def play(self, *turns: Sequence[Item]) -> None:
        """Says these next, one list a request."""
        self._turns += turns

    def _answer(self) -> bytes:
        outputs = self._turns.pop(0) if self._turns else [say("done")]
        response: Item = {"id": f"resp-{len(self.requests)}"}
        usage = {"input_tokens": self.tokens - 1, "output_tokens": 1, "total_tokens": self.tokens}
        events: list[Item] = [{"type": "response.created", "response": response}]
        events += [{"type": "response.output_item.done", "item": item} for item in outputs]
        events += [{"type": "response.completed", "response": {**response, "usage": usage}}]
        return b"".join(b"event: %s\ndata: %s\n\n" % (str(e["type"]).encode(), json.dumps(e).encode()) for e in events)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
