"""The transaction index: which source transactions a window holds, and where their rows stand.

One object for each window that wrote files: a line with magic, version and the checksum of the rest, a line of JSON with the window and
its files, then a line for each part of a transaction: commit ts, number of the file, first row in it, rows. Lines of one transaction follow
each other, in the order of the files, and transactions stand in commit order. A file of state belongs to no transaction: it is the state of
a table as of the window's end, or what differs from it. Invariants: the same files give the same index; every row of a file that is none of
state is in exactly one part. Runs beside the driver and wherever a target is read.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

import msgspec
import numpy as np
import polars as pl

from penstock.format.layout.checksum_record import checksum_of
from penstock.format.layout.paths import OWNER_DIR
from penstock.format.transaction_runs import unpack_runs
from penstock.model.decoding import decoded
from penstock.model.errors import PenstockError

TRANSACTIONS_DIR = f"{OWNER_DIR}/transactions"
TS, FILE, FIRST, ROWS = "ts", "file", "first", "rows"
_PATH = re.compile(rf"{re.escape(TRANSACTIONS_DIR)}/(\d{{20}})(\.json)?\Z")
_MAGIC = b"penstock-transactions 1 "


class IndexedFile(msgspec.Struct, frozen=True, omit_defaults=True):
    """A data file of the window: where it is, whose rows it has and how many."""

    path: str
    schema: str
    table: str
    rows: int
    state: bool = False
    """Whether its rows are of no transaction."""


class _Head(msgspec.Struct, frozen=True, rename="kebab"):
    from_ts: int
    to_ts: int
    files: tuple[IndexedFile, ...]


@dataclass(frozen=True, slots=True)
class TransactionIndex:
    """The transactions of one window. ``parts`` has the columns ts, file, first and rows, in the order of the lines."""

    from_ts: int
    to_ts: int
    files: tuple[IndexedFile, ...]
    parts: pl.DataFrame

    @classmethod
    def of(cls, from_ts: int, to_ts: int, files: Iterable[tuple[IndexedFile, bytes]]) -> TransactionIndex:
        """Return the index of files with their packed runs; none where a file is one of state."""
        found = tuple(files)
        parts = [pl.DataFrame(schema=_schema())]
        for number, (_, packed) in enumerate(found):
            if packed:
                ts, rows = unpack_runs(packed)
                first = np.cumsum(rows) - rows
                parts.append(pl.DataFrame({TS: ts, FILE: np.full(len(ts), number), FIRST: first, ROWS: rows}, schema=_schema()))
        return cls(from_ts, to_ts, tuple(file for file, _ in found), pl.concat(parts).sort(TS, FILE, maintain_order=True))

    def render(self) -> bytes:
        """Return the content of the object."""
        head = msgspec.json.encode(_Head(self.from_ts, self.to_ts, self.files))
        body = head + b"\n" + self.parts.write_csv(include_header=False).encode()
        return _MAGIC + checksum_of(body).encode() + b"\n" + body

    def transactions(self) -> pl.DataFrame:
        """Return commit ts and number of rows of each transaction, in order."""
        return self.parts.group_by(TS, maintain_order=True).agg(pl.col(ROWS).sum())


def index_path(window_end_ts: int) -> str:
    """Return where the index of a window lies."""
    return f"{TRANSACTIONS_DIR}/{window_end_ts:020d}"


def messages_path(window_end_ts: int) -> str:
    """Return where the messages about the beginnings and ends of a window's transactions lie."""
    return f"{index_path(window_end_ts)}.json"


def parse_transactions_path(path: str) -> tuple[int, bool] | None:
    """Return the end of the window that an object is about, and whether it is its index; None where it is neither index nor messages."""
    found = _PATH.match(path)
    return None if found is None else (int(found[1]), found[2] is None)


def parse_transaction_index(content: bytes, path: str) -> TransactionIndex:
    """Read what ``TransactionIndex.render`` wrote."""
    first, _, body = content.partition(b"\n")
    if not first.startswith(_MAGIC) or first.removeprefix(_MAGIC).decode("latin-1") != checksum_of(body):
        raise PenstockError("FILE_MALFORMED", f"{path}: line 1: it is no index of transactions, or a damaged one")
    line, _, lines = body.partition(b"\n")
    try:
        head = decoded(line, _Head)
        parts = pl.read_csv(lines, has_header=False, schema=_schema()) if lines else pl.DataFrame(schema=_schema())
    except (msgspec.MsgspecError, pl.exceptions.PolarsError) as error:
        raise PenstockError("FILE_MALFORMED", f"{path}: {error}") from error
    index = TransactionIndex(head.from_ts, head.to_ts, head.files, parts)
    _check(index, path)
    return index


def _check(index: TransactionIndex, path: str) -> None:
    """Raise unless the parts are in order and cover the files: what is missing must not look like nothing to apply."""
    ts, at = index.parts[TS].to_numpy(), index.parts[FILE].to_numpy()
    rows = np.array([0 if file.state else file.rows for file in index.files], np.int64)
    inside = not len(at) or bool((at >= 0).all() and (at < len(rows)).all())
    if not inside or not np.array_equal(np.bincount(at, index.parts[ROWS].to_numpy(), len(rows)).astype(np.int64), rows):
        raise PenstockError("FILE_MALFORMED", f"{path}: its parts do not cover the files that it names")
    if len(ts) and not (bool((ts[1:] >= ts[:-1]).all()) and index.from_ts < int(ts[0]) and int(ts[-1]) <= index.to_ts):
        raise PenstockError("FILE_MALFORMED", f"{path}: its transactions are not in commit order inside the window")


def _schema() -> dict[str, pl.DataType]:
    return {TS: pl.UInt64(), FILE: pl.Int64(), FIRST: pl.Int64(), ROWS: pl.Int64()}
