"""What statements do to tables and their rows, as applications run them: followed, or doubted. The server's own rows are the oracle."""

import pytest

from penstock.source.postgres.upstream import PostgresUpstream
from testing.servers.databases.postgres_followed import QUICK, FollowedTables, run_both_ways
from testing.servers.databases.postgres_lab import read_until

pytestmark = pytest.mark.integration

T = "CREATE TABLE shop.t (id int PRIMARY KEY, a int, b int); INSERT INTO shop.t VALUES (1, 10, 100), (2, 20, 200);"
AFTER = "INSERT INTO shop.t VALUES (9, 90, 900)"
IDENTITY = {
    "reload_and_swap": (
        "CREATE TABLE shop.s (id int PRIMARY KEY, v text); INSERT INTO shop.s VALUES (1, 'old')",
        [
            "BEGIN; CREATE TABLE shop.s_new (id int PRIMARY KEY, v text); INSERT INTO shop.s_new VALUES (1, 'new'), (2, 'new');"
            "DROP TABLE shop.s; ALTER TABLE shop.s_new RENAME TO s; COMMIT",
            "INSERT INTO shop.s VALUES (3, 'after')",
            "INSERT INTO shop.s VALUES (4, 'later')",
        ],
    ),
    "reload_and_swap_keeping_the_old": (
        "CREATE TABLE shop.s (id int PRIMARY KEY, v text); INSERT INTO shop.s VALUES (1, 'old')",
        [
            "CREATE TABLE shop.s_new (id int PRIMARY KEY, v text); INSERT INTO shop.s_new VALUES (1, 'new'), (2, 'new')",
            "BEGIN; ALTER TABLE shop.s RENAME TO s_old; ALTER TABLE shop.s_new RENAME TO s; COMMIT",
            "INSERT INTO shop.s VALUES (3, 'after')",
            "INSERT INTO shop.s_old VALUES (4, 'later')",
        ],
    ),
    "swap_of_two": (
        "CREATE TABLE shop.a (id int PRIMARY KEY, v text); CREATE TABLE shop.b (id int PRIMARY KEY, v text);"
        "INSERT INTO shop.a VALUES (1, 'a'); INSERT INTO shop.b VALUES (1, 'b'), (2, 'b')",
        [
            "BEGIN; ALTER TABLE shop.a RENAME TO tmp; ALTER TABLE shop.b RENAME TO a; ALTER TABLE shop.tmp RENAME TO b; COMMIT",
            "INSERT INTO shop.a VALUES (5, 'into a'); INSERT INTO shop.b VALUES (6, 'into b')",
        ],
    ),
    "swap_of_two_with_rows_inside": (
        "CREATE TABLE shop.a (id int PRIMARY KEY, v text); CREATE TABLE shop.b (id int PRIMARY KEY, v text);"
        "INSERT INTO shop.a VALUES (1, 'a'); INSERT INTO shop.b VALUES (1, 'b'), (2, 'b')",
        [
            "BEGIN; INSERT INTO shop.a VALUES (3, 'before'); INSERT INTO shop.b VALUES (4, 'before');"
            "ALTER TABLE shop.a RENAME TO tmp; ALTER TABLE shop.b RENAME TO a; ALTER TABLE shop.tmp RENAME TO b;"
            "INSERT INTO shop.a VALUES (5, 'into a'); INSERT INTO shop.b VALUES (6, 'into b'); COMMIT",
        ],
    ),
    "ring_of_three": (
        "CREATE TABLE shop.a (id int PRIMARY KEY); CREATE TABLE shop.b (id int PRIMARY KEY); CREATE TABLE shop.c (id int PRIMARY KEY);"
        "INSERT INTO shop.a VALUES (1); INSERT INTO shop.b VALUES (2); INSERT INTO shop.c VALUES (3)",
        [
            "BEGIN; ALTER TABLE shop.a RENAME TO tmp; ALTER TABLE shop.b RENAME TO a; ALTER TABLE shop.c RENAME TO b;"
            "ALTER TABLE shop.tmp RENAME TO c; COMMIT",
            "INSERT INTO shop.b VALUES (30)",
            "INSERT INTO shop.a VALUES (20); INSERT INTO shop.c VALUES (10)",
        ],
    ),
    "a_name_used_three_times": (
        "CREATE TABLE shop.t1 (a int PRIMARY KEY, b int); INSERT INTO shop.t1 VALUES (1, 1)",
        [
            "INSERT INTO shop.t1 VALUES (2, 2); ALTER TABLE shop.t1 RENAME TO t1_old",
            "CREATE TABLE shop.t1 (a int PRIMARY KEY); INSERT INTO shop.t1 VALUES (3); ALTER TABLE shop.t1 RENAME TO t1_old2",
            "CREATE TABLE shop.t1 (a int PRIMARY KEY); INSERT INTO shop.t1 VALUES (4)",
        ],
    ),
    "drop_and_create": (
        "CREATE TABLE shop.t (id int PRIMARY KEY, v text); INSERT INTO shop.t VALUES (1, 'old'), (2, 'old')",
        [
            "DROP TABLE shop.t; CREATE TABLE shop.t (id int PRIMARY KEY, n int); INSERT INTO shop.t VALUES (1, 5)",
            "BEGIN; DROP TABLE shop.t; CREATE TABLE shop.t (id int PRIMARY KEY, v text); INSERT INTO shop.t VALUES (7, 'x'); COMMIT",
            "INSERT INTO shop.t VALUES (8, 'y')",
        ],
    ),
    "an_idle_table_is_renamed": (T, ["ALTER TABLE shop.t RENAME TO moved"]),
    "an_idle_swap": (
        "CREATE TABLE shop.a (id int PRIMARY KEY); CREATE TABLE shop.b (id int PRIMARY KEY); INSERT INTO shop.a VALUES (1)",
        ["BEGIN; ALTER TABLE shop.a RENAME TO x; ALTER TABLE shop.b RENAME TO a; ALTER TABLE shop.x RENAME TO b; COMMIT"],
    ),
    "there_with_a_row_and_back_without": (
        "CREATE TABLE shop.a (id int PRIMARY KEY); INSERT INTO shop.a VALUES (1)",
        [
            "INSERT INTO shop.a VALUES (2)",
            "ALTER TABLE shop.a RENAME TO b; INSERT INTO shop.b VALUES (3)",
            "ALTER TABLE shop.b RENAME TO a",
        ],
    ),
    # Behind the root's name stands only the relation of the partition that got the row: the server describes it anew for no other.
    "partitions_under_a_name_that_another_table_takes": (
        "CREATE TABLE shop.p (id int PRIMARY KEY) PARTITION BY RANGE (id);"
        "CREATE TABLE shop.p1 PARTITION OF shop.p FOR VALUES FROM (0) TO (10);"
        "CREATE TABLE shop.p2 PARTITION OF shop.p FOR VALUES FROM (10) TO (20); INSERT INTO shop.p VALUES (1), (11)",
        [
            "INSERT INTO shop.p VALUES (2)",
            "BEGIN; ALTER TABLE shop.p RENAME TO q; INSERT INTO shop.q VALUES (12); ALTER TABLE shop.q RENAME TO p; COMMIT;"
            "CREATE TABLE shop.q (id int PRIMARY KEY); INSERT INTO shop.q VALUES (100)",
            "INSERT INTO shop.p VALUES (3), (13); INSERT INTO shop.q VALUES (101)",
        ],
    ),
    "there_and_back": (
        "CREATE TABLE shop.a (id int PRIMARY KEY); CREATE TABLE shop.b (id int PRIMARY KEY)",
        [
            "BEGIN; ALTER TABLE shop.a RENAME TO x; ALTER TABLE shop.b RENAME TO a; ALTER TABLE shop.x RENAME TO b; COMMIT;"
            "INSERT INTO shop.a VALUES (1); INSERT INTO shop.b VALUES (2);"
            "BEGIN; ALTER TABLE shop.a RENAME TO x; ALTER TABLE shop.b RENAME TO a; ALTER TABLE shop.x RENAME TO b; COMMIT",
            "INSERT INTO shop.a VALUES (3); INSERT INTO shop.b VALUES (4)",
        ],
    ),
}
"""Tables under names that come and go: rows are right at every look."""


