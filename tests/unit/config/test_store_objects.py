"""``store.objects``: each source has a folder of its own, secrets stay out of the URI, and what is wrong is said at the start."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.config.connections import Connections
from penstock.config.store_objects import folder_of, open_objects
from penstock.model.errors import PenstockError
from penstock.store.settings import StoreSettings

NONE = Connections({}).resolve


def test_each_source_has_a_folder_below_the_place(tmp_path: Path) -> None:
    settings = StoreSettings(objects=tmp_path.as_uri())
    one, two = (open_objects(settings, source, NONE) for source in ("mysql://db:3306", "mysql://db:3307"))
    assert one is not None
    assert two is not None
    assert one.put_new("a", [b"of one"])
    assert two.put_new("a", [b"of two"])
    again = open_objects(settings, "mysql://db:3306", NONE)
    assert again is not None
    assert again.get("a").to_pybytes() == b"of one"
    assert {p.name for p in tmp_path.iterdir()} == {folder_of("mysql://db:3306"), folder_of("mysql://db:3307")}
    assert folder_of("postgresql://db:5432/shop") == "postgresql-db-5432-shop-" + folder_of("postgresql://db:5432/shop")[-16:]
    assert folder_of("a/b") != folder_of("a-b")
    assert open_objects(StoreSettings(), "mysql://db:3306", NONE) is None


def test_a_connection_gives_the_place_and_settings_show_no_secret(tmp_path: Path) -> None:
    connections = Connections({"disk": tmp_path.as_uri()})
    space = open_objects(StoreSettings(objects="connection://disk/events"), "s", connections.resolve)
    assert space is not None
    assert space.uri == f"{tmp_path.as_uri()}/events/{folder_of('s')}"
    assert "hush" not in repr(StoreSettings(objects="s3://bucket/x?secret-access-key=hush"))


@pytest.mark.parametrize(
    "objects",
    ["nowhere", "ftp://host/x", "memory:///", "connection://unknown/x", "file:///x?secret-access-key=hush", "s3://b/x?nosuch=hush"],
)
def test_what_is_no_place_is_refused_at_the_start(objects: str) -> None:
    with pytest.raises(PenstockError) as caught:
        open_objects(StoreSettings(objects=objects), "s", NONE)
    assert caught.value.code == "CONFIG_INVALID"
    assert caught.value.detail.startswith("store.objects: ")
    assert "hush" not in str(caught.value)
