from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest

from penstock.cli.main import run
from testing.servers.api_server import ApiServer

log = logging.getLogger("penstock.test_logs")


def test_the_lines_of_a_server_and_of_one_feed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with ApiServer(tmp_path, "shop.orders") as server:
        at = ["--server", server.url, "--output", "json"]
        mark = tmp_path.name
        log.warning("%s began", mark, extra={"feed": f"{mark}.1", "uri": "s3://b?secret-access-key=hunter2"})
        log.error("%s ended", mark, extra={"feed": f"{mark}.2"})
        log.error("%s elsewhere", mark)
        assert run(["logs", *at]) == 0
        text = capsys.readouterr().out
        mine = [entry for entry in json.loads(text) if mark in entry["message"]]
        assert [(e["level"], e["message"]) for e in mine] == [
            ("WARNING", f"{mark} began"),
            ("ERROR", f"{mark} ended"),
            ("ERROR", f"{mark} elsewhere"),
        ]
        assert mine[0]["fields"] == {"feed": f"{mark}.1", "uri": "s3://b?secret-access-key=***"}
        assert [e["seq"] for e in mine] == list(range(mine[0]["seq"], mine[0]["seq"] + 3))
        assert run(["logs", f"{mark}/1", *at]) == 0
        assert [e["message"] for e in json.loads(capsys.readouterr().out)] == [f"{mark} began"]
        assert run(["logs", mark, "--level", "error", *at]) == 0
        assert [e["message"] for e in json.loads(capsys.readouterr().out)] == [f"{mark} ended"]
        assert run(["logs", f"{mark}.none", *at]) == 0
        assert capsys.readouterr() == ("[]\n", f"no lines about feed {mark}.none at level info or above\n")
        assert run(["logs", mark, "--lines", "1", "--server", server.url]) == 0
        assert capsys.readouterr().out.endswith(f"ERROR penstock.test_logs: {mark} ended feed={mark}.2\n")
