"""`View` keeps contracts/view.md."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from agenthost.declaration import SET_BY_AGENTHOST, Mask, Mount, ProxyEnv, View
from agenthost.errors import DeclarationInvalid
from agenthost.layout import RESERVED, ViewPath, overlaps
from tests.needs import ROOT

SCHEMA: dict[str, Any] = json.loads((ROOT / "contracts" / "declaration.schema.json").read_text())
VIEW_SCHEMA = {"$schema": SCHEMA["$schema"], "$ref": "#/$defs/view", "$defs": SCHEMA["$defs"]}
VALIDATOR = jsonschema.Draft202012Validator(VIEW_SCHEMA)

BIN_BASH = ViewPath("/bin/bash")


def view(**changes: Any) -> View:
    """A small valid declaration, with changes."""
    parts: dict[str, Any] = {
        "closure": (Mount(Path("/opt/codex/bin"), "codex"),),
        "local_exec": (ViewPath("/.oac/codex/codex"),),
        "shims": ("git",),
        "shim_paths": (BIN_BASH,),
        "masks": (Mask(ViewPath("/etc/codex")),),
        "forward_env": ("TERM", "LANG"),
    }
    return View(**(parts | changes))


UNCLEAN = [
    "",
    "a",
    "a/b",
    "/",
    "//",
    "//a",
    "/a/",
    "/a//b",
    "/a/.",
    "/a/./b",
    "/a/..",
    "/a/../b",
    "/..",
    "/a\0b",
    "./a",
]


@pytest.mark.parametrize("path", UNCLEAN)
def test_a_path_that_is_not_absolute_and_clean_is_refused(path: str) -> None:
    with pytest.raises(DeclarationInvalid):
        view(shim_paths=(ViewPath(path),))
    with pytest.raises(DeclarationInvalid):
        Mask(ViewPath(path))
    with pytest.raises(DeclarationInvalid):
        view(local_exec=(ViewPath(path),))
    dump: Any = view().to_json()
    dump["closure"][0]["source"] = path
    with pytest.raises(DeclarationInvalid):
        View.from_json(dump)
    assert not VALIDATOR.is_valid(dump)


@pytest.mark.parametrize("path", [Path("a"), Path("/"), Path("/a/../b"), Path("//a"), Path()])
def test_a_closure_source_that_is_not_absolute_and_clean_is_refused(path: Path) -> None:
    with pytest.raises(DeclarationInvalid):
        Mount(path, "codex")


def test_a_declaration_that_can_run_nothing_is_refused() -> None:
    with pytest.raises(DeclarationInvalid, match="no closure"):
        view(closure=())
    with pytest.raises(DeclarationInvalid, match="no local exec"):
        view(local_exec=())


@pytest.mark.parametrize("name", ["", ".", "..", ".hidden", "a/b", "/a", "bin", "home", "run", "a b", "a\n", "x" * 65])
def test_a_closure_name_that_is_not_free_is_refused(name: str) -> None:
    with pytest.raises(DeclarationInvalid):
        Mount(Path("/opt"), name)


def test_two_closures_cannot_have_one_name() -> None:
    with pytest.raises(DeclarationInvalid, match="twice"):
        view(closure=(Mount(Path("/a"), "codex"), Mount(Path("/b"), "codex")))


@pytest.mark.parametrize("path", ["/.oac/codex", "/.oac/other/x", "/.oac/codexx/x", "/usr/bin/codex", "/.oac/bin/git"])
def test_local_exec_outside_every_closure_is_refused(path: str) -> None:
    with pytest.raises(DeclarationInvalid, match="lies in no closure"):
        view(local_exec=(ViewPath(path),))


@pytest.mark.parametrize("shims", [("",), ("a/b",), ("..",), (".git",), ("git", "git"), ("git\n",)])
def test_a_shim_that_is_not_one_free_name_is_refused(shims: tuple[str, ...]) -> None:
    with pytest.raises(DeclarationInvalid):
        view(shims=shims)


OVERLAPS = [
    "/.oac",
    "/.oac/codex/x",
    "/proc",
    "/proc/self",
    "/dev/null",
    "/sys",
    "/bin/bash",
    "/bin",
    "/bin/bash/x",
    "/etc",
    "/etc/codex",
    "/etc/codex/x",
]


@pytest.mark.parametrize("path", OVERLAPS)
def test_nothing_overlaps_anything(path: str) -> None:
    with pytest.raises(DeclarationInvalid, match="overlaps"):
        view(shim_paths=(BIN_BASH, ViewPath(path)))
    with pytest.raises(DeclarationInvalid, match="overlaps"):
        view(masks=(Mask(ViewPath("/etc/codex")), Mask(ViewPath(path), "file")))


def test_a_common_prefix_is_no_overlap() -> None:
    view(shim_paths=(BIN_BASH, ViewPath("/bin/bash2")), masks=(Mask(ViewPath("/etc/codex.d")),))


@pytest.mark.parametrize("name", [*sorted(SET_BY_AGENTHOST), "", "1A", "A B", "A=B", "A\0", "Ä", "TERM\n"])
def test_a_variable_that_is_set_anyway_cannot_be_forwarded(name: str) -> None:
    with pytest.raises(DeclarationInvalid):
        view(forward_env=(name,))


def test_a_variable_of_this_proxy_cannot_be_forwarded() -> None:
    with pytest.raises(DeclarationInvalid, match="is set by"):
        view(forward_env=("MY_PROXY",), proxy=ProxyEnv(variables=("MY_PROXY",)))


def test_a_variable_cannot_be_forwarded_twice() -> None:
    with pytest.raises(DeclarationInvalid, match="twice"):
        view(forward_env=("TERM", "TERM"))


def test_the_proxy_is_announced_by_all_its_variables() -> None:
    url = "http://127.0.0.1:17100"
    assert ProxyEnv().environment(url) == {
        "HTTP_PROXY": url,
        "HTTPS_PROXY": url,
        "http_proxy": url,
        "https_proxy": url,
        "NO_PROXY": "127.0.0.1,localhost",
        "no_proxy": "127.0.0.1,localhost",
    }


@pytest.mark.parametrize(
    "parts",
    [
        {"variables": ("A", "A")},
        {"variables": ("A",), "exempt_variables": ("A",)},
        {"exempt": ("a,b",)},
        {"exempt": ("",)},
    ],
)
def test_a_proxy_that_contradicts_itself_is_refused(parts: dict[str, Any]) -> None:
    with pytest.raises(DeclarationInvalid):
        ProxyEnv(**parts)


def test_a_declaration_and_its_parts_cannot_be_changed() -> None:
    made = view()
    for value, name in ((made, "shims"), (made.closure[0], "name"), (made.masks[0], "path"), (made.proxy, "exempt")):
        with pytest.raises(AttributeError):
            setattr(value, name, ())


names = st.from_regex(r"[A-Za-z0-9_][A-Za-z0-9._+-]{0,20}", fullmatch=True)
closure_names = names.filter(lambda name: name not in {"bin", "home", "run"})
variables = st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,20}", fullmatch=True).filter(lambda n: n not in SET_BY_AGENTHOST)
# Any component that a file system takes: also bytes that are not UTF-8, which Python holds as lone surrogates.
components = st.one_of(
    st.text(st.characters(codec="utf-8", exclude_characters="/\0"), min_size=1, max_size=12),
    st.binary(min_size=1, max_size=8).map(
        lambda raw: raw.replace(b"/", b"x").replace(b"\0", b"y").decode(errors="surrogateescape")
    ),
).filter(lambda part: part not in {".", ".."})
paths = st.lists(components, min_size=1, max_size=4).map(lambda parts: "/" + "/".join(parts))


@st.composite
def views(draw: st.DrawFn) -> View:
    closure = draw(st.lists(st.tuples(paths, closure_names), min_size=1, max_size=3, unique_by=lambda pair: pair[1]))
    inside = st.tuples(st.sampled_from([name for _, name in closure]), paths)
    local_exec = draw(st.lists(inside, min_size=1, max_size=3, unique=True))
    placed: list[str] = []
    for path in draw(st.lists(paths, max_size=4)):
        if not any(overlaps(path, other) for other in (*placed, *RESERVED)):
            placed.append(path)
    cut = draw(st.integers(0, len(placed)))
    return View(
        closure=tuple(Mount(Path(source), name) for source, name in closure),
        local_exec=tuple(ViewPath(f"/.oac/{name}{path}") for name, path in local_exec),
        shims=tuple(draw(st.lists(names, max_size=3, unique=True))),
        shim_paths=tuple(ViewPath(path) for path in placed[:cut]),
        masks=tuple(Mask(ViewPath(path), draw(st.sampled_from(["directory", "file"]))) for path in placed[cut:]),
        forward_env=tuple(draw(st.lists(variables, max_size=5, unique=True))),
    )


ODD = ("/\n", "/.\n", "/..\n", "/ ", "/...", "/a\n/b", "/\udcff")
"""Names that a regular expression or a decoder takes for something else."""


@given(views())
@example(view(closure=tuple(Mount(Path(path), f"c{at}") for at, path in enumerate(ODD)), local_exec=("/.oac/c0/\n",)))
def test_a_declaration_survives_json(made: View) -> None:
    text = json.dumps(made.to_json())
    assert View.from_json(json.loads(text)) == made
    VALIDATOR.validate(json.loads(text))


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@given(views(), st.data())
def test_a_damaged_dump_is_refused_and_nothing_else_happens(made: View, data: st.DataObject) -> None:
    dump = made.to_json()
    member = data.draw(st.sampled_from(sorted(dump)))
    dump[member] = data.draw(json_values)
    try:
        loaded = View.from_json(dump)
    except DeclarationInvalid:
        return
    assert loaded.to_json() == dump


@pytest.mark.parametrize("value", [None, [], "view", {}, {"closure": []}])
def test_what_is_no_declaration_is_refused(value: object) -> None:
    with pytest.raises(DeclarationInvalid):
        View.from_json(value)


def test_a_member_more_is_refused() -> None:
    with pytest.raises(DeclarationInvalid):
        View.from_json(view().to_json() | {"extra": 1})


def test_the_schema_is_a_schema() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    document = jsonschema.Draft202012Validator(SCHEMA)
    document.validate({"view": None, "reason": "not Linux", "remedy": "run agenthost on Linux"})
    assert not document.is_valid({"view": None})
    assert not document.is_valid({"view": view().to_json()})
