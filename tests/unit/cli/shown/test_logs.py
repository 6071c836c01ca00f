from __future__ import annotations

import io
import json
import logging
import sys
from collections.abc import Iterator

import pytest

from penstock.cli.shown.logs import configure_logging, tell


@pytest.fixture(autouse=True)
def logging_as_before() -> Iterator[None]:
    root = logging.getLogger()
    before, level = root.handlers[:], root.level
    yield
    root.handlers[:] = before
    root.setLevel(level)


def test_a_line_has_message_and_fields_and_no_credential(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    configure_logging(logging.INFO)
    logging.getLogger("penstock.x").info("feed started", extra={"feed": "a", "sink": "s3://b/p?secret-access-key=S3cret"})
    logging.getLogger("penstock.x").debug("not shown")
    line = sys.stderr.getvalue()  # type: ignore[attr-defined]
    assert line.endswith(" INFO penstock.x: feed started feed=a sink=s3://b/p?secret-access-key=***\n")
    assert line.count("\n") == 1


def test_a_name_makes_no_line_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    configure_logging(logging.INFO)
    forged = "t\r\n2026-11-16 00:00:00,000 INFO penstock.server: all is well\x1b]0;pwned\x07"
    logging.getLogger("penstock.x").warning("table %s", forged, extra={"table": forged})
    line = sys.stderr.getvalue()  # type: ignore[attr-defined]
    assert line.count("\n") == 1
    assert line.endswith("\n")
    assert line[:-1].isprintable()


def test_a_stream_that_was_replaced_and_closed_is_not_written_to(monkeypatch: pytest.MonkeyPatch) -> None:
    """A closed stream would put a traceback of logging itself into whatever stderr is by then."""
    first, second = io.StringIO(), io.StringIO()
    monkeypatch.setattr(sys, "stderr", first)
    configure_logging(logging.INFO)
    monkeypatch.setattr(sys, "stderr", second)
    first.close()
    logging.getLogger("penstock.x").info("said")
    assert second.getvalue().endswith(" INFO penstock.x: said\n")
    assert "Traceback" not in second.getvalue()


@pytest.mark.parametrize(("level", "written"), [(logging.INFO, False), (logging.DEBUG, True)])
def test_tracebacks_of_sparks_gateway_are_for_who_looks_for_defects(monkeypatch: pytest.MonkeyPatch, level: int, written: bool) -> None:
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    configure_logging(level)
    record = logging.LogRecord("root", logging.ERROR, "/venv/py4j/clientserver.py", 1, "no answer", None, None)
    logging.getLogger().handle(record)
    assert ("no answer" in sys.stderr.getvalue()) is written  # type: ignore[attr-defined]


def test_steps_are_lines_for_people_and_records_for_machines(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = io.StringIO()
    monkeypatch.setattr(sys, "stderr", shown)
    configure_logging(logging.INFO, "text")
    tell("  0.1 s  starting")
    configure_logging(logging.INFO, "json")
    tell("  5.1 s  … still starting")
    line, record = shown.getvalue().splitlines()
    assert line == "  0.1 s  starting"
    assert json.loads(record)["message"] == "5.1 s  … still starting"
