"""What the model listener lets through, decided without a connection."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agenthost.gateway import routes
from agenthost.gateway.routes import Forward, Headers, Refusal

PORT = 17101
KEY = "sk-real"
GOOD: Headers = (("Host", f"127.0.0.1:{PORT}"), ("authorization", "Bearer placeholder"))


def refused(method: str, target: str, headers: Headers = GOOD) -> Refusal:
    decision = routes.decide(method, target, headers, PORT)
    assert isinstance(decision, Refusal)
    return decision


def test_the_one_route_of_the_protocol_is_forwarded() -> None:
    decision = routes.decide("POST", "/responses", (*GOOD, ("Accept", "text/event-stream")), PORT)
    assert decision == Forward("/responses", (("Accept", "text/event-stream"),))


@pytest.mark.parametrize(
    "target", ["/", "/v1/responses", "/responses/", "/Responses", "/models", "/responses/compact", "/responsesx"]
)
def test_any_other_path_is_not_found(target: str) -> None:
    assert refused("POST", target).status == 404


@pytest.mark.parametrize(
    "target",
    [
        "http://127.0.0.1:17101/responses",
        "//evil.example/responses",
        "/x//responses",
        "/responses/../responses",
        "/./responses",
        "/%72esponses",
        "/responses%2f..",
        "/responses\\..",
        "/responses?api-version=1",
        "/responses?",
        "127.0.0.1:17101",
        "*",
        "",
    ],
)
def test_a_target_that_can_be_read_in_two_ways_is_a_bad_request(target: str) -> None:
    assert refused("POST", target).status == 400


@pytest.mark.parametrize("method", ["GET", "HEAD", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "CONNECT", "post"])
def test_any_other_method_is_not_allowed_and_learns_which_is(method: str) -> None:
    assert refused(method, "/responses").status == 405
    assert refused(method, "/responses").headers == (("Allow", "POST"),)


@pytest.mark.parametrize(
    "bearers",
    [
        [],
        ["Bearer placeholder", "Bearer placeholder"],
        ["bearer placeholder"],
        ["Bearer  placeholder"],
        ["Bearer placeholderx"],
        ["Bearer sk-other"],
        ["Basic placeholder"],
        ["placeholder"],
        ["Bearer \udcff"],
    ],
)
def test_without_exactly_the_placeholder_nothing_passes(bearers: list[str]) -> None:
    headers = (GOOD[0], *(("Authorization", bearer) for bearer in bearers))
    assert refused("POST", "/responses", headers).status == 401


@pytest.mark.parametrize(
    "hosts",
    [[], ["127.0.0.1:17101", "127.0.0.1:17101"], ["evil.example"], ["127.0.0.1"], ["127.0.0.1:17100"], ["", ":17101"]],
)
def test_a_host_that_is_not_the_gateways_is_misdirected(hosts: list[str]) -> None:
    headers = (*(("Host", host) for host in hosts), GOOD[1])
    assert refused("POST", "/responses", headers).status == 421


@pytest.mark.parametrize("host", ["localhost:17101", "[::1]:17101", "LOCALHOST:17101"])
def test_loopback_by_any_name_is_the_gateways(host: str) -> None:
    assert isinstance(routes.decide("POST", "/responses", (("Host", host), GOOD[1]), PORT), Forward)


def test_an_upgrade_is_refused() -> None:
    assert refused("POST", "/responses", (*GOOD, ("Upgrade", "websocket"))).status == 400


def test_a_length_told_twice_is_refused() -> None:
    both = (("Content-Length", "3"), ("Transfer-Encoding", "chunked"))
    assert refused("POST", "/responses", (*GOOD, *both)).status == 400


@pytest.mark.parametrize(
    "name",
    [
        "Authorization",
        "Proxy-Authorization",
        "X-Amz-Authorization",
        "Cookie",
        "Cookie2",
        "x-api-key",
        "api-key",
        "X-Goog-Api-Key",
        "Ocp-Apim-Subscription-Apikey",
        "X-Auth-Token",
        "X-Amz-Security-Token",
        "X-Client-Secret",
        "OpenAI-Organization",
        "OpenAI-Project",
        "ChatGPT-Account-Id",
    ],
)
def test_no_credential_header_of_the_view_passes(name: str) -> None:
    assert routes.request_headers(((name, "x"), ("Accept", "*/*"))) == (("Accept", "*/*"),)


@pytest.mark.parametrize(
    "name",
    ["Connection", "Keep-Alive", "Proxy-Connection", "TE", "Trailer", "Transfer-Encoding", "Upgrade", "Host", "Expect"],
)
def test_what_is_about_one_connection_does_not_pass(name: str) -> None:
    assert routes.request_headers(((name, "x"),)) == ()


def test_what_connection_names_does_not_pass_either_way() -> None:
    headers = (
        ("Connection", "close, X-One"),
        ("connection", "x-two"),
        ("X-One", "1"),
        ("X-Two", "2"),
        ("X-Three", "3"),
    )
    assert routes.request_headers(headers) == (("X-Three", "3"),)
    assert routes.response_headers(headers, KEY) == (("X-Three", "3"),)


def test_repeated_headers_keep_their_order() -> None:
    headers = (("X-A", "1"), ("X-B", "2"), ("x-a", "3"))
    assert routes.request_headers(headers) == headers
    assert routes.response_headers(headers, KEY) == headers


def test_a_response_header_with_the_key_or_a_cookie_is_withheld() -> None:
    headers = (("X-Echo", f"Bearer {KEY}"), (f"X-{KEY}", "1"), ("Set-Cookie", "a=b"), ("X-Request-Id", "7"))
    assert routes.response_headers(headers, KEY) == (("X-Request-Id", "7"),)
    assert routes.reason_phrase(f"Hello {KEY}", KEY) is None
    assert routes.reason_phrase("Too Many Requests", KEY) == "Too Many Requests"


@given(st.text(max_size=40), st.text(max_size=40))
def test_whatever_is_asked_only_the_one_request_passes(method: str, target: str) -> None:
    decision = routes.decide(method, target, GOOD, PORT)
    assert isinstance(decision, Refusal) or (method, target) == ("POST", "/responses")


@given(st.lists(st.tuples(st.text(max_size=20), st.text(max_size=20)), max_size=8))
def test_whatever_a_provider_answers_the_key_does_not_pass(headers: list[tuple[str, str]]) -> None:
    spiked = tuple((name, value + KEY) for name, value in headers)
    assert routes.response_headers(spiked, KEY) == ()
