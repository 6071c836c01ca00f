from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.cli.main import run
from penstock.config.server_tree import ServerConfig
from penstock.config.tree import load_feed_config
from penstock.model.errors import PenstockError
from penstock.server.start_checks import check_start
from penstock.settings.loader import load
from penstock.source.dataserver.service.server import DataServer, DataServerSettings


@pytest.fixture
def source() -> Iterator[str]:
    server = DataServer(DataServerSettings(port=0, stores=1))
    server.start()
    yield server.uri
    server.stop()


@pytest.fixture
def taken() -> Iterator[int]:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        yield other.getsockname()[1]


def config(folder: Path, **given: Any) -> ServerConfig:
    return load(ServerConfig, {"data-dir": str(folder / "data")} | {key.replace("_", "-"): value for key, value in given.items()})


def refused(config: ServerConfig, sink: str | None = None) -> PenstockError:
    feeds = [load_feed_config({"name": "f", "tables": ["a.*"], "sink": sink})] if sink else []
    with pytest.raises(PenstockError) as caught:
        check_start(config, feeds)
    return caught.value


def test_what_is_right_passes_and_leaves_nothing(source: str, tmp_path: Path) -> None:
    told: list[str] = []
    target = tmp_path / "new" / "target"
    check_start(config(tmp_path, source=source), [load_feed_config({"name": "f", "tables": ["a.*"], "sink": target.as_uri()})], told.append)
    assert told == [f"source: {source}", f"sink: {target.as_uri()}"]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("uri", "code", "text"),
    [
        ("oracle://u:hunter2@h:1/x", "CONFIG_INVALID", "source: upstream: scheme 'oracle' is not supported"),
        ("dataserver://127.0.0.1:1", "UPSTREAM_UNREACHABLE", "source: dataserver://127.0.0.1:1: Connection refused"),
        ("mysql://u:hunter2@127.0.0.1:1", "UPSTREAM_UNREACHABLE", "source: mysql://u:***@127.0.0.1:1: Connection refused"),
    ],
)
def test_a_source_that_cannot_be_captured(tmp_path: Path, uri: str, code: str, text: str) -> None:
    error = refused(config(tmp_path, source=uri))
    assert (error.code, error.detail[: len(text)]) == (code, text)


def test_everything_that_is_wrong_is_told_at_once_and_nothing_is_left(tmp_path: Path, taken: int) -> None:
    file = tmp_path / "file"
    file.write_text("no directory")
    error = refused(
        config(tmp_path, source="dataserver://127.0.0.1:1", sources={"x": {"uri": "foo://h:1"}}, http_port=taken, flight_port=taken),
        f"{file.as_uri()}/below",
    )
    lines = error.detail.splitlines()
    assert [line.partition(": ")[0] for line in lines] == [
        "[UPSTREAM_UNREACHABLE] source",
        "[CONFIG_INVALID] sources.x.uri",
        "[CONFIG_INVALID] http-port",
        "[CONFIG_INVALID] flight-port",
        "[SINK_UNWRITABLE] sink",
    ]
    assert [one.name for one in tmp_path.iterdir()] == ["file"]


def test_the_target_of_a_feed_that_may_be_there_is_not_asked(source: str, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "meta.db").touch()
    occupied = tmp_path / "occupied"
    occupied.mkdir()
    (occupied / "theirs").touch()
    feed = load_feed_config({"name": "f", "tables": ["a.*"], "sink": occupied.as_uri()})
    check_start(config(tmp_path, source=source), [feed])
    (tmp_path / "data" / "meta.db").unlink()
    assert refused(config(tmp_path, source=source), occupied.as_uri()).code == "SINK_OCCUPIED"


@pytest.mark.parametrize("verb", ["run", "server"])
def test_verbs_check_before_they_start_anything(verb: str, tmp_path: Path, taken: int, capsys: pytest.CaptureFixture[str]) -> None:
    more = ["--table", "a.*", "--sink", (tmp_path / "out").as_uri()] if verb == "run" else []
    source = ["--source", "oracle://u:hunter2@h:1"]
    assert run([verb, *source, "--data-dir", str(tmp_path / "data"), "--http-port", str(taken), *more]) == 2
    said = capsys.readouterr()
    assert "scheme 'oracle' is not supported" in said.err
    assert f"http-port: cannot listen on 127.0.0.1:{taken}" in said.err
    assert "hunter2" not in said.out + said.err
    assert list(tmp_path.iterdir()) == []


def test_what_is_missing_or_wrong_on_the_line_is_told_at_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line = ["run", "--data-dir", str(tmp_path / "data"), "--spark-master", "banana", "--set", "flsh=1", "--http-port", "70000"]
    assert run(line) == 2
    told = {text.strip().partition(":")[0] for text in capsys.readouterr().err.splitlines()[1:-1]}
    assert told == {"source", "tables", "sink", "flsh", "server.spark.master", "server.http-port"}
    assert list(tmp_path.iterdir()) == []
