"""Where a webhook may go: what a URL may look like, and to which addresses a connection may be made.

A worker often stands where the outside does not reach: beside databases, admin pages and a cloud's metadata service. So
a name is resolved once, every address it has is checked, and the connection is made to an address that was checked and
not to the name, which might mean another one by then.
"""

import re
import socket
from collections.abc import Callable
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from holdfast.client.sinks.shape import Undelivered
from holdfast.domain.errors import BadInput

Resolve = Callable[..., list[tuple[Any, ...]]]
"""What `socket.getaddrinfo` is."""
IP = IPv4Address | IPv6Address
_PORTS = {"https": 443, "http": 80}
_LONGEST_URL = 2_000
_LABEL = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?")
_NUMBER = re.compile(r"[0-9]+|0[xX][0-9A-Fa-f]*")
_LONGEST_HOST = 253


def _networks(*texts: str) -> tuple[IPv4Network | IPv6Network, ...]:
    return tuple(ip_network(text) for text in texts)


_METADATA = _networks(
    "100.100.100.200/32", "168.63.129.16/32", "169.254.0.0/16", "192.0.0.192/32", "fd00:ec2::/32", "fd20:ce::254/128"
)
"""Where clouds answer with credentials: never the place of a webhook."""
_NOWHERE = _networks(
    "0.0.0.0/8", "192.88.99.0/24", "224.0.0.0/4", "240.0.0.0/4", "64:ff9b:1::/48", "100::/64", "2001::/32", "2002::/16",
    "3fff::/20", "5f00::/16", "fe80::/10", "fec0::/10", "ff00::/8",
)  # fmt: skip
"""This network, multicast, link-local, reserved, and tunnels (Teredo, 6to4) that may end anywhere."""
_GLOBAL_6 = IPv6Network("2000::/3")
_NAT64 = IPv6Network("64:ff9b::/96")
_LOW_32 = 2**32 - 1


class Place(NamedTuple):
    """Where a request goes: the parts of a URL that was checked."""

    secure: bool
    host: str
    port: int
    path: str

    @property
    def origin(self) -> str:
        """What may be shown of a URL; its path and query may hold secrets."""
        return f"{'https' if self.secure else 'http'}://{self.authority}"

    @property
    def authority(self) -> str:
        """The host, and the port if it is not the usual one, as the `Host` header has them."""
        name = f"[{self.host}]" if ":" in self.host else self.host
        return name if self.port == _PORTS["https" if self.secure else "http"] else f"{name}:{self.port}"


class Address(NamedTuple):
    """One address of a host, as a socket takes it."""

    family: int
    kind: int
    protocol: int
    sockaddr: tuple[Any, ...]


def place_of(url: str, *, allow_http: bool, allow_private: bool) -> Place:
    """Read a webhook's URL. What is wrong is said without the URL, which may hold secrets."""
    if not isinstance(url, str) or not 0 < len(url) <= _LONGEST_URL:
        raise _refused(f"is text of 1 to {_LONGEST_URL:,} characters")
    if not url.isascii() or not url.isprintable() or " " in url or "\\" in url:
        raise _refused("is plain ASCII without spaces or backslashes; write other names as xn--... and paths as %..")
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise _refused("has a host, and a port from 1 to 65535 if any") from None
    if parts.scheme not in _PORTS or (parts.scheme == "http" and not allow_http):
        raise _refused("begins with https://; http:// needs allow_http=True")
    if "@" in parts.netloc:
        raise _refused("has no user or password in it; receivers check the signature")
    if "#" in url:
        raise _refused("has no fragment; what follows a # is never sent")
    if port == 0 or parts.netloc.endswith(":"):
        raise _refused("has a port from 1 to 65535, if any")
    host = _host(parts.hostname or "", bracketed=parts.netloc.startswith("["), allow_private=allow_private)
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    return Place(parts.scheme == "https", host, port or _PORTS[parts.scheme], path)


def addresses(place: Place, resolve: Resolve, *, allow_private: bool) -> list[Address]:
    """Resolve a place once and give its addresses, if a webhook may go to every one of them."""
    try:
        found = resolve(place.host, place.port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        msg = f"{place.origin}: the host's name could not be resolved ({type(error).__name__})"
        raise Undelivered(msg) from error
    answer = [Address(family, kind, protocol, sockaddr) for family, kind, protocol, _, sockaddr in found]
    if not answer:
        msg = f"{place.origin}: the host's name has no address"
        raise Undelivered(msg)
    for one in answer:
        if trouble := objection(str(one.sockaddr[0]), allow_private=allow_private):
            msg = f"{place.origin}: the host has {trouble}"
            raise Undelivered(msg)
    return answer


def objection(text: str, *, allow_private: bool) -> str | None:
    """Say why no webhook may go to an address, if that is so."""
    try:
        ip = ip_address(text)
    except ValueError:
        return "an address that cannot be read"
    if isinstance(ip, IPv6Address) and ip.scope_id is not None:
        return "an address of one network link only"
    return _objection(ip, allow_private=allow_private)


def _objection(ip: IP, *, allow_private: bool) -> str | None:
    if (inner := _inner(ip)) is not None:
        return _objection(inner, allow_private=allow_private)
    if any(ip in network for network in _METADATA):
        return "a link-local address or one of a cloud's metadata service, where no webhook goes"
    if any(ip in network for network in _NOWHERE) or ip.is_multicast or ip.is_unspecified:
        return "a multicast, reserved, tunnelled or unspecified address, where no webhook goes"
    if ip.is_loopback or ip.is_private:
        return None if allow_private else "a private address; allow_private=True permits it"
    if not ip.is_global:
        return None if allow_private else "an address that is not public; allow_private=True permits it"
    if ip.is_reserved or (isinstance(ip, IPv6Address) and ip not in _GLOBAL_6):
        return "a reserved address, where no webhook goes"
    return None


def _inner(ip: IP) -> IPv4Address | None:
    """Give the IPv4 address that an IPv6 address stands for, if it does."""
    if isinstance(ip, IPv4Address):
        return None
    return IPv4Address(int(ip) & _LOW_32) if ip in _NAT64 else ip.ipv4_mapped


def _host(host: str, *, bracketed: bool, allow_private: bool) -> str:
    if bracketed:
        try:
            ip: IP = IPv6Address(host)
        except ValueError:
            raise _refused("has an IPv6 address in its brackets, if any") from None
    elif _NUMBER.fullmatch(host.rstrip(".").rpartition(".")[2]):
        try:
            ip = IPv4Address(host)
        except ValueError:
            raise _refused("has a host's name, or an address as four decimal numbers") from None
    else:
        if len(host) > _LONGEST_HOST or not all(_LABEL.fullmatch(label) for label in host.split(".")):
            raise _refused("has a host's name of letters, digits, hyphens and dots")
        return host
    if trouble := objection(str(ip), allow_private=allow_private):
        raise _refused(f"has a host that may be reached; this one is {trouble}")
    return str(ip)


def _refused(rule: str) -> BadInput:
    return BadInput(f"A webhook's URL {rule}.")