@pytest.mark.parametrize("live", [True, False], ids=["live", "behind"])
@pytest.mark.parametrize("case", IDENTITY)
def test_a_table_is_followed_by_its_identity(lab, upstream, case, live):
    setup, statements = IDENTITY[case]
    followed = run_both_ways(lab, f"?slot={upstream.address.slot}", setup, statements, live)
    assert followed.wrong() == {}


ROWS_RIGHT = {
    "default_set_later": ["ALTER TABLE shop.t ADD c int; ALTER TABLE shop.t ALTER c SET DEFAULT 7", "INSERT INTO shop.t VALUES (9)"],
    "default_changed_later": [
        "ALTER TABLE shop.t ADD c int DEFAULT 5; ALTER TABLE shop.t ALTER c SET DEFAULT 9",
        "INSERT INTO shop.t VALUES (9)",
    ],
    "default_dropped": [
        "ALTER TABLE shop.t ADD c int NOT NULL DEFAULT 5; ALTER TABLE shop.t ALTER c DROP DEFAULT",
        "INSERT INTO shop.t VALUES (9, 1, 1, 1)",
    ],
    "default_of_now": ["ALTER TABLE shop.t ADD c timestamptz DEFAULT now()", "INSERT INTO shop.t VALUES (9)"],
    "default_of_a_sum": ["ALTER TABLE shop.t ADD c int DEFAULT 2 + 3, ADD d text DEFAULT upper('x')", "INSERT INTO shop.t VALUES (9)"],
    "default_of_text_bytes": ["ALTER TABLE shop.t ADD c bytea DEFAULT '\\x4142'", "INSERT INTO shop.t VALUES (9)"],
    "default_of_numeric": ["ALTER TABLE shop.t ADD c numeric(8,2) DEFAULT 1.5, ADD d char(4) DEFAULT 'x'", "INSERT INTO shop.t VALUES (9)"],
    "default_of_many_types": [
        "ALTER TABLE shop.t ADD c bool DEFAULT true, ADD d float8 DEFAULT 0.1, ADD e date DEFAULT '2020-01-01',"
        "ADD f int[] DEFAULT '{1,2}',"
        "ADD g jsonb DEFAULT '{\"a\": \"b, c\"}', ADD h timestamp(3) DEFAULT '2020-01-01 00:00:00.5', ADD i interval DEFAULT '1 day',"
        "ADD j text DEFAULT E'it''s \"x\" {y} \\\\ z', ADD k text DEFAULT '', ADD l uuid DEFAULT 'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11'",
        "INSERT INTO shop.t VALUES (9)",
    ],
    "swapped_columns": [
        "ALTER TABLE shop.t RENAME a TO x; ALTER TABLE shop.t RENAME b TO a; ALTER TABLE shop.t RENAME x TO b",
        "INSERT INTO shop.t VALUES (9, 90, 900)",
    ],
    "renamed_column": ["ALTER TABLE shop.t RENAME a TO x", "INSERT INTO shop.t VALUES (9, 90, 900)"],
    "idle_columns": ["ALTER TABLE shop.t ADD c text DEFAULT 'x'; ALTER TABLE shop.t DROP a; ALTER TABLE shop.t RENAME b TO bb"],
    "widened_text": ["ALTER TABLE shop.v ALTER v TYPE varchar(40)", "INSERT INTO shop.v VALUES (9, 'nine')"],
    "dropped_column": ["ALTER TABLE shop.t DROP a", "INSERT INTO shop.t VALUES (9, 900)"],
}
"""Statements after which the rows are right without another look at them."""
ROWS_DOUBTED = {
    # The new column may have had the old one's name for a while, and rows of it were told under that.
    "a_column_for_another_of_its_type": ["ALTER TABLE shop.t ADD c int DEFAULT 3; ALTER TABLE shop.t DROP a"],
    "dropped_added_and_renamed": [
        "ALTER TABLE shop.t DROP b; ALTER TABLE shop.t ADD b int; INSERT INTO shop.t VALUES (9, 90, 900); ALTER TABLE shop.t RENAME b TO c",
        "INSERT INTO shop.t VALUES (10, 91, 901)",
    ],
    "uuid": ["ALTER TABLE shop.t ADD c uuid DEFAULT gen_random_uuid()", "INSERT INTO shop.t VALUES (9)"],
    "serial": ["ALTER TABLE shop.t ADD c bigserial", "INSERT INTO shop.t VALUES (9)"],
    "identity": ["ALTER TABLE shop.t ADD c int GENERATED ALWAYS AS IDENTITY", "INSERT INTO shop.t VALUES (9)"],
    "bytes_that_are_no_text": ["ALTER TABLE shop.t ADD g bytea DEFAULT '\\x00ff'", "INSERT INTO shop.t VALUES (9)"],
    "moments_that_readers_do_not_know": [
        "ALTER TABLE shop.t ADD c timestamptz DEFAULT 'infinity', ADD d date DEFAULT '0044-03-15 BC'",
        "INSERT INTO shop.t VALUES (9)",
    ],
    "a_text_that_looks_like_a_call": ["ALTER TABLE shop.t ADD c text DEFAULT 'now()'", "INSERT INTO shop.t VALUES (9)"],
    "bytes_that_look_like_digits": ["ALTER TABLE shop.t ADD c bytea DEFAULT '0x41'", "INSERT INTO shop.t VALUES (9)"],
    "a_moment_where_values_name_rows": [
        "ALTER TABLE shop.h REPLICA IDENTITY FULL; ALTER TABLE shop.h ADD c timestamptz DEFAULT '2020-01-01 00:00:00.5+00'",
        "DELETE FROM shop.h WHERE v = 'x'",
    ],
    "dropped_and_added_again": ["ALTER TABLE shop.t DROP b; ALTER TABLE shop.t ADD b int", "INSERT INTO shop.t VALUES (9, 90, 900)"],
    "dropped_and_added_idle": ["ALTER TABLE shop.t DROP b; ALTER TABLE shop.t ADD b int"],
    "using": ["ALTER TABLE shop.t ALTER a TYPE int USING a * 100", "INSERT INTO shop.t VALUES (9, 90, 900)"],
    "using_idle": ["ALTER TABLE shop.t ALTER a TYPE int USING a * 100"],
    "narrowed": ["ALTER TABLE shop.n ALTER v TYPE numeric(10,1)", "INSERT INTO shop.n VALUES (9, 1.5)"],
    "cut": ["ALTER TABLE shop.v ALTER v TYPE varchar(3) USING left(v, 3)", "INSERT INTO shop.v VALUES (9, 'new')"],
    "other_type": ["ALTER TABLE shop.t ALTER a TYPE text", "INSERT INTO shop.t VALUES (9, 'x', 900)"],
    "other_key": [
        "ALTER TABLE shop.t DROP CONSTRAINT t_pkey; ALTER TABLE shop.t ADD PRIMARY KEY (a)",
        "INSERT INTO shop.t VALUES (9, 90, 900)",
    ],
    "renamed_label": ["ALTER TYPE shop.mood RENAME VALUE 'ok' TO 'fine'", "INSERT INTO shop.e VALUES (9, 'fine')"],
    "vacuum_full": ["VACUUM FULL shop.t"],
    "no_key_then_identity": [
        "ALTER TABLE shop.h ADD COLUMN id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY",
        "INSERT INTO shop.h VALUES ('again')",
    ],
    "unlogged_and_back": [
        "ALTER TABLE shop.t SET UNLOGGED; INSERT INTO shop.t VALUES (5, 5, 5); ALTER TABLE shop.t SET LOGGED",
        "INSERT INTO shop.t VALUES (9, 90, 900)",
    ],
    "unlogged": ["ALTER TABLE shop.t SET UNLOGGED"],
    "logged_late": [
        "CREATE UNLOGGED TABLE shop.u (id int PRIMARY KEY); INSERT INTO shop.u VALUES (1), (2); ALTER TABLE shop.u SET LOGGED",
        "INSERT INTO shop.u VALUES (9)",
    ],
    "partition_dropped": ["DROP TABLE shop.p1"],
    "partition_truncated": ["TRUNCATE shop.p1"],
    "partition_attached": [
        "CREATE TABLE shop.p3 (id int PRIMARY KEY, v int); INSERT INTO shop.p3 VALUES (25, 25);"
        "ALTER TABLE shop.p ATTACH PARTITION shop.p3 FOR VALUES FROM (20) TO (30)",
        "INSERT INTO shop.p VALUES (26, 26)",
    ],
    "partition_attached_at_once": [
        "BEGIN; CREATE TABLE shop.p3 (id int PRIMARY KEY, v int); INSERT INTO shop.p3 VALUES (25, 25);"
        "ALTER TABLE shop.p ATTACH PARTITION shop.p3 FOR VALUES FROM (20) TO (30); COMMIT",
        "INSERT INTO shop.p VALUES (26, 26)",
    ],
    "partition_detached": ["ALTER TABLE shop.p DETACH PARTITION shop.p1", "UPDATE shop.p1 SET v = 7", "INSERT INTO shop.p VALUES (11, 11)"],
    # A rename writes a table's type anew, as its birth does.
    "made_partitioned_at_once": [
        "BEGIN; ALTER TABLE shop.t RENAME TO legacy; CREATE TABLE shop.t (id int PRIMARY KEY, a int, b int) PARTITION BY RANGE (id);"
        "ALTER TABLE shop.t ATTACH PARTITION shop.legacy FOR VALUES FROM (0) TO (10); COMMIT"
    ],
    "partition_detached_and_renamed_at_once": [
        "BEGIN; ALTER TABLE shop.p DETACH PARTITION shop.p1; ALTER TABLE shop.p1 RENAME TO old_p1; COMMIT"
    ],
    "key_with_a_generated_column": [
        "CREATE TABLE shop.g (a int, c int, b int GENERATED ALWAYS AS (c * 2) STORED, PRIMARY KEY (a, b));"
        "INSERT INTO shop.g VALUES (1, 1), (1, 2)",
        "UPDATE shop.g SET c = 7 WHERE c = 1; DELETE FROM shop.g WHERE c = 2",
    ],
    "partition_that_names_rows_by_another_index": [
        "CREATE UNIQUE INDEX by_v ON shop.p1 (v); ALTER TABLE shop.p1 ALTER v SET NOT NULL;"
        "ALTER TABLE shop.p1 REPLICA IDENTITY USING INDEX by_v",
        "UPDATE shop.p SET id = 7 WHERE id = 1; DELETE FROM shop.p WHERE id = 2",
    ],
    "captured_table_attached": [
        "ALTER TABLE shop.p ATTACH PARTITION shop.alone FOR VALUES FROM (50) TO (60)",
        "INSERT INTO shop.p VALUES (51, 51)",
    ],
}
"""Statements whose effect on rows the log does not tell: every table that is not right must be in doubt."""
TABLES = (
    T + "CREATE TABLE shop.v (id int PRIMARY KEY, v varchar(20)); INSERT INTO shop.v VALUES (1, 'abcdef');"
    "CREATE TABLE shop.n (id int PRIMARY KEY, v numeric(10,2)); INSERT INTO shop.n VALUES (1, 1.25);"
    "CREATE TYPE shop.mood AS ENUM ('ok', 'bad'); CREATE TABLE shop.e (id int PRIMARY KEY, m shop.mood);"
    "INSERT INTO shop.e VALUES (1, 'ok');"
    "CREATE TABLE shop.h (v text); INSERT INTO shop.h VALUES ('x'), ('y'), ('y');"
    "CREATE TABLE shop.alone (id int PRIMARY KEY, v int); INSERT INTO shop.alone VALUES (55, 55);"
    "CREATE TABLE shop.p (id int PRIMARY KEY, v int) PARTITION BY RANGE (id);"
    "CREATE TABLE shop.p1 PARTITION OF shop.p FOR VALUES FROM (0) TO (10);"
    "CREATE TABLE shop.p2 PARTITION OF shop.p FOR VALUES FROM (10) TO (20); INSERT INTO shop.p VALUES (1, 1), (2, 2), (12, 12)"
)


