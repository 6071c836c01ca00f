"""Which hosts a target may be on: none that gives out the credentials of the machine that asks. Runs anywhere."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator

_METADATA_NAMES = frozenset({"metadata", "metadata.google.internal", "instance-data", "instance-data.ec2.internal"})
_METADATA_ADDRESSES = frozenset(
    map(ipaddress.ip_address, ("fd00:ec2::254", "fd20:ce::254", "100.100.100.200", "168.63.129.16", "192.0.0.192"))
)
"""Where clouds give out a machine's credentials, beside link-local addresses."""
_HOST_NAME = re.compile(r"(?:[a-z0-9_][a-z0-9_-]{0,62}\.)*(?!\d+\.?\Z|0x[0-9a-f]*\.?\Z)[a-z0-9_][a-z0-9_-]{0,62}\.?")
"""A name whose last part is no number: clients read ``2852039166`` and ``0xa9.254.43518`` as addresses."""
_ENDS_IN_IPV4 = tuple(map(ipaddress.IPv6Network, ("::/96", "::ffff:0:0:0/96", "64:ff9b::/96")))
"""Compatible, translated, and translated by the network (NAT64): an IPv4 address is the end of one."""
_NAT64_LOCAL = ipaddress.IPv6Network("64:ff9b:1::/48")
_ISATAP = frozenset({0x00005EFE, 0x02005EFE})


def is_host(host: str) -> bool:
    """Return whether a name or an address is none that gives out the machine's credentials, as far as it tells."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return _HOST_NAME.fullmatch(host) is not None and host.rstrip(".") not in _METADATA_NAMES
    return is_address(host)


def is_address(text: str) -> bool:
    """Return whether an IP address is none that gives out the machine's credentials, nor one that leads to such a one."""
    address = ipaddress.ip_address(text.partition("%")[0])
    address = getattr(address, "ipv4_mapped", None) or address
    return not (address.is_multicast or address.is_unspecified or any(map(_gives_out, (address, *_led_to(address)))))


def _gives_out(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> bool:
    # Link-local addresses give out the machine's credentials in every cloud.
    return address.is_link_local or address in _METADATA_ADDRESSES


def _led_to(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> Iterator[ipaddress.IPv4Address]:
    """Yield the IPv4 addresses that networks may lead an IPv6 address to, because it has them in it."""
    if isinstance(address, ipaddress.IPv4Address):
        return
    number = int(address)
    if any(address in network for network in _ENDS_IN_IPV4) or (number >> 32) & 0xFFFFFFFF in _ISATAP:
        yield ipaddress.IPv4Address(number & 0xFFFFFFFF)
    if address.sixtofour is not None:
        yield address.sixtofour
    if address.teredo is not None:
        yield from address.teredo
    if address in _NAT64_LOCAL:
        # Its users choose how long the prefix is, from 48 bits on; the eight bits from the 64th on are left out (RFC 6052, 2.2).
        without = (number >> 64) << 56 | number & ((1 << 56) - 1)
        for prefix in (48, 56, 64):
            yield ipaddress.IPv4Address(without >> (120 - prefix - 32) & 0xFFFFFFFF)
        yield ipaddress.IPv4Address(number & 0xFFFFFFFF)
