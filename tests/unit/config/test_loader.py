from __future__ import annotations

import enum
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pytest

from penstock.config.loader import read_assignments, read_toml
from penstock.model.errors import PenstockError
from penstock.settings.loader import dump, load, merge


class Protocol(enum.StrEnum):
    CSV = "csv"
    CANAL_JSON = "canal-json"


@dataclass(frozen=True)
class Csv:
    delimiter: str = ","
    include_commit_ts: bool = True
    binary: Literal["hex", "base64"] = "base64"

    def __post_init__(self) -> None:
        if len(self.delimiter) > 3:
            raise PenstockError("CONFIG_INVALID", "delimiter: too long")


@dataclass(frozen=True)
class Pace:
    flush_interval_s: float = 5.0
    lease_ms: int = 1000

    def problems(self) -> list[tuple[str, str]]:
        return [("flush-interval", "must be positive")] if self.flush_interval_s <= 0 else []


@dataclass(frozen=True)
class Root:
    name: str
    protocol: Protocol = Protocol.CSV
    file_size: int = 64
    window_bytes_max: int = 10
    retries: int = 3
    ratio: float = 0.5
    tables: tuple[str, ...] = ()
    limit: int | None = None
    home: Path = Path("here")
    extra: dict[str, Any] = field(default_factory=dict)
    csv: Csv = field(default_factory=Csv)
    pace: Pace = field(default_factory=Pace, metadata={"flatten": True})


def problems(tree: dict[str, Any]) -> list[str]:
    with pytest.raises(PenstockError) as caught:
        load(Root, tree)
    assert caught.value.code == "CONFIG_INVALID"
    return caught.value.detail.splitlines()


def test_every_kind_of_value() -> None:
    tree = {
        "name": "x",
        "protocol": "canal-json",
        "file-size": "64MiB",
        "window-bytes-max": "1.5 GiB",
        "retries": 7,
        "ratio": 1,
        "tables": ["a.b", "c.*"],
        "limit": 5,
        "home": "/tmp/x",
        "extra": {"k": 1},
        "csv": {"delimiter": ";", "include-commit-ts": False, "binary": "hex"},
        "flush-interval": "250ms",
        "lease": "2s",
    }
    loaded = load(Root, tree)
    assert loaded == Root(
        name="x",
        protocol=Protocol.CANAL_JSON,
        file_size=64 << 20,
        window_bytes_max=3 << 29,
        retries=7,
        ratio=1.0,
        tables=("a.b", "c.*"),
        limit=5,
        home=Path("/tmp/x"),
        extra={"k": 1},
        csv=Csv(";", False, "hex"),
        pace=Pace(0.25, 2000),
    )
    assert load(Root, dump(loaded)) == loaded


def test_texts_of_options_are_read_like_values() -> None:
    tree = read_assignments(["name=x", "retries=7", "csv.include-commit-ts=off", "tables=a.b, c.d", "file-size=1kB", "flush-interval=1m"])
    loaded = load(Root, tree)
    assert (loaded.retries, loaded.csv.include_commit_ts, loaded.tables, loaded.file_size) == (7, False, ("a.b", "c.d"), 1000)
    assert loaded.pace.flush_interval_s == 60.0


def test_plain_durations_are_in_the_fields_unit() -> None:
    loaded = load(Root, {"name": "x", "flush-interval": 2, "lease": 30})
    assert loaded.pace == Pace(2.0, 30)


def test_all_problems_at_once_with_their_paths() -> None:
    found = problems(
        {
            "protcol": "csv",
            "protocol": "xml",
            "file-size": "64 parsecs",
            "retries": "many",
            "tables": [1],
            "csv": {"delimeter": ";", "binary": "octal"},
            "flush-interval": "soon",
            "home": "",
        }
    )
    assert sorted(found) == sorted(
        [
            "protcol: unknown key; did you mean protocol?",
            "name: is required",
            "protocol: must be one of csv, canal-json, not 'xml'",
            "file-size: must be a size like 64MiB, not '64 parsecs'",
            "retries: must be a whole number, not 'many'",
            "tables[0]: must be a text, not 1",
            "csv.delimeter: unknown key; did you mean delimiter?",
            "csv.binary: must be one of hex, base64, not 'octal'",
            "flush-interval: must be a duration like 5s or 250ms",
            "home: must name a path",
        ]
    )


def test_components_own_checks_get_their_path() -> None:
    assert problems({"name": "x", "csv": {"delimiter": "----"}, "flush-interval": 0}) == [
        "csv.delimiter: too long",
        "flush-interval: must be positive",
    ]


@pytest.mark.parametrize("value", [True, -1, 1.5, None, [], {}])
def test_sizes_that_are_none(value: Any) -> None:
    assert problems({"name": "x", "file-size": value})[0].startswith("file-size: must")


@pytest.mark.parametrize("value", [True, -1, "-5s", float("inf"), float("nan"), "", None, []])
def test_durations_that_are_none(value: Any) -> None:
    assert problems({"name": "x", "flush-interval": value}) == ["flush-interval: must be a duration like 5s or 250ms"]


def test_a_table_where_a_value_belongs_and_the_reverse() -> None:
    assert problems({"name": {"a": 1}, "csv": 3}) == ["name: must be a text, not a table", "csv: must be a table, not 3"]


def test_secrets_are_masked_in_problems() -> None:
    assert "hunter2" not in "".join(problems({"name": "x", "retries": "s3://b/?secret-access-key=hunter2"}))


def test_toml_file(tmp_path: Path) -> None:
    (tmp_path / "f.toml").write_text('name = "x"\n[csv]\ndelimiter = "|"\n')
    assert load(Root, read_toml(tmp_path / "f.toml")).csv.delimiter == "|"


@pytest.mark.parametrize(("content", "text"), [(None, "No such file"), (b"a = \n", "line 1"), (b"\xff\xfe", "decode")])
def test_toml_file_that_cannot_be_read(tmp_path: Path, content: bytes | None, text: str) -> None:
    if content is not None:
        (tmp_path / "f.toml").write_bytes(content)
    with pytest.raises(PenstockError, match=text) as caught:
        read_toml(tmp_path / "f.toml")
    assert caught.value.code == "CONFIG_INVALID"
    assert "f.toml" in caught.value.detail


def test_malformed_options_are_listed_together() -> None:
    with pytest.raises(PenstockError) as caught:
        read_assignments(["a", "=b", "x..y=1", "ok=1"])
    assert len(caught.value.detail.splitlines()) == 3


def test_merge_goes_deep_and_the_later_wins() -> None:
    assert merge({"a": {"b": 1, "c": 2}, "d": 3}, {"a": {"b": 9}, "d": {"e": 1}}) == {"a": {"b": 9, "c": 2}, "d": {"e": 1}}
