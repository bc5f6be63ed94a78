"""The Responses protocol: what a request offers, and each step in the form that it supports."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import pytest

from agenthost.scripted import responses
from agenthost.scripted.script import Code, HttpError, McpCall, Patch, Say, Shell

DIRECT = frozenset({"exec_command", "apply_patch"})
CODE_ONLY = frozenset({"exec", "wait"})


def events(item: responses.Item) -> list[dict[str, Any]]:
    found = []
    for frame in responses.stream("resp_1", "m", item, 10):
        name, data = frame.decode().removesuffix("\n\n").split("\n")
        event = json.loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        found.append(event)
    return found


def types(found: Iterable[dict[str, Any]]) -> list[str]:
    return [event["type"].removeprefix("response.") for event in found]


def test_the_offer_is_read_from_tools_items_and_namespaces() -> None:
    request = {
        "tools": [{"type": "function", "name": "a"}, {"type": "web_search"}, 7],
        "input": [
            {"type": "message"},
            "x",
            {
                "type": "additional_tools",
                "tools": [{"type": "namespace", "name": "functions", "tools": [{"type": "custom", "name": "exec"}]}],
            },
        ],
    }
    assert responses.offered_tools(request) == {"a", "exec"}
    assert responses.offered_tools({"tools": None, "input": "text"}) == frozenset()


def test_a_command_is_a_tool_call_where_that_is_offered_and_javascript_where_not() -> None:
    direct = responses.render(Shell("echo 'hi'"), DIRECT | CODE_ONLY, "1").body
    assert (direct["type"], direct["name"]) == ("function_call", "exec_command")
    assert json.loads(str(direct["arguments"])) == {"cmd": "echo 'hi'", "yield_time_ms": 30_000}
    code = responses.render(Shell('echo "hi"\n'), CODE_ONLY, "1").body
    assert (code["type"], code["name"]) == ("custom_tool_call", "exec")
    assert r'tools.exec_command({"cmd": "echo \"hi\"\n"' in str(code["input"])


def test_a_patch_is_a_tool_call_where_that_is_offered_and_javascript_where_not() -> None:
    patch = "*** Begin Patch\n*** End Patch"
    direct = responses.render(Patch(patch), DIRECT, "1").body
    assert (direct["type"], direct["name"], direct["input"]) == ("custom_tool_call", "apply_patch", patch)
    code = responses.render(Patch(patch), CODE_ONLY, "1").body
    assert json.dumps(patch) in str(code["input"])


def test_an_mcp_tool_goes_by_the_name_that_codex_gives_it() -> None:
    call = McpCall("my-srv", "ping.it", {"n": 3})
    direct = responses.render(call, DIRECT, "1").body
    assert (direct["namespace"], direct["name"], direct["arguments"]) == ("mcp__my_srv", "ping_it", '{"n": 3}')
    code = responses.render(call, CODE_ONLY, "1").body
    assert code["input"] == 'text(await tools.mcp__my_srv__ping_it({"n": 3}));'


@pytest.mark.parametrize(
    ("action", "tools", "text"),
    [
        (Code("1"), DIRECT, "offers no code mode (its tools: apply_patch, exec_command)"),
        (Shell("ls"), frozenset({"view_image"}), "neither exec_command nor code mode"),
        (Patch("x"), frozenset(), "neither apply_patch nor code mode (its tools: none)"),
        (HttpError(500), DIRECT, "no response"),
    ],
)
def test_what_a_request_cannot_do_is_said(
    action: Code | Shell | Patch | HttpError, tools: frozenset[str], text: str
) -> None:
    with pytest.raises(responses.NotOffered) as caught:
        responses.render(action, tools, "1")
    assert text in str(caught.value)


def test_a_message_is_streamed_in_pieces_between_created_and_completed() -> None:
    text = "a sentence that is longer than one piece of a delta"
    found = events(responses.render(Say(text), frozenset(), "1"))
    assert types(found) == [
        "created",
        "in_progress",
        "output_item.added",
        "content_part.added",
        *["output_text.delta"] * 3,
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "completed",
    ]
    assert "".join(event["delta"] for event in found if event["type"].endswith("delta")) == text
    assert found[2]["item"]["content"] == []
    assert found[-2]["item"]["content"][0]["text"] == text
    assert [event["sequence_number"] for event in found] == list(range(len(found)))


@pytest.mark.parametrize(
    ("item", "kind"),
    [
        (responses.render(Shell("ls"), DIRECT, "1"), "function_call_arguments"),
        (responses.render(Code("1"), CODE_ONLY, "1"), "custom_tool_call_input"),
    ],
)
def test_a_call_is_streamed_with_its_input(item: responses.Item, kind: str) -> None:
    found = events(item)
    assert types(found) == [
        "created",
        "in_progress",
        "output_item.added",
        f"{kind}.delta",
        f"{kind}.done",
        "output_item.done",
        "completed",
    ]
    completed = found[-1]["response"]
    assert completed["status"] == "completed"
    assert completed["output"] == [found[-2]["item"]]
    usage = completed["usage"]
    assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"]


def test_requests_for_compaction_are_known_by_either_sign() -> None:
    metadata = json.dumps({"request_kind": "compaction"})
    assert responses.is_compaction({}, metadata)
    assert responses.is_compaction({"client_metadata": {"x-codex-turn-metadata": metadata}}, None)
    assert not responses.is_compaction({}, json.dumps({"request_kind": "turn"}))
    assert not responses.is_compaction({"client_metadata": []}, "not json")
    assert not responses.is_compaction({}, "[]")
    assert responses.wants_compaction_item({"input": [{"type": "message"}, {"type": "compaction_trigger"}]})
    assert not responses.wants_compaction_item({"input": [{"type": "compaction_trigger"}, {"type": "message"}]})
    assert not responses.wants_compaction_item({"input": []})
    assert types(events(responses.compaction("1")))[2:] == ["output_item.added", "output_item.done", "completed"]
