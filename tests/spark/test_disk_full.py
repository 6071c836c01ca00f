"""A disk that is full: under the spool the feed stops with an error that names it, under the target it backs off until there is room.

The disk is a small file system of its own, which only root may mount.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from penstock.cli.server_client import ServerClient
from penstock.config.server_tree import ServerConfig, SparkConfig
from penstock.model.batch import Op
from penstock.server.process import ServerProcess
from penstock.server.verify.verification import open_reader
from penstock.source.dataserver.workload import Workload, WorkloadSettings
from testing.checks.target_audit import DeliveredChanges, data_files, digests, numbering_problems

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(600)]

ROWS = 20_000
SMALL, LARGE = {"spool": "64k", "target": "600k"}, "256m"
SINK = {"uri": "connection://small", "file-size": "256KiB", "spool-size": "1MiB"}


@contextmanager
def disk(folder: Path, size: str) -> Iterator[Path]:
    if os.geteuid() != 0:
        pytest.skip("only root mounts a small disk")
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "none", folder], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)


def in_state(client: ServerClient, state: str) -> dict[str, Any] | None:
    shown = client.show_feed("f")
    return shown if shown["state"] == state else None


def test_a_full_spool_is_an_error_and_room_is_enough_to_go_on(jvm, upstream, waiting, tmp_path: Path) -> None:
    del jvm
    workload = Workload(upstream, WorkloadSettings(rows=ROWS, ddls=False))
    workload.setup()
    with disk(tmp_path / "disk", SMALL["spool"]) as small:
        target = tmp_path / "files"
        # What lies above a fifth of the spool goes to its disk: long before a file is full.
        config = server_config(upstream, tmp_path, {"uri": target.as_uri(), "spool-dir": str(small / "spool")})
        with ServerProcess(config) as server, ServerClient(server.url) as client:
            client.create_feed({"name": "f", "tables": ["shop.*"], "sink": SINK, "flush-interval": "1s"})
            waiting.feed(client, "f", lambda shown: shown["windows"] > 0)
            workload.start()
            report = workload.join(120)
            shown = waiting.until("the feed has failed", lambda: in_state(client, "failed"), look_s=0.2)
        assert shown["error"]["code"] == "SPOOL_FAILED", shown
        assert "No space left" in shown["error"]["message"]
        assert shown["rows"] < report.rows
        published = digests(target)
        subprocess.run(["mount", "-o", f"remount,size={LARGE}", small], check=True)
        with ServerProcess(config) as server, ServerClient(server.url) as client:
            waiting.until("the feed is taken up again", lambda: not in_state(client, "failed"), look_s=0.2)
            shown = waiting.drained(client, "f", target, upstream.current_ts())
            verdict = client.verify_feed("f")
        check_delivered(target, report, shown, verdict, published)
        assert list((small / "spool").iterdir()) == []


def test_a_full_target_backs_off_harms_no_other_and_goes_on_by_itself(jvm, upstream, waiting, tmp_path: Path) -> None:
    del jvm
    workload = Workload(upstream, WorkloadSettings(rows=ROWS, ddls=False))
    workload.setup()
    with disk(tmp_path / "disk", SMALL["target"]) as small:
        target, other = small / "files", tmp_path / "other"
        config = server_config(upstream, tmp_path, {"uri": target.as_uri()})
        with ServerProcess(config) as server, ServerClient(server.url) as client:
            client.create_feed({"name": "f", "tables": ["shop.*"], "sink": SINK, "flush-interval": "1s"})
            client.create_feed({"name": "other", "tables": ["shop.*"], "sink": other.as_uri(), "flush-interval": "1s"})
            waiting.feed(client, "f", lambda shown: shown["windows"] > 0)
            workload.start()
            report = workload.join(120)
            shown = waiting.until("the feed is tried again", lambda: in_state(client, "retrying"), look_s=0.2)
            assert shown["error"]["code"] == "SINK_FULL", shown
            assert "No space left" in shown["error"]["message"]
            waiting.until("its problem is shown", lambda: (client.show_feed("f")["problem"] or {}).get("stage") == "retrying", look_s=0.2)
            waiting.drained(client, "other", other, upstream.current_ts())
            assert client.verify_feed("other")["identical"]
            assert client.show_feed("f")["rows"] < report.rows
            published = digests(target)
            subprocess.run(["mount", "-o", f"remount,size={LARGE}", small], check=True)
            shown = waiting.drained(client, "f", target, upstream.current_ts())
            verdict = client.verify_feed("f")
        check_delivered(target, report, shown, verdict, published)


def server_config(upstream: Any, folder: Path, connection: dict[str, str]) -> ServerConfig:
    spark = SparkConfig(master="local[2]", warm_up=False)
    return ServerConfig(
        source=upstream.uri,
        data_dir=folder / "data",
        http_port=0,
        spark=spark,
        connections={"small": connection},
    )


def check_delivered(target: Path, report: Any, shown: dict[str, Any], verdict: dict[str, Any], published: dict[str, str]) -> None:
    assert verdict["identical"], verdict
    assert verdict["rows"] == report.inserts - report.deletes
    changes = DeliveredChanges(open_reader(target.as_uri(), {}))
    assert changes.problems() == []
    assert changes.operations() == {Op.INSERT: report.inserts, Op.UPDATE: report.updates, Op.DELETE: report.deletes}
    assert numbering_problems(target) == []
    assert shown["files"] == len(data_files(target))
    after = digests(target)
    assert {name: after.get(name) for name in published} == published
