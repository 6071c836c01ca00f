"""Targets that somebody else can write to: whatever they hold is a finding, bounded, and nothing outside of them is touched."""

from __future__ import annotations

import gzip
import json
import os
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from penstock.cli.main import cli
from penstock.format.layout.index_file import parse_index
from penstock.format.layout.paths import Layout
from penstock.model.batch import Op
from penstock.model.errors import PenstockError
from penstock.model.table import Column, TableSchema
from penstock.model.timestamp import compose_ts
from penstock.model.types import ColumnType, TypeKind
from penstock.readback.inspection import check_target
from penstock.readback.reader import StorageReader
from penstock.sink.storage.cut_records import CUTS_DIR, CutRecords
from penstock.sink.storage.maintainer import StorageMaintainer
from penstock.target import storage as storage_module
from penstock.target.dispatcher import DispatcherId, DispatcherWork
from penstock.target.expiry import expire, expired_paths
from penstock.target.settings import from_uri
from penstock.target.storage import ObjectTarget, RetrySettings, TargetAddress
from testing.paths.storage_lab import StorageLab
from testing.servers.rogue import rogue_bucket

DAY = 86_400_000 << 18
T0 = compose_ts(1_700_000_000_000)
TABLE = TableSchema(
    1, "s", "t", T0, (Column(1, "id", ColumnType(TypeKind.BIGINT), False, True), Column(2, "name", ColumnType(TypeKind.VARCHAR, length=9)))
)
DIR = f"s/t/{T0}/2023-11-14"


def written(directory: Path, query: str = "") -> StorageLab:
    source = StorageLab(f"file://{directory}?{query}")
    source.write(TABLE, [(T0 + i, Op.INSERT, i, "x") for i in range(1, 4)])
    source.checkpoint(T0 + 90 * DAY)
    return source


def findings(source: StorageLab) -> list[str]:
    return [str(f) for f in check_target(source.target, source.settings)]


def test_clean_up_never_leaves_the_target_by_a_link(tmp_path: Path) -> None:
    source = written(tmp_path / "target")
    written(tmp_path / "victim")
    victims = {p: p.read_bytes() for p in (tmp_path / "victim").rglob("*") if p.is_file()}
    (tmp_path / "target" / "s" / "t" / str(T0) / "2020-01-01").symlink_to(tmp_path / "victim" / DIR)
    inside = Path("s/t") / str(T0) / "2020-01-02"
    (tmp_path / "target" / inside).symlink_to(tmp_path / "target" / DIR)
    gone = expire(source.target, source.settings, 200)
    assert gone == []
    assert [f.rpartition("; ")[2] for f in findings(source)] == ["what it leads to is not part of the target"] * 2
    with pytest.raises(PenstockError, match="behind a link"):
        source.target.delete(f"s/t/{T0}/2020-01-01/CDC00000000000000000001.csv")
    assert {p: p.read_bytes() for p in (tmp_path / "victim").rglob("*") if p.is_file()} == victims
    assert all(p.startswith(DIR) for p in expire(source.target, source.settings, 30))
    assert {p: p.read_bytes() for p in (tmp_path / "victim").rglob("*") if p.is_file()} == victims


def test_names_that_nobody_can_read_are_findings(tmp_path: Path) -> None:
    source = written(tmp_path)
    (tmp_path / "%FF" / "t" / "meta").mkdir(parents=True)
    (tmp_path / "%FF" / "t" / "meta" / "schema_1_0000000001.json").write_text("{}")
    (tmp_path / "s" / "%FE" / "1" / "2023-11-14").mkdir(parents=True)
    (tmp_path / "s" / "%FE" / "1" / "2023-11-14" / "CDC00000000000000000001.csv").write_text("")
    assert StorageReader(source.target, source.settings).tables() == [("s", "t")]
    (tmp_path / "loop").symlink_to(tmp_path)
    Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff\xfe")).write_text("")
    (tmp_path / "a\x1b]0;pwned\x07").write_text("")
    os.mkfifo(tmp_path / "pipe")
    assert [f.partition(": ")[2][:30] for f in findings(source)] == [
        "a name that no object can have",
        "a name that no object can have",
        "a link to " + str(tmp_path)[:20],
        "neither a file nor a directory"[:30],
        "not a file of this layout and ",
        "not a file of this layout and ",
    ]


