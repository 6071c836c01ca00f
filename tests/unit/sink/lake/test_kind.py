"""Settings of lakes, and what a doctor says of them."""

from pathlib import Path

import pytest

from penstock.model.errors import PenstockError
from penstock.sink.catalog import check_target, settings_of


@pytest.mark.parametrize(
    ("uri", "said"),
    [
        ("delta+file:///x?mode=upsert", "mode"),
        ("delta+file:///x?old-values=true", "old-values: needs mode append"),
        ("delta+file:///x?partition=day", "partition: needs mode append"),
        ("delta+file:///x?catalog=sqlite://", "catalog: is not for delta"),
        ("delta+file:///x?file-sise=1MiB", "did you mean"),
        ("iceberg+s3://b/p", "catalog"),
        ("delta+file://host/x", "absolute path"),
        ("delta+s3:///x", "names no bucket"),
    ],
)
def test_what_makes_no_sense_is_said(uri: str, said: str) -> None:
    with pytest.raises(PenstockError) as refused:
        settings_of(uri)
    assert said in str(refused.value)


def test_options_of_the_object_store_stay_in_the_uri() -> None:
    uri, settings = settings_of("delta+s3://b/p?region=x&mode=append", {"file-size": "1MiB"})
    assert (uri, settings.format_name) == ("s3://b/p?region=x", "append")


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_a_doctor_finds_a_lake_writable_and_leaves_it_as_it_was(tmp_path: Path, kind: str) -> None:
    findings = check_target(f"{kind}+file://{tmp_path}/lake", feed="f")
    assert [f.ok for f in findings] == [True, True]
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "file").write_text("mine")
    findings = check_target(f"{kind}+file://{tmp_path}/other", feed="f")
    assert [f.ok for f in findings] == [True, False]
