"""The session options, from a command line and from variables: contracts/launch.md, L05 and L30 to L38."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

from agenthost.cli import launch, options
from agenthost.cli.options import HARNESS_OPTIONS, SESSION_OPTIONS, SessionOptions, from_variables
from agenthost.cli.run import turn_arguments
from agenthost.cli.usage import UsageError
from agenthost.errors import NotAvailableYet

HERE: Final = Path("/somewhere/here")

CONTRACT: Final = (
    "--workspace --state-dir --session --codex --model --model-verbosity --provider-url --api-key-env --api-key-file "
    "--scripted --mcp --mcp-bearer-env --allow-host --env-network --shim-path --bind-ro --memory --pids --cpus --grace "
    "--events"
)

EVERY: Final = {
    "workspace": "ws",
    "state_dir": "/state",
    "session": "s1",
    "codex": "bin/codex",
    "model": "gpt-5.5",
    "model_verbosity": "low",
    "provider_url": "https://api.example/v1",
    "api_key_env": "MY_KEY",
    "allow_host": "one.example",
    "env_network": "host",
    "shim_path": "/bin/sh",
    "bind_ro": "data",
    "memory": "1000000",
    "pids": "100",
    "cpus": "0.5",
    "grace": "1.5",
    "events": "e.jsonl",
}
"""One value for each option whose substance is there, none of which contradicts another."""


def parsed(*arguments: str) -> SessionOptions:
    return launch.parse(arguments)[0]


def test_the_options_are_those_of_the_contract() -> None:
    assert sorted(option.name for option in SESSION_OPTIONS) == sorted(CONTRACT.split())


def test_nothing_given_means_here_and_the_defaults(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    assert parsed() == SessionOptions(workspace=tmp_path, mcp={}, mcp_bearer_env={})


def test_a_command_line_and_variables_say_the_same(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    by_key = {option.key: option for option in SESSION_OPTIONS}
    arguments = [part for key, value in EVERY.items() for part in (by_key[key].name, value)]
    variables = {by_key[key].variable: value for key, value in EVERY.items()}
    from_line = parsed(*arguments)
    assert from_line == from_variables(variables, here=tmp_path)
    assert from_line == SessionOptions(
        workspace=tmp_path / "ws",
        state_dir=Path("/state"),
        session="s1",
        codex=tmp_path / "bin/codex",
        model="gpt-5.5",
        model_verbosity="low",
        provider_url="https://api.example/v1",
        api_key_env="MY_KEY",
        mcp={},
        mcp_bearer_env={},
        allow_hosts=("one.example",),
        env_network="host",
        shim_paths=("/bin/sh",),
        bind_ro=(tmp_path / "data",),
        memory=1_000_000,
        pids=100,
        cpus=0.5,
        grace_s=1.5,
        events=tmp_path / "e.jsonl",
    )


def test_every_variable_is_derived_from_its_option() -> None:
    assert {option.variable for option in SESSION_OPTIONS} == {
        "AGENTHOST_" + name.removeprefix("--").replace("-", "_").upper() for name in CONTRACT.split()
    }


def test_of_two_values_the_last_counts_and_repeatable_ones_gather() -> None:
    given = parsed("--model", "a", "--allow-host", "x", "--model", "b", "--allow-host", "y:8443")
    assert given.model == "b"
    assert given.allow_hosts == ("x", "y:8443")


def test_a_repeatable_variable_holds_one_value_a_line_and_commas_stay() -> None:
    variables = {"AGENTHOST_ALLOW_HOST": "a.example\nb.example:8443\n", "AGENTHOST_BIND_RO": "/opt/a,b"}
    given = from_variables(variables, here=HERE)
    assert given.allow_hosts == ("a.example", "b.example:8443")
    assert given.bind_ro == (Path("/opt/a,b"),)


def test_an_empty_variable_is_an_absent_one() -> None:
    assert from_variables({"AGENTHOST_MODEL": "", "AGENTHOST_MCP": ""}, here=HERE) == from_variables({}, here=HERE)


def test_variables_of_others_are_not_looked_at() -> None:
    others = {
        "PATH": "/bin",
        "MODEL": "x",
        "XAGENTHOST_MODEL": "x",
        "AGENTHOST_TEST_X": "1",
        "AGENTHOST_MUST_WORK": "1",
    }
    assert from_variables(others, here=HERE) == from_variables({}, here=HERE)


@pytest.mark.parametrize("name", ["AGENTHOST_ENV_NETWROK", "AGENTHOST_HARNESS_DIR", "AGENTHOST_BINARY", "AGENTHOST_"])
def test_a_variable_of_ours_that_is_no_option_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match=name):
        from_variables({name: "none"}, here=HERE)


def test_a_scripted_file_is_a_path_and_demo_is_none() -> None:
    assert from_variables({"AGENTHOST_SCRIPTED": "demo"}, here=HERE).scripted == "demo"
    assert from_variables({"AGENTHOST_SCRIPTED": "./demo"}, here=HERE).scripted == str(HERE / "demo")


@pytest.mark.parametrize(
    "arguments",
    [
        ["--scripted", "demo", "--provider-url", "https://a.example/v1"],
        ["--scripted", "demo", "--api-key-env", "K"],
        ["--scripted", "demo", "--api-key-file", "k"],
        ["--api-key-env", "K", "--api-key-file", "k"],
        ["--harness-dir", "/d"],
        ["--binary", "b"],
        ["--harness-dir", "/d", "--binary", "b", "--codex", "/c"],
        ["--harness-dir", "/d", "--binary", "b", "--model", "m"],
        ["--harness-dir", "/d", "--binary", "b", "--model-verbosity", "low"],
        ["--model-verbosity", "loud"],
        ["--model-verbosity", "LOW"],
        ["--model-verbosity", ""],
        ["--harness-dir", "/d", "--binary", "../b"],
        ["--mcp-bearer-env", "x=NAME"],
        ["--mcp", "x=https://a", "--mcp", "x=https://b"],
        ["--mcp", "x"],
        ["--mcp", "=https://a"],
        ["--env-network", "bridge"],
        ["--shim-path", "bin/sh"],
        ["--grace", "-1"],
        ["--grace", "inf"],
        ["--grace", "nan"],
        ["--grace", "soon"],
        ["--memory", "0"],
        ["--memory", "1G"],
        ["--pids", "-3"],
        ["--cpus", "0"],
        ["--cpus", "nan"],
        ["--cpus", "two"],
        ["--model", ""],
        ["--workspace"],
        ["--work", "/x"],
        ["--unknown"],
        ["app-server"],
    ],
)
def test_what_contradicts_itself_or_means_nothing_is_a_usage_error(arguments: list[str]) -> None:
    with pytest.raises(UsageError) as caught:
        parsed(*arguments)
    assert caught.value.what
    assert caught.value.remedy


@pytest.mark.parametrize("arguments", [["--mcp", "x=https://a.example/mcp"]])
def test_what_a_later_release_brings_is_refused_by_name(arguments: list[str]) -> None:
    with pytest.raises(NotAvailableYet, match="not available yet") as caught:
        parsed(*arguments)
    assert arguments[0] in caught.value.what
    variable = next(option.variable for option in SESSION_OPTIONS if option.name == arguments[0])
    with pytest.raises(NotAvailableYet, match=variable):
        from_variables({variable: arguments[1]}, here=HERE)


def test_a_contradiction_is_named_before_what_is_still_to_come() -> None:
    with pytest.raises(UsageError):
        parsed("--mcp", "x=https://a.example/mcp", "--scripted", "demo", "--api-key-env", "K")


def test_another_harness_is_named_by_directory_and_program() -> None:
    given = parsed("--harness-dir", "/d", "--binary", "probe", "--scripted", "demo")
    assert (given.harness_dir, given.binary, given.scripted) == (Path("/d"), "probe", "demo")


@pytest.mark.parametrize(
    ("arguments", "harness"),
    [
        (["--model", "m", "--", "exec", "--", "x"], ("exec", "--", "x")),
        (["--"], ()),
        ([], ()),
        (["--", "--model", "-h", ""], ("--model", "-h", "")),
        (["--", "by\udcfftes"], ("by\udcfftes",)),
    ],
)
def test_the_harness_gets_what_follows_the_first_double_dash(arguments: list[str], harness: tuple[str, ...]) -> None:
    assert launch.parse(arguments)[1] == harness


def test_a_prompt_is_never_taken_for_a_command_or_an_option() -> None:
    for prompt in ("resume", "--help", "-"):
        assert turn_arguments(prompt)[-2:] == ("--", prompt)


def test_help_tells_every_option_and_what_is_still_to_come(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        launch.parse(["--help"])
    assert caught.value.code == 0
    text = capsys.readouterr().out
    for option in (*SESSION_OPTIONS, *HARNESS_OPTIONS):
        assert option.name in text
    assert text.count("not available yet") + text.count("not available\n") >= 1


def test_reading_options_looks_at_nothing(tmp_path: Path) -> None:
    absent = {
        name: str(tmp_path / "absent") for name in ("AGENTHOST_WORKSPACE", "AGENTHOST_CODEX", "AGENTHOST_API_KEY_FILE")
    }
    assert from_variables(absent, here=HERE).workspace == tmp_path / "absent"
    assert options.DEFAULT_KEY_VARIABLE == "OPENAI_API_KEY"
