"""Where the proxy may go: names first, then the addresses behind them."""

from __future__ import annotations

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agenthost.errors import RequestRefused
from agenthost.gateway.destinations import AllowedHost, Destination, allowed, is_public, reachable


def test_a_host_without_a_port_allows_https_and_http() -> None:
    assert AllowedHost.parse("Example.COM.") == AllowedHost("example.com", (443, 80))
    assert AllowedHost.parse("example.com:8443") == AllowedHost("example.com", (8443,))
    assert AllowedHost.parse("[2001:DB8::1]:80") == AllowedHost("2001:db8::1", (80,))
    assert AllowedHost.parse("2001:db8::1") == AllowedHost("2001:db8::1", (443, 80))
    assert AllowedHost.parse(".example.com:443") == AllowedHost(".example.com", (443,))


@pytest.mark.parametrize(
    "text",
    [
        "",
        ".",
        "..example.com",
        ":443",
        "a:b",
        "a:0",
        "a:65536",
        "a:-1",
        "a:٣",
        "https://a",
        "a/b",
        "a b",
        "*.a.com",
        "user@a",
        "[::1",
        "[1.2.3.4]",
        "[::1]x",
        "fe80::1%eth0",
        "[fe80::1%25eth0]:80",
        "::ffff:127.0.0.1",
        "127.1",
        "0x7f000001",
        "2130706433",
        "a.0x1",
        ".127.0.0.1",
        "müller.example",
        "a..b",
        "-a.com",
        "a" * 64 + ".com",
    ],
)
def test_what_is_no_host_is_refused_with_the_way_to_write_one(text: str) -> None:
    with pytest.raises(RequestRefused, match="HOST:PORT"):
        AllowedHost.parse(text)


def test_names_are_compared_without_case_and_final_dot_and_ports_exactly() -> None:
    hosts = [AllowedHost.parse("example.com")]
    assert allowed(hosts, Destination.parse("EXAMPLE.com.:443"))
    assert not allowed(hosts, Destination.parse("example.com:8443"))
    assert not allowed(hosts, Destination.parse("notexample.com:443"))
    assert not allowed(hosts, Destination.parse("example.com.evil.net:443"))


def test_a_suffix_means_the_names_below_it_and_never_an_address() -> None:
    hosts = [AllowedHost.parse(".example.com")]
    assert allowed(hosts, Destination.parse("a.b.example.com:443"))
    assert not allowed(hosts, Destination.parse("example.com:443"))
    assert not allowed(hosts, Destination.parse("badexample.com:443"))


@pytest.mark.parametrize(
    "address",
    [
        "0.0.0.0",
        "0.1.2.3",
        "10.1.2.3",
        "100.64.0.1",
        "127.0.0.1",
        "127.255.255.254",
        "169.254.169.254",
        "172.16.0.1",
        "192.0.2.1",
        "192.168.1.1",
        "198.18.0.1",
        "224.0.0.1",
        "239.255.255.250",
        "240.0.0.1",
        "255.255.255.255",
        "::",
        "::1",
        "::127.0.0.1",
        "::ffff:127.0.0.1",
        "::ffff:8.8.8.8",
        "64:ff9b::127.0.0.1",
        "64:ff9b::10.0.0.1",
        "64:ff9b:1::1",
        "2001::1",
        "2001:db8::1",
        "2002:7f00:1::",
        "2002:a00:1::1",
        "fc00::1",
        "fd12::1",
        "fe80::1",
        "fec0::1",
        "ff02::1",
    ],
)
def test_an_address_of_one_machine_or_network_is_not_public(address: str) -> None:
    assert not is_public(ipaddress.ip_address(address))


@pytest.mark.parametrize("address", ["1.1.1.1", "8.8.8.8", "93.184.216.34", "2606:4700::1111", "64:ff9b::8.8.8.8"])
def test_an_address_of_the_internet_is_public(address: str) -> None:
    assert is_public(ipaddress.ip_address(address))


def test_a_name_reaches_public_addresses_only() -> None:
    hosts = [AllowedHost.parse("example.com")]
    addresses = [ipaddress.ip_address(text) for text in ("127.0.0.1", "8.8.8.8", "::1", "169.254.169.254")]
    assert reachable(hosts, Destination.parse("example.com:443"), addresses) == [ipaddress.ip_address("8.8.8.8")]


def test_an_address_that_is_named_is_reached_on_its_ports() -> None:
    hosts = [AllowedHost.parse("10.0.0.5:8080"), AllowedHost.parse("internal.example:8080")]
    address = ipaddress.ip_address("10.0.0.5")
    assert reachable(hosts, Destination.parse("internal.example:8080"), [address]) == [address]
    assert reachable(hosts, Destination.parse("internal.example:8081"), [address]) == []


def test_localhost_means_loopback_and_nothing_else() -> None:
    hosts = [AllowedHost.parse("localhost:8080")]
    loopback, private = ipaddress.ip_address("127.0.0.1"), ipaddress.ip_address("10.0.0.1")
    assert reachable(hosts, Destination.parse("localhost:8080"), [loopback, private]) == [loopback]


@given(st.text(max_size=60))
def test_any_text_is_a_destination_or_a_value_error(text: str) -> None:
    try:
        destination = Destination.parse(text, 80)
    except ValueError:
        return
    assert Destination.parse(str(destination)) == destination


@given(st.ip_addresses())
def test_a_mapped_address_is_never_public(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> None:
    if isinstance(address, ipaddress.IPv4Address):
        assert not is_public(ipaddress.IPv6Address(f"::ffff:{address}"))
        assert is_public(ipaddress.IPv6Address(f"64:ff9b::{address}")) == is_public(address)
