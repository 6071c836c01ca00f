"""Messages about the beginnings and ends of transactions, as Debezium has them, for a window's transaction index.

``BEGIN`` has the id; ``END`` also how many events the transaction has, in all and of each table. Debezium sends them to a topic of their
own; here they are an object beside the index. The id is the commit ts, as in the ``transaction`` block of the events. Runs beside the
driver.
"""

from __future__ import annotations

import polars as pl

from penstock.format.json.escaping import escape_text
from penstock.format.layout.transaction_index import FILE, ROWS, TS, TransactionIndex
from penstock.model.timestamp import LOGICAL_BITS

_NAME = "name"


def boundary_messages(index: TransactionIndex, line_end: bytes) -> bytes:
    """Return two messages for each transaction of a window, in commit order."""
    end = line_end.decode()
    names = pl.DataFrame(
        {FILE: range(len(index.files)), _NAME: [escape_text(f"{f.schema}.{f.table}").decode() for f in index.files]},
        schema={FILE: pl.Int64(), _NAME: pl.String()},
    )
    counted = index.parts.join(names, on=FILE, maintain_order="left").group_by(TS, _NAME, maintain_order=True).agg(pl.col(ROWS).sum())
    collection = pl.concat_str(pl.lit('{"data_collection":'), pl.col(_NAME), pl.lit(',"event_count":'), pl.col(ROWS), pl.lit("}"))
    of_each = counted.group_by(TS, maintain_order=True).agg(pl.col(ROWS).sum(), collection.str.join(",").alias(_NAME))
    ident, moment = pl.col(TS).cast(pl.String), (pl.col(TS) // (1 << LOGICAL_BITS)).cast(pl.String)
    begin = [pl.lit('{"status":"BEGIN","id":"'), ident, pl.lit('","event_count":null,"data_collections":null,"ts_ms":'), moment]
    ended = [pl.lit('{"status":"END","id":"'), ident, pl.lit('","event_count":'), pl.col(ROWS)]
    ended += [pl.lit(',"data_collections":['), pl.col(_NAME), pl.lit('],"ts_ms":'), moment]
    lines = of_each.select(pl.concat_str(*begin, pl.lit("}" + end), *ended, pl.lit("}" + end)))
    return str(lines.to_series().str.join("").item()).encode() if of_each.height else b""
