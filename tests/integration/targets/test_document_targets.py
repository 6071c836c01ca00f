"""Tables of MariaDB and PostgreSQL in files of other layouts, read by the reader that was written from `docs/storage-layout.md`.

The server's own rows decide. All kinds of types, virtual and stored generated columns, texts of other character sets, copies of rows.
`test_table_lives.py` has the reader look at CSV files as they come by default.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from testing.checks.lives.documented import document_differences
from testing.checks.lives.servers import life_server
from testing.consumer.files import Settings
from testing.paths.one_log_path import OneLogPath
from testing.servers.waiting import wait_until

pytestmark = pytest.mark.integration
CANAL = "protocol=canal-json&canal-json.terminator=%0A&date-separator=year&file-size=1KiB", Settings(terminator="\n", date_separator="year")
SIGNS = (
    "csv.delimiter=%09&csv.quote=%60&csv.null=&csv.output-field-header=true&csv.binary-encoding-method=hex&csv.output-old-value=true",
    Settings(delimiter="\t", quote="`", null="", header=True, binary="hex", old_value=True),
)
MARIADB = [
    [
        "CREATE TABLE `odd näme / %41` (id INT PRIMARY KEY, l VARCHAR(40) CHARACTER SET latin1, t TEXT, b VARBINARY(40),"
        " g INT AS (id + 1) VIRTUAL, s INT AS (id * 2) STORED, e ENUM('x','ä y'), st SET('a','b'), d DECIMAL(20,5), dt DATETIME(3),"
        " ts TIMESTAMP(6) NULL, ti TIME(2), y YEAR, bt BIT(9), f FLOAT, db DOUBLE, j JSON, z BIGINT UNSIGNED)",
        "CREATE TABLE bag (v INT AS (a) VIRTUAL, a INT, b VARCHAR(9))",
        "INSERT IGNORE INTO `odd näme / %41` (id, l, t, b, e, st, d, dt, ts, ti, y, bt, f, db, j, z) VALUES"
        " (1, 'äß€', 'two\\r\\nlines\\t`\"', x'00ff0d0a', 'ä y', 'a,b', -1.5, '2020-01-02 03:04:05.678', '2020-01-02 03:04:05.000001',"
        " '-838:59:59', 1999, b'101', 1.1, 1e-300, '{\"a\": \"\\\\n\"}', 18446744073709551615),"
        " (2, '', 'NULL', '', 'neither', '', 0, '0000-00-00', NULL, '00:00:00.25', 0, 0, 3e20, 1e22, 'null', 0),"
        " (3, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL)",
        "INSERT INTO bag (a, b) VALUES (1, ''), (1, ''), (NULL, NULL), (NULL, NULL), (2, '\\\\N')",
    ],
    [
        "UPDATE `odd näme / %41` SET t = '漢字 🦆', id = 9 WHERE id = 1",
        "UPDATE `odd näme / %41` SET b = x'ff', e = 'x' WHERE id = 2",
        "DELETE FROM bag WHERE a IS NULL LIMIT 1",
        "UPDATE bag SET b = 'x' WHERE a = 1 LIMIT 1",
        "ALTER TABLE `odd näme / %41` ADD COLUMN n BIT(3) NOT NULL DEFAULT b'11' FIRST, CHANGE t `a,b` LONGTEXT",
        "RENAME TABLE bag TO sack, `odd näme / %41` TO bag",
        "INSERT INTO bag (id, `a,b`, n) VALUES (4, '', 1)",
        "INSERT INTO sack (a, b) VALUES (2, '\\\\N')",
    ],
]
POSTGRES = [
    [
        'CREATE TABLE "odd näme / %41" (id int PRIMARY KEY, t text, b bytea, o boolean, f real, d double precision, n numeric(10,3),'
        " m numeric, ts timestamptz, at timestamp(3), da date, ti time, u uuid, j jsonb, ar text[], iv interval,"
        " s int GENERATED ALWAYS AS (id * 2) STORED)",
        "CREATE TABLE bag (a int, b text)",
        "ALTER TABLE bag REPLICA IDENTITY FULL",
        'INSERT INTO "odd näme / %41" VALUES'
        " (1, E'two\\r\\nlines\\t`\"', '\\x00ff0d0a', true, 1.1, 1e-300, -1.5, 1e30, '2020-01-02 03:04:05.000001+02', '2020-01-02',"
        " '0044-03-15 BC', '24:00', '00000000-0000-4000-8000-000000000007', '{\"a\": \"\\n\"}', '{NULL,\"NULL\",\"\"}', '1 day'),"
        " (2, '', '', false, 'NaN', '-Infinity', 'NaN', 'NaN', 'infinity', '-infinity', 'infinity', '00:00', NULL, 'null', '{}', '0'),"
        " (3, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL)",
        "INSERT INTO bag VALUES (1, ''), (1, ''), (NULL, NULL), (NULL, NULL), (2, '\\N')",
    ],
    [
        "UPDATE \"odd näme / %41\" SET t = '漢字 🦆', id = 9 WHERE id = 1",
        "DELETE FROM bag WHERE ctid = (SELECT ctid FROM bag WHERE a = 1 LIMIT 1)",
        "ALTER TABLE \"odd näme / %41\" ADD COLUMN w real DEFAULT 'NaN', ADD COLUMN x bytea DEFAULT 'ab'",
        'ALTER TABLE "odd näme / %41" RENAME COLUMN t TO "a,b"',
        'INSERT INTO "odd näme / %41" (id, "a,b") VALUES (4, \'\')',
        "INSERT INTO bag VALUES (2, '\\N')",
    ],
]


def check(path: OneLogPath, compare: Callable[[], list[str]]) -> None:
    """Deliver everything until the files are the tables; tables that the source has become unsure of are read again.

    PostgreSQL's log does not tell what an ALTER does to rows that are there: a look into the catalog, once a second, finds that out.
    """
    problems = [""]

    def same() -> bool:
        path.drain()
        unsure = [state for state in path.log.table_states() if state.is_open]
        for state in unsure:
            path.reread().run(state.table_id)
        problems[:] = compare()
        return not unsure and not problems

    with contextlib.suppress(AssertionError):
        wait_until(same, "the files are not the tables")
    assert problems == []


@pytest.mark.parametrize(
    ("kind", "layouts", "rounds"), [("mariadb", [CANAL, SIGNS], MARIADB), ("postgres", [CANAL], POSTGRES)], ids=["mariadb", "postgres"]
)
def test_the_files_are_the_tables(tmp_path: Path, kind: str, layouts: list[tuple[str, Settings]], rounds: list[list[str]]) -> None:
    with life_server(kind, tmp_path / "server") as server:
        for number, (query, settings) in enumerate(layouts):
            schema, root = f"doc{number}", tmp_path / f"feed{number}"
            root.mkdir()
            uri = server.begin(schema)
            with contextlib.closing(server.session(schema)) as session, contextlib.ExitStack() as open_feeds:
                path: OneLogPath | None = None
                for statements in rounds:
                    with session.cursor() as cursor:
                        for statement in statements:
                            cursor.execute(statement)
                    if path is None:
                        path = OneLogPath(root, uri, [f"{schema}.*"], target_uri=f"{(root / 'files').as_uri()}?{query}")
                        open_feeds.callback(path.close)
                        path.begin()
                    check(path, partial(document_differences, path.target, server, schema, settings=settings))
            server.end(schema)
