"""Contracts execute: each clause in contracts/*.md names the module that keeps it and the test that checks it.

A clause is a row of a table with a column `id` and a column `test` (or `check`). Its owner is in a column `owner` or,
where one module keeps many clauses, in the paragraph that begins with "Owner". Owners are files below agenthost/ or
shims/; checks are names of tests, of test files, or `file::test`. All of them stand in backticks.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

import pytest

from tests.needs import ROOT

CONTRACTS: Final = ROOT / "contracts"
OWNERS: Final = re.compile(r"^Owner.*?(?=\n\n|\Z)", re.MULTILINE | re.DOTALL)
SEPARATOR: Final = re.compile(r"(?<!\\)\|")
CODE: Final = re.compile(r"`([^`]+)`")
TEST: Final = re.compile(r"^\s*(?:async )?def (test_\w+)|^(?:static )?void (test_\w+)\(", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Clause:
    """One row of a contract's table."""

    contract: Path
    id: str
    owners: tuple[str, ...]
    checks: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.contract.name} {self.id}"


@cache
def clauses() -> tuple[Clause, ...]:
    return tuple(clause for path in sorted(CONTRACTS.rglob("*.md")) for clause in _clauses_of(path))


def _clauses_of(path: Path) -> Iterator[Clause]:
    text = path.read_text()
    owners = tuple(name for paragraph in OWNERS.findall(text) for name in _names(paragraph))
    columns: list[str] = []
    for line in text.splitlines():
        if not line.startswith("|"):
            columns = []
            continue
        cells = [cell.strip() for cell in SEPARATOR.split(line.strip().removeprefix("|").removesuffix("|"))]
        if not columns:
            columns = [cell.lower().replace("test", "check") for cell in cells]
        elif {"id", "check"} <= set(columns) and set("".join(cells)) - set(":- "):
            row = dict(zip(columns, cells, strict=True))
            yield Clause(path, row["id"].strip("`*"), _names(row.get("owner", "")) or owners, _names(row["check"]))


def _names(cell: str) -> tuple[str, ...]:
    return tuple(CODE.findall(cell))


@cache
def known_tests() -> dict[str, frozenset[str]]:
    """The tests of each test file, by the file's path from the root."""
    files = [*(ROOT / "tests").rglob("test_*.py"), *(ROOT / "shims" / "tests").glob("*.c")]
    return {str(path.relative_to(ROOT)): frozenset(_tests_of(path)) for path in files}


def _tests_of(path: Path) -> Iterator[str]:
    for names in TEST.findall(path.read_text()):
        yield from filter(None, names)


def is_owner(name: str) -> bool:
    return any((ROOT / folder / name).is_file() for folder in ("", "agenthost", "shims"))


def is_check(name: str) -> bool:
    file, _, test = name.partition("::")
    if not test and "." not in file:
        return any(file in found for found in known_tests().values())
    places = [place for place in (file, f"tests/{file}", f"shims/{file}") if place in known_tests()]
    return any(not test or test in known_tests()[place] for place in places)


@pytest.mark.parametrize("contract", sorted(CONTRACTS.glob("*.md")), ids=lambda path: path.name)
def test_a_contract_has_clauses(contract: Path) -> None:
    assert [clause for clause in clauses() if clause.contract == contract]


def test_no_two_clauses_have_one_id() -> None:
    assert [name for name, count in Counter(clause.id for clause in clauses()).items() if count > 1] == []


@pytest.mark.parametrize("clause", clauses(), ids=str)
def test_a_clause_has_an_owner_and_a_check_that_exist(clause: Clause) -> None:
    assert clause.owners, "no owner in backticks"
    assert clause.checks, "no check in backticks"
    assert [name for name in clause.owners if not is_owner(name)] == [], "no such module"
    assert [name for name in clause.checks if not is_check(name)] == [], "no such test"
