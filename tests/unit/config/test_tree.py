from __future__ import annotations

from typing import Any

import pytest

from penstock.config.server_tree import ServerConfig
from penstock.config.tree import FeedConfig, dump_feed_config, flatten, load_feed_config
from penstock.format.column_selection import ColumnSelector
from penstock.model.errors import PenstockError
from penstock.settings.loader import load
from penstock.source.catalog import check_scheme
from penstock.target.settings import from_uri

VALID: dict[str, Any] = {"name": "orders", "tables": ["shop.*"], "sink": "file:///tmp/out"}


def refused(tree: dict[str, Any]) -> PenstockError:
    with pytest.raises(PenstockError) as caught:
        load_feed_config(tree)
    return caught.value


def test_shortest_feed() -> None:
    config = load_feed_config(VALID)
    assert (config.name, config.tables, config.target.uri, dict(config.target.options)) == ("orders", ("shop.*",), "file:///tmp/out", {})
    assert config.settings.flush_interval_s == 5.0


def test_a_feed_is_stored_and_loaded_again_as_it_is() -> None:
    sink = {"uri": "s3://b/p?region=x", "file-size": "1MiB", "csv": {"delimiter": ";", "include-commit-ts": False}}
    config = load_feed_config({**VALID, "sink": sink, "flush-interval": "250ms", "spans-per-table": 4, "start-ts": 7})
    assert load_feed_config(dump_feed_config(config)) == config
    assert config.target.options == {"file-size": "1MiB", "csv.delimiter": ";", "csv.include-commit-ts": "false"}
    assert (config.settings.flush_interval_s, config.settings.spans_per_table, config.settings.start_ts) == (0.25, 4, 7)


def test_a_target_reads_its_options_as_they_were_written() -> None:
    rules = [{"matcher": ["shop.*"], "columns": ["*", "!note"]}]
    sink = {"uri": "file:///tmp/out", "file-size": 1 << 20, "spool-size": "1GiB", "output-column-id": True, "column-selectors": rules}
    target = load_feed_config({**VALID, "sink": sink}).target
    settings = from_uri(target.uri, target.options)[1]
    assert (settings.file_size, settings.spool_size, settings.output_column_id) == (1 << 20, 1 << 30, True)
    assert settings.column_selectors == (ColumnSelector(("shop.*",), ("*", "!note")),)


@pytest.mark.parametrize("sink", ["file:///tmp/out?flush-interval=2s", {"uri": "file:///tmp/out", "flush-interval": "2s"}])
def test_flush_interval_among_the_targets_options_counts_for_the_feed(sink: Any) -> None:
    assert load_feed_config({**VALID, "sink": sink}).settings.flush_interval_s == 2.0
    assert load_feed_config({**VALID, "sink": sink, "flush-interval": "9s"}).settings.flush_interval_s == 9.0


def test_all_problems_of_feed_and_target_at_once() -> None:
    tree = {
        "name": "no good/",
        "tables": ["orders", "shop.items"],
        "flush-intervall": "5s",
        "spans-per-table": 0,
        "sink": {"uri": "file:///tmp/out?date-separator=week", "csv": {"delimeter": ";"}, "file-size": "huge"},
    }
    error = refused(tree)
    assert error.code == "CONFIG_INVALID"
    lines = error.detail.splitlines()
    starts = [
        "sink.uri?date-separator: ",
        "sink.csv.delimeter: ",
        "sink.file-size: ",
        "flush-intervall: unknown key; did you mean flush-interval",
    ]
    assert [start for start in starts if not any(line.startswith(start) for line in lines)] == []
    assert "spans-per-table: must be between 1 and 1000" in lines


def test_name_and_pattern_problems() -> None:
    lines = refused({"name": "no good/", "tables": ["orders", "shop.items"], "sink": "file:///tmp/out"}).detail.splitlines()
    assert [line.partition(":")[0] for line in lines] == ["name", "tables[0]"]
    assert refused({**VALID, "tables": []}).detail == "tables: must name at least one table"


def test_bad_uri_alone_has_its_own_code() -> None:
    assert refused({**VALID, "sink": "ftp://host/dir"}).code == "SINK_URI_INVALID"


def test_bad_uri_with_other_problems_is_listed_among_them() -> None:
    error = refused({**VALID, "sink": "ftp://host/dir?password=hunter2", "partitions": -1})
    assert error.code == "CONFIG_INVALID"
    assert sorted(line.partition(":")[0] for line in error.detail.splitlines()) == ["partitions", "sink.uri"]
    assert "hunter2" not in error.detail


@pytest.mark.parametrize(("sink", "text"), [({}, "sink.uri: is required"), (3, "sink: must be a table"), (None, "sink: must be a table")])
def test_missing_uri(sink: Any, text: str) -> None:
    assert refused({**VALID, "sink": sink}).detail.startswith(text)


def test_everything_missing() -> None:
    assert sorted(refused({}).detail.splitlines()) == ["name: is required", "sink: is required", "tables: is required"]


