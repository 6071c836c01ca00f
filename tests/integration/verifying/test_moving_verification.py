"""Verification against an upstream that only tells what it holds now, while that changes."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pytest

from penstock.model.batch import ChangeBatch
from penstock.model.clock import SystemClock
from penstock.model.errors import PenstockError
from penstock.model.span import Span
from penstock.model.table import TableSchema
from penstock.server.verify.moving_verification import ATTEMPTS_MAX, MovingVerifier, verify_standing
from testing.paths.whole_path import WholePath

SETUP = ["CREATE DATABASE d", "CREATE TABLE d.a (id INT PRIMARY KEY, v VARCHAR(40))"]


class Present:
    """The data server without its past: it reads what is there now, and lets a test act just before and just after."""

    def __init__(self, path: WholePath) -> None:
        self._path = path
        self.before: Callable[[], object] = lambda: None
        self.after: Callable[[], object] = lambda: None
        self.reads = 0
        self.refused = 0
        self.says = PenstockError("UPSTREAM_REFUSED", "policies hide rows")

    def list_tables(self) -> Sequence[TableSchema]:
        return self._path.upstream.list_tables()

    def read_now(self, span: Span) -> Iterator[ChangeBatch]:
        self.reads += 1
        if span.table_id == self.refused:
            raise self.says
        self.before()
        yield from self._path.upstream.read_now(span)
        self.after()


class Hiding(Present):
    """Shows in one look what the last transaction changed as it was before."""

    def __init__(self, path: WholePath, old: dict[int, str], look: int = 1) -> None:
        super().__init__(path)
        self._old = old
        self._look = look
        path.write({"d.a": {key: f"{value}, newer" for key, value in old.items()}})
        path.drain()

    def read_now(self, span: Span) -> Iterator[ChangeBatch]:
        for batch in super().read_now(span):
            table = pa.table(batch.records)
            ids, values = table["c1"].to_pylist(), table["c2"].to_pylist()
            seen = [self._old.get(i, v) for i, v in zip(ids, values, strict=True)] if self.reads == self._look else values
            at = table.schema.get_field_index("c2")
            shown = table.set_column(at, table.schema.field(at), pa.array(seen, table.schema.field(at).type))
            yield ChangeBatch(batch.header, shown.combine_chunks().to_batches()[0])


@pytest.fixture
def path(tmp_path: Path) -> Iterator[WholePath]:
    path = WholePath(tmp_path, SETUP)
    with contextlib.closing(path):
        path.write({"d.a": {n: f"row {n}" for n in range(20)}})
        path.drain()
        yield path


def verifier(path: WholePath, upstream: Present) -> MovingVerifier:
    def settled_ts() -> int:
        """Deliver everything, because no feed runs beside the test."""
        settled = path.upstream.current_ts()
        path.drain()
        return settled

    return MovingVerifier(upstream, settled_ts, SystemClock())  # type: ignore[arg-type]


def table_ids(path: WholePath) -> list[int]:
    return list(path.live_tables().values())


def test_rows_that_change_while_they_are_read_are_compared_once_they_stand(path: WholePath) -> None:
    upstream = Present(path)
    writes = iter([{1: "during"}, {2: "during"}, {3: "during"}])

    def write() -> None:
        rows = next(writes, None)
        if rows:
            path.write({"d.a": rows}, {"d.a": [10]} if 1 in rows else {})

    upstream.after = write
    verdict = verifier(path, upstream).verify(path.reader(), table_ids(path))
    assert verdict.identical
    assert verdict.rows == 19
    assert upstream.reads == 4


def test_a_table_that_never_stands_is_compared_without_the_rows_that_moved(path: WholePath) -> None:
    upstream = Present(path)
    upstream.after = lambda: path.write({"d.a": {5: f"read {upstream.reads}"}})
    verdict = verifier(path, upstream).verify(path.reader(), table_ids(path))
    assert (verdict.identical, verdict.rows, upstream.reads) == (True, 19, ATTEMPTS_MAX)


def test_a_real_difference_is_found_while_others_move(path: WholePath) -> None:
    upstream = Present(path)
    upstream.after = lambda: path.write({"d.a": {5: f"read {upstream.reads}"}})
    files = [f for f in (path.root / "files").rglob("*.csv") if b"row 7" in f.read_bytes()]
    files[0].write_bytes(files[0].read_bytes().replace(b"row 7", b"row X"))
    verdict = verifier(path, upstream).verify(path.reader(), table_ids(path))
    assert not verdict.identical
    assert (verdict.tables[0].different, upstream.reads) == (1, 2), "what is found is looked at again before it is said"
    with pytest.raises(PenstockError, match=r"\[VERIFY_MISMATCH\]"):
        verdict.check()


def test_a_transaction_that_is_in_the_log_before_it_can_be_read_is_no_difference(path: WholePath) -> None:
    """The first look does not see a row that is delivered already: a server writes its log before it lets others read."""
    upstream = Hiding(path, {7: "row 7"})
    verdict = verifier(path, upstream).verify(path.reader(), table_ids(path))
    assert (verdict.identical, verdict.rows, upstream.reads) == (True, 20, 2)


def test_what_the_last_look_finds_is_looked_at_again_too(path: WholePath) -> None:
    upstream = Hiding(path, {7: "row 7"}, look=ATTEMPTS_MAX)
    upstream.after = lambda: path.write({"d.a": {5: f"read {upstream.reads}"}})
    verdict = verifier(path, upstream).verify(path.reader(), table_ids(path))
    assert (verdict.identical, verdict.rows, upstream.reads) == (True, 19, ATTEMPTS_MAX + 1)


SAID = [
    (PenstockError("UPSTREAM_REFUSED", "policies hide rows"), "[UPSTREAM_REFUSED] policies hide rows"),
    (PenstockError("TABLE_UNKNOWN", "d.a does not exist any more"), "[UPSTREAM_CHANGING] d.a does not exist any more"),
]
"""What a source says of a table that it does not let be read: the second after a DROP with ``sql_log_bin = 0``, of which no log tells."""


@pytest.mark.parametrize(("says", "unchecked"), SAID)
def test_a_table_that_cannot_be_read_is_named_and_the_others_are_compared(path: WholePath, says: PenstockError, unchecked: str) -> None:
    path.upstream.execute_ddl("CREATE TABLE d.b (id INT PRIMARY KEY, v VARCHAR(40))")
    path.write({"d.b": {1: "x"}})
    path.drain()
    upstream = Present(path)
    upstream.refused, upstream.says = path.live_tables()["d.a"], says
    verdict = verifier(path, upstream).verify(path.reader(), table_ids(path))
    by_name = {t.name: t for t in verdict.tables}
    assert by_name["d.a"].unchecked.startswith(unchecked)
    assert (by_name["d.b"].rows, by_name["d.b"].identical) == (1, True)
    assert not verdict.identical
    assert verdict.summary() == "verified: 1 tables, 1 rows identical; 1 could not be checked"
    verdict.check()


def test_without_a_server_the_upstream_must_stand_still(path: WholePath) -> None:
    upstream = Present(path)
    assert verify_standing(path.reader(), upstream, table_ids(path)).identical  # type: ignore[arg-type]
    path.write({"d.a": {1: "not delivered yet"}})
    verdict = verify_standing(path.reader(), upstream, table_ids(path))  # type: ignore[arg-type]
    assert verdict.tables[0].different == 1
    with pytest.raises(PenstockError) as raised:
        verdict.check()
    assert "while nothing changes upstream" in raised.value.hint


def test_a_checkpoint_that_stands_still_is_said(path: WholePath) -> None:
    waiting = MovingVerifier(Present(path), path.upstream.current_ts, SystemClock(), wait_s_max=0.3)  # type: ignore[arg-type]
    with pytest.raises(PenstockError, match=r"\[CHECKPOINT_MISSING\]"):
        waiting.verify(path.reader(), table_ids(path))
