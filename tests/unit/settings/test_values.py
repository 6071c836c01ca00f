from __future__ import annotations

import datetime as dt

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.config.server_tree import SupervisorSettings
from penstock.feed.settings import FeedSettings
from penstock.settings.loader import dump, load
from penstock.settings.masking import mask_text
from penstock.settings.values import parse_duration, parse_list, parse_size
from penstock.target.cron import Cron


@given(
    st.integers(0, 10_000),
    st.sampled_from([("", 1), ("B", 1), ("KiB", 1024), ("MiB", 1024**2), ("kB", 1000), ("GB", 1000**3), ("tib", 1024**4)]),
)
def test_sizes(number: int, unit: tuple[str, int]) -> None:
    assert parse_size(f"{number}{unit[0]}") == parse_size(f" {number} {unit[0]} ") == number * unit[1]


@given(st.integers(0, 10_000), st.sampled_from([("ms", 1), ("s", 1000), ("m", 60_000), ("h", 3_600_000), ("d", 86_400_000)]))
def test_durations(number: int, unit: tuple[str, int]) -> None:
    assert parse_duration(f"{number}{unit[0]}", "ms") == number * unit[1]
    assert parse_duration(f"{number}{unit[0]}", "s") == number * unit[1] / 1000


@given(st.integers(0, 50), st.integers(0, 59), st.integers(0, 59))
def test_durations_may_have_several_units(hours: int, minutes: int, seconds: int) -> None:
    written = f"{hours}h{minutes}m{seconds}s"
    assert parse_duration(written, "s") == hours * 3600 + minutes * 60 + seconds
    assert Cron.parse(f"@every {written}1ms").every == dt.timedelta(hours=hours, minutes=minutes, seconds=seconds, milliseconds=1)
    for wrong in (f"{written}x", f"{written} and more", f"-{written}", "h", ""):
        with pytest.raises(ValueError, match="must be a duration"):
            parse_duration(wrong, "s")


@given(
    st.builds(
        FeedSettings,
        flush_interval_s=st.floats(0.1, 600),
        window_bytes_max=st.integers(1 << 20, 1 << 40),
        spans_per_table=st.integers(1, 1000),
        partitions=st.integers(0, 10_000),
        start_ts=st.integers(0, 1 << 62),
    )
)
def test_settings_survive_dump_and_load(settings: FeedSettings) -> None:
    assert load(FeedSettings, dump(settings)) == settings


@given(st.floats(1, 3600), st.integers(1, 1000))
def test_supervisor_settings_survive_dump_and_load(lease_s: float, feeds_max: int) -> None:
    settings = SupervisorSettings(lease_s=lease_s, feeds_max=feeds_max)
    assert load(SupervisorSettings, dump(settings)) == settings


secrets = st.text(st.characters(codec="ascii", categories=("L", "N"), include_characters="/+=._~-"), min_size=6, max_size=40)


@given(
    st.text(max_size=30),
    secrets,
    st.sampled_from(
        ["secret-access-key={}", "s3://b/p?region=x&secret_access_key={}&y=1", "password: {}", '"account-key": "{}"', "az://c?sas_token={}"]
    ),
)
def test_a_secret_never_survives_masking(before: str, secret: str, form: str) -> None:
    shown = mask_text(f"{before} {form.format(secret)}")
    assert secret not in shown.removeprefix(before)
    assert mask_text(shown) == shown


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("shop.a, shop.b", ["shop.a", "shop.b"]),
        ('["shop.a", "shop.b,c"]', ["shop.a", "shop.b,c"]),
        ("['shop.a']", ["shop.a"]),
        ("[]", []),
        ("[ab]*.t,[0-9].u", ["[ab]*.t", "[0-9].u"]),
    ],
)
def test_a_list_on_a_line_may_be_written_as_in_a_file(text: str, found: list[str]) -> None:
    assert parse_list(text) == found


def test_a_list_that_is_not_finished_is_refused() -> None:
    with pytest.raises(ValueError, match="must be a list such as"):
        parse_list('["shop.a, "b"]')


def test_a_table_of_a_rule_has_its_database() -> None:
    settings = FeedSettings(recheck_interval_s=5.0, recheck_tables=("watched",), on_rewrite_tables={"*": "keep"})
    assert [key for key, _ in settings.problems()] == ["on-rewrite-tables", "recheck-tables"]
