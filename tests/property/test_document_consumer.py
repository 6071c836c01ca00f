"""`docs/storage-layout.md` is enough to read a target: `testing/consumer`, which was written from it, finds the upstream's rows.

One life of tables with DDLs of every kind, odd names, all types, keyless tables and partitions, written by the product in several layouts.
What the tables must hold is told by hand, beside each statement. Besides, the document's own examples are read as a target.
"""

from __future__ import annotations

import contextlib
import math
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from penstock.model.table import TableSchema
from testing.consumer.files import Settings
from testing.consumer.tables import Target, read_target
from testing.consumer.values import NO_FLOAT
from testing.paths.whole_path import WholePath

LAYOUTS: dict[str, tuple[str, Settings]] = {
    "as it comes": ("", Settings()),
    "other signs": (
        "csv.delimiter=%7C%7C&csv.quote='&csv.null=nil&csv.terminator=%0A&csv.output-field-header=true&csv.binary-encoding-method=hex"
        "&csv.output-old-value=true&date-separator=month&file-index-width=6&file-size=1KiB&output-column-id=true",
        Settings(
            delimiter="||",
            quote="'",
            null="nil",
            terminator="\n",
            header=True,
            binary="hex",
            old_value=True,
            date_separator="month",
        ),
    ),
    "without quotes": (
        "csv.quote=&csv.delimiter=/&date-separator=none&enable-partition-separator=false",
        Settings(quote="", delimiter="/", date_separator="none"),
    ),
    "canal-json": ("protocol=canal-json&date-separator=year&file-size=1KiB&compression=gzip", Settings(date_separator="year")),
    "canal-json together": (
        "protocol=canal-json&enable-partition-separator=false&delete-only-output-handle-key-columns=true&only-output-updated-columns=true",
        Settings(),
    ),
}
TEXTS = (None, "", "NULL", "nil", "\\N", '"', "'", "a,b", "a||b|", "two\nlines", "\r\n", "\\", "\\r\\", "ünï 漢字 🦆", " \t", "%41")
PRICE = "1234567890123456789012345678.0123456789"
ODD = ".penstock", "sl/ash \\ %41 `tick`"

# Column, type, values of three rows as the server holds them, and where a reader sees another one, that.
TYPES: list[tuple[str, str, list[Any], list[Any] | None]] = [
    ("tiny", "TINYINT", [-128, 127, None], None),
    ("utiny", "TINYINT UNSIGNED", [0, 255, None], None),
    ("medium", "MEDIUMINT", [-8388608, 8388607, None], None),
    ("ubig", "BIGINT UNSIGNED", [0, 2**64 - 1, None], None),
    ("big", "BIGINT", [-(2**63), 2**63 - 1, None], None),
    ("f", "FLOAT", [1.5, -(2.0**70), None], None),
    ("d", "DOUBLE", [0.1, 1e-300, None], None),
    ("none", "DOUBLE", [math.nan, math.inf, -math.inf], [NO_FLOAT, math.inf, -math.inf]),
    ("dec", "DECIMAL(38,10)", ["-1.5000000000", PRICE, None], [Decimal("-1.5"), Decimal(PRICE), None]),
    ("moment", "DATETIME(3)", ["2026-11-15 12:00:02.120", "0000-00-00 00:00:00.000", None], None),
    ("stamp", "TIMESTAMP(6)", ["2026-11-15 12:00:02.000001", "1970-01-01 00:00:01.000000", None], None),
    ("day", "DATE", ["9999-12-31", "0000-00-00", None], None),
    ("clock", "TIME(2)", ["-838:59:59.00", "00:00:00.10", None], None),
    ("year", "YEAR", [0, 2155, None], None),
    ("letters", "CHAR(9)", ["", "a  b", None], None),
    ("fixed", "BINARY(4)", [b"\0\xff,\n", b"\\\"'\0", None], None),
    ("bytes", "BLOB", [b"", bytes(range(256)), None], None),
    ("choice", "ENUM('new','x y','ä')", [1, 3, None], ["new", "ä", None]),
    ("flags", "SET('a','b','c')", [0, 5, None], ["", "a,c", None]),
    ("bits", "BIT(64)", [0, 2**64 - 1, None], None),
    ("doc", "JSON", ['{"a": "\\n\\"", "b": [1, null]}', "null", None], None),
]  # fmt: skip


