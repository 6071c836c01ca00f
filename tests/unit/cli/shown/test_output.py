from __future__ import annotations

import json
from collections.abc import Callable

import pytest
import yaml

from penstock.cli.shown.output import show_error, text_of, wanted_format, watched
from penstock.model.errors import PenstockError
from testing.twins.clock import SimulatedClock


@pytest.mark.parametrize(
    ("argv", "wanted"),
    [
        (["feed", "list"], "table"),
        (["feed", "list", "--output", "json"], "json"),
        (["feed", "list", "--output=yaml"], "yaml"),
        (["package", "--output", "x.tar.gz"], "table"),
        (["feed", "list", "--output"], "table"),
        (["--log-format", "json", "server"], "line"),
        (["--log-format=json", "feed", "list", "--output", "yaml"], "yaml"),
        (["--log-format", "text", "server"], "table"),
    ],
)
def test_the_format_is_known_before_anything_is_understood(argv: list[str], wanted: str) -> None:
    assert wanted_format(argv) == wanted


@pytest.mark.parametrize("value", [{"a": [1, None, True], "ü\u202e\x07": "yes: no\n"}, [], "text", {"n": {"deep": ["x", {"y": 1.5}]}}])
def test_a_result_is_read_as_it_was_and_makes_no_terminal_do_anything(value: object) -> None:
    for output, read in (("json", json.loads), ("yaml", yaml.safe_load)):
        reading: Callable[[str], object] = read
        for one_line in (False, True):
            text = text_of(value, output, one_line=one_line)
            assert reading(text) == value
            assert text.isascii()
            assert "\x07" not in text


def test_an_error_with_several_problems(capsys: pytest.CaptureFixture[str]) -> None:
    show_error(PenstockError("CONFIG_INVALID", "a: wrong\nb: ?token=hunter2", "Fix it."), "json", 2)
    assert json.loads(capsys.readouterr().err) == {
        "error": {
            "code": "CONFIG_INVALID",
            "kind": "INVALID",
            "message": "2 problems",
            "problems": ["a: wrong", "b: ?token=***"],
            "hint": "Fix it.",
            "exit_code": 2,
        }
    }


def test_what_is_watched_is_shown_again_and_waits_for_a_server_that_is_away(capsys: pytest.CaptureFixture[str]) -> None:
    looks: list[object] = [1, PenstockError("SERVER_UNREACHABLE", "away"), 2, KeyboardInterrupt()]

    def look() -> object:
        found = looks.pop(0)
        if isinstance(found, BaseException):
            raise found
        return found

    with pytest.raises(KeyboardInterrupt):
        watched(look, print, "json", 0.0, SimulatedClock())
    out, err = capsys.readouterr()
    assert out == "1\n2\n"
    assert json.loads(err)["error"]["code"] == "SERVER_UNREACHABLE"
    looks[:] = [PenstockError("FEED_UNKNOWN", "gone")]
    with pytest.raises(PenstockError):
        watched(look, print, "table", 0.0, SimulatedClock())
