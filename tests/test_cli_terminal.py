"""What people are shown cannot command their terminal and fits its width. contracts/launch.md, L52."""

from __future__ import annotations

import io
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agenthost.cli.terminal import Style, columns, cut, encode_for, pad, printable, wrap

ANYTHING = st.text(st.characters(exclude_categories=()))


@given(ANYTHING)
def test_printable_text_has_no_character_that_acts(text: str) -> None:
    shown = printable(text)
    assert all(unicodedata.category(char) not in {"Cc", "Cs", "Zl", "Zp"} for char in shown)
    assert all(unicodedata.category(char) != "Cf" or char == "\u200d" for char in shown)
    shown.encode()


@given(st.text(st.characters(categories=("L", "N", "P", "S", "Zs"))).filter(str.isprintable))
def test_text_that_only_shows_itself_is_left_alone(text: str) -> None:
    assert printable(text) == text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a\nb", "a\\nb"),
        ("\x1b[31m", "\\x1b[31m"),
        ("\x9b31m", "\\x9b31m"),
        ("\u202eevil", "\\u202eevil"),
        ("\u2028", "\\u2028"),
        ("by\udcfftes", "by\\xfftes"),
        ("naïve 日本", "naïve 日本"),
    ],
)
def test_what_acts_is_shown_as_its_escape(text: str, shown: str) -> None:
    assert printable(text) == shown


@given(ANYTHING, st.integers(min_value=4, max_value=60), st.booleans())
def test_cut_text_fits(text: str, width: int, unicode: bool) -> None:
    shown = cut(printable(text), width, Style(unicode=unicode))
    assert columns(shown) <= width
    if columns(printable(text)) <= width:
        assert shown == printable(text)


@given(ANYTHING, st.integers(min_value=8, max_value=60))
def test_wrapped_lines_fit_and_lose_no_character(text: str, width: int) -> None:
    lines = wrap(text, width)
    assert all(columns(line) <= width for line in lines)
    whole = "".join(map(printable, text.replace("\r\n", "\n").expandtabs(4).split("\n")))
    assert "".join(lines).replace(" ", "") == whole.replace(" ", "")


def test_wrapping_keeps_paragraphs_and_indentation_and_breaks_at_words() -> None:
    assert wrap("one two three\n\n  indented four five", 10) == ["one two", "three", "", "  indented", "four five"]
    assert wrap("see https://a.example/long/path ok", 12) == ["see", "https://a.ex", "ample/long/p", "ath ok"]


def test_wide_characters_take_two_columns_and_combining_ones_none() -> None:
    assert columns("日本") == 4
    assert columns("e\u0301") == 1
    assert pad("日本", 6) == "日本  "


def test_colours_are_for_terminals_that_want_them() -> None:
    class Terminal(io.StringIO):
        encoding = "utf-8"

        def isatty(self) -> bool:
            return True

    xterm = {"TERM": "xterm"}
    assert Style.of(Terminal(), xterm).colour
    assert not Style.of(Terminal(), {**xterm, "NO_COLOR": "1"}).colour
    assert not Style.of(Terminal(), {"TERM": "dumb"}).colour
    assert not Style.of(Terminal(), {}).colour
    assert not Style.of(io.StringIO(), xterm).colour


def test_a_stream_that_cannot_encode_a_character_gets_its_escape() -> None:
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    assert encode_for(stream, "✓ é") == "\\u2713 \\xe9"
    assert not Style.of(stream, {}).unicode
