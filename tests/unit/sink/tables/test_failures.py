"""Errors of database targets are decided by their codes; what is not surely permanent is tried again, and no value or password is shown."""

import psycopg
import pymysql
import pytest

from penstock.access.mysql_server import parse_uri
from penstock.sink.mysql.errors import failure as mysql_failure
from penstock.sink.postgres.errors import failure as postgres_failure

ADDRESS = parse_uri("mysql://cdc:s3cret-word@db:3306/")


@pytest.mark.parametrize(
    ("number", "code"),
    [
        (1213, "SINK_UNAVAILABLE"),
        (1205, "SINK_UNAVAILABLE"),
        (2013, "SINK_UNAVAILABLE"),
        (1290, "SINK_UNAVAILABLE"),
        (1062, "SINK_UNAVAILABLE"),
        (9999, "SINK_UNAVAILABLE"),
        (1114, "SINK_FULL"),
        (1142, "SINK_UNWRITABLE"),
        (1146, "SINK_UNWRITABLE"),
        (1452, "SINK_UNWRITABLE"),
        (1406, "SINK_VALUE_REFUSED"),
        (1366, "SINK_VALUE_REFUSED"),
    ],
)
def test_mysql(number: int, code: str) -> None:
    error = mysql_failure(pymysql.err.OperationalError(number, "for s3cret-word in 'row-content'"), ADDRESS)
    assert error.code == code
    assert "s3cret-word" not in str(error)
    assert "row-content" not in str(error) or code != "SINK_VALUE_REFUSED"


@pytest.mark.parametrize(
    ("kind", "code"),
    [
        (psycopg.errors.DeadlockDetected, "SINK_UNAVAILABLE"),
        (psycopg.errors.SerializationFailure, "SINK_UNAVAILABLE"),
        (psycopg.errors.AdminShutdown, "SINK_UNAVAILABLE"),
        (psycopg.errors.DuplicateTable, "SINK_UNAVAILABLE"),
        (psycopg.errors.UniqueViolation, "SINK_UNAVAILABLE"),
        (psycopg.errors.ReadOnlySqlTransaction, "SINK_UNAVAILABLE"),
        (psycopg.OperationalError, "SINK_UNAVAILABLE"),
        (psycopg.errors.DiskFull, "SINK_FULL"),
        (psycopg.errors.InsufficientPrivilege, "SINK_UNWRITABLE"),
        (psycopg.errors.UndefinedTable, "SINK_UNWRITABLE"),
        (psycopg.errors.ForeignKeyViolation, "SINK_UNWRITABLE"),
        (psycopg.errors.NumericValueOutOfRange, "SINK_VALUE_REFUSED"),
        (psycopg.errors.NotNullViolation, "SINK_VALUE_REFUSED"),
    ],
)
def test_postgres(kind: type[psycopg.Error], code: str) -> None:
    error = postgres_failure(kind("for s3cret-word in 'row-content'"), "postgresql://cdc:s3cret-word@db/lake", "postgresql://db:5432/lake")
    assert error.code == code
    assert "s3cret-word" not in str(error)
    assert "row-content" not in str(error) or code != "SINK_VALUE_REFUSED"