@dataclass
class Model:
    """What one table must hold, rows as a reader sees them."""

    names: list[str]
    key: str = ""
    rows: list[dict[str, Any]] = field(default_factory=list)
    row_keys: list[bytes] = field(default_factory=list)

    def bag(self) -> Counter[tuple[Any, ...]]:
        return Counter(tuple(row[name] for name in self.names) for row in self.rows)


class World:
    """A feed of everything but database x, and what its tables must hold."""

    def __init__(self, path: WholePath, settings: Settings) -> None:
        self.path = path
        self.settings = settings
        self.tables: dict[tuple[str, str], Model] = {}

    def ddl(self, query: str) -> None:
        self.path.upstream.execute_ddl(query)

    def create(self, schema: str, table: str, columns: str, *names: str, key: str = "id") -> Model:
        self.ddl(f"CREATE TABLE {quoted(schema)}.{quoted(table)} ({columns})")
        model = self.tables[schema, table] = Model(list(names), key)
        return model

    def physical(self, schema: str, table: str) -> list[TableSchema]:
        found = [t for t in self.path.upstream.list_tables() if (t.schema, t.table) == (schema, table)]
        return sorted(found, key=lambda t: t.table_id)

    def put(self, schema: str, table: str, *rows: dict[str, Any], shown: list[dict[str, Any]] | None = None, part: int = 0) -> None:
        """Write rows in one transaction; `shown` is how a reader sees them, where that differs."""
        model, written = self.tables[schema, table], self.physical(schema, table)[part]
        types = {c.name: c.type.arrow() for c in written.columns}
        columns = {name: pa.array([row[name] for row in rows], types[name]) for name in rows[0]}
        with self.path.upstream.txn() as txn:
            keys = txn.put(written, columns).to_pylist()
        for row, key in zip(shown or rows, keys, strict=True):
            if key in model.row_keys:
                at = model.row_keys.index(key)
                model.rows[at] = model.rows[at] | row
            else:
                model.rows.append(dict.fromkeys(model.names) | row)
                model.row_keys.append(key)

    def delete(self, schema: str, table: str, at: int, part: int = 0) -> None:
        model = self.tables[schema, table]
        with self.path.upstream.txn() as txn:
            txn.delete(self.physical(schema, table)[part], pa.array([model.row_keys.pop(at)], pa.binary()))
        del model.rows[at]

    def move(self, schema: str, table: str, at: int, source: int, to: int, **changed: Any) -> None:
        """Let a row go from one partition to another, as an update of the column that divides them does."""
        model, parts = self.tables[schema, table], self.physical(schema, table)
        model.rows[at] |= changed
        types = {c.name: c.type.arrow() for c in parts[to].columns}
        with self.path.upstream.txn() as txn:
            txn.delete(parts[source], pa.array([model.row_keys[at]], pa.binary()))
            txn.put(parts[to], {name: pa.array([value], types[name]) for name, value in model.rows[at].items()})

    def read(self) -> Target:
        return read_target(self.path.target, self.settings)

    def check(self, target: Target | None = None) -> None:
        if target is None:
            self.path.drain()
            target = self.read()
        assert target.not_covered == {}
        found = {name: table for name, table in target.tables.items() if name[0] != "x"}
        assert {name: table.names for name, table in found.items()} == {name: model.names for name, model in self.tables.items()}
        for name, model in self.tables.items():
            assert found[name].bag() == model.bag(), name

    def stop_midway(self) -> None:
        """Let a window write its files and fail before its commit: a reader still sees what the checkpoint says."""
        before = self.read()
        self.path.wait_resolved(self.path.upstream.current_ts())
        assert self.path.feed.run_window(commit=False)
        again = self.read()
        assert again.checkpoint == before.checkpoint
        for name, table in before.tables.items():
            assert again.tables[name].bag() == table.bag(), name


def quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


@contextlib.contextmanager
def lived(tmp_path: Path, layout: str) -> Iterator[World]:
    query, settings = LAYOUTS[layout]
    databases = ("d", "metadata", ODD[0], "x")
    uri = f"{(tmp_path / 'files').as_uri()}?{query}"
    setup = [f"CREATE DATABASE {quoted(name)}" for name in databases]
    with contextlib.closing(WholePath(tmp_path, setup, tables=("*.*", "!x.*"), target_uri=uri)) as path:
        yield World(path, settings)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_rows_of_all_types_and_names_in_every_layout(tmp_path: Path, layout: str) -> None:
    with lived(tmp_path, layout) as world:
        types_and_columns(world)
        bags_and_odd_names(world)


