import dataclasses
import re
import typing
from pathlib import Path
from typing import Any

import pytest

from penstock.config.loader import key_of, known_keys, load
from penstock.config.server_tree import ServerConfig
from penstock.config.tree import FeedConfig
from penstock.feed.settings import FeedSettings
from penstock.format.csv.dialect import CsvSettings
from penstock.format.protocols import CanalSettings, DebeziumSettings, ParquetSettings
from penstock.target.settings import StorageSinkSettings, from_uri

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "configuration.md").read_text(encoding="utf-8")


def documented(section: str) -> dict[str, str]:
    """The keys and defaults of a section's table; a default that is a value stands in backticks."""
    text = PAGE.partition(f"\n## {section}\n")[2].partition("\n## ")[0]
    return dict(re.findall(r"^\| `([^`]+)` \| (.*?) \| ", text, re.MULTILINE))


def leaves(kind: Any, prefix: str = "") -> list[str]:
    """Every key of a settings tree, dotted."""
    found = []
    hints = typing.get_type_hints(kind)
    for field in dataclasses.fields(kind):
        if field.metadata.get("flatten"):
            found += leaves(hints[field.name], prefix)
        elif dataclasses.is_dataclass(hints[field.name]):
            found += leaves(hints[field.name], f"{prefix}{key_of(field)}.")
        else:
            found.append(prefix + key_of(field))
    return found


def nested(key: str, value: str) -> dict[str, Any]:
    first, _, rest = key.partition(".")
    return {first: nested(rest, value) if rest else value}


def values(section: str) -> list[tuple[str, str]]:
    return [(key, default.strip("`")) for key, default in documented(section).items() if default.startswith("`")]


def test_every_key_is_documented() -> None:
    assert sorted(documented("Server")) == sorted(leaves(ServerConfig))
    assert sorted(documented("Feed")) == sorted(known_keys(FeedConfig))
    sections = (CsvSettings, CanalSettings, ParquetSettings, DebeziumSettings)
    own = len(dataclasses.fields(StorageSinkSettings)) - len(sections)
    assert len(documented("Sink: storage")) == own + sum(len(dataclasses.fields(section)) for section in sections)


@pytest.mark.parametrize(("key", "default"), values("Server"))
def test_defaults_of_the_server(key: str, default: str) -> None:
    source = {"source": "dataserver://127.0.0.1:1"}
    assert load(ServerConfig, source | nested(key, default)) == load(ServerConfig, source)


@pytest.mark.parametrize(("key", "default"), values("Feed"))
def test_defaults_of_a_feed(key: str, default: str) -> None:
    assert load(FeedSettings, {key: default}) == FeedSettings()


@pytest.mark.parametrize(("key", "default"), values("Sink: storage"))
def test_defaults_of_the_storage_sink(key: str, default: str) -> None:
    assert from_uri("file:///x", {key: default})[1] == StorageSinkSettings()
