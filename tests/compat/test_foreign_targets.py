"""Targets as TiCDC writes them: its documents' and its older releases' ways of saying things, and everything is read."""

import itertools
import json
import zlib
from pathlib import Path

import pytest

from penstock.readback.consumer import StorageConsumer
from penstock.readback.inspection import check_target
from penstock.readback.reader import StorageReader
from penstock.readback.replay import replay_table
from penstock.readback.replay_opening import open_database
from penstock.target.settings import StorageSinkSettings, from_uri
from penstock.target.storage import ObjectTarget

V = 441349361156227074
COLUMNS = [
    {"ColumnName": "Id", "ColumnType": "INT", "ColumnPrecision": "11", "ColumnNullable": "false", "ColumnIsPk": "true"},
    {"ColumnName": "LastName", "ColumnType": "CHAR", "ColumnPrecision": "20"},
    {"ColumnName": "Flags", "ColumnType": "BIT UNSIGNED", "ColumnPrecision": "8"},
    {"ColumnName": "Born", "ColumnType": "YEAR UNSIGNED", "ColumnPrecision": "4"},
    {"ColumnName": "State", "ColumnType": "ENUM"},
    {"ColumnName": "Tags", "ColumnType": "SET"},
    {"ColumnName": "HireDate", "ColumnType": "DATETIME", "ColumnScale": "6"},
    {"ColumnName": "Office", "ColumnType": "BLOB", "ColumnPrecision": "65535"},
]
_numbers = itertools.count()


def schema_file(columns: list[dict[str, str]], *, total_as_text: bool = False) -> tuple[str, bytes]:
    """Return name and content of a schema file, made here from the layout's description alone."""
    ordered = sorted(columns, key=lambda c: c["ColumnName"])
    hashed = {"Table": "employee", "Schema": "hr", "Version": 0, "TableColumns": ordered, "TableColumnsTotal": len(columns)}
    crc = zlib.crc32(json.dumps(hashed, indent=4).encode())
    total: object = str(len(columns)) if total_as_text else len(columns)
    document = {"Table": "employee", "Schema": "hr", "Version": 1, "TableVersion": V, "Query": "", "Type": 0}
    content = json.dumps(document | {"TableColumns": columns, "TableColumnsTotal": total}, indent=4)
    return f"hr/employee/meta/schema_{V}_{crc:010d}.json", content.encode()


def foreign(query: str, files: dict[str, bytes], checkpoint: int) -> tuple[ObjectTarget, StorageSinkSettings]:
    uri, settings = from_uri(f"memory://foreign-{next(_numbers)}/?{query}")
    target = ObjectTarget.open(uri)
    for path, content in files.items():
        target.put(path, content)
    target.put("metadata", b'{"checkpoint-ts":%d}' % checkpoint)
    return target, settings


CSV = (
    b'"I","employee","hr",101,"Smith",81,2014,"a","x,y","2014-06-04 00:00:00.000000","6Zi/5pav"\r\n'
    b'"I","employee","hr",102,"Al""ex",\\N,\\N,\\N,\\N,\\N,\\N\r\n'
)
MORE = (
    b'"U","employee","hr",102,"Alex",0,1970,"b","","2018-06-15 01:02:03.000004",""\r\n'
    b'"D","employee","hr",101,"Smith",81,2014,"a","x,y","2014-06-04 00:00:00.000000","6Zi/5pav"\r\n'
)


@pytest.mark.parametrize("total_as_text", [False, True])
def test_csv_with_its_own_defaults(total_as_text: bool, tmp_path: Path) -> None:
    """No commit ts, no elements of ENUM and SET, dates of writing, leftovers of writes."""
    directory = f"hr/employee/{V}/2031-01-01"
    files = {
        "hr/employee/meta/schema_1_0000000001.json.tmp.6b2f": b"{",
        f"{directory}/CDC00000000000000000001.csv": CSV,
        f"{directory}/CDC00000000000000000002.csv": MORE,
        f"{directory}/meta/CDC.index": b"CDC00000000000000000002.csv\n",
        **dict([schema_file(COLUMNS, total_as_text=total_as_text)]),
    }
    target, settings = foreign("csv.include-commit-ts=false", files, V + 10)
    reader = StorageReader(target, settings)
    expected = [(102, "Alex", 0, 1970, "b", "", "2018-06-15 01:02:03.000004", b"")]
    assert replay_table(reader, "hr", "employee").rows() == expected
    assert [f.path for f in check_target(target, settings)] == ["hr/employee/meta/schema_1_0000000001.json.tmp.6b2f"]
    database = open_database(f"duckdb:///{tmp_path}/d.db")
    try:
        assert StorageConsumer(reader, database).run_round().rows == 4
        assert database._fetch("SELECT Id, LastName, State FROM hr.employee", ()) == [(102, "Alex", "b")]
    finally:
        database.close()


def test_csv_of_several_nodes_with_commit_ts() -> None:
    """Dispatchers in names, as TiCDC numbers them: two 64-bit numbers in decimal, side by side."""
    directory = f"hr/employee/{V}/13"
    names = ["600264016785888022412950529103353593998", "1"]
    row = b'"%s","employee","hr",%d,%d,"%s",1,2000,"a","",\\N,""\r\n'
    files = {
        f"{directory}/CDC_{names[0]}_000001.csv": row % (b"I", V + 1, 1, b"one") + row % (b"U", V + 5, 1, b"five"),
        f"{directory}/meta/CDC_{names[0]}.index": f"CDC_{names[0]}_000001.csv\n".encode(),
        f"{directory}/CDC_{names[1]}_000001.csv": row % (b"I", V + 2, 2, b"two") + row % (b"I", V + 20, 3, b"beyond"),
        f"{directory}/meta/CDC_{names[1]}.index": f"CDC_{names[1]}_000001.csv\n".encode(),
        **dict([schema_file(COLUMNS)]),
    }
    target, settings = foreign("date-separator=none&file-index-digit=6", files, V + 10)
    rows = replay_table(StorageReader(target, settings), "hr", "employee").sort("Id").rows()
    assert [r[:2] for r in rows] == [(1, "five"), (2, "two")]
    assert list(check_target(target, settings)) == []


def test_canal_json_with_wall_clocks_and_types_in_any_order() -> None:
    """``ts`` is when it was written, ``mysqlType`` comes in the order of a map, ENUM and SET are numbers."""
    values = {"Id": "101", "LastName": "Sm\u003cith", "Flags": "81", "Born": "2014", "State": "1", "Tags": "3", "HireDate": None}
    values["Office"] = "é\u0000"
    message: dict[str, object] = {"id": 0, "database": "hr", "table": "employee", "pkNames": ["Id"], "isDdl": False, "type": "INSERT"}
    message |= {"es": 1, "ts": 99, "sql": "", "sqlType": dict.fromkeys(values, 12), "mysqlType": dict.fromkeys(reversed(values), "x")}
    message |= {"old": None, "data": [values], "_tidb": {"commitTs": V + 1}}
    text = json.dumps(message, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")
    directory = f"hr/employee/{V}/2023-05-09"
    files = {
        f"{directory}/CDC00000000000000000001.json": text.encode() + b"\r\n",
        f"{directory}/meta/CDC.index": b"CDC00000000000000000001.json\n",
        **dict([schema_file(COLUMNS)]),
    }
    target, settings = foreign("protocol=canal-json", files, V + 10)
    rows = replay_table(StorageReader(target, settings), "hr", "employee").rows()
    assert rows == [(101, "Sm<ith", 81, 2014, 1, 3, None, b"\xe9\x00")]
