"""The console target: what a task tells and what the server prints, bounded whatever there is."""

import fcntl
import io
import os
import pty
import re
import struct
import termios
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

import pyarrow as pa
import pytest
from rich.cells import cell_len

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


def test_a_row_that_is_larger_than_a_message_is_shown_all_the_same() -> None:
    long = "x" * 300_000
    changes = rows((1, Op.INSERT, 1, long), (2, Op.BEFORE, 1, long), (2, Op.UPDATE, 1, long + "y"), (3, Op.INSERT, 2, "short"))
    shown = f'"{"x" * 59}…'
    assert [line.split(" ", 1)[1] for line in printed(window(changes))] == [
        f"+ shop.orders id=1 note={shown}",
        f"~ shop.orders id=1 note={shown} -> {shown}",
        '+ shop.orders id=2 note="short"',
    ]


def test_a_table_of_many_long_columns_says_how_many_rows_are_not_shown() -> None:
    columns = (COLUMNS[0], *(Column(2 + at, f"n{at}", COLUMNS[1].type) for at in range(900)))
    table = TableSchema(7, "shop", "wide", 1, columns)
    sink = open_sink("console:", {"rows": "1000"}, None)
    sink.open_dispatcher(DispatcherWork(WHOLE, table, 1, T0 << 1))
    count = 1_000
    arrays = [pa.array([T0 + at for at in range(count)], pa.uint64()), pa.array([Op.INSERT] * count, pa.uint8())]
    arrays += [pa.array([b"%d" % at for at in range(count)], pa.binary()), pa.array(range(count), pa.int64())]
    arrays += [pa.array(["v" * 90] * count, pa.string())] * 900
    records = pa.RecordBatch.from_arrays(arrays, ["_ts", "_op", "_key", *(column.field_name for column in columns)])
    sink.add_dml_event(DmlEvent(WHOLE, table, records))
    result = sink.close_dispatcher(WHOLE)
    lines = printed(result, ConsoleSettings(rows=1_000))
    assert len(result.message) < 300_000
    assert lines[0] == f"  … the last {len(lines) - 1} of 1,000 rows"
    assert f"id={count - 1} n0=" in lines[-1]


def test_an_update_tells_which_row_it_is_by_its_key() -> None:
    table = TableSchema(7, "shop", "orders", 1, (Column(2, "note", COLUMNS[1].type), COLUMNS[0]))
    sink = open_sink("console:", {}, None)
    sink.open_dispatcher(DispatcherWork(WHOLE, table, 1, T0 << 1))
    records = rows((1, Op.BEFORE, 4, "a"), (1, Op.UPDATE, 4, "b")).select(["_ts", "_op", "_key", "c2", "c1"])
    sink.add_dml_event(DmlEvent(WHOLE, table, records))
    assert printed(sink.close_dispatcher(WHOLE)) == ['22:13:20.000 ~ shop.orders note="a" -> "b" id=4']


HOSTILE = "\x1b]0;title\x07\x9b2J\u202e\u2028\x85\x0b\x1c\u200f\r\b\x7f"


@contextmanager
def terminal(columns: int) -> Iterator[tuple[TextIO, int]]:
    """Yield a real terminal of some width as what is written to, and what reads what it got."""
    reading, writing = pty.openpty()
    fcntl.ioctl(writing, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    with os.fdopen(writing, "w", encoding="utf-8") as out:
        yield out, reading
    os.close(reading)


def test_nothing_of_the_data_does_something_to_a_terminal() -> None:
    table = TableSchema(7, "sh\x1b[31mop", f"or{HOSTILE}ders", 1, (COLUMNS[0], Column(2, f"no{HOSTILE}te", COLUMNS[1].type)))
    sink = open_sink("console:", {}, None)
    sink.open_dispatcher(DispatcherWork(WHOLE, table, 1, T0 << 1))
    records = rows((1, Op.INSERT, 1, HOSTILE), (2, Op.INSERT, 2, f"{HOSTILE}\u2029"))
    sink.add_dml_event(DmlEvent(WHOLE, table, records))
    ddl = DdlEvent(T0 + 4, DdlType.TABLE_COMMENT, f"ALTER TABLE x COMMENT '{HOSTILE}'", "shop", (table,))
    sink.write_block_event(WHOLE, ddl)
    out = io.StringIO(newline="")
    ConsoleMaintainer(ConsoleSettings(), out).record_window(1, 2, [sink.close_dispatcher(WHOLE)])
    assert out.getvalue().count("\n") == 3
    assert re.findall(r"[^\n -~…]", out.getvalue()) == []


@pytest.mark.parametrize("columns", [1, 2, 13, 20, 40, 80])
@pytest.mark.parametrize("no_colour", ["", "1"])
def test_lines_fit_into_the_terminal(monkeypatch: pytest.MonkeyPatch, columns: int, no_colour: str) -> None:
    monkeypatch.setenv("NO_COLOR", no_colour)
    monkeypatch.setenv("TERM", "xterm")
    result = window(
        *(rows((at, Op.INSERT, at, text)) for at, text in enumerate(["日本語" * 9, "e\u0301" * 30, "😀" * 30, "short"])), rows="3"
    )
    with terminal(columns) as (out, reading):
        ConsoleMaintainer(ConsoleSettings(rows=3), out).record_window(1, 2, [result])
        got = os.read(reading, 1 << 16).decode()
    assert ("\x1b[32m" in got) == (no_colour == "")
    lines = re.sub(r"\x1b\[[0-9]*[mK]", "", got).replace("\r", "").split("\n")
    assert len(lines) == 5
    assert all(cell_len(line) < columns or not line for line in lines)
    assert max(map(cell_len, lines)) >= min(columns - 2, 50)


def test_a_pipe_may_be_of_any_encoding_and_end(monkeypatch: pytest.MonkeyPatch) -> None:
    result = window(rows((1, Op.INSERT, 1, "日本 é")))
    reading, writing = os.pipe()
    with os.fdopen(writing, "w", encoding="latin-1") as out:
        maintainer = ConsoleMaintainer(ConsoleSettings(), out)
        maintainer.record_window(1, 2, [result])
        assert os.read(reading, 1 << 16) == b'22:13:20.000 + shop.orders id=1 note="\\u65e5\\u672c \xe9"\n'
        os.close(reading)
        # As in `penstock run --sink console: | head`: the feed goes on.
        maintainer.record_window(1, 2, [result])
        maintainer.record_window(1, 2, [result])
        with pytest.raises(BrokenPipeError):
            out.close()


def test_updates_count_once() -> None:
    assert window(rows((1, Op.INSERT, 1, "a"), (2, Op.BEFORE, 1, "a"), (2, Op.UPDATE, 1, "b"))).rows == 2


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
