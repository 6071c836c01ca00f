from __future__ import annotations

import pytest

from penstock.access.mysql_server import parse_uri
from penstock.model.errors import PenstockError


def test_uris() -> None:
    address = parse_uri("mysql://cdc:p%40ss@[::1]:3307/?ssl=required&server-id=77")
    assert (address.host, address.port, address.user, address.password, address.ssl_mode, address.server_id) == (
        *("::1", 3307, "cdc", "p@ss"),
        *("required", 77),
    )
    assert "p@ss" not in repr(address)
    assert parse_uri("mariadb://db").port == 3306
    for wrong in (
        "mysql://",
        "mysql://db:99999",
        "mysql://db/?nonsense=1",
        "mysql://db/?ssl=maybe",
        "mysql://db/?server-id=x",
        "mysql://u:p@[/x",
        "mysql://u:p/q@h:1",
    ):
        with pytest.raises(PenstockError) as error:
            parse_uri(wrong)
        assert error.value.code == "CONFIG_INVALID"
