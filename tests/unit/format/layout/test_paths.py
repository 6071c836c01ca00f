import datetime as dt

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.format.layout.paths import (
    DataDir,
    DataPath,
    DateSeparator,
    IndexPath,
    Layout,
    SchemaPath,
    escape_name,
    parse_schema_path,
    schema_path,
    unescape_name,
)
from penstock.model.errors import PenstockError
from penstock.model.table import TableSchema
from penstock.model.timestamp import compose_ts


def ts_of(text: str, logical: int = 0) -> int:
    return compose_ts(int(dt.datetime.fromisoformat(text).replace(tzinfo=dt.UTC).timestamp() * 1000), logical)


TABLE = TableSchema(7, "schema1", "table1", 441349361156227074, (), partition_id=13)


def test_paths_are_those_of_the_seed() -> None:
    layout = Layout()
    directory = layout.data_dir(TABLE, TABLE.version, ts_of("2023-05-09T12:00:00"))
    assert layout.data_path(DataPath(directory, "", 1)) == "schema1/table1/441349361156227074/13/2023-05-09/CDC00000000000000000001.csv"
    assert layout.index_path(directory) == "schema1/table1/441349361156227074/13/2023-05-09/meta/CDC.index"
    assert schema_path(SchemaPath("schema1", "table1", 441349361156227074, 3131721815)) == (
        "schema1/table1/meta/schema_441349361156227074_3131721815.json"
    )
    assert schema_path(SchemaPath("schema1", "", 441349361156227000, 42)) == "schema1/meta/schema_441349361156227000_0000000042.json"


def test_split_tables_carry_the_dispatcher_in_names() -> None:
    layout = Layout(file_index_width=6)
    directory = DataDir("s", "t", 5)
    dispatcher = layout.dispatcher_text(7, 3, 4)
    assert dispatcher == "70003"
    assert layout.dispatcher_text(7, 0, 1) == layout.dispatcher_text(7, 0, 1, partition_id=7) == ""
    together = Layout(enable_partition_separator=False)
    assert together.dispatcher_text(7, 0, 1, partition_id=7) == "70000", "partitions that share a directory"
    assert (together.partition_of(directory, "70000"), layout.partition_of(directory, "70000")) == (7, 0)
    assert layout.data_path(DataPath(directory, dispatcher, 12)) == "s/t/5/CDC_70003_000012.csv"
    assert layout.index_path(directory, dispatcher) == "s/t/5/meta/CDC_70003.index"
    assert layout.data_name(1_000_000) == "CDC1000000.csv"


@pytest.mark.parametrize(("separator", "text"), [("none", ""), ("year", "2023"), ("month", "2023-05"), ("day", "2023-05-09")])
def test_dates_follow_the_commit_date_in_utc(separator: str, text: str) -> None:
    layout = Layout(DateSeparator(separator))
    assert layout.date_text(ts_of("2023-05-09T23:59:59.999")) == text


def test_cuts_lie_where_the_date_directory_changes() -> None:
    times = ["2023-01-31T23:59:59", "2023-01-31T23:59:59", "2023-02-01T00:00:00", "2023-02-02T00:00:00", "2024-02-02T00:00:00"]
    ts = np.array([ts_of(t, i) for i, t in enumerate(times)], np.uint64)
    assert Layout(DateSeparator.DAY).date_cuts(ts) == [2, 3, 4]
    assert Layout(DateSeparator.MONTH).date_cuts(ts) == [2, 4]
    assert Layout(DateSeparator.YEAR).date_cuts(ts) == [4]
    assert Layout(DateSeparator.NONE).date_cuts(ts) == []
    assert Layout(DateSeparator.DAY).date_cuts(ts[:2]) == []


@pytest.mark.parametrize("name", ["CDC1.csv", "cdc000001.csv", "CDC000005.xxx", "CDChello.csv", "CDC_7_.csv", "xCDC000001.csv"])
def test_names_of_other_files_are_refused(name: str) -> None:
    with pytest.raises(PenstockError, match="FILE_MALFORMED"):
        Layout().parse_data_name(name)


@pytest.mark.parametrize(
    "path", ["metadata", "s/t/x/CDC000001.csv", "s/t/1/2/3/4/CDC000001.csv", "s/t/1/meta/CDC.index.tmp", "CDC.index", ""]
)
def test_paths_of_other_objects_are_told_apart(path: str) -> None:
    layout = Layout()
    assert layout.parse_data(path) is None
    assert layout.parse_index(path) is None
    assert parse_schema_path(path) is None


names = st.text(st.characters(blacklist_categories=["Cs"]), max_size=12) | st.sampled_from(
    ["", ".", "..", "%", "%25", "%2F", "a/b", "../../etc", "meta", "metadata", ".penstock", "a\\b", "\x00", "%%41", "x y", "日本"]
)


@given(names)
def test_any_name_is_one_level_and_comes_back(name: str) -> None:
    level = escape_name(name)
    assert level not in {"", ".", ".."}
    assert not any(c in {"/", "\\"} or ord(c) < 32 or ord(c) == 127 for c in level)
    assert unescape_name(level) == name


@given(names, names)
def test_escaping_keeps_names_apart(one: str, other: str) -> None:
    assert (escape_name(one) == escape_name(other)) == (one == other)


@given(
    st.sampled_from(DateSeparator),
    st.integers(6, 20),
    names,
    names,
    st.integers(0, 2**64 - 1),
    st.integers(0, 2**40),
    st.integers(1, 10**9),
)
def test_paths_parse_back(separator: DateSeparator, width: int, schema: str, table: str, version: int, partition: int, number: int) -> None:
    layout = Layout(separator, width)
    date = layout.date_text(ts_of("2023-05-09T01:02:03"))
    directory = DataDir(schema, table, version, partition if separator is not DateSeparator.YEAR or partition > 9999 else 0, date)
    for dispatcher in ("", "70003"):
        path = layout.data_path(DataPath(directory, dispatcher, number))
        assert layout.parse_data(path) == DataPath(directory, dispatcher, number)
        index = layout.index_path(directory, dispatcher)
        assert layout.parse_index(index) == IndexPath(directory, dispatcher)
        assert layout.parse_index(path) is None
        assert parse_schema_path(path) is None
        assert path.split("/")[0] not in {"metadata", ".penstock"}
    schema_file = SchemaPath(schema, table or "t", version, number)
    assert parse_schema_path(schema_path(schema_file)) == schema_file
    assert layout.parse_data(schema_path(schema_file)) is None
