"""What of a feed may be altered, and what the audit says of it."""

from typing import Any

import pytest

from penstock.config.tree import dump_feed_config, load_feed_config
from penstock.model.errors import PenstockError
from penstock.server.feeds.alteration import altered, difference
from penstock.server.feeds.creation import FeedDocument

URI = "s3://lake/shop?endpoint=http://one:9000&access-key-id=A&secret-access-key=hunter1"


def document(uri: str = URI) -> FeedDocument:
    tree = dump_feed_config(load_feed_config({"name": "f", "tables": ["shop.*"], "sink": {"uri": uri}}))
    return FeedDocument(config=tree, source="", dispatchers=(), snapshot_ts=0)


def changed(uri: str) -> dict[str, Any]:
    return dump_feed_config(altered(document(), {"sink": {"uri": uri}}))


def test_a_secret_that_is_new_is_a_difference_and_is_not_shown() -> None:
    old, new = difference(document().config, changed(URI.replace("hunter1", "hunter2")))
    assert "secret-access-key" in old
    assert "secret-access-key" in new
    assert "hunter" not in old + new
    assert difference(document().config, changed(URI)) == ("", "")


@pytest.mark.parametrize("uri", [URI.replace("one:9000", "two:9000"), URI.replace("lake/shop", "lake/other"), "s3://lake/shop"])
def test_a_target_stays_where_it_is(uri: str) -> None:
    with pytest.raises(PenstockError, match=r"sink\.uri: names another place"):
        changed(uri)


def test_other_credentials_and_cuts_are_no_other_place() -> None:
    tree = changed("s3a://lake/shop?aws-endpoint=http://one:9000&access-key-id=B&secret-access-key=hunter2&file-size=8MiB")
    assert load_feed_config(tree).target.uri.startswith("s3a://lake/shop")
