"""Which directories belong to a partitioned table after its DDLs."""

import pytest

from penstock.format.layout.partition_record import (
    PartitionRecord,
    is_partition_record,
    parse_partition_record,
    visible_partitions,
)
from penstock.model.errors import PenstockError


def record(version: int, live: tuple[int, ...], made: tuple[int, ...] = (), dropped: tuple[int, ...] = (), inherits: bool = False):
    return PartitionRecord("shop", "orders", version, live, made, dropped, inherits)


def test_a_record_is_read_back_from_where_it_lies() -> None:
    written = record(9, (12, 11), (12,), (10,))
    assert written.path.endswith("/00000000000000000009_11.json")
    assert is_partition_record(written.path)
    assert not is_partition_record("shop/orders/9/11.json")
    assert parse_partition_record(written.render(), written.path) == written
    with pytest.raises(PenstockError, match="FILE_MALFORMED"):
        parse_partition_record(written.render()[:-5], written.path)


def test_rows_of_what_was_put_together_stay_and_rows_of_what_was_dropped_go() -> None:
    first = record(5, (1, 2, 3))
    joined = record(7, (3, 4), made=(4,), dropped=(1, 2), inherits=True)
    again = record(8, (3, 5), made=(5,), dropped=(4,), inherits=True)
    dropped = record(9, (3,), dropped=(5,))
    assert visible_partitions([]) is None
    assert visible_partitions([first]) == {1, 2, 3}
    assert visible_partitions([joined, first]) == {1, 2, 3, 4}
    assert visible_partitions([again, joined, first]) == {1, 2, 3, 4, 5}
    assert visible_partitions([first, joined, again, dropped]) == {3}
