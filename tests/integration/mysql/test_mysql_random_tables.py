"""Random lives of tables on MariaDB: random statements of all kinds, read at once or later, by one process after the other.

The oracle is the server: a table that nobody doubts has its rows, and no table is missing. A failure replays by its seed.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator

import pymysql
import pytest

from testing.paths.table_lives import Follower, Told
from testing.servers.databases.mysql_lab import BINLOG, connect, run
from testing.servers.loopback_server import mariadb

pytestmark = pytest.mark.integration
DATABASES = ("one", "two")
NAMES = tuple(f"{database}.{table}" for database in DATABASES for table in ("a", "b", "c"))
COLUMNS = ("p", "q", "r", "s")
TYPES = (
    *(
        "int",
        "bigint unsigned",
        "smallint",
        "varchar(10)",
        "varchar(30) character set latin1",
        "text",
        "decimal(8,2)",
        "date",
        "datetime(3)",
    ),
    *("enum('x','y','z')", "set('u','v')", "bit(5)", "double", "time", "year", "blob", "uuid", "json", "varchar(9) character set koi8r"),
)
DEFAULTS = ("", "", " not null", " default null", " default 3", " not null default 4", " default '5'", " invisible default 6")
STATEMENTS = 40


@pytest.fixture(scope="module", params=["FULL", "MINIMAL"])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    options = (*BINLOG, f"--binlog-row-metadata={request.param}", "--character-set-server=utf8mb4", "--sql-mode=")
    with mariadb(tmp_path_factory.mktemp("mariadb"), options) as uri:
        yield uri


def definition(rng: random.Random) -> str:
    return f"{rng.choice(TYPES)}{rng.choice(DEFAULTS)}"


def place(rng: random.Random) -> str:
    return rng.choice(("", "", " first", f" after {rng.choice(COLUMNS)}"))


def action(rng: random.Random) -> str:
    one, two = rng.sample(COLUMNS, 2)
    return rng.choice(
        [
            f"add column {one} {definition(rng)}{place(rng)}",
            f"ADD {one} {definition(rng)}",
            f"drop column {one}",
            f"drop column if exists {one}",
            f"modify {one} {definition(rng)}{place(rng)}",
            f"change {one} {two} {definition(rng)}",
            f"rename column {one} to {two}",
            f"alter column {one} set default 7",
            f"alter {one} drop default",
            f"add index ({one})",
            "comment 'x'",
            "engine=innodb",
            f"drop {one}, add {one} {definition(rng)}",
            f"rename column {one} to {two}, rename column {two} to {one}",
        ]
    )


def statement(rng: random.Random) -> list[str]:
    one, two = rng.sample(NAMES, 2)
    columns = "".join(f", {c} {definition(rng)}" for c in rng.sample(COLUMNS, rng.randrange(3)))
    tail = rng.choice(("", "", "", " with system versioning", " partition by hash(id) partitions 2", " character set cp1251"))
    low = rng.randrange(30)
    ddl = [
        [f"create table {one} (id int primary key{columns}){tail}"],
        [f"create table {one} (id int primary key{columns}){tail}"],
        [f"create table if not exists {one} (id int primary key{columns})"],
        [f"create or replace table {one} (id int primary key{columns})"],
        [f"create table {one} like {two}"],
        [f"create table {one} (primary key (id)) select * from {two}"],
        [f"drop table {one}"],
        [f"truncate table {one}"],
        [f"rename table {one} to {two}"],
        [f"rename table {one} to one.tmp, {two} to {one}, one.tmp to {two}"],
        [f"alter table {one} rename to {two}"],
    ]
    alter = [[f"alter table {one} {', '.join(action(rng) for _ in range(rng.randrange(1, 3)))}"] for _ in range(3)]
    values = ",".join(f"({n})" for n in range(low, low + 5))
    column = rng.choice(COLUMNS)
    value = rng.choice(("1", "'2'", "'x'", "null", "default", "id", "'2020-01-02'", "'ä'"))
    dml = [
        [f"insert ignore into {one} (id) values {values}"],
        [f"insert ignore into {one} (id, {column}) values ({low}, {value})"],
        [f"replace into {one} (id, {column}) values ({low + 1}, {value})"],
        [f"update ignore {one} set {column} = {value} where id % 3 = {low % 3}"],
        [f"update ignore {one} set id = id + 100 where id = {low}"],
        [f"delete from {one} where id % 7 = {low % 7}"],
        ["begin", f"insert ignore into {one} (id) values {values}", "savepoint s", f"delete from {one}", "rollback to s", "commit"],
        ["begin", f"delete from {one}", "rollback"],
        ["flush binary logs"],
    ]
    return rng.choice([*ddl, *alter, *alter, *dml, *dml, *dml, *dml])


def live(uri: str, seed: int) -> tuple[int, int]:
    """Live once; return how many rows were compared and how many tables doubted."""
    rng, writer, told, done = random.Random(seed), connect(uri), Told(), []
    for database in DATABASES:
        run(writer, f"drop database if exists {database}", f"create database {database}")
    for name in NAMES[:4]:
        run(
            writer,
            f"create table {name} (id int primary key, p int, q varchar(30), r decimal(8,2))",
            f"insert into {name} (id) values (1), (2)",
        )
    follower = Follower(uri, told)
    told.snapshot(follower.upstream)
    is_reading = rng.random() < 0.5
    if is_reading:
        follower.begin()
    for _ in range(STATEMENTS):
        text = statement(rng)
        with contextlib.suppress(pymysql.MySQLError):
            run(writer, *text)
            done += text
        if rng.random() < 0.1:
            if not is_reading:
                follower.begin()
            if rng.random() < 0.7:
                follower.settle()
            follower.close()
            follower = Follower(uri, told, told.position)
            is_reading = rng.random() < 0.5
            if is_reading:
                follower.begin()
    run(writer, "commit")
    if not is_reading:
        follower.begin()
    try:
        follower.settle()
        return sum(follower.check(DATABASES).values()), len(told.doubted)
    except AssertionError as error:
        raise AssertionError(f"seed {seed}: {error}\n" + ";\n".join(done)) from error
    finally:
        follower.close()


def check_lives(uri: str, seeds: range) -> None:
    compared = [live(uri, seed) for seed in seeds]
    assert sum(rows for rows, _ in compared) > 5 * len(seeds)


def test_random_lives_of_tables(server: str) -> None:
    check_lives(server, range(15))


@pytest.mark.chaos
def test_many_random_lives_of_tables(server: str) -> None:
    check_lives(server, range(100, 400))
