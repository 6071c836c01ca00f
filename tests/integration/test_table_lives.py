"""Random lives of tables on MariaDB, MySQL and PostgreSQL, captured to files: after each settle the files are the server's rows.

A life that fails prints its statements and is lived again by its seed. The named tests below are lives that once failed, made short.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from testing.checks.lives.life import Life, Step
from testing.checks.lives.servers import Server, life_server

pytestmark = pytest.mark.integration
SEEDS = range(15)
MANY = range(100, 400)
ODD = range(2000, 2005)
MANY_ODD = range(2000, 2100)
LENGTH = 12


@pytest.fixture(scope="module")
def mariadb_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with life_server("mariadb", tmp_path_factory.mktemp("mariadb")) as server:
        yield server


@pytest.fixture(scope="module")
def mysql_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with life_server("mysql", tmp_path_factory.mktemp("mysql")) as server:
        yield server


@pytest.fixture(scope="module")
def postgres_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with life_server("postgres", tmp_path_factory.mktemp("postgres")) as server:
        yield server


def live(server: Server, root: Path, seed: int, *, odd: bool = False) -> None:
    life = Life(server, root, f"life{seed}", column_ids=seed % 2 == 0)
    try:
        life.live(random.Random(seed), LENGTH, restarts=seed % 5 == 0, odd=odd)
    except Exception as error:  # noqa: BLE001 - whatever a life ends with, its statements are shown
        pytest.fail("\n".join([f"seed {seed}", *map(str, life.script), f"{type(error).__name__}: {error}"]), pytrace=False)
    finally:
        life.close()


@pytest.mark.parametrize("seed", SEEDS)
def test_lives_on_mariadb(mariadb_server: Server, tmp_path: Path, seed: int) -> None:
    live(mariadb_server, tmp_path / "life", seed)


@pytest.mark.chaos
@pytest.mark.parametrize("seed", MANY)
def test_many_lives_on_mariadb(mariadb_server: Server, tmp_path: Path, seed: int) -> None:
    live(mariadb_server, tmp_path / "life", seed)


@pytest.mark.mysql
@pytest.mark.parametrize("seed", SEEDS)
def test_lives_on_mysql(mysql_server: Server, tmp_path: Path, seed: int) -> None:
    live(mysql_server, tmp_path / "life", seed)


@pytest.mark.mysql
@pytest.mark.chaos
@pytest.mark.parametrize("seed", MANY)
def test_many_lives_on_mysql(mysql_server: Server, tmp_path: Path, seed: int) -> None:
    live(mysql_server, tmp_path / "life", seed)


@pytest.mark.parametrize("seed", ODD)
def test_odd_lives_on_mariadb(mariadb_server: Server, tmp_path: Path, seed: int) -> None:
    live(mariadb_server, tmp_path / "life", seed, odd=True)


@pytest.mark.parametrize("seed", ODD)
def test_odd_lives_on_postgres(postgres_server: Server, tmp_path: Path, seed: int) -> None:
    live(postgres_server, tmp_path / "life", seed, odd=True)


@pytest.mark.mysql
@pytest.mark.chaos
@pytest.mark.parametrize("seed", MANY_ODD)
def test_many_odd_lives_on_mysql(mysql_server: Server, tmp_path: Path, seed: int) -> None:
    live(mysql_server, tmp_path / "life", seed, odd=True)


@pytest.mark.chaos
@pytest.mark.parametrize("seed", MANY_ODD)
def test_many_odd_lives_on_mariadb(mariadb_server: Server, tmp_path: Path, seed: int) -> None:
    live(mariadb_server, tmp_path / "life", seed, odd=True)


@pytest.mark.chaos
@pytest.mark.parametrize("seed", MANY_ODD)
def test_many_odd_lives_on_postgres(postgres_server: Server, tmp_path: Path, seed: int) -> None:
    live(postgres_server, tmp_path / "life", seed, odd=True)


@pytest.mark.parametrize("seed", SEEDS)
def test_lives_on_postgres(postgres_server: Server, tmp_path: Path, seed: int) -> None:
    live(postgres_server, tmp_path / "life", seed)


@pytest.mark.chaos
@pytest.mark.parametrize("seed", MANY)
def test_many_lives_on_postgres(postgres_server: Server, tmp_path: Path, seed: int) -> None:
    live(postgres_server, tmp_path / "life", seed)


TABLE = "CREATE TABLE {} (k0 INT NOT NULL, a INT, PRIMARY KEY (k0))"
ONCE_WRONG = {
    "every_table_is_dropped_before_the_first_window": [TABLE.format("t2"), "begin", "DROP TABLE t2", "settle"],
    "every_table_is_dropped_and_one_made_again": [
        *(TABLE.format("t2"), "INSERT INTO t2 VALUES (1, 1)", "begin", "DROP TABLE t2", "window"),
        *(TABLE.format("t2"), "INSERT INTO t2 VALUES (2, 1)", "settle"),
    ],
    "rows_that_are_alike_get_a_key": [
        *("CREATE TABLE t1 (a INT)", "INSERT INTO t1 VALUES (1), (1), (2), (NULL)", "begin", "window"),
        *("ALTER TABLE t1 ADD COLUMN e BIGINT UNSIGNED AUTO_INCREMENT PRIMARY KEY", "UPDATE t1 SET a = 3 WHERE e = 2", "settle"),
    ],
    "rows_that_are_alike_get_a_key_before_the_first_window": [
        *("CREATE TABLE t1 (a INT)", "INSERT INTO t1 VALUES (1), (1), (2)", "begin"),
        *("ALTER TABLE t1 ADD COLUMN e BIGINT UNSIGNED AUTO_INCREMENT PRIMARY KEY", "settle"),
    ],
    "a_key_moves_to_another_column_and_rows_change_before_it_is_read_again": [
        *(TABLE.format("t1"), "INSERT INTO t1 VALUES (1, 1), (2, 2), (3, 3)", "begin", "settle", "UPDATE t1 SET a = 9 WHERE k0 = 1"),
        *("ALTER TABLE t1 DROP PRIMARY KEY, ADD PRIMARY KEY (a)", "UPDATE t1 SET k0 = 77 WHERE a = 9", "settle"),
    ],
    "a_key_gets_another_type_and_moves": [
        *(TABLE.format("t1"), "INSERT INTO t1 VALUES (1, 1), (2, 2), (3, 3)", "begin", "settle"),
        *("ALTER TABLE t1 MODIFY k0 VARCHAR(10) NOT NULL", "UPDATE t1 SET a = 9 WHERE k0 = '1'", "DELETE FROM t1 WHERE k0 = '2'"),
        *("ALTER TABLE t1 DROP PRIMARY KEY, ADD PRIMARY KEY (a)", "UPDATE t1 SET k0 = 'zz' WHERE a = 9", "settle"),
    ],
    "a_key_moves_to_a_column_that_the_server_filled": [
        *("CREATE TABLE t1 (k0 INT PRIMARY KEY, a INT)", "INSERT INTO t1 VALUES (4, 4), (3, 3), (2, 2), (1, 1)", "begin", "settle"),
        *("ALTER TABLE t1 ADD COLUMN p INT NOT NULL DEFAULT (5 - k0)", "ALTER TABLE t1 DROP PRIMARY KEY, ADD PRIMARY KEY (p)"),
        *("INSERT INTO t1 VALUES (9, 9, 50)", "UPDATE t1 SET a = 7 WHERE k0 = 3", "settle", "end"),
    ],
    "rows_that_a_unique_key_named_have_copies": [
        *("CREATE TABLE t1 (u INT NOT NULL, a INT, UNIQUE (u))", "INSERT INTO t1 VALUES (1, 1), (2, 2)", "begin", "window"),
        *("ALTER TABLE t1 DROP INDEX u", "INSERT INTO t1 VALUES (2, 2)", "DELETE FROM t1 WHERE u = 2 LIMIT 1", "settle"),
        *("ALTER TABLE t1 ADD UNIQUE (u)", "UPDATE t1 SET a = 5", "settle"),
    ],
    "a_row_that_came_as_text_is_changed_by_the_log": [
        *(TABLE.format("t1"), "begin", "window", "SET binlog_format = STATEMENT", "INSERT INTO t1 VALUES (18, 1)"),
        *("SET binlog_format = ROW", "UPDATE t1 SET a = 2", "settle"),
    ],
    "numbers_become_texts_and_nothing_names_their_rows": [
        *("CREATE TABLE t1 (a DOUBLE, n INT)", "INSERT INTO t1 VALUES (0, 1), (0, 1), (1e10, 2), (NULL, 3)", "begin", "settle"),
        *("ALTER TABLE t1 MODIFY a VARCHAR(40)", "DELETE FROM t1 WHERE n = 1 LIMIT 1", "crash", "settle", "down"),
        *("ALTER TABLE t1 MODIFY a DOUBLE, RENAME TO t2", "INSERT INTO t2 VALUES (0, 1)", "settle", "end"),
    ],
    "numbers_become_others_beside_a_key": [
        *("CREATE TABLE t1 (k0 INT PRIMARY KEY, f FLOAT, d DOUBLE, t DATETIME(3), m DECIMAL(8,4))", "begin"),
        *("INSERT INTO t1 VALUES (1, 0.1, 0, '2020-01-01 00:00:00.499', 1.5555), (2, 7, 1e10, NULL, 2)", "settle"),
        *("ALTER TABLE t1 MODIFY f DOUBLE, MODIFY d VARCHAR(40), MODIFY t DATETIME, MODIFY m DECIMAL(8,2)", "settle", "end"),
    ],
    "a_table_gets_columns_and_another_name_at_once": [
        *(TABLE.format("t1"), "INSERT INTO t1 VALUES (1, 1), (2, 2)", "begin", "settle"),
        *("ALTER TABLE t1 ADD COLUMN b INT DEFAULT 4, RENAME TO t9", "INSERT INTO t9 VALUES (8, 8, 8)", "settle"),
        *("down", "ALTER IGNORE TABLE t9 RENAME AS t1, MODIFY a VARCHAR(9)", "UPDATE t1 SET a = 'x' WHERE k0 = 1", "settle", "end"),
    ],
    "a_table_is_made_and_filled_by_one_statement_that_is_text": [
        *(TABLE.format("t1"), "INSERT INTO t1 VALUES (1, 1), (2, 2)", "begin", "settle", "SET binlog_format = STATEMENT"),
        *("CREATE TABLE t9 AS SELECT * FROM t1", "SET binlog_format = ROW", "settle", "end"),
    ],
    "partitions_become_tables_and_change_places_with_them": [
        *(
            "CREATE TABLE t1 (k0 INT PRIMARY KEY, a INT) PARTITION BY RANGE (k0) (PARTITION p VALUES LESS THAN (10), "
            "PARTITION q VALUES LESS THAN (20), PARTITION r VALUES LESS THAN (30))",
            "INSERT INTO t1 VALUES (1, 1), (11, 2), (21, 3)",
            TABLE.format("t2"),
            "INSERT INTO t2 VALUES (5, 5)",
            "begin",
            "settle",
        ),
        *("ALTER TABLE t1 EXCHANGE PARTITION p WITH TABLE t2", "ALTER TABLE t1 CONVERT PARTITION q TO TABLE t3", "settle"),
        *("ALTER TABLE t1 DROP PARTITION r", "ALTER TABLE t1 CONVERT TABLE t3 TO PARTITION s VALUES LESS THAN (40)", "settle", "end"),
    ],
    "what_temporary_tables_and_triggers_do_stands_as_text": [
        *(TABLE.format("t1"), TABLE.format("t2"), "INSERT INTO t1 VALUES (1, 1)", "begin", "settle", "SET binlog_format = STATEMENT"),
        *("CREATE TEMPORARY TABLE t1 (z INT)", "ALTER TABLE t1 ADD COLUMN y INT", "TRUNCATE TABLE t1", "DROP TEMPORARY TABLE t1"),
        *("settle", "CREATE TRIGGER r AFTER INSERT ON t1 FOR EACH ROW INSERT INTO t2 VALUES (NEW.k0, 5)", "INSERT INTO t1 VALUES (6, 6)"),
        *("SET binlog_format = ROW", "settle", "end"),
    ],
    "defaults_that_the_server_shows_otherwise_than_they_are": [
        *(TABLE.format("t1"), "INSERT INTO t1 VALUES (1, 1)", "begin", "settle"),
        *(
            "ALTER TABLE t1 ADD b VARCHAR(9) DEFAULT 'x\\ny', ADD c VARBINARY(4) DEFAULT x'FF41', ADD d VARCHAR(9) DEFAULT 'NULL'",
            "settle",
            "end",
        ),
    ],
    "rows_without_a_key_get_a_virtual_column": [
        *(TABLE.format("t2"), "INSERT INTO t2 VALUES (1, 1), (2, 2), (3, 3)", "begin", "settle", "ALTER TABLE t2 DROP PRIMARY KEY"),
        *("settle", "ALTER TABLE t2 ADD COLUMN f BIGINT AS (2 + 3) VIRTUAL", "window", "DELETE FROM t2 WHERE a = 3", "settle"),
        *("ALTER TABLE t2 DROP COLUMN k0", "ALTER TABLE t2 ADD COLUMN k0 INT", "INSERT INTO t2 (a, k0) VALUES (5, 5)", "settle", "end"),
    ],
    "a_key_comes_and_goes_before_the_table_is_read_again": [
        *("CREATE TABLE t1 (a INT, b INT)", "INSERT INTO t1 VALUES (1, 1), (2, NULL), (2, NULL)", "begin", "settle", "down"),
        *("ALTER TABLE t1 ADD COLUMN id INT AUTO_INCREMENT, ADD PRIMARY KEY (id)", "UPDATE t1 SET b = 5 WHERE a = 1"),
        *("ALTER TABLE t1 DROP PRIMARY KEY, CHANGE id id INT", "ALTER TABLE t1 DROP COLUMN id", "settle", "end"),
    ],
    "copies_that_a_text_removed_get_a_key_for_a_while": [
        *("CREATE TABLE t1 (a INT NOT NULL, b INT)", "INSERT INTO t1 VALUES (1, 1), (1, 1), (2, 2)", "begin", "settle", "down"),
        *("SET binlog_format = STATEMENT", "DELETE FROM t1 WHERE a = 1 LIMIT 1", "SET binlog_format = ROW"),
        *("ALTER TABLE t1 ADD PRIMARY KEY (a)", "ALTER TABLE t1 DROP PRIMARY KEY", "settle", "end"),
    ],
    "a_table_is_replaced_by_a_query": [
        *("CREATE TABLE t1 (k0 INT NOT NULL, a INT, PRIMARY KEY (k0))", "INSERT INTO t1 VALUES (1, 1)", "begin", "settle"),
        *("CREATE OR REPLACE TABLE t1 (k0 INT NOT NULL, a INT, PRIMARY KEY (k0)) SELECT 5 AS k0, 5 AS a", "settle", "down"),
        *("CREATE TEMPORARY TABLE s (k0 INT)", "INSERT INTO s VALUES (7)", "CREATE OR REPLACE TABLE t1 AS SELECT * FROM s"),
        *("CREATE TABLE t2 AS SELECT * FROM s", "settle", "end"),
    ],
    "rows_end_in_a_table_that_shows_when_and_a_log_that_does_not_tell_names": [
        *(
            "SET GLOBAL binlog_row_metadata = MINIMAL",
            "CREATE TABLE t1 (k0 INT PRIMARY KEY, a INT, rs TIMESTAMP(6) GENERATED ALWAYS AS ROW START,"
            " re TIMESTAMP(6) GENERATED ALWAYS AS ROW END, PERIOD FOR SYSTEM_TIME(rs, re)) WITH SYSTEM VERSIONING",
            "INSERT INTO t1 (k0, a) VALUES (1, 1), (2, 2)",
            "begin",
            "settle",
        ),
        *("down", "DELETE FROM t1 WHERE k0 = 2", "UPDATE t1 SET a = 3 WHERE k0 = 1", "INSERT INTO t1 (k0, a) VALUES (4, 4)", "settle"),
        *("SET GLOBAL binlog_row_metadata = FULL", "DELETE FROM t1 WHERE k0 = 1", "restart", "settle", "end"),
    ],
    "a_table_gets_the_name_that_it_has": [
        *(
            TABLE.format("t1"),
            "INSERT INTO t1 VALUES (1, 1)",
            "begin",
            "settle",
            "ALTER TABLE t1 RENAME TO t1",
            "INSERT INTO t1 VALUES (2, 2)",
        ),
        *("settle", "down", "ALTER TABLE t1 RENAME = t1, ADD COLUMN b INT DEFAULT 5", "settle", "end"),
    ],
    "a_session_writes_names_in_another_charset": [
        *(TABLE.format("t1"), "begin", "SET NAMES latin1", "CREATE TABLE `té` (k0 INT PRIMARY KEY)", "INSERT INTO `té` VALUES (1)"),
        *("ALTER TABLE t1 ADD COLUMN `ü` VARCHAR(9) DEFAULT 'ö'", "INSERT INTO t1 VALUES (2, 2, 'y')", "settle", "down"),
        *("RENAME TABLE `té` TO `à`", "ALTER TABLE t1 DROP COLUMN `ü`", "settle", "DROP TABLE `à`", "settle", "end"),
    ],
    "a_table_is_altered_and_dropped_before_the_first_window": [
        *(TABLE.format("t1"), TABLE.format("t2"), "begin", "ALTER TABLE t2 ADD COLUMN c INT", "DROP TABLE t2"),
        *("INSERT INTO t1 VALUES (1, 1)", "settle"),
    ],
}


PARTED = [
    "CREATE TABLE t2 (k0 int NOT NULL, a text, PRIMARY KEY (k0)) PARTITION BY RANGE (k0)",
    "CREATE TABLE t2_p0 PARTITION OF t2 FOR VALUES FROM (MINVALUE) TO (10)",
    "CREATE TABLE t2_p1 PARTITION OF t2 FOR VALUES FROM (10) TO (20)",
]
ONCE_WRONG_ON_POSTGRES = {
    "a_column_is_renamed_after_the_table_was_told_and_before_it_is_captured": [
        *("CREATE TABLE t1 (k0 INT PRIMARY KEY)", "begin", "CREATE TABLE t3 (k0 INT PRIMARY KEY, a INT)"),
        *("SELECT pg_sleep(3)", "ALTER TABLE t3 RENAME COLUMN a TO c", "down", "settle"),
    ],
    "a_partition_with_rows_is_detached_renamed_and_attached_again": [
        *(*PARTED, "begin", "INSERT INTO t2 VALUES (5, 'a'), (13, 'b')", "ALTER TABLE t2 DETACH PARTITION t2_p1", "settle"),
        *("UPDATE t2_p1 SET a = 'c'", "ALTER TABLE t2_p1 RENAME TO t3", "settle"),
        *("ALTER TABLE t2 ATTACH PARTITION t3 FOR VALUES FROM (10) TO (20)", "settle", "end"),
    ],
    "a_detached_partition_is_truncated_and_written": [
        *(*PARTED, "begin", "INSERT INTO t2 VALUES (5, 'a'), (13, 'b')", "ALTER TABLE t2 DETACH PARTITION t2_p1"),
        *("TRUNCATE t2_p1", "INSERT INTO t2_p1 VALUES (14, 'c')", "settle", "end"),
    ],
    "partitions_are_dropped_and_detached_while_nobody_reads": [
        *(
            *PARTED,
            "CREATE TABLE t2_p2 PARTITION OF t2 FOR VALUES FROM (20) TO (30)",
            "INSERT INTO t2 VALUES (5, 'a'), (13, 'b'), (23, 'c')",
        ),
        *("begin", "window", "down", "DROP TABLE t2_p1", "settle", "down", "ALTER TABLE t2 DETACH PARTITION t2_p2", "settle", "end"),
    ],
    "a_partition_comes_and_goes_with_its_rows_while_nobody_reads": [
        *(*PARTED, "INSERT INTO t2 VALUES (5, 'a'), (13, 'b')", "begin", "settle", "down"),
        *("CREATE TABLE t2_p2 PARTITION OF t2 FOR VALUES FROM (20) TO (30)", "INSERT INTO t2 VALUES (23, 'c')", "DROP TABLE t2_p2"),
        *("settle", "end"),
    ],
    "rows_without_a_key_get_values_of_another_type": [
        *("CREATE TABLE t1 (a int, c bytea)", "ALTER TABLE t1 REPLICA IDENTITY FULL"),
        *(r"INSERT INTO t1 VALUES (1, '\xff00'), (1, '\xff00'), (2, '\x6162'), (3, NULL)", "begin", "settle"),
        *("ALTER TABLE t1 ALTER c TYPE text USING encode(c, 'hex')", "INSERT INTO t1 VALUES (9, 'z')", "settle"),
        *("DELETE FROM t1 WHERE a = 2", "UPDATE t1 SET a = 7 WHERE a = 1", "settle", "restart"),
        *("ALTER TABLE t1 ALTER a TYPE double precision USING a / 3.0", "settle", "end"),
    ],
    "keys_get_another_type_while_nobody_reads": [
        *("CREATE TABLE t1 (a double precision PRIMARY KEY, c int)", "INSERT INTO t1 VALUES (0.1, 1), (1e20, 2), (3, 3)", "begin"),
        *(
            "settle",
            "down",
            "ALTER TABLE t1 ALTER a TYPE text",
            "DELETE FROM t1 WHERE c = 1",
            "UPDATE t1 SET c = 9 WHERE c = 2",
            "settle",
            "restart",
        ),
        *("DELETE FROM t1 WHERE c = 3", "settle", "end"),
    ],
    "a_label_is_renamed_while_nobody_reads": [
        *("CREATE TYPE mood AS ENUM ('a', 'b')", "CREATE TABLE t1 (k0 int PRIMARY KEY, m mood)", "INSERT INTO t1 VALUES (1, 'a')"),
        *("begin", "window", "down", "ALTER TYPE mood RENAME VALUE 'a' TO 'z'", "settle", "end"),
    ],
    "a_table_is_emptied_before_its_first_row": [
        *(TABLE.format("t1"), "begin", TABLE.format("t3"), "TRUNCATE t3", "INSERT INTO t3 VALUES (6, 1)", "settle", "end")
    ],
    "a_table_is_emptied_and_filled_in_its_first_transaction": [
        *(TABLE.format("t1"), "INSERT INTO t1 VALUES (1, 1)", "begin", TABLE.format("t3"), "START TRANSACTION"),
        *("INSERT INTO t1 VALUES (2, 2)", "TRUNCATE t3, t1", "INSERT INTO t3 VALUES (6, 1)", "COMMIT WORK", "settle", "end"),
    ],
    "a_table_is_unlogged_for_a_while_before_its_first_logged_row": [
        *(TABLE.format("t1"), "begin", TABLE.format("t3"), "ALTER TABLE t3 RENAME COLUMN a TO d", "crash", "ALTER TABLE t3 SET UNLOGGED"),
        *("INSERT INTO t3 VALUES (8, 1)", "ALTER TABLE t3 SET LOGGED", "DELETE FROM t3 WHERE k0 = 9", "TRUNCATE t3"),
        *("INSERT INTO t3 VALUES (6, 1)", "settle", "end"),
    ],
    "a_column_goes_and_comes_back_around_a_truncate_before_the_first_window": [
        *("CREATE TABLE t1 (k0 int PRIMARY KEY, b int)", "INSERT INTO t1 VALUES (1, 1)", "begin", "ALTER TABLE t1 DROP COLUMN b"),
        *("TRUNCATE t1", "ALTER TABLE t1 ADD COLUMN b int", "INSERT INTO t1 VALUES (2, 2)", "settle", "end"),
    ],
    "a_table_is_renamed_and_gets_another_column_of_an_old_name": [
        *("CREATE TABLE o (k0 int PRIMARY KEY, a int, b int)", "INSERT INTO o VALUES (1, 1, 1)", "begin", "ALTER TABLE o RENAME TO t1"),
        *("ALTER TABLE t1 DROP COLUMN a, ADD COLUMN a int", "settle", "end"),
    ],
    "copies_are_named_otherwise_and_get_another_shape": [
        *("CREATE TABLE t2 (k0 int PRIMARY KEY, a int)", "INSERT INTO t2 VALUES (1, 1), (2, 2), (3, 3)", "begin"),
        *("CREATE TABLE o AS SELECT * FROM t2", "ALTER TABLE o REPLICA IDENTITY FULL", "DELETE FROM o WHERE a = 2", "settle"),
        *("ALTER TABLE o ADD COLUMN z int DEFAULT 4", "DELETE FROM o WHERE a = 1", "settle"),
        *("ALTER TABLE o ALTER a TYPE text USING 'x' || a", "settle", "end"),
    ],
    "a_key_goes_and_an_identity_comes": [
        *("CREATE TABLE t2 (k0 int PRIMARY KEY, a int)", "INSERT INTO t2 VALUES (1, 1), (2, 2), (3, 3)", "begin"),
        *("ALTER TABLE t2 DROP CONSTRAINT t2_pkey", "ALTER TABLE t2 REPLICA IDENTITY FULL", "INSERT INTO t2 VALUES (1, 1)"),
        *("DELETE FROM t2 WHERE a = 2", "settle", "VACUUM FULL t2", "DELETE FROM t2 WHERE a = 3", "settle"),
        *("ALTER TABLE t2 ADD COLUMN id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY", "settle"),
        *("UPDATE t2 SET a = 9", "VACUUM FULL t2", "settle", "end"),
    ],
    "a_key_moves_to_a_column_that_the_server_filled": [
        *("CREATE TABLE t1 (k0 int PRIMARY KEY, a int)", "INSERT INTO t1 VALUES (4, 4), (3, 3), (2, 2), (1, 1)", "begin", "settle"),
        *("ALTER TABLE t1 ADD COLUMN p serial", "ALTER TABLE t1 DROP CONSTRAINT t1_pkey, ADD PRIMARY KEY (p)"),
        *("INSERT INTO t1 VALUES (9, 9)", "UPDATE t1 SET a = 7 WHERE k0 = 3", "settle", "end"),
    ],
    "a_generated_column_becomes_an_ordinary_one": [
        *("CREATE TABLE t1 (k0 int PRIMARY KEY, w int GENERATED ALWAYS AS (k0 * 2) STORED)", "INSERT INTO t1 VALUES (1), (2)", "begin"),
        *("window", "ALTER TABLE t1 ALTER w DROP EXPRESSION", "UPDATE t1 SET w = 99 WHERE k0 = 1", "settle", "end"),
    ],
    "a_table_is_made_twice_without_a_row_before_a_crash": [
        *(TABLE.format("t1"), "begin", TABLE.format("t3"), "INSERT INTO t1 VALUES (1, 1)", "DROP TABLE t3", TABLE.format("t3")),
        *("INSERT INTO t1 VALUES (2, 1)", "crash", "restart", "INSERT INTO t3 VALUES (1, 1)", "settle", "end"),
    ],
    "parents_own_rows_and_those_of_children_are_apart": [
        *("CREATE TABLE p (k0 int PRIMARY KEY, a int)", "CREATE TABLE c (PRIMARY KEY (k0)) INHERITS (p)", "INSERT INTO p VALUES (1, 1)"),
        *("INSERT INTO c VALUES (2, 2)", "begin", "UPDATE p SET a = 9", "ALTER TABLE p ADD COLUMN b int DEFAULT 6", "settle"),
        *("ALTER TABLE c NO INHERIT p", "TRUNCATE ONLY c", "INSERT INTO c VALUES (5, 5, 5)", "settle", "end"),
    ],
    "a_generated_column_becomes_an_ordinary_one_while_nobody_reads": [
        *("CREATE TABLE t1 (k0 int PRIMARY KEY, w int GENERATED ALWAYS AS (k0 * 2) STORED)", "INSERT INTO t1 VALUES (1), (2)", "begin"),
        *("settle", "down", "ALTER TABLE t1 ALTER w DROP EXPRESSION", "settle", "end"),
    ],
    "the_publication_gives_less_for_a_while": [
        *(TABLE.format("t1"), "INSERT INTO t1 VALUES (1, 1)", "begin", "settle", "ALTER PUBLICATION penstock SET (publish = 'insert')"),
        *("UPDATE t1 SET a = 5", "ALTER PUBLICATION penstock SET (publish = 'insert, update, delete, truncate')", "settle", "down"),
        *("ALTER PUBLICATION penstock SET (publish = 'insert')", "UPDATE t1 SET a = 6"),
        *("ALTER PUBLICATION penstock SET (publish = 'insert, update, delete, truncate')", "settle", "end"),
    ],
    "the_publication_gives_fewer_columns_for_a_while": [
        *(TABLE.format("t1"), "INSERT INTO t1 VALUES (1, 1), (2, 2)", "begin", "settle", "DROP PUBLICATION penstock"),
        *("CREATE PUBLICATION penstock FOR TABLE t1 (k0) WITH (publish_via_partition_root = true)", "INSERT INTO t1 VALUES (3, 3)"),
        *("window", "ALTER PUBLICATION penstock SET TABLE t1", "INSERT INTO t1 VALUES (4, 4)", "settle", "DROP PUBLICATION penstock"),
        *("CREATE PUBLICATION penstock FOR ALL TABLES WITH (publish_via_partition_root = true)", "settle", "end"),
    ],
    "a_label_deep_in_a_type_is_renamed": [
        *("CREATE TYPE mood AS ENUM ('a', 'b')", "CREATE TYPE pair AS (m mood, n int)", "CREATE TABLE t1 (k0 int PRIMARY KEY, p pair[])"),
        *("INSERT INTO t1 VALUES (1, ARRAY[('a', 1)::pair])", "begin", "settle", "ALTER TYPE mood RENAME VALUE 'a' TO 'y'", "settle"),
        *("down", "ALTER TYPE mood RENAME VALUE 'y' TO 'z'", "settle", "end"),
    ],
    "a_partition_names_its_rows_otherwise_than_its_table": [
        *("CREATE TABLE t2 (k0 int, a text) PARTITION BY RANGE (k0)", "ALTER TABLE t2 REPLICA IDENTITY FULL"),
        *("CREATE TABLE t2_p0 PARTITION OF t2 FOR VALUES FROM (0) TO (10)", "ALTER TABLE t2_p0 ADD PRIMARY KEY (k0)"),
        *(
            "INSERT INTO t2 VALUES (1, 'a'), (2, 'b')",
            "begin",
            "settle",
            "UPDATE t2 SET a = 'z' WHERE k0 = 2",
            "DELETE FROM t2 WHERE k0 = 1",
        ),
        *("settle", "ALTER TABLE t2_p0 REPLICA IDENTITY FULL", "UPDATE t2 SET a = 'y' WHERE k0 = 2", "settle", "end"),
    ],
    "a_partition_with_partitions_of_its_own_is_detached": [
        *("CREATE TABLE t2 (k0 int PRIMARY KEY, a text) PARTITION BY RANGE (k0)",),
        *("CREATE TABLE t3 PARTITION OF t2 FOR VALUES FROM (0) TO (10) PARTITION BY RANGE (k0)",),
        *("CREATE TABLE t3_p0 PARTITION OF t3 FOR VALUES FROM (0) TO (10)", "INSERT INTO t2 VALUES (1, 'a')", "begin", "settle"),
        *("ALTER TABLE t2 DETACH PARTITION t3", "INSERT INTO t3 VALUES (2, 'b')", "settle", "end"),
    ],
    "a_key_is_deferrable_until_the_log_is_read": [
        *("CREATE TABLE t1 (k0 int PRIMARY KEY DEFERRABLE INITIALLY DEFERRED, a int)", "ALTER TABLE t1 REPLICA IDENTITY FULL"),
        *("INSERT INTO t1 VALUES (1, 1), (2, 2)", "begin", "settle", "down", "UPDATE t1 SET k0 = 3 - k0"),
        *("ALTER TABLE t1 DROP CONSTRAINT t1_pkey, ADD PRIMARY KEY (k0)", "UPDATE t1 SET a = a + 1", "settle", "end"),
    ],
    "an_identity_comes_before_the_first_window": [
        *("CREATE TABLE t1 (a int)", "ALTER TABLE t1 REPLICA IDENTITY FULL", "INSERT INTO t1 VALUES (1), (1), (2)", "begin"),
        *("ALTER TABLE t1 ADD COLUMN e bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY", "settle", "end"),
    ],
    "a_schema_has_another_name_for_a_while_and_again": [
        *(TABLE.format("t1"), "INSERT INTO t1 VALUES (1, 1)", "begin", "settle"),
        *("ALTER SCHEMA a_schema_has_another_name_for_a_while_an RENAME TO elsewhere", "INSERT INTO elsewhere.t1 VALUES (2, 2)", "window"),
        *("ALTER SCHEMA elsewhere RENAME TO a_schema_has_another_name_for_a_while_an", "INSERT INTO t1 VALUES (3, 3)", "settle"),
        *("ALTER SCHEMA a_schema_has_another_name_for_a_while_an RENAME TO elsewhere", "DELETE FROM elsewhere.t1 WHERE k0 = 1", "window"),
        *("ALTER SCHEMA elsewhere RENAME TO a_schema_has_another_name_for_a_while_an", "settle", "end"),
    ],
    "numbers_that_are_none_are_keys_and_values": [
        *("CREATE TABLE t1 (k0 double precision PRIMARY KEY, a real, n numeric(6,2))", "begin"),
        *("INSERT INTO t1 VALUES ('NaN', 'NaN', 'NaN'), ('Infinity', '-Infinity', 1), ('-0', 0, 0)", "settle"),
        *("UPDATE t1 SET a = 'NaN' WHERE k0 = 'Infinity'", "DELETE FROM t1 WHERE k0 = 'NaN'"),
        *("ALTER TABLE t1 ADD COLUMN d double precision DEFAULT 'NaN'", "settle", "end"),
    ],
    "a_key_goes_while_the_state_is_still_to_be_read": [
        *(TABLE.format("t1"), "begin", "CREATE TABLE t2 (k0 int PRIMARY KEY, a int)", "INSERT INTO t2 VALUES (1, 1), (2, 2)", "window"),
        *(
            "ALTER TABLE t2 DROP CONSTRAINT t2_pkey",
            "ALTER TABLE t2 REPLICA IDENTITY FULL",
            "INSERT INTO t2 VALUES (1, 1)",
            "settle",
            "end",
        ),
    ],
    "equal_rows_come_before_and_behind_another_name": [
        *("CREATE TABLE t1 (a int)", "ALTER TABLE t1 REPLICA IDENTITY FULL", "INSERT INTO t1 VALUES (1), (7)", "begin", "settle"),
        *("START TRANSACTION", "INSERT INTO t1 VALUES (1), (1), (2)", "ALTER TABLE t1 RENAME TO t2", "INSERT INTO t2 VALUES (1), (1), (2)"),
        *("DELETE FROM t2 WHERE a = 7", "COMMIT WORK", "settle", "end"),
    ],
    "a_staged_table_takes_the_place_of_another": [
        *(TABLE.format("t1"), "INSERT INTO t1 VALUES (3, 3)", "begin", "settle", TABLE.format("lives_away.n1")),
        *("INSERT INTO lives_away.n1 VALUES (1, 1)", "settle", "START TRANSACTION", "DROP TABLE t1"),
        *("ALTER TABLE lives_away.n1 SET SCHEMA a_staged_table_takes_the_place_of_anothe", "ALTER TABLE n1 RENAME TO t1", "COMMIT WORK"),
        *("settle", "end"),
    ],
    "a_staged_table_comes_while_nobody_reads": [
        *(TABLE.format("t1"), TABLE.format("lives_away.n1"), "INSERT INTO lives_away.n1 VALUES (1, 1)", "begin", "settle", "down"),
        *("ALTER TABLE lives_away.n1 SET SCHEMA a_staged_table_comes_while_nobody_reads", "settle", "end"),
    ],
    "a_table_is_emptied_and_elsewhere_before_the_first_window": [
        *(TABLE.format("t1"), "INSERT INTO t1 VALUES (3, 3)", "begin", "TRUNCATE t1", "ALTER TABLE t1 SET SCHEMA lives_away"),
        *("INSERT INTO lives_away.t1 VALUES (9, 9)", "SELECT pg_sleep(2)"),
        *("ALTER TABLE lives_away.t1 SET SCHEMA a_table_is_emptied_and_elsewhere_before_", "settle", "end"),
    ],
    "a_table_was_elsewhere_and_is_unlogged_for_a_while": [
        *(TABLE.format("t1"), "begin", "ALTER TABLE t1 SET SCHEMA lives_away", "INSERT INTO lives_away.t1 VALUES (5, 5)"),
        *("ALTER TABLE lives_away.t1 SET SCHEMA a_table_was_elsewhere_and_is_unlogged_fo", "ALTER TABLE t1 SET UNLOGGED"),
        *("INSERT INTO t1 VALUES (12, 1)", "ALTER TABLE t1 SET LOGGED", "settle", "end"),
    ],
    "a_name_passes_between_tables_without_rows": [
        *(TABLE.format("t1"), "begin", TABLE.format("n1"), TABLE.format("n2"), "settle", "DROP TABLE n1", "ALTER TABLE n2 RENAME TO n1"),
        *(TABLE.format("n2"), "settle", "INSERT INTO n1 VALUES (1, 1)", "INSERT INTO n2 VALUES (2, 2)", "settle", "end"),
    ],
}


TABLES = [TABLE.format("t1"), TABLE.format("t2"), "INSERT INTO t1 VALUES (1, 1), (2, 2)", "INSERT INTO t2 VALUES (3, 3)", "begin", "settle"]
LOST = {
    "tables_come_go_and_change_where_the_log_is_lost": [
        *(*TABLES, "down", TABLE.format("t3"), "INSERT INTO t3 VALUES (4, 4)", TABLE.format("t4"), "DROP TABLE t2"),
        *("ALTER TABLE t1 ADD COLUMN b INT DEFAULT 5", "INSERT INTO t1 VALUES (6, 6, 6)", "lose", "INSERT INTO t3 VALUES (7, 7)"),
        *("settle", "INSERT INTO t4 VALUES (8, 8)", "DELETE FROM t3 WHERE k0 = 4", "UPDATE t1 SET a = 9", "restart", "settle", "end"),
    ],
    "names_go_on_to_others_where_the_log_is_lost": [
        *(*TABLES, "down", "ALTER TABLE t2 RENAME TO t5", "ALTER TABLE t1 RENAME TO t2", "CREATE TABLE t1 (x VARCHAR(9))"),
        *("INSERT INTO t1 VALUES ('a'), ('a')", "lose", "settle", "INSERT INTO t2 VALUES (9, 9)", "DELETE FROM t5", "settle", "end"),
    ],
    "a_table_is_another_one_where_the_log_is_lost": [
        *(*TABLES, "down", "DROP TABLE t1", TABLE.format("t1"), "INSERT INTO t1 VALUES (2, 7)"),
        *("DROP TABLE t2", "CREATE TABLE t2 (k0 VARCHAR(9) PRIMARY KEY, a INT)", "INSERT INTO t2 VALUES ('3', 3), ('x', 4)", "lose"),
        *("settle", "INSERT INTO t1 VALUES (3, 3)", "UPDATE t2 SET a = 8", "settle", "end"),
    ],
}


@pytest.mark.parametrize("case", LOST)
def test_the_log_is_lost_on_mariadb(mariadb_server: Server, tmp_path: Path, case: str) -> None:
    live_again(mariadb_server, tmp_path / "life", case[:40], LOST[case])


@pytest.mark.parametrize("case", LOST)
def test_the_log_is_lost_on_postgres(postgres_server: Server, tmp_path: Path, case: str) -> None:
    live_again(postgres_server, tmp_path / "life", case[:40], LOST[case])


@pytest.mark.parametrize("case", ONCE_WRONG)
def test_what_was_once_wrong(mariadb_server: Server, tmp_path: Path, case: str) -> None:
    live_again(mariadb_server, tmp_path / "life", case[:40], ONCE_WRONG[case])


@pytest.mark.parametrize("case", ONCE_WRONG_ON_POSTGRES)
def test_what_was_once_wrong_on_postgres(postgres_server: Server, tmp_path: Path, case: str) -> None:
    live_again(postgres_server, tmp_path / "life", case[:40], ONCE_WRONG_ON_POSTGRES[case])


@pytest.mark.mysql
def test_a_unique_key_of_a_virtual_column_names_no_row(mysql_server: Server, tmp_path: Path) -> None:
    table = "CREATE TABLE t1 (a INT NOT NULL, b INT, v INT AS (a * 2) VIRTUAL NOT NULL, UNIQUE KEY (v))"
    script = [table, "INSERT INTO t1 (a, b) VALUES (1, 1), (2, 2)", "begin", "settle", "UPDATE t1 SET b = 9 WHERE a = 2"]
    script += ["UPDATE t1 SET a = 7 WHERE a = 1", "settle", "ALTER TABLE t1 DROP KEY v", "INSERT INTO t1 (a, b) VALUES (7, 1)", "settle"]
    live_again(mysql_server, tmp_path / "life", "unnamed", script)


def live_again(server: Server, root: Path, name: str, script: list[str]) -> None:
    life = Life(server, root, name)
    try:
        life.again(Step("sql", 0, text) if " " in text else Step(text) for text in script)
        assert life.refused == 0
    finally:
        life.close()
