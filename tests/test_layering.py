"""The structure of the package: who may import whom, how long a file may be, what a process really loads."""

from __future__ import annotations

import ast
import graphlib
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

import pytest

from tests.needs import ROOT

PACKAGE: Final = "agenthost"

LEVELS: Final = (
    {"errors", "layout"},
    {"wire"},  # pure encoding; linux.fdpass moves its frames
    {"linux"},
    {"declaration", "elf", "events", "limits", "programs"},
    {"launcher"},
    {"environment", "gateway", "home"},
    {"broker"},
    {"codex", "scripted"},
    {"lease", "process", "request"},
    {"state", "view"},
    {"inventory", "recovery"},
    {"session"},
    {"attack", "coding", "doctor", "qualify", "testenv"},
    {"cli"},
    {"__main__"},
)
"""Bottom first. What is in one set is a sibling of the others there; a unit imports from the levels below its own."""

DOORS: Final = {
    "attack": {"attack", "attack.catalogue", "attack.runner"},
    "broker": {"broker", "broker.broker", "broker.policy"},
    "cli": {"cli.main", "cli.codex"},
    "codex": {"codex", "codex.catalog", "codex.harness", "codex.install", "codex.instructions", "codex.plan"},
    "environment": {"environment", "environment.local", "environment.protocol"},
    "gateway": {"gateway", "gateway.destinations", "gateway.provider", "gateway.server"},
    "launcher": {"launcher", "launcher.client", "launcher.filters", "launcher.mounts"},
    "scripted": {"scripted", "scripted.script", "scripted.server"},
}
"""The modules of a package that others may import; the rest is its inside. `linux` is all leaves, and all open."""

LINES: Final = 450
"""The most that a file may have; about 400 is the aim."""

BUILDER_LOADS: Final = {"errors", "launcher", "layout", "linux", "wire"}
"""The units that the builder, which holds privileges, may load."""


@dataclass(frozen=True, slots=True)
class Import:
    """`module` (below the package, "" for the package itself) imports `target`."""

    module: str
    target: str
    line: int

    def __str__(self) -> str:
        return f"{self.module}:{self.line} imports {self.target}"


@cache
def modules() -> dict[str, Path]:
    """Every module of the package by its name below it: "gateway.model", "gateway" for the package's own file."""
    found = {}
    for path in sorted((ROOT / PACKAGE).rglob("*.py")):
        parts = path.relative_to(ROOT / PACKAGE).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


@cache
def imports() -> tuple[Import, ...]:
    """Every import of the package by itself, the late ones and those for type checkers too."""
    return tuple(found for module, path in modules().items() for found in _imports_of(module, path))


def _imports_of(module: str, path: Path) -> Iterator[Import]:
    for node in ast.walk(ast.parse(path.read_text(), filename=str(path))):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            submodules = [f"{node.module}.{alias.name}" for alias in node.names]
            names = [name if _below(name) in modules() else node.module for name in submodules]
        else:
            continue
        for name in dict.fromkeys(names):
            if name == PACKAGE or name.startswith(PACKAGE + "."):
                yield Import(module, _below(name), node.lineno)


def _below(name: str) -> str:
    return "" if name == PACKAGE else name.removeprefix(PACKAGE + ".")


def unit(module: str) -> str:
    return module.partition(".")[0]


def level(module: str) -> int:
    return next(number for number, units in enumerate(LEVELS) if unit(module) in units)


def loaded_by(statement: str) -> set[str]:
    """The modules in a fresh interpreter after `statement`, less those of the interpreter's own start."""
    code = f"import sys; before = set(sys.modules); {statement}; print(*sorted(set(sys.modules) - before), sep='\\n')"
    command = [sys.executable, "-c", code]
    return set(subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.split())


def test_every_module_has_a_level() -> None:
    known = set().union(*LEVELS)
    assert sorted({unit(module) for module in modules()} - known - {""}) == []


def test_imports_run_downward_only() -> None:
    upward = [
        found
        for found in imports()
        if found.module and found.target and unit(found.module) != unit(found.target)
        if level(found.target) >= level(found.module)
    ]
    assert [str(found) for found in upward] == []


def test_nobody_imports_the_inside_of_another_package() -> None:
    inside = [
        found
        for found in imports()
        if found.module and unit(found.module) != unit(found.target)
        if found.target not in DOORS.get(unit(found.target), {found.target})
    ]
    assert [str(found) for found in inside] == []


def test_no_cycle_not_even_one_that_only_type_checkers_see() -> None:
    graph: dict[str, set[str]] = {module: set() for module in modules() if module}
    for found in imports():
        if found.module and found.target:
            graph[found.module].add(found.target)
            if unit(found.module) != unit(found.target):
                graph[found.module].add(unit(found.target))  # a submodule's package runs first
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        pytest.fail("a cycle: " + " <- ".join(error.args[1]))


def test_the_package_does_not_use_its_own_public_names() -> None:
    """A module that took them from the root would load at a distance what its own imports do not show."""
    for module, path in modules().items():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module == PACKAGE:
                names = {alias.name for alias in node.names} - modules().keys() - {"__version__"}
                assert not names, f"{module}:{node.lineno} takes {', '.join(sorted(names))} from the root"


@pytest.mark.parametrize("package", [name for name, path in modules().items() if path.name == "__init__.py" and name])
def test_a_package_says_exactly_what_it_offers(package: str) -> None:
    tree = ast.parse(modules()[package].read_text())
    defined = {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    imported = {
        alias.asname or alias.name
        for node in tree.body
        if isinstance(node, ast.ImportFrom) and node.module != "__future__"
        for alias in node.names
    }
    offered = next(
        (
            set(ast.literal_eval(node.value))
            for node in tree.body
            if isinstance(node, ast.Assign) and [ast.unparse(target) for target in node.targets] == ["__all__"]
        ),
        set(),
    )
    public = {name for name in defined if not name.startswith("_")}
    assert public <= offered, "defined, but not in __all__"
    assert offered <= defined | imported, "in __all__, but not there"


def test_no_file_is_longer_than_one_room() -> None:
    folders = {"agenthost": "*.py", "tests": "*.py", "examples": "*.py", "shims": "*.[ch]", "scripts": "*.sh"}
    files = [path for folder, pattern in folders.items() for path in (ROOT / folder).rglob(pattern)]
    lengths = {str(path.relative_to(ROOT)): len(path.read_text().splitlines()) for path in files}
    assert {name: length for name, length in lengths.items() if length > LINES} == {}


def test_importing_the_package_loads_nothing_else() -> None:
    assert {name for name in loaded_by("import agenthost") if name.startswith(PACKAGE)} == {PACKAGE}


@pytest.mark.parametrize("module", ["cli.main", "gateway.provider", "declaration", "codex"])
def test_what_answers_at_once_starts_without_the_servers(module: str) -> None:
    heavy = {"aiohttp", "rich", "hypothesis", "pytest"}
    assert heavy & loaded_by(f"import {PACKAGE}.{module}") == set()


def test_the_builder_loads_only_what_it_needs() -> None:
    loaded = loaded_by(f"import {PACKAGE}.launcher.builder")
    own = {unit(_below(name)) for name in loaded if name.startswith(PACKAGE + ".")}
    assert own <= BUILDER_LOADS
    assert {"aiohttp", "asyncio", "ssl", "threading", "subprocess", "multiprocessing"} & loaded == set()
