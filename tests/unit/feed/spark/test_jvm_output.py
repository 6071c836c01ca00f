"""What Spark's JVM writes becomes records of the log."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.feed.spark.jvm_output import tell_line


@pytest.fixture
def told(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.DEBUG, "penstock.spark")
    return caplog


@pytest.mark.parametrize(
    ("line", "record", "after"),
    [
        ("26/11/18 08:00:00 ERROR TaskSchedulerImpl: Lost executor 1", ("ERROR", "Lost executor 1"), logging.ERROR),
        ("26/11/18 08:00:00 WARN A$: b: c", ("WARNING", "b: c"), logging.WARNING),
        ("26/11/18 08:00:00 ODD A: text", ("WARNING", "text"), logging.WARNING),
        ("\tat org.apache.spark.A.b(A.scala:1)", ("ERROR", "\tat org.apache.spark.A.b(A.scala:1)"), logging.ERROR),
        ("WARNING: Using incubator modules: jdk.incubator.vector", ("DEBUG", None), logging.WARNING),
        ('Setting default log level to "WARN".', ("DEBUG", None), logging.WARNING),
        ("100 % of it, %s", ("ERROR", "100 % of it, %s"), logging.ERROR),
    ],
)
def test_a_line_is_a_record_of_its_level(told: pytest.LogCaptureFixture, line: str, record: tuple[str, str | None], after: int) -> None:
    assert tell_line(line, logging.ERROR) == after
    level, text = record
    assert [(one.levelname, one.getMessage()) for one in told.records] == [(level, text or line)]


def test_an_empty_line_is_none(told: pytest.LogCaptureFixture) -> None:
    assert tell_line("", logging.ERROR) == logging.ERROR
    assert told.records == []


START = """
import logging
from penstock.cli.shown.logs import configure_logging
from penstock.feed.spark.session import SparkSettings, close_session, open_session
configure_logging(logging.DEBUG, "json")
session = open_session(SparkSettings(master="local[1]"))
session.sparkContext._jvm.java.lang.System.err.println("by the JVM itself")
session.sparkContext._jvm.org.apache.logging.log4j.LogManager.getLogger("a.Loud").error("by its log")
close_session(session)
"""


def test_everything_that_spark_writes_is_in_the_log() -> None:
    done = subprocess.run([sys.executable, "-c", START], capture_output=True, text=True, check=True, env=os.environ, timeout=240)
    lines = [json.loads(line) for line in done.stderr.splitlines()]
    spark = [(line["level"], line["message"]) for line in lines if line["logger"] == "penstock.spark"]
    assert spark[0] == ("debug", "WARNING: Using incubator modules: jdk.incubator.vector")
    assert spark[-2:] == [("warning", "by the JVM itself"), ("error", "by its log")]
    assert not [text for _, text in spark if "log level" in text], "Spark has no other level than it is asked for"


ELSEWHERE = """
import os, sys
from penstock.feed.spark.session import SparkSettings, close_session, open_session
session = open_session(SparkSettings(master="local[1]"))
os.dup2(os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT), 2)
session.sparkContext._jvm.java.lang.System.err.println("after the end of a demo")
close_session(session)
"""


def test_where_standard_error_is_another_file_by_then_it_stays_clean(tmp_path: Path) -> None:
    later = tmp_path / "later"
    done = subprocess.run([sys.executable, "-c", ELSEWHERE, later], capture_output=True, text=True, check=True, env=os.environ, timeout=240)
    assert later.read_text() == ""
    assert "after the end of a demo\n" in done.stderr
