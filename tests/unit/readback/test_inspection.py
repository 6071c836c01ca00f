"""Listing, checking and expiring a target, and when clean-up runs."""

import itertools

import pytest

from penstock.format.layout.checksum_record import parse_record_path, record_path
from penstock.model.batch import Op
from penstock.model.errors import PenstockError
from penstock.model.table import Column, TableSchema
from penstock.model.timestamp import compose_ts
from penstock.model.types import ColumnType, TypeKind
from penstock.readback.inspection import Extent, check_target, list_tables
from penstock.target.expiry import CleanUp, expire
from penstock.target.settings import from_uri
from testing.paths.storage_lab import StorageLab
from testing.twins.clock import SimulatedClock

_numbers = itertools.count()
DAY = 86_400_000 << 18
T0 = compose_ts(1_700_000_000_000)
TABLE = TableSchema(
    1, "s", "t", T0, (Column(1, "id", ColumnType(TypeKind.BIGINT), False, True), Column(2, "name", ColumnType(TypeKind.VARCHAR, length=9)))
)
DIR = f"s/t/{T0}/2023-11-14"
FILE = f"{DIR}/CDC00000000000000000001.csv"


def lab(query: str = "") -> StorageLab:
    return StorageLab(f"memory://inspection-{next(_numbers)}/?{query}")


def written(query: str = "") -> StorageLab:
    source = lab(query)
    for window in range(3):
        source.write(TABLE, [(T0 + window * 10 + i, Op.INSERT, window * 10 + i, "x") for i in range(5)])
    source.write(TABLE, [(T0 + DAY, Op.DELETE, 1, "x")])
    source.checkpoint(T0 + 2 * DAY)
    return source


def findings(source: StorageLab) -> list[str]:
    return [str(f) for f in check_target(source.target, source.settings)]


@pytest.mark.parametrize(
    "query", ["", "protocol=canal-json&compression=gzip", "protocol=parquet", "protocol=debezium", "date-separator=none"]
)
def test_what_the_sink_writes_is_sound(query: str) -> None:
    source = written(query)
    assert findings(source) == []
    (summary,) = list_tables(source.reader())
    assert (summary.schema, summary.table, summary.versions, summary.files) == ("s", "t", 1, 4)


def test_gaps_and_strangers_are_found() -> None:
    source = written()
    source.target.delete(f"{DIR}/CDC00000000000000000002.csv")
    source.target.put(f"{DIR}/CDC00000000000000000009.csv", b"")
    source.target.put("s/t/notes.txt", b"")
    assert findings(source) == [
        "s/t/notes.txt: not a file of this layout and these settings",
        f"{DIR}/CDC00000000000000000002.csv: missing, though the index names it",
        f"{DIR}/CDC00000000000000000009.csv: no index names it",
    ]


def test_rows_out_of_order_and_damage_are_found() -> None:
    source = written()
    content = source.target.get(FILE)
    lines = content.split(b"\r\n")
    source.target.put(FILE, b"\r\n".join([lines[1], lines[0], *lines[2:]]))
    assert findings(source) == [f"{FILE}: row 2: its commit ts is smaller than that of the row before"]
    source.target.put(FILE, content[:-4])
    (found,) = findings(source)
    assert found.startswith(f"{FILE}: line 5, byte")
    source.target.put(FILE, source.target.get(f"{DIR}/CDC00000000000000000003.csv"))
    assert findings(source) == [f"{DIR}/CDC00000000000000000002.csv: row 1: its commit ts is smaller than that of the file before"]


def test_bytes_are_compared_with_what_was_written() -> None:
    """A value that changed in the target decodes, is in order, and was sound before."""
    source = lab()
    for window in range(3):
        done = source.write(TABLE, [(T0 + window * 10 + i, Op.INSERT, window * 10 + i, "x") for i in range(5)])
        if window < 2:
            source.maintainer.record_window(T0, T0 + window * 10 + 9, [done])
    source.checkpoint(T0 + DAY)
    extent = Extent()
    assert list(check_target(source.target, source.settings, extent=extent)) == []
    assert (extent.compared, extent.unrecorded) == (2, 1)
    content = source.target.get(FILE)
    source.target.put(FILE, content.replace(b'"x"', b'"y"'))
    assert len(content) == len(source.target.get(FILE))
    assert findings(source) == [f"{FILE}: its {len(content)} bytes are not the {len(content)} that were written"]
    source.target.put(FILE, content)
    record = record_path(T0 + 9)
    source.target.put(record, source.target.get(record)[:-1])
    extent = Extent()
    (found,) = check_target(source.target, source.settings, extent=extent)
    assert str(found) == f"{record}: line 1: it is no record of checksums, or a damaged one"
    assert (extent.compared, extent.unrecorded) == (1, 2)
    # Where no data file is opened, no record is either.
    assert list(check_target(source.target, source.settings, read_rows=False)) == []


def test_a_record_goes_when_all_its_files_are_gone() -> None:
    source = lab()
    for day in range(3):
        done = source.write(TABLE, [(T0 + day * DAY, Op.INSERT, day, "x")])
        source.maintainer.record_window(T0, T0 + day * DAY + 5, [done])
    source.checkpoint(T0 + 2 * DAY + 5)
    gone = expire(source.target, source.settings, 1)
    assert gone == [f"{DIR}/meta/CDC.index", FILE, record_path(T0 + 5)]
    assert sorted(p for p in source.target.paths() if parse_record_path(p)) == [record_path(T0 + d * DAY + 5) for d in (1, 2)]
    assert findings(source) == []


def test_schema_files_and_checkpoints_are_checked() -> None:
    source = written()
    (path,) = [p for p in source.target.paths() if "schema_" in p]
    source.target.put(path, source.target.get(path).replace(b'"name"', b'"nome"'))
    source.target.put("metadata", b"{}")
    found = findings(source)
    assert found[0] == "metadata: metadata: line 1: no 'checkpoint-ts' in it"
    assert "not the one in the name" in found[1]
    assert f"{DIR}: no schema file describes this version" in found


def test_old_dates_expire_and_nothing_else() -> None:
    source = written()
    before = set(source.target.paths())
    assert expire(source.target, source.settings, 2) == []
    gone = expire(source.target, source.settings, 1)
    assert gone[0] == f"{DIR}/meta/CDC.index"
    assert set(gone) == {p for p in before if p.startswith(DIR)}
    assert set(source.target.paths()) == before - set(gone)
    assert findings(source) == []
    with pytest.raises(PenstockError, match="date-separator day"):
        expire(source.target, from_uri("memory://x/?date-separator=month")[1], 1)


def test_clean_up_follows_the_cron_specification_and_remembers_its_last_time() -> None:
    source = written("file-expiration-days=1&file-cleanup-cron-spec=@every 1h".replace(" ", "%20"))
    clock = SimulatedClock()
    files = set(source.target.paths())
    expired = {p for p in files if p.startswith(DIR)}
    for minutes in (0, 20, 30):
        clock.advance(minutes * 60)
        # Each time another one, as after a restart.
        assert CleanUp(source.target, source.settings, clock).run_if_due() == []
    clock.advance(10 * 60)
    clean_up = CleanUp(source.target, source.settings, clock)
    assert set(clean_up.run_if_due()) == expired
    assert set(source.target.paths()) - {".penstock/clean-up"} == files - expired
    assert clean_up.wait_s() == 3600
    source.target.put(FILE, b"late")
    assert CleanUp(source.target, source.settings, clock).run_if_due() == []
    clock.advance(3600)
    assert CleanUp(source.target, source.settings, clock).run_if_due() == [FILE]
