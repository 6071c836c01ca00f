"""Capture on executors is refused where it cannot work."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.config.capture_settings import CaptureSettings
from penstock.config.server_tree import ServerConfig, SparkConfig
from penstock.model.errors import PenstockError
from penstock.settings.loader import load

DATA = {"source": "dataserver://127.0.0.1:1"}


def problems(**given: Any) -> str:
    with pytest.raises(PenstockError) as raised:
        load(ServerConfig, DATA | given)
    assert raised.value.code == "CONFIG_INVALID"
    return raised.value.detail


def test_the_server_captures_unless_told_otherwise() -> None:
    assert load(ServerConfig, DATA).capturing == CaptureSettings("server", 2)
    given = load(ServerConfig, DATA | {"capture": "executors", "receivers": 3, "spark": {"master": "local[4]"}})
    assert given.capturing == CaptureSettings("executors", 3)
    named = load(ServerConfig, {"sources": {"a": {"uri": DATA["source"], "capture": "executors"}}, "spark": {"master": "local[3]"}})
    assert named.sources["a"].capturing.on_executors
    assert not named.capturing.on_executors


@pytest.mark.parametrize("scheme", ["mysql", "mariadb", "postgres", "postgresql"])
def test_a_source_with_one_log_is_refused(scheme: str) -> None:
    refused = f'must be "server" for {scheme}://: it has one log'
    assert f"capture: {refused}" in problems(source=f"{scheme}://u:hunter2@db/x", capture="executors", spark={"master": "local[4]"})
    found = problems(sources={"a": {"uri": f"{scheme}://u:hunter2@db/x", "capture": "executors"}}, spark={"master": "local[4]"})
    assert f"sources.a.capture: {refused}" in found
    assert "hunter2" not in found


@pytest.mark.parametrize(
    ("spark", "cores"),
    [
        ({"master": "local"}, 1),
        ({"master": "local[2]"}, 2),
        ({"master": "local[2, 4]"}, 2),
        ({"master": "local-cluster[2,1,1024]"}, 2),
        ({"master": "spark://127.0.0.1:7077", "cores_max": 2}, 2),
        ({"master": "spark://127.0.0.1:7077", "conf": {"spark.cores.max": "1"}}, 1),
        ({"master": "yarn", "conf": {"spark.executor.instances": "2"}}, 2),
        ({"master": "yarn", "conf": {"spark.executor.instances": "2", "spark.executor.cores": "4"}}, 8),
        ({"master": "yarn"}, None),
        ({"master": "k8s://x", "conf": {"spark.executor.instances": "many"}}, None),
    ],
)
def test_cores(spark: dict[str, Any], cores: int | None) -> None:
    assert SparkConfig(**spark).cores == cores


def test_receivers_may_not_take_all_cores() -> None:
    found = problems(capture="executors", spark={"master": "local[2]"})
    assert found.startswith("receivers: 2 would take all 2 cores that Spark has, and windows need one: give fewer, or more cores")
    sources = {"a": {"uri": "dataserver://127.0.0.1:2", "capture": "executors", "receivers": 2}}
    assert "receivers: 4 would take all 4 cores" in problems(capture="executors", sources=sources, spark={"master": "local[4]"})
    assert "receivers: must be between 1 and 1000" in problems(receivers=0)


def test_other_machines_need_storage_that_they_share() -> None:
    elsewhere = {"master": "spark://cluster:7077"}
    assert problems(capture="executors", spark=elsewhere).startswith("store.objects: is required with capture on executors")
    load(ServerConfig, DATA | {"capture": "executors", "spark": elsewhere, "store": {"objects": "s3://bucket/x"}})
