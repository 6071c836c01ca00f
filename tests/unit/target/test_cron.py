"""When a cron specification is due."""

import datetime as dt

import pytest

from penstock.model.errors import PenstockError
from penstock.target.cron import Cron
from penstock.target.settings import from_uri


@pytest.mark.parametrize(
    ("spec", "after", "expected"),
    [
        ("0 0 2 * * *", "2024-02-28 01:59:59", "2024-02-28 02:00:00"),
        ("0 0 2 * * *", "2024-02-28 02:00:00", "2024-02-29 02:00:00"),
        ("*/15 * * * * *", "2024-01-01 00:00:44", "2024-01-01 00:00:45"),
        ("0 30 9-17/4 * * mon-fri", "2024-01-05 17:30:00", "2024-01-08 09:30:00"),
        ("0 0 0 29 2 *", "2024-03-01 00:00:00", "2028-02-29 00:00:00"),
        ("0 0 0 13 * 5", "2024-01-01 00:00:00", "2024-01-05 00:00:00"),
        ("@daily", "2023-12-31 23:59:59", "2024-01-01 00:00:00"),
        ("@every 1h30m", "2024-01-01 00:00:00", "2024-01-01 01:30:00"),
    ],
)
def test_when_clean_up_runs(spec: str, after: str, expected: str) -> None:
    moment = dt.datetime.fromisoformat(after).replace(tzinfo=dt.UTC)
    assert Cron.parse(spec).next(moment) == dt.datetime.fromisoformat(expected).replace(tzinfo=dt.UTC)


@pytest.mark.parametrize(
    "spec", ["", "0 0 2 * *", "61 * * * * *", "0 0 25 * * *", "@every soon", "@every 0s", "a b c d e f", "0 0 0 0 * *"]
)
def test_specs_that_cannot_be_meant(spec: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        Cron.parse(spec)
    with pytest.raises(PenstockError, match="file-cleanup-cron-spec"):
        from_uri("memory://x/", {"file-cleanup-cron-spec": spec})