@pytest.mark.parametrize("content", [b"[" * 100_000, b'{"checkpoint-ts":' * 50_000, b"9" * 10_000, b"\xff\xfe", b"null"])
def test_json_without_a_bottom_is_a_finding_and_hides_no_other(tmp_path: Path, content: bytes) -> None:
    source = written(tmp_path)
    (schema,) = [p for p in source.target.paths() if "schema_" in p]
    source.target.put("metadata", content)
    source.target.put(schema, content)
    source.target.put("s/t/notes.txt", b"")
    found = findings(source)
    assert [f.partition(": ")[0] for f in found] == ["metadata", schema, "s/t/notes.txt", DIR]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (b'"Type": 0', b'"Type": 1e999'),
        (b'"ColumnPrecision": "20"', b'"ColumnPrecision": -1e999'),
        (b'"name"', rb'"\ud800"'),
        (b'"name"', b'"id"'),
    ],
)
def test_a_schema_file_with_what_no_number_and_no_name_is(tmp_path: Path, before: bytes, after: bytes) -> None:
    source = written(tmp_path)
    (schema,) = [p for p in source.target.paths() if "schema_" in p]
    content = source.target.get(schema)
    assert before in content
    source.target.put(schema, content.replace(before, after))
    assert [f.partition(": ")[0] for f in findings(source)] == [schema, DIR]


def test_a_schema_file_with_more_columns_than_any_table_has(tmp_path: Path) -> None:
    source = written(tmp_path)
    (schema,) = [p for p in source.target.paths() if "schema_" in p]
    document = json.loads(source.target.get(schema))
    document["TableColumns"] = [document["TableColumns"][0] | {"ColumnName": f"c{at}"} for at in range(8_193)]
    source.target.put(schema, json.dumps(document | {"TableColumnsTotal": 8_193}).encode())
    assert "8193 columns, more than any table has" in findings(source)[0]


@pytest.mark.parametrize("protocol", ["canal-json", "debezium"])
def test_rows_without_a_bottom_are_a_finding(tmp_path: Path, protocol: str) -> None:
    source = written(tmp_path, f"protocol={protocol}")
    (path,) = [p for p in source.target.paths() if p.endswith(".json") and "CDC" in p]
    source.target.put(path, b'{"data":' + b"[" * 200_000 + b"\n")
    (found,) = findings(source)
    assert found.startswith(f"{path}: ")


def test_an_index_that_names_a_file_far_away_ends_at_once(tmp_path: Path) -> None:
    source = written(tmp_path)
    source.target.put(f"{DIR}/meta/CDC.index", b"CDC00001000000000000000.csv\n")
    assert findings(source) == [
        f"{DIR}/CDC00000000000000000002.csv: missing, though the index names it, and so are the 999999999999998 after it"
    ]
    with pytest.raises(PenstockError, match="OBJECT_MISSING"):
        list(source.reader().changes("s", "t"))


def test_a_small_file_that_inflates_to_much_is_not_inflated_to_its_end(tmp_path: Path) -> None:
    source = written(tmp_path, "compression=gzip&file-size=1KiB")
    (path,) = [p for p in source.target.paths() if p.endswith(".csv.gz")]
    line = b'"I","t","s",1,1,"x"\r\n'
    source.target.put(path, gzip.compress(line * 200_000) * 20)
    tracemalloc.start()
    (found,) = findings(source)
    held = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert "inflates to more than" in found
    assert held < 150 << 20


def test_an_object_larger_than_such_objects_are_is_not_read(tmp_path: Path) -> None:
    source = written(tmp_path)
    with (tmp_path / "metadata").open("wb") as file:
        file.truncate(65 << 20)
    assert findings(source) == [f"metadata: metadata: {65 << 20} bytes, which is more than such an object has"]


def test_neither_is_one_that_stands_where_something_is_written(tmp_path: Path) -> None:
    source = written(tmp_path)
    for name in ("metadata", "there"):
        with (tmp_path / name).open("wb") as file:
            file.truncate(300 << 20)
    tracemalloc.start()
    with pytest.raises(PenstockError, match="more than such an object has"):
        StorageMaintainer(source.target, source.settings).publish_checkpoint(T0 + 100 * DAY)
    with pytest.raises(PenstockError, match="SINK_CONFLICT"):
        source.target.put_new("there", b"else")
    held = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert held < 10 << 20


def test_records_with_odd_names_and_contents_are_passed_over(tmp_path: Path) -> None:
    source = written(tmp_path)
    for name in (f"{CUTS_DIR}/1-0/\u00b2/000001", f"{CUTS_DIR}/1-0/1/\u2460", f"{CUTS_DIR}/1-0/-1/1"):
        source.target.put(name, b"{}")
    work = DispatcherWork(DispatcherId(1, 0), TABLE, T0, T0 + 1)
    assert CutRecords(source.target).of_window(work) == []


def test_what_a_terminal_would_obey_is_shown_instead(tmp_path: Path) -> None:
    odd = TableSchema(2, "s", "\x1b]0;pwned\x07\u202e", T0, TABLE.columns)
    source = written(tmp_path)
    source.write(odd, [(T0 + 1, Op.INSERT, 1, "x")])
    source.target.put("s/t/\u009b31m.txt", b"")
    for verb in ("ls", "check"):
        said = CliRunner().invoke(cli, ["storage", verb, f"file://{tmp_path}"]).output
        assert "pwned" in said or verb == "check"
        assert not set(said) & set("\x1b\x07\u009b\u202e")


