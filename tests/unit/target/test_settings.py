import pickle

import pytest

from penstock.format.csv.dialect import CsvSettings
from penstock.format.layout.paths import DateSeparator
from penstock.model.errors import PenstockError
from penstock.settings.masking import mask_uri
from penstock.target.settings import Atomicity, StorageSinkSettings, from_uri
from penstock.target.storage import TargetAddress


def test_defaults() -> None:
    uri, settings = from_uri("file:///data/out")
    assert uri == "file:///data/out"
    assert settings == StorageSinkSettings()
    assert (settings.file_size, settings.flush_interval_ms, settings.file_index_width) == (67108864, 5000, 20)
    assert settings.layout.extension == ".csv"


def test_the_uri_wins_and_foreign_parameters_stay() -> None:
    uri, settings = from_uri(
        "s3://bucket/a/b?file-size=4096&endpoint=http://127.0.0.1:1&date-separator=MONTH&csv.quote=&csv.delimiter=%7C%7C",
        {"file-size": 9999, "flush_interval": "500ms", "csv": {"null": "NULL", "terminator": "\\n"}, "transaction-atomicity": "table"},
    )
    assert uri == "s3://bucket/a/b?endpoint=http%3A%2F%2F127.0.0.1%3A1"
    assert (settings.file_size, settings.flush_interval_ms, settings.date_separator) == (4096, 500, DateSeparator.MONTH)
    assert settings.csv == CsvSettings(quote="", delimiter="||", null="NULL", terminator="\n")
    assert settings.transaction_atomicity is Atomicity.TABLE


def test_all_faults_at_once() -> None:
    with pytest.raises(PenstockError, match="CONFIG_INVALID") as caught:
        from_uri(
            "file:///x?file-size=1&protocol=avro&file-sze=2",
            {"csv": {"quote": "''", "wat": 1}, "flush-interval": "soon", "file-index-width": 5},
        )
    lines = sorted(line.partition(":")[0] for line in caught.value.detail.splitlines())
    assert lines == ["csv.quote", "csv.wat", "file-index-width", "flush-interval", "uri?file-size", "uri?file-sze", "uri?protocol"]


@pytest.mark.parametrize(
    "uri",
    [
        "",
        "x",
        "ftp://a/b",
        "/just/a/path",
        "s3:///prefix",
        "file://host/x",
        "file:relative",
        "file:///a#b",
        "s3://[bad/x",
        "file:///a%00b",
        "s3://b/a\0b",
    ],
)
def test_bad_uris(uri: str) -> None:
    with pytest.raises(PenstockError, match="SINK_URI_INVALID"):
        from_uri(uri)


def test_secrets_are_masked_everywhere() -> None:
    uri = "s3://user:hunter2@bucket/p?access-key=AKIA1&secret-access-key=hunter3&session-token=hunter4&region=eu"
    shown = mask_uri(uri) + repr(TargetAddress(uri))
    for secret in ("hunter2", "hunter3", "hunter4", "AKIA1"):
        assert secret not in shown
    assert "region=eu" in shown
    with pytest.raises(PenstockError) as caught:
        TargetAddress("s3://bucket/p?secret-access-key=hunter3&no-such-option=hunter5").open()
    assert "hunter3" not in str(caught.value)
    with pytest.raises(PenstockError) as caught:
        from_uri("ftp://user:hunter2@host/p?token=hunter3")
    assert "hunter" not in str(caught.value)


def test_an_address_travels() -> None:
    address = TargetAddress("memory://travels/x")
    assert pickle.loads(pickle.dumps(address)) == address
    address.open().put_new("a", b"1")
    assert pickle.loads(pickle.dumps(address)).open().get("a") == b"1"


def test_transactions_are_told_by_their_commit_ts_so_files_must_have_it() -> None:
    assert from_uri("file:///x?transaction-atomicity=transaction")[1].indexes_transactions
    for query in ("csv.include-commit-ts=false", "protocol=canal-json&enable-tidb-extension=false"):
        with pytest.raises(PenstockError, match="transaction-atomicity: transaction needs the commit ts"):
            from_uri(f"file:///x?transaction-atomicity=transaction&{query}")
    assert from_uri("file:///x?transaction-atomicity=transaction&protocol=debezium")[1].numbers_events