def test_no_repr_shows_secrets() -> None:
    config = load_feed_config({**VALID, "sink": "s3://b/p?secret-access-key=hunter2"})
    assert "hunter2" not in repr(config) + repr(config.target)
    assert isinstance(config, FeedConfig)


def test_flatten() -> None:
    assert flatten({"a": {"b": {"c": True}}, "d": 1}) == {"a.b.c": "true", "d": "1"}


def test_server_tree() -> None:
    tree = {"source": "dataserver://h:1", "supervisor": {"lease": "30s"}, "store": {"flush-bytes": "1MiB"}, "spark": {"conf": {"a": "b"}}}
    config = load(ServerConfig, tree)
    assert (config.supervisor.lease_s, config.store.flush_bytes, config.spark.conf) == (30.0, 1 << 20, {"a": "b"})
    assert config.effective_meta_url.endswith("penstock-data/meta.db")


def test_sources_of_a_server() -> None:
    config = load(
        ServerConfig, {"sources": {"shop": {"uri": "mysql://u:hunter2@h", "flight-port": "8302"}, "crm": {"uri": "postgres://h/d"}}}
    )
    assert {name: (one.uri, one.flight_port) for name, one in config.sources.items()} == {
        "shop": ("mysql://u:hunter2@h", 8302),
        "crm": ("postgres://h/d", 0),
    }
    assert "hunter2" not in repr(config) + repr(config.sources)
    with pytest.raises(PenstockError) as caught:
        load(
            ServerConfig,
            {
                "sources": {
                    "shop": {"url": "mysql://h"},
                    "crm": "postgres://h/d",
                    "a": {"uri": "h", "flight-port": -1},
                    "A b": {"uri": "x://h"},
                }
            },
        )
    assert caught.value.detail.splitlines() == [
        "sources.shop.url: unknown key; did you mean uri?",
        "sources.shop.uri: is required",
        "sources.crm: must be a table, not 'postgres://h/d'",
        "sources.a.uri: must be a URI like dataserver://host:port",
        "sources.a.flight-port: must be between 0 (any free port) and 65535",
        "sources.A b: its name must have lower-case letters, digits, '-' and '_' only",
    ]
    with pytest.raises(PenstockError, match="source: is required"):
        load(ServerConfig, {})
    with pytest.raises(PenstockError, match="sources: must be a table"):
        load(ServerConfig, {"source": "x://h", "sources": 3})


def test_server_tree_problems_at_once() -> None:
    tree = {"source": "here", "http-port": 99999, "supervisor": {"lease": "0s"}, "sprak": {}}
    with pytest.raises(PenstockError) as caught:
        load(ServerConfig, tree)
    assert caught.value.detail.splitlines() == [
        "sprak: unknown key; did you mean spark?",
        "supervisor.lease: must be between 1 s and 1 h",
        "supervisor.scan-interval: must be between 50 ms and the lease",
        "http-port: must be between 0 (any free port) and 65535",
        "source: must be a URI like dataserver://host:port",
    ]
    with pytest.raises(PenstockError) as caught:
        load(ServerConfig, {"source": "here", "http-port": 99999})
    assert [line.partition(":")[0] for line in caught.value.detail.splitlines()] == ["http-port", "source"]


def test_what_a_feed_keeps_of_transactions_reaches_its_target() -> None:
    config = load_feed_config({**VALID, "atomicity": "transaction"})
    assert from_uri(config.target.uri, config.target.options)[1].indexes_transactions
    assert load_feed_config(dump_feed_config(config)) == config
    own = load_feed_config({**VALID, "atomicity": "transaction", "sink": {"uri": "file:///tmp/out", "transaction-atomicity": "table"}})
    assert not from_uri(own.target.uri, own.target.options)[1].indexes_transactions
    assert "atomicity" in refused({**VALID, "atomicity": "some"}).detail
    without_ts = {"uri": "file:///tmp/out", "csv": {"include-commit-ts": False}}
    assert "sink.transaction-atomicity" in refused({**VALID, "atomicity": "transaction", "sink": without_ts}).detail


def test_a_setting_of_the_target_that_stands_beside_it_is_told_its_place() -> None:
    tree = {
        "name": "a",
        "tables": ["shop.*"],
        "sink": "file:///x",
        "protocl": "csv",
        "csv": {"quote": "'"},
        "zzz": 1,
        "flsh-interval": "1s",
    }
    with pytest.raises(PenstockError) as refused:
        load_feed_config(tree)
    told = refused.value.detail.splitlines()
    assert "protocl: unknown key; did you mean sink.protocol?" in told
    assert "csv: unknown key; did you mean sink.csv?" in told
    assert "zzz: unknown key" in told
    assert any(line.startswith("flsh-interval: unknown key; did you mean flush-interval") for line in told)


def test_a_scheme_that_is_nearly_one_is_told_which() -> None:
    with pytest.raises(PenstockError, match=r"did you mean file\?"):
        load_feed_config({"name": "a", "tables": ["shop.*"], "sink": "fiel:///x"})
    with pytest.raises(PenstockError, match=r"did you mean mysql\?"):
        check_scheme("mysqll://h")
