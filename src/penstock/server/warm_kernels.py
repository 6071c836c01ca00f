"""``python -m penstock.server.warm_kernels``: compiles every kernel once, so that no first run waits for it.

Numba keeps compiled kernels in a cache on disk; without it the first batch of each kind takes seconds. A mark in that cache says that all
were compiled. Where it is missing, verbs that need the kernels compile them before anything waits, and say so. Runs at set-up, and when a
server starts first.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from penstock.kernels.compiled_mark import mark_file
from penstock.model.rows.row_key import encode_row_keys
from penstock.puller.ranged.matching.warm_kernels import warm_kernels as warm_puller
from penstock.sink.storage.warm_kernels import sample_table, warm_formats
from penstock.source.dataserver.rowcodec import decode_values, encode_values
from penstock.source.postgres.warm_kernels import warm_kernels as warm_postgres

Told = Callable[[int, int, str], None]
"""Hears which step begins, how many there are, and what it compiles."""


def warm_kernels(told: Told = lambda _number, _total, _what: None) -> None:
    """Send two rows of every type through every codec. Quick when everything is compiled already."""
    steps = (
        ("the stream of ranges", warm_puller),
        ("PostgreSQL's log", warm_postgres),
        ("the binlog of MariaDB and MySQL", _warm_mysql),
        ("rows and their keys", _warm_rows),
        ("the formats of files", warm_formats),
    )
    for number, (what, warm) in enumerate(steps, 1):
        told(number, len(steps), what)
        warm()
    with contextlib.suppress(OSError):
        mark_file().touch()


def _warm_rows() -> None:
    table, arrays = sample_table()
    encode_row_keys(table, arrays, b"t")
    decode_values(table, encode_values(table, arrays))


def _warm_mysql() -> None:
    try:
        from penstock.source.mysql.warm_kernels import warm_kernels as warm_mysql
    except ImportError:
        # Its driver is an extra.
        return
    warm_mysql()


if __name__ == "__main__":
    warm_kernels(lambda number, total, what: print(f"compiling kernels {number}/{total}: {what}", flush=True))
