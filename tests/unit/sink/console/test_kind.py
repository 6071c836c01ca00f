"""The console target: what a task tells and what the server prints, bounded whatever there is."""

import io

import pyarrow as pa
import pytest

from penstock.model.batch import Op
from penstock.model.ddl import DdlEvent, DdlType
from penstock.model.errors import PenstockError
from penstock.model.table import Column, TableSchema
from penstock.model.timestamp import compose_ts
from penstock.model.types import ColumnType, TypeKind
from penstock.sink.catalog import check_target, kind_of, open_maintainer, open_sink, settings_of
from penstock.sink.console.kind import Colours, ConsoleMaintainer, ConsoleSettings
from penstock.sink.contract import DispatcherId, DispatcherResult, DispatcherWork, DmlEvent
from penstock.target.storage import unfenced

T0 = compose_ts(1_700_000_000_000)
COLUMNS = (Column(1, "id", ColumnType(TypeKind.BIGINT), False, True), Column(2, "note", ColumnType(TypeKind.VARCHAR, length=90)))
TABLE = TableSchema(7, "shop", "orders", 1, COLUMNS)
WHOLE = DispatcherId(7)


def rows(*changes: tuple[int, Op, int, str | None]) -> pa.RecordBatch:
    ts, ops, ids, notes = zip(*changes, strict=True)
    keys = [b"%d" % i for i in ids]
    columns = [pa.array([T0 + t for t in ts], pa.uint64()), pa.array(ops, pa.uint8()), pa.array(keys, pa.binary())]
    return pa.RecordBatch.from_arrays(
        [*columns, pa.array(ids, pa.int64()), pa.array(notes, pa.string())], ["_ts", "_op", "_key", "c1", "c2"]
    )


def window(*events: pa.RecordBatch | DdlEvent, **options: str) -> DispatcherResult:
    sink = open_sink("console:", options, None)
    sink.open_dispatcher(DispatcherWork(WHOLE, TABLE, 1, T0 << 1))
    for event in events:
        if isinstance(event, DdlEvent):
            sink.pass_block_event(WHOLE, event)
            sink.write_block_event(WHOLE, event)
        else:
            sink.add_dml_event(DmlEvent(WHOLE, TABLE, event))
    return sink.close_dispatcher(WHOLE)


def printed(result: DispatcherResult, settings: ConsoleSettings | None = None) -> list[str]:
    out = io.StringIO()
    ConsoleMaintainer(settings or ConsoleSettings(), out).record_window(1, 2, [result])
    return out.getvalue().splitlines()


def test_changes_as_lines() -> None:
    ddl = DdlEvent(T0 + 4, DdlType.TABLE_COMMENT, "ALTER TABLE orders\nCOMMENT 'x'", "shop", (TABLE,))
    events = [
        rows((1, Op.INSERT, 1, "a"), (2, Op.BEFORE, 1, "a"), (2, Op.UPDATE, 1, 'b"\x1b[2J\n')),
        ddl,
        rows((5, Op.DELETE, 1, None)),
    ]
    assert printed(window(*events)) == [
        '22:13:20.000 + shop.orders id=1 note="a"',
        '22:13:20.000 ~ shop.orders id=1 note="a" -> "b\\"\\u001b[2J\\n"',
        "22:13:20.000 ! ALTER TABLE orders COMMENT 'x'",
        "22:13:20.000 - shop.orders id=1 note=null",
    ]
    coloured = printed(window(*events), ConsoleSettings(colours=Colours.ALWAYS))
    assert "\x1b[32m+ shop.orders" in coloured[0]
    assert coloured[0].endswith("\x1b[0m")


def test_a_tail_is_bounded() -> None:
    many = [(i, Op.INSERT, i, "x" * 5_000) for i in range(1_000)]
    result = window(*(rows(*many[i : i + 100]) for i in range(0, 1_000, 100)), rows="20")
    lines = printed(result, ConsoleSettings(rows=20))
    assert (result.rows, len(lines)) == (1_000, 21)
    assert lines[0] == "  … the last 20 of 1,000 rows"
    assert [line.split("id=")[1].split()[0] for line in lines[1:]] == [str(i) for i in range(980, 1_000)]
    assert max(map(len, lines)) < 500
    assert len(window(rows(*many), rows="1000").message) < 300_000
    assert printed(window()) == []


def test_it_is_found_by_its_scheme() -> None:
    for uri in ("console:", "console://", "console:?rows=3"):
        assert kind_of(uri).name == "console"
        assert settings_of(uri)[1].needs_before(TABLE)
    assert [finding.ok for finding in check_target("console:")] == [True]
    with pytest.raises(PenstockError, match=r"CONFIG_INVALID.*rows"):
        settings_of("console:?rows=0")
    with pytest.raises(PenstockError, match=r"CONFIG_INVALID.*colours"):
        settings_of("console:?colours=red")


def test_a_ddl_over_several_dispatchers_is_printed_by_the_server(capsys: pytest.CaptureFixture[str]) -> None:
    maintainer = open_maintainer("console:", {}, unfenced)
    maintainer.check("f")
    maintainer.claim("f")
    maintainer.probe()
    maintainer.write_block_event(DdlEvent(T0, DdlType.TRUNCATE_TABLE, "TRUNCATE TABLE orders", "shop", (TABLE,)))
    maintainer.publish_checkpoint(T0)
    assert capsys.readouterr().out == "22:13:20.000 ! TRUNCATE TABLE orders\n"
    assert maintainer.published_ts() == 0
