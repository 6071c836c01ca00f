import re
from pathlib import Path
from typing import Any

import pytest

from penstock.config.server_tree import ServerConfig
from penstock.config.tree import FeedConfig
from penstock.feed.settings import FeedSettings
from penstock.settings.loader import dotted_keys, known_keys, load
from penstock.target.settings import OPTION_KEYS, SHARED_KEYS, StorageSinkSettings, from_uri

OTHER_NAMES = {"file-index-digit": "file-index-width"}
PAGE = (Path(__file__).resolve().parents[2] / "docs" / "configuration.md").read_text(encoding="utf-8")


def documented(section: str) -> dict[str, str]:
    """The keys and defaults of a section's table; a default that is a value stands in backticks."""
    text = PAGE.partition(f"\n## {section}\n")[2].partition("\n## ")[0]
    return dict(re.findall(r"^\| `([^`]+)` \| (.*?) \| ", text, re.MULTILINE))


def nested(key: str, value: str) -> dict[str, Any]:
    first, _, rest = key.partition(".")
    return {first: nested(rest, value) if rest else value}


def values(section: str) -> list[tuple[str, str]]:
    return [(key, default.strip("`")) for key, default in documented(section).items() if default.startswith("`")]


def test_every_key_is_documented() -> None:
    assert sorted(documented("Server")) == sorted(dotted_keys(ServerConfig))
    assert sorted(documented("Feed")) == sorted(known_keys(FeedConfig))
    assert sorted(documented("Sink: storage")) == sorted(OPTION_KEYS - set(OTHER_NAMES))
    for name in (*OTHER_NAMES, *SHARED_KEYS):
        assert f"`{name}`" in PAGE.partition("\n## Sink: storage\n")[2].partition("\n## ")[0]


@pytest.mark.parametrize(("name", "key"), OTHER_NAMES.items())
def test_other_names_mean_the_same(name: str, key: str) -> None:
    assert from_uri("file:///x", {name: "7"}) == from_uri("file:///x", {key: "7"}) != from_uri("file:///x")


@pytest.mark.parametrize(("written", "plain"), [("64KiB", 65536), ("65536", 65536), (65536, "65536")])
def test_a_size_may_have_a_unit_or_none(written: Any, plain: Any) -> None:
    assert from_uri("file:///x", {"file-size": written}) == from_uri("file:///x", {"file-size": plain})
    assert from_uri(f"file:///x?file-size={written}")[1].file_size == 65536


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
