"""The Responses protocol as the scripted model speaks it: what a request offers, and a step as its events. Pure.

The same step takes the form that the request supports: Codex offers `exec_command` and `apply_patch` as tools of their
own, or, with the models that it runs in code mode only, nothing but `exec`, in whose JavaScript they are functions. The
offer is in `tools` or in an input item `additional_tools`, either of them with or without namespaces.

Order of the events of one response, as both pinned releases accept it:

    response.created, response.in_progress,
    for the one item: output_item.added, its deltas, its done, output_item.done,
    response.completed
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from agenthost.scripted.script import Action, Code, HttpError, McpCall, Patch, Say, Shell

Json = Mapping[str, object]

CODE_MODE: Final = "exec"
YIELD_MS: Final = 30_000
"""How long a command may run before Codex lets the model go on; the most that exec_command takes."""

CLOSING: Final = "The script is at its end."
SUMMARY: Final = "Summary by the scripted model: the conversation so far followed its script."

_PIECE: Final = 24
"""Characters of text a delta event."""


class NotOffered(Exception):
    """The request offers no tool that the step could be done with."""


@dataclass(frozen=True, slots=True)
class Item:
    """One output item, and what makes up its text while it is streamed."""

    body: Json
    text: str
    kind: str
    """Which events stream the text: "output_text", "function_call_arguments", "custom_tool_call_input" or ""."""


def offered_tools(request: Json) -> frozenset[str]:
    """Names of the tools that a request offers the model, those in namespaces included."""
    lists = [request.get("tools")]
    lists += [item.get("tools") for item in _objects(request.get("input")) if item.get("type") == "additional_tools"]
    return frozenset(name for tools in lists for name in _names(tools))


def is_compaction(request: Json, turn_metadata: str | None) -> bool:
    """Whether the request wants the conversation summed up rather than continued (local compaction)."""
    metadata = request.get("client_metadata")
    texts = [turn_metadata]
    if isinstance(metadata, dict):
        texts.append(metadata.get("x-codex-turn-metadata"))
    return any(_request_kind(text) == "compaction" for text in texts if isinstance(text, str))


def wants_compaction_item(request: Json) -> bool:
    """Whether the request wants exactly one compaction item (remote compaction, version 2)."""
    items = list(_objects(request.get("input")))
    return bool(items) and items[-1].get("type") == "compaction_trigger"


def render(action: Action, tools: frozenset[str], call_id: str) -> Item:
    """The step in the form that these tools allow. Raises NotOffered."""
    match action:
        case Say(text=text):
            return message(text, call_id)
        case Shell(command=command):
            arguments = {"cmd": command, "yield_time_ms": YIELD_MS}
            if "exec_command" in tools:
                return _function_call("exec_command", arguments, call_id)
            return _code(_shell_source(arguments), tools, "exec_command", call_id)
        case Patch(patch=patch):
            if "apply_patch" in tools:
                return _custom_call("apply_patch", patch, call_id)
            return _code(f"text(await tools.apply_patch({json.dumps(patch)}));", tools, "apply_patch", call_id)
        case McpCall(server=server, tool=tool, arguments=arguments):
            namespace, name = f"mcp__{_identifier(server)}", _identifier(tool)
            if CODE_MODE not in tools:
                return _function_call(name, arguments, call_id, namespace)
            function = f"{namespace}__{name}"
            return _code(f"text(await tools.{function}({json.dumps(arguments)}));", tools, function, call_id)
        case Code(source=source):
            return _code(source, tools, CODE_MODE, call_id)
        case HttpError():
            raise NotOffered("an HTTP error is no response")


def message(text: str, item_id: str) -> Item:
    """Something said."""
    content = [{"type": "output_text", "text": text, "annotations": []}]
    body = {"type": "message", "id": f"msg_{item_id}", "role": "assistant", "status": "completed", "content": content}
    return Item(body, text, "output_text")


def compaction(item_id: str) -> Item:
    """The one item of a remote compaction."""
    return Item({"type": "compaction", "id": f"cmp_{item_id}", "encrypted_content": SUMMARY}, "", "")


def stream(response_id: str, model: str, item: Item, input_tokens: int) -> Iterator[bytes]:
    """The events of one response, as lines of an event stream."""
    for number, event in enumerate(_events(response_id, model, item, input_tokens)):
        data = json.dumps({**event, "sequence_number": number}, separators=(",", ":"))
        yield f"event: {event['type']}\ndata: {data}\n\n".encode()


def _events(response_id: str, model: str, item: Item, input_tokens: int) -> Iterator[Json]:
    response: Json = {"id": response_id, "object": "response", "model": model, "status": "in_progress", "output": []}
    yield {"type": "response.created", "response": response}
    yield {"type": "response.in_progress", "response": response}
    yield {"type": "response.output_item.added", "output_index": 0, "item": _opened(item)}
    yield from _text_events(item)
    yield {"type": "response.output_item.done", "output_index": 0, "item": item.body}
    output_tokens = max(1, len(item.text) // 4)
    usage = {
        "input_tokens": input_tokens,
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens": output_tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": input_tokens + output_tokens,
    }
    done = {**response, "status": "completed", "output": [item.body], "usage": usage}
    yield {"type": "response.completed", "response": done}


def _text_events(item: Item) -> Iterator[Json]:
    if not item.kind:
        return
    place: Json = {"item_id": item.body["id"], "output_index": 0}
    if item.kind != "output_text":
        name = "arguments" if item.kind == "function_call_arguments" else "input"
        yield {"type": f"response.{item.kind}.delta", **place, "delta": item.text}
        yield {"type": f"response.{item.kind}.done", **place, name: item.text}
        return
    place = {**place, "content_index": 0}
    part = {"type": "output_text", "text": "", "annotations": []}
    yield {"type": "response.content_part.added", **place, "part": part}
    for start in range(0, len(item.text), _PIECE):
        yield {"type": "response.output_text.delta", **place, "delta": item.text[start : start + _PIECE]}
    yield {"type": "response.output_text.done", **place, "text": item.text}
    yield {"type": "response.content_part.done", **place, "part": {**part, "text": item.text}}


def _opened(item: Item) -> Json:
    empty = {"output_text": "content", "function_call_arguments": "arguments", "custom_tool_call_input": "input"}
    field = empty.get(item.kind)
    if field is None:
        return item.body
    return {**item.body, "status": "in_progress", field: [] if field == "content" else ""}


def _function_call(name: str, arguments: Json, call_id: str, namespace: str | None = None) -> Item:
    text = json.dumps(arguments)
    body: dict[str, object] = {
        "type": "function_call",
        "id": f"fc_{call_id}",
        "call_id": f"call_{call_id}",
        "name": name,
        "arguments": text,
        "status": "completed",
    }
    if namespace is not None:
        body["namespace"] = namespace
    return Item(body, text, "function_call_arguments")


def _custom_call(name: str, text: str, call_id: str) -> Item:
    body = {
        "type": "custom_tool_call",
        "id": f"ctc_{call_id}",
        "call_id": f"call_{call_id}",
        "name": name,
        "input": text,
        "status": "completed",
    }
    return Item(body, text, "custom_tool_call_input")


def _identifier(name: str) -> str:
    """The name of a server or a tool as Codex gives it to the model."""
    return re.sub(r"[^A-Za-z0-9_]", "_", name)


def _code(source: str, tools: frozenset[str], wanted: str, call_id: str) -> Item:
    if CODE_MODE not in tools:
        offer = ", ".join(sorted(tools)) or "none"
        ways = f"neither {wanted} nor code mode" if wanted != CODE_MODE else "no code mode"
        raise NotOffered(f"this request offers {ways} (its tools: {offer})")
    return _custom_call(CODE_MODE, source, call_id)


def _shell_source(arguments: Json) -> str:
    return (
        f'// @exec: {{"yield_time_ms": {YIELD_MS + 1000}}}\n'
        f"const r = await tools.exec_command({json.dumps(arguments)});\n"
        "text(r.output);\n"
        "text(r.exit_code === undefined ? `still running as session ${r.session_id}` : `exit code ${r.exit_code}`);"
    )


def _names(tools: object) -> Iterator[str]:
    for tool in _objects(tools):
        if tool.get("type") == "namespace":
            yield from _names(tool.get("tools"))
        elif isinstance(name := tool.get("name"), str):
            yield name


def _objects(value: object) -> Iterable[Json]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _request_kind(metadata: str) -> object:
    try:
        value = json.loads(metadata)
    except ValueError:
        return None
    return value.get("request_kind") if isinstance(value, dict) else None
