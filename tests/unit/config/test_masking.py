from __future__ import annotations

import pytest

from penstock.model.masking import mask_text, mask_tree, mask_uri


@pytest.mark.parametrize(
    ("uri", "shown"),
    [
        ("s3://b/p?access-key=AK&secret-access-key=hunter2&region=x", "s3://b/p?access-key=***&secret-access-key=***&region=x"),
        ("mysql://root:hunter2@h:3306/db", "mysql://root:***@h:3306/db"),
        ("mysql://root:hun@ter2@h:3306/db", "mysql://root:***@h:3306/db"),
        ("az://c/p?sas-token=hunter2", "az://c/p?sas-token=***"),
        ("https://h/x?sv=1&sig=hunter2&x=1", "https://h/x?sv=1&sig=***&x=1"),
        ("s3://b/p?AWS_SESSION_TOKEN=hunter2", "s3://b/p?AWS_SESSION_TOKEN=***"),
        ("file:///tmp/out", "file:///tmp/out"),
        ("dataserver://127.0.0.1:20160", "dataserver://127.0.0.1:20160"),
    ],
)
def test_uris(uri: str, shown: str) -> None:
    assert mask_uri(uri) == shown
    assert mask_uri(shown) == shown


def test_texts_keep_everything_else() -> None:
    text = "[SINK_UNAVAILABLE] put s3://b/CDC000001.csv?secret_access_key=hunter2 failed: 503, retry 2"
    assert mask_text(text) == "[SINK_UNAVAILABLE] put s3://b/CDC000001.csv?secret_access_key=*** failed: 503, retry 2"
    assert mask_text("{'password': 'hunter2', 'rows': 3}") == "{'password': '***', 'rows': 3}"


def test_trees_are_masked_by_key_and_by_content() -> None:
    tree = {"sink": {"uri": "s3://b?secret-access-key=hunter2", "secret-access-key": "hunter2", "csv": {"delimiter": ","}}, "n": [1, None]}
    assert mask_tree(tree) == {
        "sink": {"uri": "s3://b?secret-access-key=***", "secret-access-key": "***", "csv": {"delimiter": ","}},
        "n": [1, None],
    }
