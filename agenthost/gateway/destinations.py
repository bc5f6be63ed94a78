"""Where the proxy may connect to: pure decisions on names and addresses.

Two questions, in this order. Does the list of allowed hosts name the destination? And, once its name is resolved, which
addresses may a name stand for? Whoever runs a zone can make a name point anywhere, so loopback, private, link-local and
the like are reached only when the list names that very address (or `localhost`).
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from agenthost.errors import RequestRefused

Address = ipaddress.IPv4Address | ipaddress.IPv6Address

DEFAULT_PORTS: Final = (443, 80)
LOCALHOST: Final = "localhost"

_NAME: Final = re.compile(
    r"(?=.{1,253}$)[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?(\.[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?)*"
)
_NUMERIC: Final = re.compile(r"([0-9]+|0x[0-9a-f]*)")
_PORT: Final = re.compile(r"[0-9]{1,5}")
_NAT64: Final = ipaddress.IPv6Network("64:ff9b::/96")


@dataclass(frozen=True, slots=True)
class Destination:
    """A host and a port that a client asked for. `host` is lower-case, without a final dot, IPv6 without brackets."""

    host: str
    port: int

    @classmethod
    def parse(cls, authority: str, default_port: int | None = None) -> Destination:
        """Reads `HOST[:PORT]`, IPv6 in brackets. Raises ValueError, also for no port where there is no default."""
        host, port = _split(authority)
        if port is None:
            port = default_port
        if port is None:
            raise ValueError("no port")
        return cls(_canonical(host), port)

    @property
    def address(self) -> Address | None:
        """The address that `host` is, when it is one."""
        return _literal(self.host)

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class AllowedHost:
    """One entry of the list: a host name, an address, or `.suffix` for every name below it (not the suffix itself)."""

    host: str
    ports: tuple[int, ...] = DEFAULT_PORTS

    @classmethod
    def parse(cls, text: str) -> AllowedHost:
        """Reads `HOST[:PORT]`; without a port it is 443 and 80. Raises RequestRefused."""
        suffix = text.startswith(".")
        try:
            bare = text[1:] if suffix else text
            address = _literal(bare)  # an IPv6 address without brackets cannot have a port
            host, port = (bare, None) if address is not None else _split(bare)
            host = _canonical(host, name_only=suffix)
        except ValueError as error:
            raise RequestRefused(
                f"{text!r} is no allowed host ({error})",
                remedy="write HOST, HOST:PORT or .SUFFIX; IPv6 as [ADDRESS]:PORT; other than ASCII names as xn--…",
            ) from error
        return cls(f".{host}" if suffix else host, DEFAULT_PORTS if port is None else (port,))

    def names(self, destination: Destination) -> bool:
        """Whether this entry allows `destination` by name."""
        if destination.port not in self.ports:
            return False
        if self.host.startswith("."):
            return destination.address is None and destination.host.endswith(self.host)
        return destination.host == self.host

    def names_address(self, address: Address, port: int) -> bool:
        """Whether this entry is that very address."""
        return port in self.ports and _literal(self.host) == address


def allowed(hosts: Iterable[AllowedHost], destination: Destination) -> bool:
    """Whether the list names the destination. Says nothing yet about where its name leads."""
    return any(host.names(destination) for host in hosts)


def reachable(hosts: Sequence[AllowedHost], destination: Destination, addresses: Iterable[Address]) -> list[Address]:
    """Those of the destination's addresses that may be connected to, in the same order."""
    return [
        address
        for address in addresses
        if is_public(address)
        or any(host.names_address(address, destination.port) for host in hosts)
        or (destination.host == LOCALHOST and address.is_loopback)
    ]


def is_public(address: Address) -> bool:
    """Whether an address is of the open internet: not loopback, private, link-local, shared, multicast or mapped."""
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is not None or address.teredo is not None or address.is_site_local:
            return False
        inner = address.sixtofour or (_low_v4(address) if address in _NAT64 else None)
        if inner is not None:
            return is_public(inner)
        if (
            int(address) >> 32 == 0
        ):  # "IPv4-compatible" (RFC 4291, 2.5.5.1): deprecated, and another way to write 127.0.0.1
            return False
    return (
        address.is_global
        and not address.is_multicast
        and not address.is_reserved
        and not address.is_loopback
        and not address.is_link_local
        and not address.is_unspecified
    )


def _low_v4(address: ipaddress.IPv6Address) -> ipaddress.IPv4Address:
    return ipaddress.IPv4Address(int(address) & 0xFFFF_FFFF)


def _split(authority: str) -> tuple[str, int | None]:
    if authority.startswith("["):
        host, bracket, rest = authority[1:].partition("]")
        if not bracket or ":" not in host:
            raise ValueError("brackets are for IPv6 addresses")
        if rest and not rest.startswith(":"):
            raise ValueError("something stands between the address and the port")
        port = rest[1:] if rest else None
    else:
        host, colon, after = authority.partition(":")
        port = after if colon else None
    if port is None:
        return host, None
    if not _PORT.fullmatch(port) or not 0 < int(port) < 65536:
        raise ValueError("the port is not a number from 1 to 65535")
    return host, int(port)


def _canonical(host: str, *, name_only: bool = False) -> str:
    address = _literal(host)
    if address is not None:
        if name_only:
            raise ValueError("an address has no names below it")
        if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
            raise ValueError("an IPv4 address in IPv6 clothes")
        return str(address)
    name = host.lower().removesuffix(".")
    if not _NAME.fullmatch(name):
        raise ValueError("not a host name")
    # inet_aton(3) takes 127.1, 0x7f000001 and 2130706433 for addresses, and so do resolvers: nobody's name is like that
    if _NUMERIC.fullmatch(name.rpartition(".")[2]):
        raise ValueError("an address in another notation than the usual one")
    return name


def _literal(host: str) -> Address | None:
    if "%" in host:  # a zone: an interface of this machine
        return None
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None
