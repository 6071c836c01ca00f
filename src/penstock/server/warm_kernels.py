"""``python -m penstock.server.warm_kernels``: compiles every kernel once, so that no first run waits for it.

Numba keeps compiled kernels in a cache beside the modules; without it the first batch of each kind takes seconds. Set-up runs
this; everything works without it. Runs at set-up.
"""

from __future__ import annotations

from penstock.model.rows.row_key import encode_row_keys
from penstock.puller.ranged.matching.warm_kernels import warm_kernels as warm_puller
from penstock.sink.storage.warm_kernels import sample_table, warm_formats
from penstock.source.dataserver.rowcodec import decode_values, encode_values
from penstock.source.postgres.warm_kernels import warm_kernels as warm_postgres


def warm_kernels() -> None:
    """Send two rows of every type through every codec. Quick when everything is compiled already."""
    warm_puller()
    warm_postgres()
    _warm_mysql()
    table, arrays = sample_table()
    encode_row_keys(table, arrays, b"t")
    decode_values(table, encode_values(table, arrays))
    warm_formats()


def _warm_mysql() -> None:
    try:
        from penstock.source.mysql.warm_kernels import warm_kernels as warm_mysql
    except ImportError:
        # Its driver is an extra.
        return
    warm_mysql()


if __name__ == "__main__":
    warm_kernels()
