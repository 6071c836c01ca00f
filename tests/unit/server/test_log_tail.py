from __future__ import annotations

import logging

from penstock.server.log_tail import LogTail


def record(message: str, level: int = logging.INFO, **fields: str) -> logging.LogRecord:
    return logging.makeLogRecord(
        {"name": "penstock.x", "msg": message, "levelno": level, "levelname": logging.getLevelName(level), **fields}
    )


def test_the_oldest_go_first_and_numbers_go_on() -> None:
    tail = LogTail(entries_max=3)
    for number in range(5):
        tail.handle(record(f"m{number}"))
    entries, last = tail.read()
    assert ([(e.seq, e.message) for e in entries], last) == ([(3, "m2"), (4, "m3"), (5, "m4")], 5)
    entries, last = tail.read(after=4)
    assert ([e.message for e in entries], last) == (["m4"], 5)
    assert tail.read(after=5) == ([], 5)
    assert [e.message for e in tail.read(lines=2)[0]] == ["m3", "m4"]


def test_an_error_is_kept_with_its_text_and_without_secrets() -> None:
    tail = LogTail()
    try:
        raise ValueError("s3://b?secret-access-key=hunter2")
    except ValueError as error:
        failed = record("it failed", logging.ERROR)
        failed.exc_info = (type(error), error, error.__traceback__)
        tail.handle(failed)
    assert tail.read(level=logging.ERROR)[0][0].fields == {"exception": "ValueError: s3://b?secret-access-key=***"}
    assert tail.read(level=logging.CRITICAL)[0] == []
