"""Transactions that the server sends while they are still open (``streaming``), kept as raw bytes until they commit or abort.

A stream segment is the messages between Stream Start and Stream Stop. Segments of one transaction lie one after the other in a file; when
the transaction commits they are read again in pieces and decoded like any other, without the rows of sub-transactions that were
rolled back. Not thread safe. Runs in the log service.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator

from penstock.kernels.jit import U8
from penstock.model.errors import PenstockError

STREAMS_MAX = 10_000


class StreamSpool:
    """The open streamed transactions, by the xid of their top level."""

    def __init__(self, memory_bytes: int = 1 << 20) -> None:
        self._memory_bytes = memory_bytes
        self._files: dict[int, tempfile.SpooledTemporaryFile[bytes]] = {}
        self._aborted: dict[int, set[int]] = {}

    def add(self, xid: int, segment: U8) -> None:
        """Keep a segment."""
        file = self._files.get(xid)
        if file is None:
            if len(self._files) >= STREAMS_MAX:
                raise PenstockError("UPSTREAM_REFUSED", f"more than {STREAMS_MAX} transactions are streamed at once")
            file = self._files[xid] = tempfile.SpooledTemporaryFile(self._memory_bytes, prefix="penstock-stream-")  # noqa: SIM115
        file.write(segment.tobytes())

    def abort(self, xid: int, sub_xid: int) -> None:
        """Forget a transaction, or remember that a sub-transaction was rolled back."""
        if xid == sub_xid:
            self.forget(xid)
        else:
            self._aborted.setdefault(xid, set()).add(sub_xid)

    def aborted(self, xid: int) -> list[int]:
        """Return the sub-transactions of a transaction that were rolled back."""
        return sorted(self._aborted.get(xid, ()))

    def pieces(self, xid: int, bytes_max: int) -> Iterator[bytes]:
        """Yield the bytes of a transaction in order."""
        file = self._files.get(xid)
        if file is None:
            return
        file.seek(0)
        while piece := file.read(bytes_max):
            yield piece

    def forget(self, xid: int) -> None:
        """Remove a transaction."""
        file = self._files.pop(xid, None)
        self._aborted.pop(xid, None)
        if file is not None:
            file.close()

    def close(self) -> None:
        """Remove everything."""
        for xid in list(self._files):
            self.forget(xid)
