"""One table of a PostgreSQL source never stops another: what cannot be followed is doubted alone. Row-level security is never silent."""

import contextlib
import threading

import pytest

from penstock.model.errors import PenstockError
from penstock.model.span import Span
from penstock.source.postgres.upstream import PostgresUpstream
from penstock.source.postgres.wire.address import parse_address
from testing.servers.databases.postgres_answers import table_of
from testing.servers.databases.postgres_followed import QUICK, FollowedTables, run_both_ways

pytestmark = pytest.mark.integration
SEED = "CREATE TABLE shop.seed (id int PRIMARY KEY); INSERT INTO shop.seed VALUES (1);"
TOAST = (
    SEED + "CREATE TABLE shop.t (id int PRIMARY KEY, s int, big text); ALTER TABLE shop.t ALTER big SET STORAGE EXTERNAL;"
    "INSERT INTO shop.t VALUES (1, 1, repeat('x', 9000))"
)


@pytest.fixture
def guest(lab, upstream):
    """Return the options and URI of a user who owns nothing, and that user's upstream."""
    lab.sql("DROP ROLE IF EXISTS cdc; CREATE ROLE cdc LOGIN REPLICATION PASSWORD 'x'; GRANT USAGE ON SCHEMA shop TO cdc")
    upstream.first_position()
    address = parse_address(lab.uri)
    guest = PostgresUpstream(f"postgresql://cdc:x@{address.host}:{address.port}/{address.database}?slot={upstream.address.slot}", QUICK)
    yield guest
    guest.close()
    lab.sql("DROP OWNED BY cdc; DROP ROLE cdc")


@pytest.mark.parametrize("live", [True, False], ids=["live", "behind"])
def test_more_shapes_than_a_transaction_has_room_for(lab, upstream, live):
    setup = SEED + "CREATE TABLE shop.t (id int PRIMARY KEY); INSERT INTO shop.t VALUES (1)"
    shapes = "".join(f"ALTER TABLE shop.t ADD c{n} int; INSERT INTO shop.t VALUES ({n + 10});" for n in range(9))
    statements = [f"BEGIN; {shapes} COMMIT", "INSERT INTO shop.seed VALUES (2)", "INSERT INTO shop.t VALUES (99)"]
    followed = run_both_ways(lab, f"?slot={upstream.address.slot}", setup, statements, live)
    assert followed.doubted() == {"t"}
    assert followed.wrong().keys() <= {"t"}
    assert [c.name for c in followed.tables["t"].schema.columns] == ["id", *(f"c{n}" for n in range(9))]


def test_a_dropped_column_that_an_update_had_left_in_place(lab, upstream):
    statements = [
        "UPDATE shop.t SET s = 2; ALTER TABLE shop.t DROP big; UPDATE shop.t SET s = 3 WHERE id = 1; INSERT INTO shop.seed VALUES (2)",
        "UPDATE shop.t SET s = 4",
    ]
    followed = run_both_ways(lab, f"?slot={upstream.address.slot}", TOAST, statements, live=False)
    assert followed.wrong() == {}


def test_a_dropped_table_whose_last_update_had_left_a_value_in_place(lab, upstream):
    statements = ["UPDATE shop.t SET s = 2; DROP TABLE shop.t; INSERT INTO shop.seed VALUES (2)"]
    followed = run_both_ways(lab, f"?slot={upstream.address.slot}", TOAST, statements, live=False)
    assert followed.wrong() == {}


def test_a_table_that_may_not_be_read_is_doubted_and_the_others_go_on(lab, upstream, guest):
    lab.sql(TOAST)
    lab.sql("GRANT SELECT ON ALL TABLES IN SCHEMA shop TO cdc")
    followed = FollowedTables(lab, guest)
    followed.begin()
    lab.sql("REVOKE SELECT ON shop.t FROM cdc; UPDATE shop.t SET s = 2; INSERT INTO shop.seed VALUES (2)")
    followed.follow()
    assert followed.wrong().keys() == {"t"}
    (doubt,) = {(d.table, d.code, d.hint) for d in followed.doubts}
    assert doubt[:2] == ("t", "UPSTREAM_REFUSED")
    assert 'GRANT SELECT ON "shop"."t" TO "cdc"' in doubt[2]
    lab.sql("INSERT INTO shop.seed VALUES (3); INSERT INTO shop.t VALUES (5, 5, 'short')")
    followed.follow()
    assert followed.wrong().keys() == {"t"}
    assert len(followed.tables["t"].rows) == 2, "rows that can be decoded go on"


