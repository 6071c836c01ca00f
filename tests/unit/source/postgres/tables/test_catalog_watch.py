"""What a look finds follows from what was told of a table, whoever saw it last."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from penstock.source.postgres.tables.catalog import CatalogTable
from penstock.source.postgres.tables.catalog_watch import CatalogWatch
from penstock.source.postgres.wire.connection import Row

OID = 20_000


class Catalog:
    """A catalog with one table."""

    def __init__(self) -> None:
        self.table = CatalogTable(OID, "shop", "a", "d", ())

    def read(self, oids: Sequence[int]) -> list[CatalogTable]:
        """Return the table if it is asked for."""
        return [self.table] if OID in oids else []

    def query(self, sql: str) -> list[Row]:
        """Return the fingerprint of the table; its types have no texts."""
        return [(str(OID), self.table.table)] if "md5" in sql else []

    def name(self, table: str) -> None:
        """Give the table another name."""
        self.table = msgspec.structs.replace(self.table, table=table)


def test_a_table_that_a_row_showed_under_another_name_is_found_under_its_old_one() -> None:
    """Between two looks: the fingerprint is the one of the look before."""
    catalog = Catalog()
    watch = CatalogWatch(catalog.read, catalog.query)
    watch.accept(catalog.read([OID]))

    def found() -> list[str]:
        return [c.now.table for c in watch.look([(OID, OID, 1)], lambda _: True, lambda _: None) if c.now is not None]

    assert found() == found() == []
    catalog.name("b")
    watch.accept(catalog.read([OID]))
    catalog.name("a")
    assert found() == ["a"]
