"""Addresses of the internet: what a webhook may reach unless the user allows private ones."""

from __future__ import annotations

import ipaddress
import socket
from contextlib import suppress

WIRE_SERVER = ipaddress.ip_address("168.63.129.16")  # Azure's own service in each virtual machine
NAT64 = ipaddress.ip_network("64:ff9b::/96")


class PrivateAddressError(OSError):
    """A host in a private, loopback, link-local or reserved network."""


def is_public(address: str) -> bool:
    """Return whether an IP address belongs to the internet, neither to this machine nor to a private network."""
    found = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(found, ipaddress.IPv6Address):
        # forms of an IPv4 address: ::ffff:a.b.c.d, 2002:aabb:ccdd::, 64:ff9b::a.b.c.d
        inner = found.ipv4_mapped or found.sixtofour
        if inner is None and found in NAT64:
            inner = ipaddress.IPv4Address(int(found) & 0xFFFFFFFF)
        if inner is not None:
            return is_public(str(inner))
    return found.is_global and not found.is_multicast and found != WIRE_SERVER


def literal_address(host: str) -> str | None:
    """Return the IP address that a host states, in any notation (127.1, 0x7f000001), without name resolution.

    `localhost` counts as one; None for any other name.
    """
    if host.lower().rstrip(".") in {"localhost", "localhost.localdomain"}:
        return "127.0.0.1"
    with suppress(OSError, UnicodeError):
        return str(socket.getaddrinfo(host, None, flags=socket.AI_NUMERICHOST)[0][4][0])
    return None


def require_public(host: str, port: int) -> None:
    """Check all addresses that a host resolves to.

    Raises:
        PrivateAddressError: one of them is not public.
        OSError: the name cannot be resolved.
    """
    for *_, address in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
        require_public_address(str(address[0]))


def require_public_address(address: str) -> None:
    """Check an IP address.

    Raises:
        PrivateAddressError: it is not public.
    """
    if not is_public(address):
        raise PrivateAddressError(f"its address {address} is private; notify.allow_private: true allows it")
