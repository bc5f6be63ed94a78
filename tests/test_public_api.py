"""The names that programs may import from `agenthost`: a contract, so this list is written out."""

from __future__ import annotations

import inspect
import re

import pytest

import agenthost
from agenthost import errors
from tests.needs import ROOT

NAMES = {
    "AgentHost",
    "Mask",
    "McpServer",
    "Mount",
    "Process",
    "Provider",
    "ScriptedModel",
    "Session",
    "SessionRequest",
    "View",
    "__version__",
    "discover_view",
    "is_static_elf",
}

ERRORS = {
    "AgentHostError",
    "CleanupFailed",
    "DeclarationInvalid",
    "EnvironmentFailed",
    "GatewayFailed",
    "HomeUnsafe",
    "HostUnfit",
    "LaunchFailed",
    "NoView",
    "NotAvailableYet",
    "RequestRefused",
    "ScriptInvalid",
    "StateUnusable",
    "UnsupportedOperation",
    "WireError",
}


def test_the_public_names_are_these() -> None:
    assert set(agenthost.__all__) == NAMES | ERRORS
    assert dir(agenthost) == sorted(agenthost.__all__)


@pytest.mark.parametrize("name", sorted(NAMES | ERRORS))
def test_a_public_name_is_there(name: str) -> None:
    value = getattr(agenthost, name)
    assert getattr(value, "__name__", name) == name


def test_another_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Codex'"):
        _ = agenthost.Codex


def test_the_whole_error_tree_is_public() -> None:
    tree = {name for name, value in vars(errors).items() if inspect.isclass(value) and issubclass(value, Exception)}
    assert tree == ERRORS


def test_each_error_is_of_the_tree_and_has_a_kind_of_its_own() -> None:
    kinds = [getattr(errors, name).kind for name in sorted(ERRORS)]
    assert len(set(kinds)) == len(kinds)
    assert all(re.fullmatch(r"[a-z]+(-[a-z]+)*", kind) for kind in kinds)
    assert all(issubclass(getattr(errors, name), errors.AgentHostError) for name in ERRORS)


def test_an_error_is_one_line_with_kind_cause_and_remedy() -> None:
    error = errors.NoView("there is no Codex", remedy="install it")
    assert str(error) == "no-view: there is no Codex; install it"
    assert error.exit_status == errors.FAILED_BEFORE_HARNESS


def test_the_errors_page_draws_the_tree_as_it_is() -> None:
    drawn = set(re.findall(r"[├└]── (\w+)", errors.__doc__ or ""))
    assert drawn | {"AgentHostError"} == ERRORS


def test_the_version_is_the_newest_in_the_changelog() -> None:
    headings = re.findall(r"^## \[?(\d+\.\d+\.\d+)", (ROOT / "CHANGELOG.md").read_text(), flags=re.MULTILINE)
    assert headings[0] == agenthost.__version__