@pytest.mark.parametrize("layout", ["other signs", "canal-json together"])
def test_tables_change_names_and_partitions(tmp_path: Path, layout: str) -> None:
    with lived(tmp_path, layout) as world:
        names_change(world)
        partitions(world)


@pytest.mark.chaos
@pytest.mark.parametrize("layout", LAYOUTS)
def test_one_life_in_every_layout(tmp_path: Path, layout: str) -> None:
    with lived(tmp_path, layout) as world:
        for part in (types_and_columns, bags_and_odd_names, names_change, partitions):
            part(world)


def types_and_columns(world: World) -> None:
    columns = ", ".join(f"{name} {kind}" for name, kind, _, _ in TYPES)
    every = world.create("d", "every", f"id INT PRIMARY KEY, {columns}", "id", *(name for name, *_ in TYPES))
    rows = [{"id": at, **{name: values[at] for name, _, values, _ in TYPES}} for at in range(3)]
    shown = [{"id": at, **{name: (seen or values)[at] for name, _, values, seen in TYPES}} for at in range(3)]
    world.put("d", "every", *rows, shown=shown)
    world.create("d", "texts", "id INT PRIMARY KEY, v VARCHAR(40), w TEXT", "id", "v", "w")
    world.put("d", "texts", *({"id": at, "v": text, "w": TEXTS[-at]} for at, text in enumerate(TEXTS)))
    world.check()
    world.ddl(
        "ALTER TABLE d.texts ADD COLUMN n INT NOT NULL DEFAULT 7, ADD COLUMN e ENUM('x','Y') DEFAULT 'y',"
        " ADD COLUMN m DECIMAL(8,3) DEFAULT 1.5, ADD COLUMN b BIT(5) DEFAULT b'101',"
        " ADD COLUMN c DATETIME(3) DEFAULT '2026-01-01 00:00:01', ADD COLUMN o VARCHAR(9)"
    )
    texts = world.tables["d", "texts"]
    texts.names += ["n", "e", "m", "b", "c", "o"]
    for row in texts.rows:
        row.update(n=7, e="Y", m=Decimal("1.5"), b=5, c="2026-01-01 00:00:01.000", o=None)
    given = {"id": 1, "v": "new", "w": None, "n": 8, "m": "2.000", "b": 1, "c": "2026-01-01 00:00:00.000", "o": "CURRENT_TIMESTAMP"}
    world.put("d", "texts", given | {"e": 1}, shown=[given | {"e": "x", "m": Decimal(2)}])
    world.delete("d", "texts", 3)
    world.stop_midway()
    world.check()
    world.ddl("ALTER TABLE d.texts MODIFY COLUMN n BIGINT NOT NULL DEFAULT 9, MODIFY COLUMN e ENUM('x','Y','z')")
    world.ddl("ALTER TABLE d.texts RENAME COLUMN v TO `a b`")
    world.ddl("ALTER TABLE d.texts DROP COLUMN o, ADD COLUMN o INT DEFAULT 3 FIRST")
    for row in texts.rows:
        row["a b"], row["o"] = row.pop("v"), 3
    texts.names = ["o", "id", "a b", "w", "n", "e", "m", "b", "c"]
    world.put(
        "d", "texts", {"id": 77, "a b": "x", "n": 2**40, "e": 3, "o": None}, shown=[{"id": 77, "a b": "x", "n": 2**40, "e": "z", "o": None}]
    )
    world.check()
    world.ddl("TRUNCATE TABLE d.texts")
    texts.rows, texts.row_keys = [], []
    world.put("d", "texts", {"id": 1, "a b": "after", "n": 1}, shown=[{"id": 1, "a b": "after", "n": 1}])
    world.check()
    assert every.rows


