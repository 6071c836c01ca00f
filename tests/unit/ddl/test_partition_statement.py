"""What DDLs say about partitions."""

import pytest

from penstock.ddl.partition_statement import PartitionChange, PartitionDdl, parse_partition_ddl, take_clause
from penstock.model.errors import PenstockError


def test_a_clause_is_taken_from_a_create_table_and_from_nothing_else() -> None:
    create = "CREATE TABLE d.p (id INT PRIMARY KEY, t VARCHAR(40) DEFAULT ') PARTITION BY HASH (id) PARTITIONS 9')"
    assert take_clause(create) == (create, ())
    ranges = " PARTITION BY RANGE (id) (PARTITION `a,b` VALUES LESS THAN (9), /* PARTITION x VALUES */ partition c values in (1))"
    assert take_clause(create + ranges) == (create, ("a,b", "c"))
    assert take_clause(create + " ENGINE=InnoDB partition by hash (id) partitions 3") == (create + " ENGINE=InnoDB", ("p0", "p1", "p2"))
    with pytest.raises(PenstockError):
        take_clause(create + " PARTITION BY HASH (id) PARTITIONS 0")


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("ALTER TABLE d.p DROP PARTITION a, `b;c` ;", (PartitionChange.DROP, "d", "p", ("a", "b;c"))),
        ("alter table d.p truncate partition a -- x", (PartitionChange.TRUNCATE, "d", "p", ("a",))),
        ("ALTER TABLE d.p ADD PARTITION (PARTITION c VALUES IN (1))", (PartitionChange.ADD, "d", "p", (), ("c",))),
        (
            "ALTER TABLE d.p REORGANIZE PARTITION a, b INTO (PARTITION ab VALUES LESS THAN (5))",
            (PartitionChange.REORGANIZE, "d", "p", ("a", "b"), ("ab",)),
        ),
        (
            "ALTER TABLE `d`.p EXCHANGE PARTITION b WITH TABLE d.`o o` WITHOUT VALIDATION",
            (PartitionChange.EXCHANGE, "d", "p", ("b",), (), ("d", "o o")),
        ),
        ("ALTER TABLE d.p ADD x INT", None),
        ("CREATE TABLE d.p (id INT)", None),
    ],
)
def test_alterations(query: str, expected: tuple[object, ...] | None) -> None:
    assert parse_partition_ddl(query) == (None if expected is None else PartitionDdl(*expected))
