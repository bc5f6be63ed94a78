"""HTTP/1.1 heads as the proxy reads and writes them: strict, pure, bytes in and bytes out.

Only what RFC 9112 allows a sender to send is read; what a lenient recipient would repair is refused, because two
recipients repair differently.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from agenthost.gateway.destinations import Destination
from agenthost.gateway.routes import HOP_BY_HOP

_REQUEST_LINE: Final = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]{1,32}) ([\x21-\x7e]+) HTTP/1\.([01])")
_STATUS_LINE: Final = re.compile(rb"HTTP/1\.[01] ([1-5][0-9]{2})(?: [\t\x20-\x7e\x80-\xff]*)?")
_FIELD: Final = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*([\t\x20-\x7e\x80-\xff]*?)[ \t]*")

Fields = tuple[tuple[bytes, bytes], ...]


@dataclass(frozen=True, slots=True)
class Connect:
    """The client wants a tunnel."""

    destination: Destination


@dataclass(frozen=True, slots=True)
class Fetch:
    """The client wants one request made. `head` is what to send to the destination."""

    destination: Destination
    head: bytes


@dataclass(frozen=True, slots=True)
class ResponseHead:
    """What to send to the client. An interim head (1xx) is followed by another head."""

    status: int
    head: bytes

    @property
    def interim(self) -> bool:
        return 100 <= self.status < 200


def parse_request(head: bytes) -> Connect | Fetch:
    """Reads the head of a proxy request, with its empty line. Raises ValueError, saying what is wrong."""
    first, fields = _parse(head)
    line = _REQUEST_LINE.fullmatch(first)
    if line is None:
        raise ValueError("the request line is malformed")
    method, target = line[1], line[2].decode("ascii")
    if method == b"CONNECT":
        return Connect(_destination(target, None))
    scheme, separator, rest = target.partition("://")
    if not separator:
        raise ValueError("a proxy takes CONNECT or an absolute http:// URL")
    if scheme.lower() != "http":
        raise ValueError("only http:// can be fetched; use CONNECT")
    cut = re.search(r"[/?#]", rest)
    authority, path = (rest[: cut.start()], rest[cut.start() :]) if cut else (rest, "")
    if "#" in path:
        raise ValueError("the URL has a fragment")
    _check_framing(fields)
    if not path.startswith("/"):
        path = "*" if method == b"OPTIONS" and not path else "/" + path  # RFC 9112, 3.2.4
    destination = _destination(authority, 80)
    host = str(destination).removesuffix(":80").encode("ascii")
    kept = (field for field in _end_to_end(fields) if field[0].lower() != b"host")
    line_out = b"%s %s HTTP/1.1" % (method, path.encode("ascii"))
    return Fetch(destination, _render(line_out, ((b"Host", host), *kept)))


def parse_response(head: bytes) -> ResponseHead:
    """Reads the head of a response, with its empty line. Raises ValueError."""
    first, fields = _parse(head)
    line = _STATUS_LINE.fullmatch(first)
    if line is None:
        raise ValueError("the status line is malformed")
    _check_framing(fields)
    return ResponseHead(int(line[1]), _render(first, _end_to_end(fields)))


def _parse(head: bytes) -> tuple[bytes, Fields]:
    first, *lines = head.removesuffix(b"\r\n\r\n").split(b"\r\n")
    fields = [_FIELD.fullmatch(line) for line in lines]
    if None in fields:
        raise ValueError("a header is malformed")
    return first, tuple((field[1], field[2]) for field in fields if field is not None)


def _render(first: bytes, fields: Fields) -> bytes:
    """Always the last message of its connection: what followed it would go where only this one was allowed to go."""
    lines = (first, *(b"%s: %s" % field for field in fields), b"Connection: close")
    return b"\r\n".join(lines) + b"\r\n\r\n"


def _end_to_end(fields: Fields) -> Fields:
    listed = (value for name, value in fields if name.lower() == b"connection")
    drop = HOP_BY_HOP | {token.strip().lower().decode("latin-1") for value in listed for token in value.split(b",")}
    drop -= {"transfer-encoding", "content-length"}  # the body is passed on in the framing that it came in
    return tuple(field for field in fields if field[0].lower().decode("ascii") not in drop)


def _check_framing(fields: Fields) -> None:
    lengths = [value for name, value in fields if name.lower() == b"content-length"]
    codings = [value for name, value in fields if name.lower() == b"transfer-encoding"]
    if len(lengths) + len(codings) > 1:
        raise ValueError("the length of the body is told twice")
    if any(not length.isdigit() for length in lengths) or any(coding.lower() != b"chunked" for coding in codings):
        raise ValueError("the length of the body cannot be told")


def _destination(authority: str, default_port: int | None) -> Destination:
    if "@" in authority:
        raise ValueError("the authority holds a user name")
    return Destination.parse(authority, default_port)
