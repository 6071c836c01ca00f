"""An object store that refuses, answers late and loses answers: the feed tries again, and every row arrives once."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

from penstock.model.errors import ErrorKind, PenstockError
from penstock.readback.inspection import check_target
from penstock.target.settings import from_uri
from penstock.target.storage import ObjectTarget
from testing.checks.target_audit import DeliveredChanges
from testing.paths.whole_path import WholePath
from testing.servers.fault_proxy import FaultShares, fault_proxy
from testing.servers.seaweed import seaweed_s3

pytestmark = pytest.mark.integration

SETUP = ["CREATE DATABASE d", *(f"CREATE TABLE d.{t} (id INT PRIMARY KEY, v VARCHAR(40))" for t in "ab")]
WINDOWS, ATTEMPTS_MAX = 5, 200


def deliver(path: WholePath, ts: int) -> int:
    """Run windows as a server does, which starts a feed again after an error that may pass; return how often it did."""
    for attempt in range(ATTEMPTS_MAX):
        try:
            path.feed.drain(ts, 60)
        except PenstockError as error:
            assert error.kind is ErrorKind.TRANSIENT, error  # noqa: PT017 - any other error ends the test with itself
            continue
        return attempt
    raise AssertionError("the feed never got through")


def test_every_row_arrives_once(tmp_path: Path) -> None:
    with seaweed_s3(tmp_path / "s3") as s3, fault_proxy(s3.endpoint, FaultShares(0, 0, 0), seed=3) as proxy:
        uri = s3.uri("feed")
        (tmp_path / "feed").mkdir()
        with contextlib.closing(WholePath(tmp_path / "feed", SETUP, target_uri=uri.replace(s3.endpoint, proxy.endpoint))) as path:
            proxy.shares = FaultShares(refused=0.12, lost=0.12, slow=0.05, slow_s=0.2)
            for at in range(WINDOWS):
                ts = path.write({"d.a": {i: f"{at} {i}" for i in range(40)}, "d.b": {at: "x"}})
                if at == 2:
                    ts = path.upstream.execute_ddl("TRUNCATE TABLE d.b")
                deliver(path, ts)
            assert min(proxy.counts[fault] for fault in ("refused", "lost")) > 0
            proxy.shares = FaultShares(0, 0, 0)
            path.drain()
            path.verify().check()
            assert DeliveredChanges(path.reader()).problems() == []
            target_uri, sink = from_uri(uri)
            assert list(check_target(ObjectTarget.open(target_uri), sink)) == []
