"""An address is looked at in every form in which networks know it."""

import ipaddress

import pytest

from penstock.target.hosts import is_address, is_host

# Written out by hand from RFC 4291, 3056, 4380, 5214, 6052, 7915 and 8215; a9fe:a9fe is 169.254.169.254, 6464:64c8 is 100.100.100.200.
GIVES_OUT = [
    "169.254.169.254",
    "fe80::a9fe:a9fe",
    "fe80::1%eth0",
    "::ffff:169.254.169.254",
    "::ffff:100.100.100.200",
    "::a9fe:a9fe",
    "::ffff:0:a9fe:a9fe",
    "64:ff9b::a9fe:a9fe",
    "64:ff9b::6464:64c8",
    "64:ff9b:1:a9fe:a9:fe00::",
    "64:ff9b:1:12a9:fe:a9fe::",
    "64:ff9b:1:1234:a9:fea9:fe00::",
    "64:ff9b:1::a9fe:a9fe",
    "64:ff9b:1:abcd:ef01:2345:a9fe:a9fe",
    "2002:a9fe:a9fe::1",
    "2002:6464:64c8:1::1",
    "2001:0:a9fe:a9fe:8000:63bf:3fff:fdd2",
    "2001:0:4136:e378:8000:63bf:5601:5601",
    "2001:db8::5efe:a9fe:a9fe",
    "2001:db8::200:5efe:a9fe:a9fe",
    "fd00:ec2::254",
    "ff02::1",
    "::",
    "0.0.0.0",
]
MAY_BE_A_TARGET = [
    "10.0.0.5",
    "127.0.0.1",
    "::1",
    "2001:db8::1",
    "fd12:3456::1",
    "64:ff9b::808:808",
    "64:ff9b:1::a00:5",
    "64:ff9b:1:808:8:800::",
    "2002:808:808::1",
    "2001:0:4136:e378:8000:63bf:3fff:fdd2",
    "::ffff:10.0.0.5",
    "2001:db8::5efe:a00:5",
]


@pytest.mark.parametrize("address", GIVES_OUT)
def test_an_address_that_leads_to_credentials_is_refused_in_each_form(address: str) -> None:
    assert not is_address(address)
    assert not is_host(address)
    assert not is_host(ipaddress.ip_address(address.partition("%")[0]).exploded)


@pytest.mark.parametrize("address", MAY_BE_A_TARGET)
def test_other_addresses_may_be_targets_in_each_form(address: str) -> None:
    assert is_address(address)
    assert is_host(ipaddress.ip_address(address).exploded)
