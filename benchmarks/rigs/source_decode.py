"""Decoding alone, for ``make bench NAME=sources``: reads a log from a position into Arrow and writes nothing.

A program of its own, so that its CPU time and memory are its own: ``python -m benchmarks.rigs.source_decode URI POSITION ROWS``, the
position as JSON. Says ``first`` at the first change and one JSON object at the last. Runs in the benchmark.
"""

from __future__ import annotations

import sys
import threading
import time
from typing import cast

import msgspec

from penstock.model.batch import BatchKind
from penstock.model.errors import PenstockError
from penstock.source.catalog import open_upstream
from penstock.source.single_log import LoggedUpstream, LogPosition


def main(uri: str, position: str, rows: int) -> None:
    """Read until so many changes have come: rows that came to be, and rows that ceased without another in their place."""
    upstream = cast("LoggedUpstream", open_upstream(uri))
    stop = threading.Event()
    start = msgspec.json.decode(position, type=LogPosition)
    seen, nbytes, first = 0, 0, 0.0
    for step in upstream.read_log(start, (), lambda _: True, stop):
        for batch in step.changes:
            if first == 0.0:
                first = time.perf_counter()
                sys.stdout.write("first\n")
                sys.stdout.flush()
            nbytes += batch.header.nbytes
            seen += batch.header.rows if batch.header.kind is BatchKind.DATA else _deletes(batch.records.column("_op").to_numpy())
        if seen >= rows:
            break
    else:
        raise PenstockError("INTERNAL", f"the log ended after {seen} of {rows} changes")
    took = time.perf_counter() - first
    stop.set()
    sys.stdout.write(msgspec.json.encode({"rows": seen, "seconds": took, "bytes": nbytes}).decode() + "\n")
    sys.stdout.flush()
    upstream.close()


def _deletes(ops: object) -> int:
    import numpy as np

    from penstock.model.batch import Op

    return int(np.count_nonzero(np.asarray(ops) == int(Op.DELETE)))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