@pytest.mark.parametrize("live", [True, False], ids=["live", "behind"])
@pytest.mark.parametrize("case", ROWS_RIGHT)
def test_rows_that_exist_are_what_the_statement_made_of_them(lab, upstream, case, live):
    followed = run_both_ways(lab, f"?slot={upstream.address.slot}", TABLES, ROWS_RIGHT[case], live)
    assert followed.wrong() == {}
    assert followed.doubts == []


@pytest.mark.parametrize("live", [True, False], ids=["live", "behind"])
@pytest.mark.parametrize("case", ROWS_DOUBTED)
def test_rows_that_the_log_does_not_tell_are_doubted(lab, upstream, case, live):
    followed = run_both_ways(lab, f"?slot={upstream.address.slot}", TABLES, ROWS_DOUBTED[case], live)
    assert followed.doubts
    assert followed.wrong().keys() <= followed.doubted()


MORE = {
    # Messages say that its old rows are whole, and they are not.
    "partition_by_key_of_a_full_table": [
        "ALTER TABLE shop.p ADD big text; ALTER TABLE shop.p1 ALTER big SET STORAGE EXTERNAL; ALTER TABLE shop.p REPLICA IDENTITY FULL;"
        "INSERT INTO shop.p VALUES (3, 3, repeat('x', 9000))",
        "UPDATE shop.p SET id = 4 WHERE id = 3; DELETE FROM shop.p WHERE id = 1",
    ],
    "ctas": ["CREATE TABLE shop.c AS SELECT * FROM shop.t", "INSERT INTO shop.c VALUES (3, 3, 3)"],
    "like_all": ["CREATE TABLE shop.l (LIKE shop.t INCLUDING ALL); INSERT INTO shop.l SELECT * FROM shop.t", "UPDATE shop.l SET a = 0"],
    "truncate_and_reload": ["BEGIN; TRUNCATE shop.t; ALTER TABLE shop.t ADD c int DEFAULT 4; INSERT INTO shop.t VALUES (5, 5, 5); COMMIT"],
    "generated_then_plain": [
        "ALTER TABLE shop.t ADD g int GENERATED ALWAYS AS (a * 2) STORED",
        "ALTER TABLE shop.t ALTER g DROP EXPRESSION; INSERT INTO shop.t VALUES (10, 1, 1, 5)",
    ],
    "domain_with_a_default": ["CREATE DOMAIN shop.d AS int DEFAULT 8; ALTER TABLE shop.t ADD c shop.d", "INSERT INTO shop.t VALUES (9)"],
    "array_of_an_enum": [
        "CREATE TABLE shop.ea (id int PRIMARY KEY, m shop.mood[]); INSERT INTO shop.ea VALUES (1, '{ok}')",
        "ALTER TYPE shop.mood RENAME VALUE 'ok' TO 'fine'",
    ],
    "key_dropped": [
        "ALTER TABLE shop.t REPLICA IDENTITY FULL; ALTER TABLE shop.t DROP CONSTRAINT t_pkey",
        "INSERT INTO shop.t VALUES (9, 9, 9); DELETE FROM shop.t WHERE id = 1",
    ],
    "key_renamed": ["ALTER TABLE shop.t RENAME id TO ident", "UPDATE shop.t SET a = 0 WHERE ident = 1"],
    "rebuilt_and_swapped": [
        "BEGIN; CREATE TABLE shop.x AS SELECT id, a + 1 AS a, b FROM shop.t; ALTER TABLE shop.x ADD PRIMARY KEY (id);"
        "ALTER TABLE shop.t RENAME TO o; ALTER TABLE shop.x RENAME TO t; DROP TABLE shop.o; COMMIT",
        "UPDATE shop.t SET a = a + 1",
    ],
    "rolled_back_ddl": [
        "BEGIN; SAVEPOINT s; ALTER TABLE shop.t ADD c int; INSERT INTO shop.t VALUES (8, 8, 8, 8); ROLLBACK TO s;"
        "INSERT INTO shop.t VALUES (9, 9, 9); COMMIT"
    ],
    "column_that_came_and_went_with_rows": [
        "ALTER TABLE shop.t ADD c int DEFAULT 5; INSERT INTO shop.t VALUES (3, 3, 3, 33); ALTER TABLE shop.t DROP c;"
        "ALTER TABLE shop.t ADD c int DEFAULT 9; INSERT INTO shop.t VALUES (4, 4, 4, 44)"
    ],
    "partitions_and_columns": [
        "CREATE TABLE shop.p4 PARTITION OF shop.p FOR VALUES FROM (30) TO (40); INSERT INTO shop.p VALUES (33, 33)",
        "UPDATE shop.p SET id = 34 WHERE id = 1; ALTER TABLE shop.p ADD c int DEFAULT 3",
        "INSERT INTO shop.p VALUES (3, 1)",
    ],
    "names_passed_on_twice": [
        "ALTER TABLE shop.t RENAME TO w; ALTER TABLE shop.n RENAME TO t; INSERT INTO shop.t VALUES (2); INSERT INTO shop.w VALUES (3)",
        "ALTER TABLE shop.t RENAME TO n; ALTER TABLE shop.w RENAME TO t; INSERT INTO shop.t VALUES (4)",
    ],
    "odd_names": [
        'ALTER TABLE shop.t RENAME TO "A ""b`"; ALTER TABLE shop."A ""b`" ADD "new ""col" int DEFAULT 5',
        'INSERT INTO shop."A ""b`" VALUES (2222)',
    ],
    "moment_with_zone": [
        "CREATE TABLE shop.m (id int PRIMARY KEY, v timestamp); INSERT INTO shop.m VALUES (1, '2020-01-01 10:00')",
        "ALTER TABLE shop.m ALTER v TYPE timestamptz",
    ],
}
"""What else applications run: right, or doubted."""


