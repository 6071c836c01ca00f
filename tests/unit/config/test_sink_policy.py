from __future__ import annotations

from pathlib import Path

import pytest

from penstock.config.connections import Connections
from penstock.config.sink_policy import SinkPolicy
from penstock.config.tree import SinkConfig
from penstock.model.errors import PenstockError

OWN = "http://127.0.0.1:18399"


def refusal(policy: SinkPolicy, uri: str, **options: str) -> str | None:
    """Return what a caller is told, or None where it may use the target."""
    try:
        policy.check(SinkConfig(uri, options))
    except PenstockError as error:
        return error.detail
    return None


@pytest.mark.parametrize(
    ("uri", "key"),
    [
        # The audit's own request, which sent a file of the server's user to the caller.
        (
            f"az://c/p?account-name=x&federated-token-file=/etc/shadow&client-id=x&tenant-id=y&authority-host={OWN}&endpoint={OWN}",
            "federated-token-file",
        ),
        (f"az://c/p?account-name=x&AZURE_AUTHORITY_HOST={OWN}", "authority-host"),
        ("az://c/p?azure_storage_use_azure_cli=true", "use-azure-cli"),
        (f"az://c/p?msi-endpoint={OWN}", "msi-endpoint"),
        (f"az://c/p?account-name=x&endpoint={OWN}", "endpoint"),
        ("az://c/p?account-name=evil.example/", "account-name"),
        ("az://c/p?container-name=other", "container-name"),
        ("gs://b/p?service-account-path=/etc/passwd", "service-account-path"),
        ("gs://b/p?google_service_account=/etc/passwd", "service-account"),
        ("gs://b/p?application_credentials=/etc/passwd", "application-credentials"),
        (f"gs://b/p?base-url={OWN}", "base-url"),
        (f"gs://b/p?base-url={OWN}&skip-signature=false", "base-url"),
        (f"gs://b/p?base-url={OWN}&skip-signature=true", "base-url"),
        (f"gs://b/p?google_base_url={OWN}&skip-signature=true&bearer-token=x", "base-url"),
        (f"gs://b/p?base-url={OWN}&bearer-token=", "base-url"),
        ("s3://b/p?web-identity-token-file=/etc/passwd&role-arn=x", "web-identity-token-file"),
        ("s3://b/p?container_authorization_token_file=/etc/passwd", "container-authorization-token-file"),
        (f"s3://b/p?container-credentials-full-uri={OWN}", "container-credentials-full-uri"),
        (f"s3://b/p?metadata-endpoint={OWN}", "metadata-endpoint"),
        (f"s3://b/p?AWS_STS_ENDPOINT={OWN}", "sts-endpoint"),
        ("s3://b/p?proxy_url=http://u:p@h", "proxy-url"),
        ("s3://b/p?bucket=other", "bucket"),
        ("s3://b/p?conditional_put=dynamo:t", "conditional-put"),
        ("s3://b/p?endpoint=http://169.254.169.254/latest", "endpoint"),
        ("s3://b/p?endpoint=http://[fe80::1]", "endpoint"),
        # The same address as clients read it.
        ("s3://b/p?endpoint=http://2852039166/", "endpoint"),
        ("s3://b/p?endpoint=http://0xa9fea9fe", "endpoint"),
        ("s3://b/p?endpoint=http://169.254.43518", "endpoint"),
        ("s3://b/p?endpoint=http://0251.0376.0251.0376", "endpoint"),
        ("s3://b/p?endpoint=http://169.254.169.0xfe.", "endpoint"),
        ("s3://b/p?endpoint=http://[::ffff:169.254.169.254]", "endpoint"),
        ("s3://b/p?endpoint=http://[::ffff:a9fe:a9fe]", "endpoint"),
        ("s3://b/p?endpoint=http://\uff11\uff16\uff19.254.169.254", "endpoint"),
        ("s3://b/p?endpoint=http://169.254.169.254%5C.store.example", "endpoint"),
        ("s3://b/p?endpoint=http://metadata%E3%80%82google.internal", "endpoint"),
        ("s3://b/p?endpoint=http://metadata.google.internal.", "endpoint"),
        ("s3://b/p?endpoint=http://[fd00:ec2::254]", "endpoint"),
        ("s3://b/p?endpoint=http://100.100.100.200", "endpoint"),
        # What is looked at is what the client takes, whichever of several it takes.
        (f"s3://b/p?endpoint=http://169.254.169.254&endpoint={OWN}", "endpoint"),
        (f"s3://b/p?AWS_ENDPOINT=http://169.254.169.254&endpoint={OWN}", "endpoint"),
        (f"az://c/p?account-name=x&endpoint={OWN}&azure_skip_signature=false&skip-signature=true", "skip-signature"),
        (f"gs://b/p?base-url={OWN}&google-skip-signature=false&skip-signature=true", "skip-signature"),
        ("s3://b/p?endpoint=file:///etc/passwd", "endpoint"),
        ("s3://b/p?region=x.evil.example/", "region"),
        ("s3://user@evil.example/p", "sink.uri"),
        ("s3://b/p?some-new-parameter=1", "some-new-parameter"),
        ("file:///tmp/x?spool-dir=/root", "spool-dir"),
        ("file:///srv/../etc", "sink.uri"),
        ("file:///srv/%2e%2e/etc", "sink.uri"),
    ],
)
def test_what_a_caller_may_not_ask_for(uri: str, key: str) -> None:
    said = refusal(SinkPolicy(), uri)
    assert said is not None
    assert any(line.partition(":")[0].rpartition("?")[2].removeprefix("sink.") == key.removeprefix("sink.") for line in said.splitlines())