def test_a_policy_that_hides_rows_is_an_error_and_not_a_smaller_table(lab, upstream, guest):
    lab.sql("CREATE TABLE shop.t (id int PRIMARY KEY, tenant text); INSERT INTO shop.t VALUES (1, 't1'), (2, 't2')")
    lab.sql("ALTER TABLE shop.t ENABLE ROW LEVEL SECURITY; CREATE POLICY p ON shop.t USING (tenant = 't1')")
    lab.sql("GRANT SELECT ON ALL TABLES IN SCHEMA shop TO cdc")
    table = table_of(guest)
    ticket = guest.begin_snapshot()
    for reading in (
        lambda: guest.read_snapshot(ticket, Span(table.table_id), table, 10),
        lambda: guest.read_now(Span(table.table_id)),
    ):
        with pytest.raises(PenstockError, match=r"UPSTREAM_REFUSED.*row-level security") as caught:
            list(reading())
        assert "BYPASSRLS" in (caught.value.hint or "")
    lab.sql("ALTER ROLE cdc BYPASSRLS")
    rows = [r["c1"] for b in guest.read_snapshot(ticket, Span(table.table_id), table, 10) for r in b.records.to_pylist()]
    guest.end_snapshot(ticket)
    assert rows == [1, 2]


def test_a_table_that_is_dropped_after_it_was_listed_has_no_rows(lab, upstream):
    lab.sql("CREATE TABLE shop.t (id int PRIMARY KEY); INSERT INTO shop.t VALUES (1)")
    table = table_of(upstream)
    upstream.first_position()
    ticket = upstream.begin_snapshot()
    lab.sql("DROP TABLE shop.t")
    assert len(upstream.divide(Span(table.table_id))) == 1
    assert list(upstream.read_snapshot(ticket, Span(table.table_id), table, 10)) == []
    upstream.end_snapshot(ticket)


def test_rows_of_tables_that_inherit_are_their_own(lab, upstream):
    setup = (
        "CREATE TABLE shop.parent (id int PRIMARY KEY, v int); CREATE TABLE shop.child (PRIMARY KEY (id)) INHERITS (shop.parent);"
        "INSERT INTO shop.parent VALUES (1, 1); INSERT INTO shop.child VALUES (1, 2), (2, 2)"
    )
    followed = run_both_ways(lab, f"?slot={upstream.address.slot}", setup, ["INSERT INTO shop.child VALUES (3, 3)"], live=True)
    assert {name: len(table.rows) for name, table in followed.tables.items()} == {"parent": 1, "child": 3}


DEFERRABLE = SEED + (
    "CREATE TABLE shop.t (id int, v text, PRIMARY KEY (id) DEFERRABLE INITIALLY DEFERRED); ALTER TABLE shop.t REPLICA IDENTITY FULL;"
    "INSERT INTO shop.t VALUES (1, 'a'), (2, 'b'), (3, 'c'), (4, 'd')"
)


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE shop.t SET id = 3 - id WHERE id < 3",
        "UPDATE shop.t SET id = 5 - id",
        "UPDATE shop.t SET id = id % 4 + 1",
        "UPDATE shop.t SET id = id % 4 + 1, v = v || id",
        "BEGIN; INSERT INTO shop.t VALUES (1, 'new'); DELETE FROM shop.t WHERE id = 1 AND v = 'a'; COMMIT",
        "BEGIN; DELETE FROM shop.t WHERE id = 2; INSERT INTO shop.t VALUES (2, 'b'); UPDATE shop.t SET v = 'z' WHERE id = 2; COMMIT",
        "BEGIN; UPDATE shop.t SET id = 9 WHERE id = 1; UPDATE shop.t SET id = 1, v = 'q' WHERE id = 9; COMMIT",
        "BEGIN; INSERT INTO shop.t VALUES (7, 'x'); UPDATE shop.t SET v = 'y' WHERE id = 7; DELETE FROM shop.t WHERE id = 3; COMMIT",
    ],
)
def test_rows_that_change_places_under_a_deferrable_key(lab, upstream, statement):
    followed = run_both_ways(lab, f"?slot={upstream.address.slot}", DEFERRABLE, [statement], live=False)
    assert followed.wrong() == {}


def test_rows_of_one_content_that_change_places_are_doubted(lab, upstream):
    setup = DEFERRABLE.replace("'b'", "'a'")
    followed = run_both_ways(lab, f"?slot={upstream.address.slot}", setup, ["UPDATE shop.t SET id = 3 - id WHERE id < 3"], live=False)
    assert followed.doubted() == {"t"}


