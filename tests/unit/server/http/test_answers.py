"""Errors as answers: every code of the table has a status, and nothing secret or unprintable is in a body."""

import json

import pytest

from penstock.model.errors import CODES, ErrorKind, PenstockError
from penstock.server.http.answers import error_answer, error_body, status_of


@pytest.mark.parametrize("code", sorted(CODES))
def test_who_must_act_follows_from_the_status(code: str) -> None:
    error = PenstockError(code, "x")
    status = status_of(error)
    if error.kind in {ErrorKind.CORRUPT, ErrorKind.BUG}:
        assert status == 500
    elif error.kind is ErrorKind.TRANSIENT:
        assert status in {429, 503}
    else:
        assert 400 <= status < 500
    assert json.loads(error_answer(error).body) == {"code": code, "message": "x", "hint": error.hint}


def test_headers_say_what_the_caller_does_next() -> None:
    assert error_answer(PenstockError("API_TOKEN_REQUIRED", "x")).headers["www-authenticate"] == "Bearer"
    busy = error_answer(PenstockError("API_BUSY", "x"), headers={"X-More": "1"})
    assert (busy.headers["retry-after"], busy.headers["x-more"]) == ("1", "1")
    assert error_answer(PenstockError("API_BUSY", "x"), 503).status_code == 503


def test_what_stands_in_a_body() -> None:
    shown = error_body(PenstockError("CONFIG_INVALID", "mysql://u:geheim@h/d \ud800"))["message"]
    assert "geheim" not in shown
    assert shown.endswith("?")
