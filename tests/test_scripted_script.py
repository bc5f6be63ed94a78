"""Scripts: read strictly, refused with file, step and cause."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agenthost.errors import ScriptInvalid
from agenthost.scripted.script import Code, HttpError, McpCall, Patch, Say, Script, Shell, Step

EVERY = {
    "steps": [
        {"shell": "exit 3"},
        {"code": "text(1)", "delay_ms": 5},
        {"patch": "*** Begin Patch\n*** End Patch"},
        {"mcp": {"server": "s", "tool": "t", "arguments": {"n": [1, None]}}},
        {"mcp": {"server": "s", "tool": "t"}},
        {"error": {"status": 503}},
        {"say": "done"},
    ]
}


def test_every_kind_of_step_is_read(tmp_path: Path) -> None:
    path = tmp_path / "script.json"
    path.write_text(json.dumps(EVERY))
    script = Script.load(path)
    assert script.name == str(path)
    assert script.steps == (
        Step(Shell("exit 3")),
        Step(Code("text(1)"), 5),
        Step(Patch("*** Begin Patch\n*** End Patch")),
        Step(McpCall("s", "t", {"n": [1, None]})),
        Step(McpCall("s", "t", {})),
        Step(HttpError(503)),
        Step(Say("done")),
    )


def test_no_steps_at_all_is_a_script() -> None:
    assert Script.parse('{"steps": []}').steps == ()


def test_the_demo_runs_a_command_git_a_code_mode_script_and_says_something() -> None:
    kinds = [type(step.action) for step in Script.demo().steps]
    assert kinds == [Shell, Shell, Code, Say]
    assert Script.demo().name == "demo"


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("", "not JSON"),
        ("{", "not JSON"),
        ('{"steps": [NaN]}', "not JSON"),
        ('{"steps": [], "steps": []}', "'steps' twice"),
        ("\ud800", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ("[]", "holds a list, not an object"),
        ("null", "holds null"),
        ('"x"', "holds a string"),
        ("{}", "has no steps"),
        ('{"steps": {}}', "an object for steps"),
        ('{"steps": [], "x": 1}', "unknown key 'x'"),
        ('{"steps": ["ls"]}', "step 1 is a string"),
        ('{"steps": [{"say": "a"}, {}]}', "step 2 says nothing to do"),
        ('{"steps": [{"delay_ms": 1}]}', "step 1 says nothing to do"),
        ('{"steps": [{"shell": "a", "say": "b"}]}', "step 1 has shell and say"),
        ('{"steps": [{"run": "a"}]}', "step 1 has an unknown key 'run'"),
        ('{"steps": [{"shell": "a", "cwd": "/"}]}', "step 1 has an unknown key 'cwd'"),
        ('{"steps": [{"shell": 1}]}', "step 1: shell is a number"),
        ('{"steps": [{"shell": " "}]}', "step 1: shell is empty"),
        ('{"steps": [{"code": null}]}', "step 1: code is null"),
        ('{"steps": [{"say": "a", "delay_ms": -1}]}', "delay_ms"),
        ('{"steps": [{"say": "a", "delay_ms": true}]}', "delay_ms"),
        ('{"steps": [{"say": "a", "delay_ms": 1.5}]}', "delay_ms"),
        ('{"steps": [{"error": 500}]}', "step 1: error is a number"),
        ('{"steps": [{"error": {}}]}', "step 1: error lacks 'status'"),
        ('{"steps": [{"error": {"status": 200}}]}', "status"),
        ('{"steps": [{"error": {"status": "500"}}]}', "status"),
        ('{"steps": [{"error": {"status": 500, "x": 1}}]}', "unknown key 'x'"),
        ('{"steps": [{"mcp": "x"}]}', "step 1: mcp is a string"),
        ('{"steps": [{"mcp": {"server": "s"}}]}', "lacks 'tool'"),
        ('{"steps": [{"mcp": {"server": "s", "tool": 1}}]}', "tool is a number"),
        ('{"steps": [{"mcp": {"server": "s", "tool": "t", "arguments": []}}]}', "arguments is a list"),
        ('{"steps": [{"mcp": {"server": "s", "tool": "t", "x": 1}}]}', "unknown key 'x'"),
    ],
)
def test_what_cannot_be_played_is_refused_with_its_cause(text: str, cause: str) -> None:
    with pytest.raises(ScriptInvalid) as caught:
        Script.parse(text.encode("utf-8", "surrogatepass"), "file.json")
    assert cause in caught.value.what
    assert caught.value.what.startswith("file.json")


@pytest.mark.parametrize("kind", ["missing", "directory", "large"])
def test_a_file_that_cannot_be_read_is_refused_with_its_name(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "s.json"
    if kind == "directory":
        path.mkdir()
    if kind == "large":
        path.write_bytes(b" " * (17 << 20))
    with pytest.raises(ScriptInvalid, match=r"s\.json"):
        Script.load(path)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(), lambda c: st.lists(c) | st.dictionaries(st.text(), c)
    )
)
def test_any_json_is_a_script_or_refused(value: object) -> None:
    for document in (value, {"steps": value}, {"steps": [value]}, {"steps": [{"mcp": value}]}):
        try:
            Script.parse(json.dumps(document))
        except ScriptInvalid:
            continue