def test_options_beside_the_uri_are_looked_at_too() -> None:
    assert "spool-dir" in (refusal(SinkPolicy(), "file:///tmp/x", **{"spool-dir": "/root"}) or "")
    assert "spool-dir" in (refusal(SinkPolicy(), "file:///tmp/x", spool_dir="/root") or "")


@pytest.mark.parametrize(
    "uri",
    [
        "file:///tmp/x?file-size=1MiB",
        "s3://bucket/prefix?region=eu-west-1",
        f"s3://bucket/prefix?endpoint={OWN}&access-key=a&secret-access-key=b&force-path-style=true&date-separator=none",
        "s3a://bucket/prefix?AWS_ACCESS_KEY_ID=a&aws_session_token=b",
        "s3://bucket/prefix?endpoint=https://s3.eu-west-1.store-1.example:9000/path",
        "s3://bucket/prefix?endpoint=http://minio:9000",
        "s3://bucket/prefix?endpoint=http://10.0.0.7:9000",
        "s3://bucket/prefix?endpoint=http://[fd12::7]:9000",
        "gs://bucket/prefix",
        "gs://bucket/prefix?skip-signature=true",
        "az://container/prefix?account-name=shop&account-key=a",
        f"azblob://$root/prefix?account-name=shop&skip-signature=true&endpoint={OWN}",
        "azure://container/prefix?account-name=shop&sas-token=a",
        "memory:///x",
    ],
)
def test_what_callers_need(uri: str) -> None:
    assert refusal(SinkPolicy(), uri) is None


def test_sink_allow_limits_the_place(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    (tmp_path / "link").symlink_to(shared)
    (shared / "out").mkdir(parents=True)
    (shared / "away").symlink_to(tmp_path)
    policy = SinkPolicy(["s3://lake/*", "gcs://whole", f"file://{tmp_path}/link/*"])
    allowed = [
        "s3://lake/a",
        "s3a://lake/a/b?region=x",
        "gs://whole",
        "gs://whole/a",
        f"file://{shared}/out",
        f"file://{tmp_path}/link/new/x",
    ]
    refused = [
        "s3://lake",
        "s3://lakes/a",
        "s3://other/lake/a",
        f"s3://lake/a?endpoint={OWN}",
        "gs://wholesale/a",
        "az://lake/a",
        f"file://{tmp_path}/x",
        f"file://{shared}/away/x",
        f"file://{shared}/out/../../x",
        "file:///",
        "memory:///x",
    ]
    assert {uri: refusal(policy, uri) for uri in allowed} == dict.fromkeys(allowed)
    assert [uri for uri in refused if refusal(policy, uri) is None] == []


def test_no_target_lies_in_the_data_directory(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    (tmp_path / "link").symlink_to(data)
    policy = SinkPolicy((), data)
    for uri in (data.as_uri(), (data / "store").as_uri(), (tmp_path / "link" / "x").as_uri(), tmp_path.as_uri()):
        assert "data directory" in (refusal(policy, uri) or "")
    assert refusal(policy, (tmp_path / "files").as_uri()) is None


def test_tables_of_a_lake_lie_where_their_object_store_does(tmp_path: Path) -> None:
    policy = SinkPolicy(["s3://lake/*"], tmp_path)
    assert refusal(policy, "delta+s3://lake/shop") is None
    assert "sink-allow" in (refusal(policy, "delta+s3://other/shop") or "")
    assert "service-account-path" in (refusal(SinkPolicy(), "delta+gs://b/p?service-account-path=/etc/passwd") or "")
    assert "data directory" in (refusal(SinkPolicy(data_dir=tmp_path), f"iceberg+file://{tmp_path}/lake") or "")
    assert "sink.catalog" in (refusal(SinkPolicy(), "iceberg+file:///srv/lake", catalog="sqlite:////etc/x") or "")


def test_connections_are_what_they_stand_for() -> None:
    tables = {"lake": {"uri": "s3://bucket/base?region=x", "secret-access-key": "a&b", "spool-dir": "/big"}, "here": {"uri": "file:///srv"}}
    known = Connections.read(tables, {"PENSTOCK_CONNECTION_NEAR_BY": "memory:///m", "HOME": "/root"})
    policy = SinkPolicy(["s3://bucket/base/*", "connection://near-by/*"], resolve=known.resolve)
    assert refusal(policy, "connection://lake/shop") is None
    assert refusal(policy, "connection://near-by/shop") is None
    assert "sink-allow" in (refusal(policy, "connection://here/shop") or "")
    assert "no connection" in (refusal(policy, "connection://lak/shop") or "")
    assert refusal(policy, "connection://lake/../../x") is not None
    assert "endpoint" in (refusal(policy, f"connection://lake/shop?endpoint={OWN}") or "")
    uri = "s3://bucket/base/shop?region=x&secret-access-key=a%26b&spool-dir=%2Fbig&file-size=1MiB"
    assert known.resolve(SinkConfig("connection://lake/shop?file-size=1MiB")).uri == uri
    assert known.resolve(SinkConfig("connection://near-by")).uri == "memory:///m"
    assert known.resolve(SinkConfig("s3://a/b")).uri == "s3://a/b"


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ({"uri": "connection://x"}, "another connection"),
        ({"uri": "ftp://x"}, "scheme"),
        ({"uri": "file:///x", "region": "y"}, "unknown key"),
        ("s3://x", "must be a table"),
    ],
)
def test_connections_that_cannot_be(table: object, said: str) -> None:
    with pytest.raises(PenstockError, match=said):
        Connections.read({"lake": table}, {})
