"""A table of the event store as the format ``penstock`` shows it, without a session: state and changes under the newest version."""

from __future__ import annotations

import contextlib
from pathlib import Path

from penstock.feed.formats.table_reader import plan_read, read_span
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
                plan = plan_read(client, {"table": "d.a", **{k.replace("_", "-"): v for k, v in options.items()}})
                return [row for span in plan.span_ids for batch in read_span(client, plan, span) for row in batch.to_pylist()]

            old = {"n": 5, "e": "y", "s": "p,q"}
            one, two = {"id": 1, "v": "one", **old}, {"id": 2, "v": "two", **old}
            three = next(row for row in read() if row["id"] == 3)
            assert sorted(read(), key=lambda row: row["id"]) == [one, three]  # type: ignore[arg-type, return-value]
            changes = [(row.pop("_op"), row.pop("_commit_ts") == first, row) for row in read(from_ts=str(first - 1))]
            assert changes == [("insert", True, one), ("insert", True, two), ("delete", False, two), ("insert", False, three)]
