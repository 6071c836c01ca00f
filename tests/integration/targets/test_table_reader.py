"""A table of the event store as the format ``penstock`` shows it, without a session: state, changes, and micro-batches of a stream."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes

from penstock.feed.formats.table_read import TableOptions, plan_read, read_span
from penstock.feed.formats.table_reader import PenstockTable
from penstock.feed.formats.table_stream import TableStreamReader
from penstock.model.errors import PenstockError
from penstock.store.flight.client import FlightStoreClient
from testing.paths.whole_path import WholePath

SETUP = ["CREATE DATABASE d", "CREATE TABLE d.a (id INT PRIMARY KEY, v VARCHAR(40))"]
DDLS = [
    "ALTER TABLE d.a ADD COLUMN n INT DEFAULT 5, ADD COLUMN e ENUM('x','y') DEFAULT 'Y', ADD COLUMN s SET('p','q') DEFAULT 'p,q'",
    "ALTER TABLE d.a MODIFY COLUMN n BIGINT DEFAULT 7",
]


def test_rows_of_older_versions_show_what_their_columns_were_added_with(tmp_path: Path) -> None:
    with contextlib.closing(WholePath(tmp_path, SETUP)) as path:
        first = path.write({"d.a": {1: "one", 2: "two"}})
        for ddl in DDLS:
            path.upstream.execute_ddl(ddl)
        path.write({"d.a": {3: "three"}}, {"d.a": [2]})
        path.drain()
        path.wait_resolved(path.upstream.current_ts())
        with contextlib.closing(FlightStoreClient(path.context.flight_location, path.context.flight_token)) as client:

            def read(**options: str) -> list[dict[str, object]]:
                plan = plan_read(client, TableOptions.of({"table": "d.a", **{k.replace("_", "-"): v for k, v in options.items()}}))
                return [row for span in plan.span_ids for batch in read_span(client, plan, span) for row in batch.to_pylist()]

            old = {"n": 5, "e": "y", "s": "p,q"}
            one, two = {"id": 1, "v": "one", **old}, {"id": 2, "v": "two", **old}
            three = next(row for row in read() if row["id"] == 3)
            assert sorted(read(), key=lambda row: row["id"]) == [one, three]  # type: ignore[arg-type, return-value]
            changes = [(row.pop("_op"), row.pop("_commit_ts") == first, row) for row in read(from_ts=str(first - 1))]
            assert changes == [("insert", True, one), ("insert", True, two), ("delete", False, two), ("insert", False, three)]


def test_a_stream_gives_the_rows_and_then_every_change_and_stops_before_new_columns(tmp_path: Path) -> None:
    with contextlib.closing(WholePath(tmp_path, SETUP)) as path:
        path.write({"d.a": {1: "one", 2: "two"}})
        path.drain()
        path.wait_resolved(path.upstream.current_ts())
        options = {"table": "d.a", "from-ts": "0", "location": path.context.flight_location, "token": path.context.flight_token}

        def opened(**more: str) -> TableStreamReader:
            chosen = options | {k.replace("_", "-"): v for k, v in more.items()}
            return TableStreamReader(chosen, PenstockTable(chosen).schema())

        def batch(reader: TableStreamReader, start: dict[str, int], end: dict[str, int]) -> list[tuple[object, ...]]:
            batches = [b for part in reader.partitions(start, end) for b in reader.read(part)]
            return [tuple(row.values())[1:] for b in batches for row in b.to_pylist()]

        reader = opened()
        began = reader.initialOffset()
        first = reader.latestOffset(began, ReadAllAvailable())
        state = [("insert", 1, "one"), ("insert", 2, "two")]
        assert sorted(batch(reader, began, first)) == state
        assert batch(reader, first, first) == []

        path.write({"d.a": {2: "2", 3: "three"}}, {"d.a": [1]})
        path.write({"d.a": {4: "four"}})
        path.wait_resolved(path.upstream.current_ts())
        second = reader.latestOffset(first, ReadAllAvailable())
        expected = [("delete", 1, "one"), ("update", 2, "2"), ("insert", 3, "three"), ("insert", 4, "four")]
        assert batch(reader, first, second) == expected
        # Another attempt of either batch gives the same rows, whatever has come since.
        assert sorted(batch(opened(), began, first)) == state
        assert batch(opened(before="true"), first, second) == [expected[0], ("before", 2, "two"), *expected[1:]]
        # A small limit ends a batch earlier, and nothing is lost between two.
        small, offsets = opened(bytes_per_batch="1"), [first]
        assert small.getDefaultReadLimit() == ReadMaxBytes(1)
        while (end := small.latestOffset(offsets[-1], small.getDefaultReadLimit())) != offsets[-1] and end["ts"] < second["ts"]:
            offsets.append(end)
        assert len(offsets) > 1
        steps = zip([*offsets], [*offsets[1:], second], strict=True)
        assert [row for start, end in steps for row in batch(small, start, end)] == expected

        path.write({"d.a": {5: "five"}})
        path.upstream.execute_ddl("ALTER TABLE d.a ADD COLUMN n INT DEFAULT 5")
        path.write({"d.a": {6: "six"}})
        path.wait_resolved(path.upstream.current_ts())
        third = reader.latestOffset(second, ReadAllAvailable())
        assert batch(reader, second, third) == [("insert", 5, "five")]
        with pytest.raises(PenstockError, match=r"SCHEMA_CHANGED.*: n$"):
            reader.latestOffset(third, ReadAllAvailable())
        again = opened()
        shown = batch(again, third, again.latestOffset(third, ReadAllAvailable()))
        assert [row[:3] for row in shown] == [("insert", 6, "six")]
        # The batch that was under way is shown with the new columns now.
        assert batch(again, second, third) == [("insert", 5, "five", 5)]
        bounded = opened(to_ts=str(second["ts"]))
        assert bounded.latestOffset(first, ReadAllAvailable()) == second
        assert bounded.latestOffset(second, ReadAllAvailable()) == second
        no_start = {k: v for k, v in options.items() if k != "from-ts"}
        with pytest.raises(PenstockError, match=r"CONFIG_INVALID.*from-ts"):
            TableStreamReader(no_start, PenstockTable(no_start).schema())
