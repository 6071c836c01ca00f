import pytest

from penstock.model.errors import PenstockError
from penstock.source.postgres.wire.address import parse_address


def test_an_address_is_read_whole_and_hides_its_password():
    address = parse_address("postgresql://me:p%40ss@db.example:6000/shop?slot=mine&publication=all&sslmode=verify-full&streaming=on")
    assert (address.host, address.port, address.user, address.password, address.database) == ("db.example", 6000, "me", "p@ss", "shop")
    assert (address.slot, address.publication, address.sslmode, address.streaming) == ("mine", "all", "verify-full", True)
    assert "p@ss" not in repr(address)
    assert "p@ss" not in address.shown
    assert parse_address("postgres://me@db").port == 5432
    assert parse_address("postgres://me@db").database == "me"


@pytest.mark.parametrize(
    ("uri", "problem"),
    [
        ("mysql://me@db/x", "must begin with postgresql://"),
        ("postgresql://db/x", "must name a user"),
        ("postgresql://me@db:70000/x", "no valid port"),
        ("postgresql://me@db/x?colour=red", "unknown option colour"),
        ("postgresql://me@db/x?sslmode=maybe", "sslmode must be"),
        ("postgresql://me@db/x?slot=Mine", "slot must be"),
        ("postgresql://me@db/x?streaming=1", "streaming must be"),
        ("postgresql://me@db/x?connect_timeout=soon", "connect_timeout must be"),
    ],
)
def test_a_wrong_address_is_named(uri, problem):
    with pytest.raises(PenstockError, match=f"CONFIG_INVALID.*{problem}"):
        parse_address(uri)
