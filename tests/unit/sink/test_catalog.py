"""Targets are found by their schemes; whoever writes nearly the right thing is told what is right."""

import pytest

from penstock.model.errors import PenstockError
from penstock.sink.catalog import kind_of


@pytest.mark.parametrize(
    ("uri", "hint"),
    [
        ("console", "write console:"),
        ("kafka", "write kafka:"),
        ("http://host/path", "Begin it with http+json://"),
        ("https://me:s3cret@host/path", "Begin it with https+json://"),
        ("delta://bucket/lake", "delta+file:// or delta+s3://"),
        ("localhost:9092/shop", "file:///dir"),
        ("/tmp/files", "file:///dir"),
    ],
)
def test_what_was_meant(uri: str, hint: str) -> None:
    with pytest.raises(PenstockError) as caught:
        kind_of(uri)
    assert caught.value.code == "SINK_URI_INVALID"
    assert hint in str(caught.value.hint)
    assert "s3cret" not in str(caught.value) + str(caught.value.hint)
