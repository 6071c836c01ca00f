"""Tables on the terminal: cells stand as they are."""

import pytest

from penstock.cli.shown.tables import show_facts, show_table, time_of


@pytest.fixture(autouse=True)
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")


def test_columns_stand_under_their_titles(capsys: pytest.CaptureFixture[str]) -> None:
    show_table(("NAME", "ROWS"), [("orders", "1,000"), ("x", "7")], right=("ROWS",))
    assert [line.rstrip() for line in capsys.readouterr().out.splitlines()] == ["NAME     ROWS", "orders  1,000", "x           7"]


def test_nothing_in_a_cell_is_markup_or_obeyed(capsys: pytest.CaptureFixture[str]) -> None:
    show_table(("NAME",), [("[red]a[/red]\x1b[2J",)])
    show_facts([("error", "[SINK_CONFLICT] \x9b2J")])
    out = capsys.readouterr().out
    assert "[red]a[/red]\\x1b[2J" in out
    assert "[SINK_CONFLICT] \\x9b2J" in out
    assert not {"\x1b", "\x9b"} & set(out)


def test_a_cell_that_is_too_wide_is_folded_and_not_cut(capsys: pytest.CaptureFixture[str]) -> None:
    show_table(("A", "B"), [("x" * 100, "end")])
    out = capsys.readouterr().out
    assert (out.count("x"), "end" in out) == (100, True)


def test_a_time_is_told_in_utc() -> None:
    assert time_of(1_700_000_000_999) == "2023-11-14T22:13:20+00:00"
    assert (time_of(None), time_of(0)) == ("", "")
