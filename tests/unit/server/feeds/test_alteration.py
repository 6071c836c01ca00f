"""What of a feed may be altered, and what the audit says of it."""

from typing import Any

import msgspec
import pytest

from penstock.config.tree import dump_feed_config, load_feed_config
from penstock.meta.records import FeedRecord
from penstock.model.errors import PenstockError
from penstock.server.feeds.alteration import altered, difference, holds_at_once, moved_to, with_next
from penstock.server.feeds.creation import FeedDocument, TargetMove

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
def test_another_place_is_another_target_which_may_have_other_options(uri: str) -> None:
    feed = FeedRecord("f", "u", "", checkpoint_ts=9)
    config = altered(document(), {"sink": {"uri": uri, "protocol": "canal-json"}})
    move = moved_to(document(), config, "now", feed)
    assert move is not None
    assert (move.start, move.abandons) == ("now", False)
    # Asked again for the same place before it holds, it is known there by the same id.
    asked = with_next(document(), config, move)
    again = moved_to(asked, altered(asked, {"sink": uri}), "", msgspec.structs.replace(feed, error_code="SINK_FULL"))
    assert again == TargetMove(move.uuid, "snapshot", abandons=True)
    assert not holds_at_once(asked)
    with pytest.raises(PenstockError, match=r"sink\.protocol: cannot change"):
        altered(document(), {"sink": {"protocol": "canal-json"}})


@pytest.mark.parametrize(
    ("start", "uri", "checkpoint_ts", "says"),
    [
        ("now", URI, 9, "start: is for another target"),
        ("yesterday", "s3://lake/other", 9, "start: must be snapshot, now or a ts"),
        ("now", "s3://lake/other", 0, "start: feed f has delivered nothing yet"),
        ("", "s3://lake/other", 20, "until-ts: nothing is left for another target"),
    ],
)
def test_a_start_that_no_target_can_have(start: str, uri: str, checkpoint_ts: int, says: str) -> None:
    config = altered(document(), {"sink": {"uri": uri}, "until-ts": 20})
    with pytest.raises(PenstockError, match=says):
        moved_to(document(), config, start, FeedRecord("f", "u", "", checkpoint_ts=checkpoint_ts))


def test_other_credentials_and_cuts_are_no_other_place() -> None:
    tree = changed("s3a://lake/shop?aws-endpoint=http://one:9000&access-key-id=B&secret-access-key=hunter2&file-size=8MiB")
    assert load_feed_config(tree).target.uri.startswith("s3a://lake/shop")
