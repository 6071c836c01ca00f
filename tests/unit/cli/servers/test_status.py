from __future__ import annotations

import json
from pathlib import Path

import pytest

from penstock.cli.main import run
from testing.servers.api_server import ApiServer
from testing.servers.waiting import wait_until


def test_everything_in_one_glance_and_the_exit_code_says_whether_it_works(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with ApiServer(tmp_path, "shop.orders") as server:
        at = ["--server", server.url]
        wait_until(lambda: run(["status", *at]) == 0, "well", 60)
        capsys.readouterr()
        assert run(["status", *at]) == 0
        assert "none" in capsys.readouterr().out
        assert run(["feed", "create", "orders", "--table", "shop.*", "--sink", "s3://glance/orders", *at]) == 0
        epoch = server.runs.next_run().epoch
        server.meta.record_error("orders", epoch, "SINK_UNWRITABLE", "no bucket ?secret-access-key=hunter2")
        capsys.readouterr()
        assert run(["status", "--output", "json", *at]) == 1
        found = json.loads(capsys.readouterr().out)
        assert (found["status"], found["failed"], [f["name"] for f in found["feeds"]]) == ("failing", ["orders"], ["orders"])
        assert set(found["server"]) == {"url", "version", "components"}
        assert run(["status", *at]) == 1
        text = capsys.readouterr().out
        assert "orders: [SINK_UNWRITABLE] no bucket" in text
        assert "hint: Check that it exists" in text
        assert "hunter2" not in text
