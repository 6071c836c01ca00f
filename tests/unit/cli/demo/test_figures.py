"""The demo's figures: rates against counts that are known, and the account of rows."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from penstock.cli.demo.figures import Figures, Series, trouble_of
from penstock.cli.demo.writer import Written
from penstock.source.dataserver.workload import WorkloadReport


def feed(rows: int = 0, **more: Any) -> dict[str, Any]:
    return {"rows": rows, "files": 3, "bytes": 5_000_000, "windows": 2, "lag_s": 1.5, "error": None, "capture_problems": []} | more


def written(rows: int, before: int = 0, **kinds: int) -> Written:
    return Written("dataserver://x", "a server", before, WorkloadReport(rows=rows, **kinds))


def test_a_rate_is_that_of_the_last_seconds() -> None:
    series = Series()
    assert (series.rate(5.0), series.rates(5.0, 10)) == (0.0, [])
    for second in range(21):
        series.see(float(second), 100 * second if second <= 10 else 1000)
    assert series.rate(10.0) == 100.0
    assert series.rate(12.0) == pytest.approx(100 / 3)
    assert series.rates(20.0, 5) == [0.0] * 5
    assert series.rates(10.0, 60) == [0.0, *[100.0] * 10]


def test_counts_that_come_a_window_at_a_time_have_an_even_rate() -> None:
    series = Series()
    for look in range(80):
        series.see(look / 4, look // 12 * 3000)
    assert {round(series.rate(10.0 + tenth / 10)) for tenth in range(50)} == {1000}


def test_the_account_comes_out_even_only_where_all_that_was_written_is_delivered() -> None:
    figures = Figures(rows_wanted=90)
    report = written(100, before=10, inserts=70, updates=25, deletes=5)
    figures.create(50.0, report)
    figures.observe(51.0, report, feed(99), 1000, 0.5)
    assert not figures.is_even
    assert [row[:2] for row in figures.account()][-1] == ("delivered to files", 99)
    assert figures.account()[-1][2] == "-1: not the same"
    figures.observe(52.0, report, feed(100), 1000, 0.5)
    assert figures.is_even
    assert figures.account() == [
        ("there before the feed", 10, "rows, read as a snapshot"),
        ("written by the workload", 90, "60 inserts, 25 updates, 5 deletes"),
        ("together", 100, ""),
        ("delivered to files", 100, "the same"),
    ]


def test_first_rows_and_lag_count_from_the_feed_on() -> None:
    figures = Figures(rows_wanted=90)
    figures.create(50.0, written(10, before=10))
    figures.observe(51.0, written(10, before=10), feed(0, lag_s=None), 0, None)
    figures.observe(52.0, written(10, before=10), feed(0, lag_s=99.0), 0, None)
    assert (figures.first_rows_s, figures.lag_s_max) == (None, 0.0)
    figures.observe(53.5, written(10, before=10), feed(10, lag_s=2.0), 0, 0.1)
    figures.observe(54.0, written(20, before=10), feed(10, lag_s=1.0), 0, 0.1)
    assert (figures.first_rows_s, figures.lag_s_max, figures.changes) == (3.5, 2.0, 10)


def test_what_holds_a_feed_up_is_one_line() -> None:
    shown = feed(error={"code": "SINK_UNWRITABLE", "message": "no\nroom"}, capture_problems=["[UPSTREAM_UNREACHABLE] gone"])
    assert trouble_of(shown) == "[SINK_UNWRITABLE] no room; [UPSTREAM_UNREACHABLE] gone"
    assert trouble_of(feed()) == ""


def test_what_the_writer_tells_is_read_as_it_was_told() -> None:
    told = written(5, before=2, inserts=5)
    assert msgspec.convert(msgspec.to_builtins(told), Written) == told