def test_what_a_store_answers_is_told_to_nobody(tmp_path: Path) -> None:
    """A store leads its client to an address that only this machine reaches; whoever named the store must not learn what is there."""
    secret = b"iam-credentials of the machine"
    for body in (secret, b"<Error><Code>Odd</Code><Message>" + secret + b"</Message></Error>"):
        answers = {
            "secret": (200, body),
            "bad": (400, body),
            "none": (404, body),
            "list-type=2": (302, b"/secret"),
            "index": (302, b"/secret"),
        }
        with rogue_bucket(answers) as endpoint:
            uri = f"s3://bucket/p?endpoint={endpoint}&access-key-id=a&secret-access-key=b&region=us-east-1"
            target = TargetAddress(uri, RetrySettings(attempts_max=1)).open()
            calls: list[Callable[[], object]] = [
                target.is_empty,
                lambda target=target: target.get("bad"),
                lambda target=target: target.put_new("bad", b"x"),
                lambda target=target: target.put_new("none", b"x"),
                lambda target=target: parse_index(Layout(), target.get("x/index"), "x/index"),
            ]
            # An answer in XML may pass for an empty list.
            for call in calls[body != secret :]:
                with pytest.raises(PenstockError) as told:
                    call()
                assert "iam-credentials" not in f"{told.value} {told.value.__cause__}"
            with pytest.raises(FileNotFoundError) as missing:
                target.get("none")
            assert "iam-credentials" not in str(missing.value)


def test_a_rogue_bucket_lists_what_it_likes() -> None:
    listed = "".join(
        f"<Contents><Key>{key}</Key><Size>1</Size><LastModified>2026-11-16T00:00:00Z</LastModified><ETag>x</ETag></Contents>"
        for key in ("p/metadata", "p/s/t/meta/schema_1_0000000001.json", "p/%FF/t/meta/schema_1_0000000001.json", "elsewhere/x")
    )
    listing = f"<ListBucketResult><IsTruncated>false</IsTruncated>{listed}</ListBucketResult>".encode()
    answers = {"list-type=2": (200, listing), "metadata": (200, b"[" * 100_000), "schema_": (200, b"{" * 100)}
    with rogue_bucket(answers) as endpoint:
        uri = f"s3://bucket/p?endpoint={endpoint}&allow-http=true&access-key-id=a&secret-access-key=b&region=us-east-1"
        target_uri, settings = from_uri(uri)
        target = ObjectTarget.open(target_uri)
        found = [str(f) for f in check_target(target, settings)]
        assert any(f.startswith("metadata: ") for f in found)
        assert any("schema_1_0000000001.json: " in f for f in found)
        assert expired_paths(target, settings, "2026-01-01") == []
    outside = {"list-type=2": (200, listing.replace(b"elsewhere/x", b"p/s/../../x"))}
    with rogue_bucket(outside) as other:
        target = ObjectTarget.open(from_uri(uri.replace(endpoint, other))[0])
        (only,) = check_target(target, settings)
        assert (only.path, "cannot list" in only.what) == ("/", True)


def test_a_rogue_bucket_lists_without_an_end() -> None:
    entry = "<Contents><Key>p/x</Key><Size>1</Size><LastModified>2026-11-16T00:00:00Z</LastModified><ETag>x</ETag></Contents>"
    more = "<IsTruncated>true</IsTruncated><NextContinuationToken>again</NextContinuationToken>"
    for entries, code in ((entry, "SINK_UNWRITABLE"), ("", "SINK_UNAVAILABLE")):
        page = f"<ListBucketResult>{more}{entries}</ListBucketResult>".encode()
        with rogue_bucket({"list-type=2": (200, page)}) as endpoint:
            uri = f"s3://bucket/p?endpoint={endpoint}&access-key-id=a&secret-access-key=b&region=us-east-1"
            target = TargetAddress(uri, RetrySettings(attempts_max=1, request_s_max=0.5)).open()
            if entries:
                assert not target.is_empty()
            with pytest.raises(PenstockError) as told:
                list(target.paths()) if entries else target.is_empty()
            assert told.value.code == code


def test_a_list_is_no_longer_than_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    target = ObjectTarget.open("memory://a-long-list/x")
    for name in ("a" * 60, "b" * 60):
        target.put_new(name, b"")
    assert len(list(target.paths())) == 2
    monkeypatch.setattr(storage_module, "LISTED_CHARS_MAX", 100)
    with pytest.raises(PenstockError, match="longer than one can be"):
        list(target.paths())
