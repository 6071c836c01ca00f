"""Spilled memory: batches that wait long for their resolved ts, moved from the heap to a mapped file.

A range that hangs holds back a span's resolved ts, and rows above it cannot be flushed. They are durable in the write-ahead log; this
only moves their bytes to pages that the system can take back. The file loses its name as soon as it is mapped, so nothing is left
after a crash. Runs in the log service.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa

from penstock.model.batch import ChangeBatch
from penstock.store.objects.object_file import ALIGNMENT, encode_message


def spill_batches(directory: Path, batches: Sequence[ChangeBatch]) -> list[ChangeBatch]:
    """Return the same batches, their columns in a mapped file below the directory."""
    directory.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(suffix=".spill", dir=directory)
    try:
        places: list[tuple[int, int]] = []
        with os.fdopen(handle, "wb") as file:
            for batch in batches:
                message = encode_message(batch.records, None)
                places.append((file.tell(), message.size))
                file.write(message)
                file.write(bytes(-message.size % ALIGNMENT))
        mapped = pa.memory_map(name).read_buffer()
    finally:
        os.unlink(name)
    return [
        ChangeBatch(b.header, pa.ipc.read_record_batch(mapped.slice(start, size), b.records.schema))
        for b, (start, size) in zip(batches, places, strict=True)
    ]
