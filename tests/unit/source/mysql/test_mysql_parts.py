"""Parts of the MySQL source by themselves: GTID sets, places of the log, URIs, JSON, charsets, keys, snapshot queries."""

from __future__ import annotations

import json
import struct

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.model.errors import PenstockError
from penstock.model.table import Column, TableSchema
from penstock.model.types import ColumnType, TypeKind
from penstock.source.mysql.connection import parse_uri
from penstock.source.mysql.gtid import MariadbGtids, MysqlGtids
from penstock.source.mysql.position import LogPlace
from penstock.source.mysql.rows.charsets import to_utf8
from penstock.source.mysql.rows.json_text import double_text, json_text
from penstock.source.mysql.rows.row_keys import row_contents, row_keys
from penstock.source.mysql.snapshot.snapshot import select_statement

SID = "3e11fa47-71ca-11e1-9e33-c80aa9429562"
OTHER = "4e11fa47-71ca-11e1-9e33-c80aa9429562"


def test_gtids_of_mariadb() -> None:
    one = MariadbGtids.parse("0-1-5, 7-2-9")
    assert str(one) == "0-1-5,7-2-9"
    later = one.advanced(np.array([0, -1, 0]), np.array([3, 0, 3]), np.array([6, 0, 7]))
    assert str(later) == "0-3-7,7-2-9"
    assert later.reached(one)
    assert not one.reached(later)
    assert one.reached(MariadbGtids.parse(""))


def test_gtids_of_mysql() -> None:
    one = MysqlGtids.parse(f"{SID}:1-5:7,\n{OTHER}:3")
    later = one.advanced([OTHER, SID], np.array([1, 1, 0, -1]), np.array([6, 8, 4, 0]))
    assert str(later) == f"{SID}:1-8,{OTHER}:3-4"
    assert later.reached(one)
    assert not one.reached(later)
    wire = MysqlGtids.parse(f"{SID}:1-5").to_wire()
    assert wire == struct.pack("<Q", 1) + bytes.fromhex(SID.replace("-", "")) + struct.pack("<QQQ", 1, 1, 6)
    with pytest.raises(PenstockError, match="tagged"):
        MysqlGtids.parse(f"{SID}:tag:1-5")


@pytest.mark.parametrize("text", ["bin.000001:4", "bin.000007:120@0-1-5", f"b.1:9@{SID}:1-5", "b.1:9@"])
def test_places_read_back_and_are_compared_by_gtids_first(text: str) -> None:
    assert str(LogPlace.parse(text)) == text
    assert LogPlace.parse(text).reached(LogPlace.parse(text))


def test_the_order_of_places() -> None:
    assert LogPlace.parse("bin.000010:4").reached(LogPlace.parse("bin.000009:500"))
    assert not LogPlace.parse("bin.000010:4").reached(LogPlace.parse("bin.000010:5"))
    assert LogPlace.parse("other.000001:4@0-2-9").reached(LogPlace.parse("bin.000009:500@0-1-9"))
    assert not LogPlace.parse("bin.000010:4@0-1-8").reached(LogPlace.parse("bin.000009:500@0-1-9"))


def test_uris() -> None:
    address = parse_uri("mysql://cdc:p%40ss@[::1]:3307/?ssl=required&server-id=77")
    assert (address.host, address.port, address.user, address.password, address.ssl_mode, address.server_id) == (
        *("::1", 3307, "cdc", "p@ss"),
        *("required", 77),
    )
    assert "p@ss" not in repr(address)
    assert parse_uri("mariadb://db").port == 3306
    for wrong in ("mysql://", "mysql://db:99999", "mysql://db/?nonsense=1", "mysql://db/?ssl=maybe", "mysql://db/?server-id=x"):
        with pytest.raises(PenstockError) as error:
            parse_uri(wrong)
        assert error.value.code == "CONFIG_INVALID"


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_doubles_inside_json_read_back_the_same(value: float) -> None:
    text = double_text(value)
    assert float(text) == value
    assert "." in text or "e" in text


def test_malformed_json_is_an_error_of_ours() -> None:
    assert json.loads(json_text(bytes([2, 2, 0, 10, 0, 5, 1, 0, 4, 1, 0]))) == [1, True]
    for wrong in (b"\x00", b"\x0c\xff\xff", b"\x02\x01\x00\x07\x00\x0c\xff\xff"):
        with pytest.raises((IndexError, ValueError, KeyError, struct.error)):
            json_text(wrong)


def test_charsets_become_utf8() -> None:
    texts = ["é€", None, "", "plain"]
    raw = pa.array([t.encode("cp1252") if t is not None else None for t in texts], pa.binary())
    assert to_utf8(raw, "latin1", "c").to_pylist() == texts
    assert to_utf8(raw.slice(1), "latin1", "c").to_pylist() == texts[1:]
    assert to_utf8(pa.array(["日本".encode("cp932"), None], pa.binary()), "sjis", "c").to_pylist() == ["日本", None]
    with pytest.raises(PenstockError, match="not UTF-8"):
        to_utf8(pa.array([b"\xff"], pa.binary()), "utf8mb4", "c")
    with pytest.raises(PenstockError, match="not supported"):
        to_utf8(pa.array([b"a"], pa.binary()), "armscii8", "c")


def table_of(*columns: Column) -> TableSchema:
    return TableSchema(9, "s", "t`x", 1, columns)


@given(st.lists(st.tuples(st.integers(-(2**63), 2**63 - 1), st.floats(allow_nan=False)), min_size=2, max_size=20))
def test_keys_have_the_order_of_their_columns(values: list[tuple[int, float]]) -> None:
    table = table_of(
        Column(1, "d", ColumnType(TypeKind.DOUBLE), primary_key=True), Column(2, "i", ColumnType(TypeKind.BIGINT), primary_key=True)
    )
    # Zero has two signs and one value.
    pairs = [(number + 0.0 if number else 0.0, key) for key, number in values]
    keys = row_keys(table, (pa.array([p[0] for p in pairs]), pa.array([p[1] for p in pairs]))).to_pylist()
    assert sorted(range(len(pairs)), key=lambda n: keys[n]) == sorted(range(len(pairs)), key=lambda n: pairs[n])


def test_rows_without_a_key_are_known_by_all_their_columns() -> None:
    table = table_of(Column(1, "a", ColumnType(TypeKind.INT)), Column(2, "b", ColumnType(TypeKind.VARCHAR, length=5)))
    keys = row_contents(table, (pa.array([1, None, 1, 0], pa.int32()), pa.array(["x", "x", None, "x"]))).to_pylist()
    assert len(set(keys)) == 4
    assert {len(k) for k in keys} == {16}


def test_pages_of_a_snapshot_continue_behind_a_key_inside_a_range() -> None:
    key = Column(1, "id", ColumnType(TypeKind.INT), primary_key=True)
    table = table_of(key, Column(2, "f", ColumnType(TypeKind.FLOAT)), Column(3, "s", ColumnType(TypeKind.SET, elems=("a",))))
    text = select_statement(table, ["`id` >= 5"], ("id",), [7], 100)
    assert text == (
        "SELECT `id`, `f` + 0e0, CAST(`s` AS UNSIGNED) FROM `s`.`t``x` WHERE `id` >= 5 AND ((`id` > 7)) ORDER BY `id` LIMIT 100"
    )
    two = select_statement(table, [], ("s", "id"), ["o'\\", 7], 9)
    assert two.endswith("WHERE ((`s` > 'o''\\\\') OR (`s` = 'o''\\\\' AND `id` > 7)) ORDER BY `s`, `id` LIMIT 9")
