"""Keyed reads: columns that the log leaves out, taken from the rows as they are now.

With ``binlog_row_image`` MINIMAL or NOBLOB an update names only what it changed, so the rest is read from the table by key. What is read
may be newer than the update: then a later event of the log brings the same value at its own ts, and the state is right from there on.
A row that is gone by now gives NULLs; its delete follows in the log. Runs in the log service, in the thread that reads the log.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from penstock.ddl.tokens import quoted
from penstock.model.clock import Clock
from penstock.model.errors import PenstockError
from penstock.model.table import TableSchema
from penstock.source.mysql.rows.row_keys import row_keys
from penstock.source.mysql.rows.rows_decoder import ReadRows
from penstock.source.mysql.server import Server
from penstock.source.mysql.snapshot.column_query import selected, typed
from penstock.source.mysql.snapshot.snapshot import key_condition
from penstock.source.mysql.snapshot.text_rows import query_columns

_QUERY_ROWS = 1_000


def keyed_reader(server: Server, clock: Clock) -> ReadRows:
    """Return what reads rows of a server by their keys.

    Given a table and its columns with every key filled in, it returns all columns of the same rows as they are now, NULL where one is gone.
    """

    def read(table: TableSchema, arrays: tuple[pa.Array, ...]) -> tuple[pa.Array, ...]:
        if not table.key_columns:
            raise _refused(table)
        wanted = row_keys(table, arrays)
        pages: list[tuple[pa.Array, ...]] = []
        # A commit is in the log before its rows can be read.
        server.wait_visible(clock)
        columns = ", ".join(selected(c) for c in table.columns)
        name = f"{quoted(table.schema)}.{quoted(table.table)}"
        with server.session() as session:
            for start in range(0, len(wanted), _QUERY_ROWS):
                where = key_condition(table, tuple(a.slice(start, _QUERY_ROWS) for a in arrays))
                try:
                    found = query_columns(session, f"SELECT {columns} FROM {name} WHERE {where}", len(table.columns), _QUERY_ROWS)
                    pages += [tuple(typed(c, a) for c, a in zip(table.columns, page, strict=True)) for page in found]
                except PenstockError as error:
                    if error.code not in {"UPSTREAM_REFUSED", "UPSTREAM_CHANGING"}:
                        raise
                    raise _refused(table) from error
        if not pages:
            return tuple(pa.nulls(len(wanted), c.type.arrow()) for c in table.columns)
        rows = tuple(pa.concat_arrays([page[c] for page in pages]) for c in range(len(table.columns)))
        places = pc.index_in(wanted, value_set=row_keys(table, rows))
        return tuple(array.take(places) for array in rows)

    return read


def _refused(table: TableSchema) -> PenstockError:
    return PenstockError(
        "UPSTREAM_MISCONFIGURED",
        f"the log leaves out columns of {table.full_name}, and they cannot be read by key: binlog_row_image is not FULL",
        "Run SET GLOBAL binlog_row_image = 'FULL', reconnect the writers, and take a new snapshot of the table.",
    )
