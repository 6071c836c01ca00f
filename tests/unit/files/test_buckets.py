"""Buckets: how options reach them, and what their errors tell."""

import pytest
from obstore.store import AzureStore, GCSStore, S3Store

from penstock.files.buckets import cause_of, open_bucket


@pytest.mark.parametrize(
    ("options", "virtual_hosted"),
    [({"force-path-style": "true"}, "false"), ({"path_style": "0"}, "true"), ({"force-path-style": "False"}, "true")],
)
def test_options_of_s3_have_two_names(options: dict[str, str], virtual_hosted: str) -> None:
    store = open_bucket("s3a", "b", "p/q", {"access-key": "id", "secret-access-key": "s", "region": "r", **options})
    assert isinstance(store, S3Store)
    assert store.prefix == "p/q"
    assert store.config["access_key_id"] == "id"
    assert str(store.config["virtual_hosted_style_request"]).lower() == virtual_hosted


def test_plain_http_is_allowed_where_an_endpoint_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ENDPOINT_URL_S3", raising=False)
    monkeypatch.delenv("AWS_ENDPOINT_URL", raising=False)
    plain = open_bucket("s3", "b", "", {"endpoint": "http://127.0.0.1:1", "region": "r"})
    safe = open_bucket("s3", "b", "", {"endpoint": "https://127.0.0.1:1", "region": "r"})
    assert plain.client_options["allow_http"]
    assert "allow_http" not in safe.client_options
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    assert open_bucket("s3", "b", "", {"region": "r"}).client_options["allow_http"]


def test_other_schemes_are_other_stores() -> None:
    assert isinstance(open_bucket("gs", "b", "", {"skip-signature": "true"}), GCSStore)
    assert isinstance(open_bucket("azblob", "c", "", {"account-name": "a", "skip-signature": "true"}), AzureStore)


def test_a_cause_is_one_short_line() -> None:
    assert cause_of(ValueError("refused\nAuthorization: secret")) == "refused"
    assert cause_of(ValueError("")) == "ValueError"
    assert len(cause_of(ValueError("x" * 1000))) == 300


def test_a_cause_repeats_no_answer() -> None:
    asked = "Error performing GET http://h/b in 1ms - Server returned non-2xx status code: 404 Not Found"
    assert cause_of(OSError(f"{asked}: <Error><Code>NoSuchBucket</Code><Message>secret</Message></Error>")) == f"{asked} (NoSuchBucket)"
    assert cause_of(OSError('Got invalid list response: invalid type: string "secret"')) == "Got invalid list response"
