from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from penstock.cli.feeds.tables import size
from penstock.cli.main import run
from penstock.source.dataserver.service.server import DataServer, DataServerSettings
from penstock.source.dataserver.shop import TABLES


@pytest.fixture
def source() -> Iterator[str]:
    server = DataServer(DataServerSettings(port=0, stores=1))
    server.start()
    try:
        server.engine.execute_ddl("CREATE DATABASE shop")
        for query in TABLES.values():
            server.engine.execute_ddl(query.format(db="shop"))
        yield server.uri
    finally:
        server.stop()


def test_what_a_source_has(source: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["tables", source, "--table", "shop.order*", "--output", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [(t["schema"], t["table"], t["captured"], t["notes"], t["rows"]) for t in found] == [
        ("shop", "order_items", True, [], None),
        ("shop", "orders", True, [], None),
    ]
    assert all(t["key"] for t in found)
    assert run(["tables", source]) == 0
    shown = capsys.readouterr().out
    assert shown.splitlines()[0].split() == ["TABLE", "KEY", "ROWS", "SIZE", "CAPTURED", "NOTE"]
    assert shown.splitlines()[-1] == "4 tables"
    assert run(["tables", source, "--table", "none.*"]) == 0
    assert capsys.readouterr().out == "no table matches none.*\n"
    assert run(["tables", "oracle://x"]) == 2
    assert "scheme 'oracle' is not supported" in capsys.readouterr().err


@pytest.mark.parametrize(("nbytes", "shown"), [(None, "-"), (0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (5 << 40, "5.0 TiB")])
def test_sizes(nbytes: int | None, shown: str) -> None:
    assert size(nbytes) == shown
