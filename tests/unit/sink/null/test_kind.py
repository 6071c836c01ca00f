"""The null target, through the catalog, as a task uses it."""

import pyarrow as pa
import pytest

from penstock.model.errors import PenstockError
from penstock.model.table import Column, TableSchema
from penstock.model.types import ColumnType, TypeKind
from penstock.sink.catalog import check_target, kind_of, open_maintainer, open_sink, open_state, settings_of
from penstock.sink.contract import DispatcherId, DispatcherWork, DmlEvent
from penstock.target.storage import unfenced

TABLE = TableSchema(7, "shop", "orders", 1, (Column(1, "id", ColumnType(TypeKind.BIGINT), False, True),))
WHOLE = DispatcherId(7)


def rows(*ts: int) -> pa.RecordBatch:
    names = ["_ts", "_op", "id"]
    return pa.RecordBatch.from_arrays([pa.array(ts, pa.uint64()), pa.array([1] * len(ts), pa.uint8()), pa.array(ts, pa.int64())], names)


def test_rows_are_counted_told_and_dropped() -> None:
    sink = open_sink("null://", {}, None)
    told: list[str] = []
    sink.open_dispatcher(DispatcherWork(WHOLE, TABLE, 1, 10))
    sink.add_dml_event(DmlEvent(WHOLE, TABLE, rows(2, 3), lambda: told.append("enqueued"), lambda: told.append("flushed")))
    with pytest.raises(PenstockError, match="commit order"):
        sink.add_dml_event(DmlEvent(WHOLE, TABLE, rows(2)))
    result = sink.close_dispatcher(WHOLE)
    assert (told, result.rows, result.files, result.position) == (["enqueued", "flushed"], 2, (), {})
    assert result.nbytes == rows(2, 3).nbytes
    assert open_maintainer("null://", {}, unfenced).published_ts() == 0


def test_its_options_are_its_own() -> None:
    assert settings_of("null://?old-values=true", {"flush-interval": "1s"})[1].needs_before(TABLE)
    assert settings_of("null://", {"flush-interval": "1s"})[1].flush_interval_ms == 1_000
    with pytest.raises(PenstockError, match=r"CONFIG_INVALID.*uri\?flush-intervall.*flush-interval") as error:
        settings_of("null://?flush-intervall=1s", {"old-values": "perhaps", "csv.delimiter": ";"})
    assert "old-values" in str(error.value)
    assert "csv" in str(error.value), "every fault at once"


def test_it_is_found_by_its_scheme_and_says_what_it_cannot() -> None:
    assert kind_of("null://").name == "null"
    assert [finding.ok for finding in check_target("null://")] == [True]
    with pytest.raises(PenstockError, match="SINK_NOT_READABLE"):
        open_state("null://", {})
    with pytest.raises(PenstockError, match=r"SINK_URI_INVALID.*'nul'.*file.*null.*connection"):
        kind_of("nul://user:geheim@x")
    (finding,) = check_target("null://?x=1")
    assert not finding.ok
    assert "uri?x" in finding.found
