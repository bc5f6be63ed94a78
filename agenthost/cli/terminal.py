"""Text for people: how wide it may be, whether it may have colours, and that nothing in it commands the terminal.

Commands, messages and file names come from a model or a workspace. An escape sequence in them could rewrite what the
reader has seen or type on the reader's behalf, so `printable` shows every control character instead of sending it.
"""

from __future__ import annotations

import shutil
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, TextIO

NARROWEST: Final = 48
WIDEST: Final = 110
"""Columns. Beyond this a line is no longer read at a glance."""

_ZERO_WIDTH_JOINER: Final = "\u200d"


@dataclass(frozen=True, slots=True)
class Style:
    """How a stream shows text. `width` in columns."""

    width: int = 100
    colour: bool = False
    unicode: bool = True

    @classmethod
    def of(cls, stream: TextIO, environ: Mapping[str, str]) -> Style:
        """Colours only on a terminal that has not declined them (NO_COLOR, no-color.org; TERM=dumb)."""
        tty = stream.isatty()
        colour = tty and not environ.get("NO_COLOR") and environ.get("TERM", "dumb") != "dumb"
        columns = shutil.get_terminal_size((100, 24)).columns if tty else 100
        encoding = (stream.encoding or "ascii").lower().replace("-", "")
        return cls(min(max(columns, NARROWEST), WIDEST), colour, encoding == "utf8")

    def paint(self, text: str, code: str) -> str:
        return f"\x1b[{code}m{text}\x1b[0m" if self.colour and text else text

    def bold(self, text: str) -> str:
        return self.paint(text, "1")

    def dim(self, text: str) -> str:
        return self.paint(text, "2")

    def good(self, text: str) -> str:
        return self.paint(text, "32")

    def bad(self, text: str) -> str:
        return self.paint(text, "31")

    @property
    def tick(self) -> str:
        return "✓" if self.unicode else "+"

    @property
    def cross(self) -> str:
        return "✗" if self.unicode else "x"

    @property
    def rule(self) -> str:
        return ("─" if self.unicode else "-") * self.width

    @property
    def times(self) -> str:
        return "×" if self.unicode else "x"

    @property
    def more(self) -> str:
        return "…" if self.unicode else "..."


def printable(text: str) -> str:
    """`text` on one line, every character that would not show itself as its escape."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() or char == _ZERO_WIDTH_JOINER else _shown(char) for char in text)


def _shown(char: str) -> str:
    if "\udc80" <= char <= "\udcff":  # a byte that is not UTF-8 (surrogateescape, PEP 383)
        return f"\\x{ord(char) - 0xDC00:02x}"
    return char.encode("unicode_escape").decode("ascii")


def columns(text: str) -> int:
    """How many columns printable text takes: East Asian wide characters take two, combining ones none."""
    if text.isascii():
        return len(text)
    return sum(_columns(char) for char in text)


def _columns(char: str) -> int:
    if unicodedata.combining(char) or char == _ZERO_WIDTH_JOINER:
        return 0
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1


def cut(text: str, width: int, style: Style) -> str:
    """`text` in at most `width` columns, its end replaced when it is longer."""
    if columns(text) <= width:
        return text
    room = width - len(style.more)
    taken: list[str] = []
    for char in text:
        room -= _columns(char)
        if room < 0:
            break
        taken.append(char)
    return "".join(taken).rstrip() + style.more


def pad(text: str, width: int) -> str:
    """`text` with spaces up to `width` columns."""
    return text + " " * max(0, width - columns(text))


def wrap(text: str, width: int) -> list[str]:
    """Printable lines of at most `width` columns; paragraphs and indentation of the source are kept."""
    lines: list[str] = []
    for source in text.replace("\r\n", "\n").expandtabs(4).split("\n"):
        line = ""
        for word in printable(source.rstrip(" ")).split(" "):
            if line.strip() and columns(line) + columns(word) > width:
                lines.append(line.rstrip())
                line = ""
            *whole, rest = _pieces(word, width - columns(line) if columns(line) < width else width)
            lines += [line + whole[0], *whole[1:]] if whole else []
            line = (rest if whole else line + rest) + " "
        lines.append(line.rstrip())
    return lines


def _pieces(word: str, width: int) -> list[str]:
    """A word that is wider than a line, in pieces that are not."""
    pieces, room = [""], width
    for char in word:
        if columns(char) > room:
            pieces.append("")
            room = width
        pieces[-1] += char
        room -= columns(char)
    return pieces


def encode_for(stream: TextIO, text: str) -> str:
    """`text` with whatever `stream` cannot encode as escapes, so that writing never fails for a character."""
    encoding = stream.encoding or "ascii"
    return text.encode(encoding, "backslashreplace").decode(encoding)
