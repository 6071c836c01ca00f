"""Which hosts a target may be on: none that gives out the credentials of the machine that asks. Runs anywhere."""

from __future__ import annotations

import ipaddress
import re

_METADATA_NAMES = frozenset({"metadata", "metadata.google.internal", "instance-data", "instance-data.ec2.internal"})
_METADATA_ADDRESSES = frozenset(
    map(ipaddress.ip_address, ("fd00:ec2::254", "fd20:ce::254", "100.100.100.200", "168.63.129.16", "192.0.0.192"))
)
"""Where clouds give out a machine's credentials, beside link-local addresses."""
_HOST_NAME = re.compile(r"(?:[a-z0-9_][a-z0-9_-]{0,62}\.)*(?!\d+\.?\Z|0x[0-9a-f]*\.?\Z)[a-z0-9_][a-z0-9_-]{0,62}\.?")
"""A name whose last part is no number: clients read ``2852039166`` and ``0xa9.254.43518`` as addresses."""


def is_host(host: str) -> bool:
    """Return whether a name or an address is none that gives out the machine's credentials, as far as it tells."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return _HOST_NAME.fullmatch(host) is not None and host.rstrip(".") not in _METADATA_NAMES
    return is_address(host)


def is_address(text: str) -> bool:
    """Return whether an IP address is none that gives out the machine's credentials."""
    address = ipaddress.ip_address(text.partition("%")[0])
    address = getattr(address, "ipv4_mapped", None) or address
    # Link-local addresses give out the machine's credentials in every cloud.
    return not (address.is_link_local or address.is_multicast or address.is_unspecified or address in _METADATA_ADDRESSES)