def test_what_the_publication_does_not_give_is_doubted(lab, upstream):
    lab.sql(
        SEED + "CREATE TABLE shop.t (id int PRIMARY KEY, v int); CREATE TABLE shop.u (id int PRIMARY KEY);"
        "CREATE TABLE shop.w (id int PRIMARY KEY)"
    )
    lab.sql("INSERT INTO shop.t VALUES (1, 1), (7, 7); CREATE PUBLICATION few FOR TABLE shop.seed, shop.t, shop.w")
    some = PostgresUpstream(f"{lab.uri}?slot={upstream.address.slot}&publication=few", QUICK)
    try:
        followed = FollowedTables(lab, some)
        followed.begin()
        lab.sql("INSERT INTO shop.u VALUES (1); INSERT INTO shop.seed VALUES (2)")
        followed.follow()
        lab.sql("ALTER PUBLICATION few ADD TABLE shop.u; INSERT INTO shop.u VALUES (2); ALTER PUBLICATION few DROP TABLE shop.w")
        followed.follow()
        assert followed.doubted() == followed.wrong().keys() | {"w"} == {"u", "w"}
        assert {(d.code, "ADD TABLE" in d.hint) for d in followed.doubts if d.table == "w"} == {("UPSTREAM_MISCONFIGURED", True)}
        lab.sql("ALTER PUBLICATION few SET TABLE shop.seed, shop.u, shop.t WHERE (id < 5)")
        followed.follow()
        assert followed.doubted() == {"t", "u", "w"}
    finally:
        some.close()
        lab.sql("DROP PUBLICATION few")


def test_a_partition_that_is_not_logged_keeps_its_table_from_being_taken_for_right(lab, upstream):
    lab.sql(SEED + "CREATE TABLE shop.p (id int PRIMARY KEY) PARTITION BY RANGE (id)")
    lab.sql("CREATE UNLOGGED TABLE shop.p1 PARTITION OF shop.p DEFAULT")
    quick = PostgresUpstream(f"{lab.uri}?slot={upstream.address.slot}", QUICK)
    try:
        followed = FollowedTables(lab, quick)
        followed.begin()
        lab.sql("INSERT INTO shop.p VALUES (1)")
        followed.follow()
        assert {(d.table, d.code) for d in followed.doubts} == {("p", "UPSTREAM_MISCONFIGURED")}
        span = Span(followed.tables["p"].schema.table_id)
        with pytest.raises(PenstockError, match="unlogged"):
            quick.divide(span)
        lab.sql("ALTER TABLE shop.p1 SET LOGGED")
        assert list(quick.divide(span)) == [span]
    finally:
        quick.close()


def test_a_doubt_that_nobody_took_is_told_again(lab, upstream):
    lab.sql(SEED + "CREATE TABLE shop.t (id int PRIMARY KEY, v int); INSERT INTO shop.t VALUES (1, 1)")
    quick = PostgresUpstream(f"{lab.uri}?slot={upstream.address.slot}", QUICK)
    try:
        followed = FollowedTables(lab, quick)
        followed.begin()
        followed.follow()
        assert followed.doubts == []
        lab.sql("ALTER TABLE shop.t ALTER v TYPE int USING v * 100")
        reading = quick.read_log(followed.position, [], lambda _: True, threading.Event())
        with contextlib.closing(reading):
            # Whoever reads goes back for another table just then, and gives this step up.
            assert any(step.doubts for step in reading)
        followed.follow()
        assert followed.doubted() == followed.wrong().keys() == {"t"}
    finally:
        quick.close()


def test_a_locked_partition_holds_nobody_up(lab, upstream):
    lab.sql(SEED + "CREATE TABLE shop.p (id int PRIMARY KEY) PARTITION BY RANGE (id); CREATE TABLE shop.p1 PARTITION OF shop.p DEFAULT")
    quick = PostgresUpstream(f"{lab.uri}?slot={upstream.address.slot}", QUICK)
    with lab.session() as other:
        try:
            followed = FollowedTables(lab, quick)
            followed.begin()
            lab.sql("INSERT INTO shop.p VALUES (1)")
            other.query("BEGIN; LOCK TABLE shop.p1 IN ACCESS EXCLUSIVE MODE")
            lab.sql("INSERT INTO shop.seed VALUES (2)")
            followed.follow()
            other.query("COMMIT")
            assert followed.wrong() == {}
            assert followed.doubts == []
        finally:
            quick.close()