def bags_and_odd_names(world: World) -> None:
    world.create("d", "bag", "a INT, b TEXT", "a", "b", key="")
    world.put("d", "bag", *({"a": at % 2, "b": text} for at, text in enumerate([None, "", None, "", None, "NULL"])))
    world.put("d", "bag", {"a": 0, "b": None})
    world.delete("d", "bag", 0)
    world.create(*ODD, "`the id` VARCHAR(40) PRIMARY KEY, `,|'\" x` INT", "the id", ",|'\" x", key="the id")
    world.put(*ODD, *({"the id": text, ",|'\" x": at} for at, text in enumerate(TEXTS) if text is not None))
    world.create("metadata", "meta", "id INT PRIMARY KEY, v INT", "id", "v")
    world.create("metadata", "..", "id INT, u INT NOT NULL, UNIQUE KEY (u)", "id", "u", key="u")
    world.put("metadata", "meta", {"id": 1, "v": None})
    world.put("metadata", "..", {"id": 1, "u": 5}, {"id": None, "u": 6})
    world.check()
    world.delete("metadata", "..", 0)
    world.put("metadata", "..", {"id": 9, "u": 5})
    world.put(*ODD, {"the id": "", ",|'\" x": None})
    world.delete("d", "bag", 0)
    world.stop_midway()
    world.check()


def names_change(world: World) -> None:
    if ("metadata", "meta") not in world.tables:
        world.create("metadata", "meta", "id INT PRIMARY KEY, v INT", "id", "v")
    for name in ("a", "b", "c"):
        world.create("d", name, "id INT PRIMARY KEY, v VARCHAR(9)", "id", "v")
        world.put("d", name, {"id": 1, "v": name}, {"id": ord(name), "v": None})
    world.check()
    world.ddl("RENAME TABLE d.a TO d.t, d.b TO d.a, d.t TO d.b")
    tables = world.tables
    tables["d", "a"], tables["d", "b"] = tables["d", "b"], tables["d", "a"]
    world.put("d", "a", {"id": 2, "v": "was b"})
    world.ddl("ALTER TABLE d.b RENAME TO `metadata`.`c.d`")
    tables["metadata", "c.d"] = tables.pop(("d", "b"))
    world.put("metadata", "c.d", {"id": 2, "v": "was a"})
    world.ddl("DROP TABLE d.c")
    world.create("d", "c", "id INT PRIMARY KEY, w INT", "id", "w")
    world.put("d", "c", {"id": 1, "w": 4})
    world.check()
    world.ddl("RENAME TABLE d.c TO x.c, d.a TO d.c")
    left = tables.pop(("d", "c"))
    tables["d", "c"] = tables.pop(("d", "a"))
    world.check()
    world.ddl("RENAME TABLE x.c TO d.e")
    tables["d", "e"] = left
    world.put("d", "e", {"id": 2, "w": 5})
    world.ddl("DROP DATABASE `metadata`")
    for name in [name for name in tables if name[0] == "metadata"]:
        del tables[name]
    world.check()


def partitions(world: World) -> None:
    columns = "id INT PRIMARY KEY, v VARCHAR(40)"
    world.ddl(
        f"CREATE TABLE d.parts ({columns}) PARTITION BY RANGE (id)"
        " (PARTITION p0 VALUES LESS THAN (100), PARTITION p1 VALUES LESS THAN (200))"
    )
    parts = world.tables["d", "parts"] = Model(["id", "v"], "id")
    other = world.create("d", "other", columns, "id", "v")
    world.put("d", "parts", {"id": 1, "v": "p0"}, {"id": 2, "v": "p0"})
    world.put("d", "parts", {"id": 101, "v": "p1"}, part=1)
    world.put("d", "other", {"id": 7, "v": "other"})
    world.move("d", "parts", 1, 0, 1, v="to p1")
    world.move("d", "parts", 2, 1, 0, v="to p0")
    world.check()
    world.move("d", "parts", 1, 1, 0, v="and back")
    world.move("d", "parts", 2, 0, 1, v="and back")
    world.ddl("ALTER TABLE d.parts EXCHANGE PARTITION p0 WITH TABLE d.other")
    inside, outside = [0, 1], [0]
    parts.rows, other.rows = [parts.rows[2], *(other.rows[i] for i in outside)], [parts.rows[i] for i in inside]
    parts.row_keys, other.row_keys = [parts.row_keys[2], other.row_keys[0]], parts.row_keys[:2]
    world.put("d", "other", {"id": 2, "v": "came out"})
    world.check()
    world.ddl("ALTER TABLE d.parts ADD PARTITION (PARTITION p2 VALUES LESS THAN (300))")
    world.put("d", "parts", {"id": 201, "v": "p2"}, part=2)
    world.ddl("ALTER TABLE d.parts TRUNCATE PARTITION p0")
    del parts.rows[1], parts.row_keys[1]
    world.check()
    world.ddl("ALTER TABLE d.parts REORGANIZE PARTITION p1, p2 INTO (PARTITION q VALUES LESS THAN (300))")
    world.put("d", "parts", {"id": 101, "v": "q"}, part=1)
    world.check()
    world.ddl("ALTER TABLE d.parts ADD COLUMN n INT DEFAULT 3")
    parts.names.append("n")
    for row in parts.rows:
        row["n"] = 3
    world.check()
    world.ddl("ALTER TABLE d.parts DROP PARTITION q")
    parts.rows, parts.row_keys = [], []
    world.put("d", "parts", {"id": 3, "v": "p0", "n": None})
    world.check()