@pytest.mark.parametrize("case", MORE)
def test_what_else_applications_run(lab, upstream, case):
    followed = run_both_ways(lab, f"?slot={upstream.address.slot}", TABLES, MORE[case], live=False)
    assert followed.wrong().keys() <= followed.doubted()


def test_what_happened_while_nobody_read_is_doubted_after_a_restart(lab, upstream):
    lab.sql(TABLES)
    lab.sql("VACUUM FULL shop.v")
    first = FollowedTables(lab, upstream)
    first.begin()
    first.follow()
    versions = [v for t in upstream.list_tables() for v in upstream.schema_history(t.table_id)]
    upstream.close()
    lab.sql("ALTER TABLE shop.t ALTER a TYPE int USING a * 100; TRUNCATE shop.p1; ALTER TABLE shop.n ADD c int DEFAULT 5")
    lab.sql("CREATE TABLE shop.p9 (LIKE shop.p); INSERT INTO shop.p9 VALUES (95, 95)")
    lab.sql("ALTER TABLE shop.p ATTACH PARTITION shop.p9 FOR VALUES FROM (90) TO (99)")
    again = PostgresUpstream(f"{lab.uri}?slot={upstream.address.slot}", QUICK)
    try:
        again.adopt_schemas(versions)
        second = FollowedTables(lab, again)
        second.resume(first)
        second.follow()
    finally:
        again.close()
    assert second.doubted() == {"t", "p"}
    assert second.wrong().keys() == {"t", "p"}, "a column with a constant default is no reason to read a table again"


def test_a_doubt_waits_until_somebody_captures_the_table(lab, upstream):
    """Spans join a reader one after the other: what it read before they did is read again, and doubts with it."""
    lab.sql(TABLES)
    quick = PostgresUpstream(f"{lab.uri}?slot={upstream.address.slot}", QUICK)
    try:
        followed = FollowedTables(lab, quick)
        followed.begin()
        lab.sql("ALTER TABLE shop.t ALTER a TYPE int USING a * 100; INSERT INTO shop.t VALUES (9, 90, 900)")
        lab.sql("CREATE TABLE shop.fresh (id int PRIMARY KEY); INSERT INTO shop.fresh VALUES (1)")
        steps = read_until(quick, followed.position, quick.log_end(), wanted=lambda _: False)
        assert not [d for s in steps for d in s.doubts]
        told = [d for s in steps for d in s.ddls]
        followed.follow()
        assert followed.doubted() == {"t"} == followed.wrong().keys()
        assert [d for d in followed.ddls if d.tables[0].table == "fresh"] == [d for d in told if d.tables[0].table == "fresh"]
    finally:
        quick.close()
