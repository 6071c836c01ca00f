"""XA transactions between their preparation and whoever decides them."""

import pytest

from penstock.model.batch import BatchKind, Op
from penstock.source.mysql.prepared_transactions import PreparedTransaction, PreparedTransactions
from penstock.source.single_log import TableDoubt
from testing.checks.change_batches import TABLE, change_batch

XID = (b"global", b"branch", 1)
DOUBT = TableDoubt(TABLE.table_id, TABLE.schema, TABLE.table, 0, "too large to be held")


def prepared(*, was_given: bool = False) -> PreparedTransaction:
    batch = change_batch(7, [(0, Op.INSERT, 1, "a"), (0, Op.INSERT, 2, "b")], BatchKind.DATA)
    return PreparedTransaction([batch], [DOUBT], was_given)


def test_what_is_committed_has_the_ts_of_the_decision() -> None:
    held = PreparedTransactions()
    assert not held
    held.hold(XID, prepared())
    assert held
    changes, doubts = held.take(XID, ()).decided("COMMIT", 40)
    assert not held
    (batch,) = changes
    assert batch.records.column("_ts").to_pylist() == [40, 40]
    assert (batch.header.min_ts, batch.header.max_ts) == (40, 40)
    assert doubts == [DOUBT]


@pytest.mark.parametrize(("was_given", "doubts"), [(False, ()), (True, [DOUBT])])
def test_of_what_is_rolled_back_only_pieces_that_were_given_are_doubted(was_given: bool, doubts: object) -> None:
    assert prepared(was_given=was_given).decided("ROLLBACK", 40) == ([], doubts)


def test_one_that_nobody_knows_doubts_every_table_where_it_is_committed() -> None:
    held = PreparedTransactions()
    held.hold(XID, prepared())
    unknown = held.take((b"other", b"", 1), [TABLE])
    changes, doubts = unknown.decided("COMMIT", 40)
    assert (changes, [d.table_id for d in doubts]) == ([], [TABLE.table_id])
    assert unknown.decided("ROLLBACK", 40) == ([], ())