@pytest.mark.chaos
@pytest.mark.parametrize("seed", range(40))
def test_random_lives(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    with lived(tmp_path, rng.choice(list(LAYOUTS))) as world:
        for step in range(40):
            random_step(world, rng, step)
            if step % 10 == 9:
                world.check()


def random_step(world: World, rng: random.Random, step: int) -> None:
    """Do something to a table, or make one; columns beyond the key are texts."""
    names = list(world.tables)
    roll = rng.random() if len(names) > 2 else 1.0
    if roll > 0.9:
        keyed = rng.random() < 0.7
        world.create("d", f"t{step}", f"id INT{' PRIMARY KEY' if keyed else ''}, v TEXT", "id", "v", key="id" if keyed else "")
        return
    schema, table = rng.choice(names)
    model, name = world.tables[schema, table], f"{quoted(schema)}.{quoted(table)}"
    texts = [column for column in model.names if column != "id"]
    if roll < 0.5:
        rows = {n: {"id": n, **{column: rng.choice(TEXTS[1:]) for column in texts}} for n in rng.choices(range(9), k=4)}
        world.put(schema, table, *rows.values())
    elif roll < 0.6 and model.rows:
        world.delete(schema, table, rng.randrange(len(model.rows)))
    elif roll < 0.68:
        default, shown = rng.choice([("", None), (" DEFAULT 'a, ''b'", "a, 'b"), (" NOT NULL DEFAULT ''", "")])
        world.ddl(f"ALTER TABLE {name} ADD COLUMN `c {step}` VARCHAR(40){default}{rng.choice(['', ' FIRST'])}")
        model.names = [column.name for column in world.physical(schema, table)[0].columns]
        for row in model.rows:
            row[f"c {step}"] = shown
    elif roll < 0.73 and len(texts) > 1:
        gone = rng.choice(texts)
        world.ddl(f"ALTER TABLE {name} DROP COLUMN {quoted(gone)}")
        model.names.remove(gone)
    elif roll < 0.78:
        old, new = rng.choice(texts), f"r {step}"
        world.ddl(f"ALTER TABLE {name} RENAME COLUMN {quoted(old)} TO {quoted(new)}")
        model.names[model.names.index(old)] = new
        for row in model.rows:
            row[new] = row.pop(old)
    elif roll < 0.81:
        world.ddl(f"TRUNCATE TABLE {name}")
        model.rows, model.row_keys = [], []
    elif roll < 0.83:
        world.ddl(f"DROP TABLE {name}")
        del world.tables[schema, table]
    elif roll < 0.87:
        other = rng.choice([each for each in names if each != (schema, table)])
        second = f"{quoted(other[0])}.{quoted(other[1])}"
        world.ddl(f"RENAME TABLE {name} TO `d`.`swapped`, {second} TO {name}, `d`.`swapped` TO {second}")
        world.tables[schema, table], world.tables[other] = world.tables[other], model
    else:
        new_name = rng.choice(["d", "metadata", ODD[0]]), f"{ODD[1]} {step}"
        world.ddl(f"RENAME TABLE {name} TO {quoted(new_name[0])}.{quoted(new_name[1])}")
        world.tables[new_name] = world.tables.pop((schema, table))
