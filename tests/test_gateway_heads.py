"""HTTP heads as the proxy reads and writes them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agenthost.gateway.destinations import Destination
from agenthost.gateway.heads import Connect, Fetch, parse_request, parse_response


def head(*lines: str) -> bytes:
    return "\r\n".join((*lines, "", "")).encode("latin-1")


def test_connect_names_host_and_port() -> None:
    assert parse_request(head("CONNECT Example.com.:443 HTTP/1.1", "Host: x")) == Connect(
        Destination("example.com", 443)
    )
    assert parse_request(head("CONNECT [2001:db8::1]:443 HTTP/1.0")) == Connect(Destination("2001:db8::1", 443))


@pytest.mark.parametrize(
    ("url", "first", "host"),
    [
        ("http://a.example/x?y=1", "GET /x?y=1 HTTP/1.1", "a.example"),
        ("http://a.example:8080/x", "GET /x HTTP/1.1", "a.example:8080"),
        ("HTTP://A.example", "GET / HTTP/1.1", "a.example"),
        ("http://a.example?q", "GET /?q HTTP/1.1", "a.example"),
        ("http://[2001:db8::1]/", "GET / HTTP/1.1", "[2001:db8::1]"),
        ("http://a.example/%2e%2e//x", "GET /%2e%2e//x HTTP/1.1", "a.example"),
    ],
)
def test_an_absolute_url_becomes_a_path_and_its_host_wins(url: str, first: str, host: str) -> None:
    request = parse_request(head(f"GET {url} HTTP/1.1", "Host: other.example", "Accept: */*"))
    assert isinstance(request, Fetch)
    assert request.head == head(first, f"Host: {host}", "Accept: */*", "Connection: close")


def test_what_is_about_one_connection_stays_and_the_framing_of_the_body_goes_on() -> None:
    request = parse_request(
        head(
            "POST http://a/ HTTP/1.1",
            "Proxy-Authorization: Basic x",
            "Proxy-Connection: keep-alive",
            "Connection: keep-alive, X-Hop, Transfer-Encoding",
            "X-Hop: 1",
            "TE: trailers",
            "Transfer-Encoding: chunked",
        )
    )
    assert isinstance(request, Fetch)
    assert request.head == head("POST / HTTP/1.1", "Host: a", "Transfer-Encoding: chunked", "Connection: close")


@pytest.mark.parametrize(
    "lines",
    [
        ["GET / HTTP/1.1"],
        ["GET /x HTTP/1.1", "Host: a"],
        ["GET https://a/ HTTP/1.1"],
        ["GET ftp://a/ HTTP/1.1"],
        ["GET http:///x HTTP/1.1"],
        ["GET http://u:p@a/ HTTP/1.1"],
        ["GET http://a/#f HTTP/1.1"],
        ["GET http://a/ HTTP/2.0"],
        ["GET  http://a/ HTTP/1.1"],
        ["GET http://a/ b HTTP/1.1"],
        ["CONNECT a HTTP/1.1"],
        ["CONNECT http://a:1/ HTTP/1.1"],
        ["CONNECT u@a:1 HTTP/1.1"],
        ["CONNECT a:1/x HTTP/1.1"],
        ["CONNECT 0x7f.1:80 HTTP/1.1"],
        ["CONNECT [::ffff:127.0.0.1]:80 HTTP/1.1"],
        ["CONNECT a:99999 HTTP/1.1"],
        ["GET http://a/ HTTP/1.1", "no colon"],
        ["GET http://a/ HTTP/1.1", "X : 1"],
        ["GET http://a/ HTTP/1.1", "X: 1", " folded"],
        ["GET http://a/ HTTP/1.1", "X: a\nY: b"],
        ["GET http://a/ HTTP/1.1", "X: a\rY"],
        ["GET http://a/ HTTP/1.1", "X: \x00"],
        ["POST http://a/ HTTP/1.1", "Content-Length: 1", "Content-Length: 2"],
        ["POST http://a/ HTTP/1.1", "Content-Length: 1", "Transfer-Encoding: chunked"],
        ["POST http://a/ HTTP/1.1", "Content-Length: +1"],
        ["POST http://a/ HTTP/1.1", "Transfer-Encoding: gzip, chunked"],
        [""],
    ],
)
def test_what_two_readers_could_read_in_two_ways_is_refused(lines: list[str]) -> None:
    with pytest.raises(ValueError):
        parse_request(head(*lines))


def test_a_response_keeps_its_status_and_loses_its_connection() -> None:
    response = parse_response(head("HTTP/1.1 404 Not here", "Connection: keep-alive", "Keep-Alive: 5", "X: 1"))
    assert (response.status, response.interim) == (404, False)
    assert response.head == head("HTTP/1.1 404 Not here", "X: 1", "Connection: close")
    assert parse_response(head("HTTP/1.1 100 Continue")).interim


@pytest.mark.parametrize("lines", [["HTTP/1.1 200 OK", "Content-Length: x"], ["ICY 200 OK"], ["HTTP/1.1 20 OK"]])
def test_a_response_that_is_none_is_refused(lines: list[str]) -> None:
    with pytest.raises(ValueError):
        parse_response(head(*lines))


@given(st.binary(max_size=200))
def test_any_bytes_are_a_request_or_a_value_error(data: bytes) -> None:
    for parse in (parse_request, parse_response):
        try:
            parse(data + b"\r\n\r\n")
        except ValueError:
            continue


@given(st.text("abc./:@[]?#%0123456789", max_size=30), st.binary(max_size=30))
def test_what_is_fetched_is_one_head_for_the_host_that_was_judged(authority: str, value: bytes) -> None:
    try:
        request = parse_request(b"GET http://%s/x HTTP/1.1\r\nX: %s\r\n\r\n" % (authority.encode(), value))
    except ValueError:
        return
    assert isinstance(request, Fetch)
    assert request.head.count(b"\r\n\r\n") == 1
    host = str(request.destination).removesuffix(":80").encode()
    assert b"\r\nHost: %s\r\n" % host in request.head
