import pickle

import pytest

from penstock.model.errors import CODES, ErrorKind, InvariantError, PenstockError


@pytest.mark.parametrize("code", CODES)
def test_every_code_explains_itself(code: str) -> None:
    entry = CODES[code]
    assert code == code.upper()
    assert isinstance(entry.kind, ErrorKind)
    assert entry.meaning.endswith(".")
    assert entry.hint.endswith(".")
    error = PenstockError(code, "what happened")
    assert (error.kind, error.hint, str(error)) == (entry.kind, entry.hint, f"[{code}] what happened")


def test_every_kind_has_a_code() -> None:
    assert {entry.kind for entry in CODES.values()} == set(ErrorKind)


def test_an_unknown_code_is_blocked() -> None:
    error = PenstockError("SOMETHING_ELSE", "x")
    assert error.kind is ErrorKind.BLOCKED
    assert error.hint


def test_an_own_hint_wins() -> None:
    assert PenstockError("FEED_UNKNOWN", "x", hint="Look there.").hint == "Look there."


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_errors_survive_pickling(protocol: int) -> None:
    error = PenstockError("SINK_CONFLICT", "CDC1.csv\nsecond line", hint="Move it.")
    copy = pickle.loads(pickle.dumps(error, protocol))
    assert type(copy) is PenstockError
    assert (copy.code, copy.detail, copy.hint, str(copy)) == (error.code, error.detail, error.hint, str(error))


def test_an_invariant_error_survives_pickling() -> None:
    copy = pickle.loads(pickle.dumps(InvariantError("rows came back")))
    assert type(copy) is InvariantError
    assert (copy.code, copy.kind, str(copy)) == ("INTERNAL", ErrorKind.BUG, "[INTERNAL] rows came back")


def test_text_gives_the_error_back() -> None:
    error = PenstockError("STALE_READ", "history begins at 5, asked for 3")
    again = PenstockError.from_text(str(error))
    assert (again.code, again.detail) == (error.code, error.detail)


def test_the_code_is_found_inside_a_spark_failure() -> None:
    text = (
        "[STREAM_FAILED] Query [id = 3f, runId = 9a] terminated with exception: Job aborted due to stage failure\n"
        "  File worker.py, line 1984, in main\n"
        "penstock.model.errors.PenstockError: [SINK_CONFLICT] shop/orders/CDC1.csv differs\n"
        "\tat org.apache.spark.Executor\n"
    )
    error = PenstockError.from_text(text)
    assert (error.code, error.detail, error.kind) == ("SINK_CONFLICT", "shop/orders/CDC1.csv differs", ErrorKind.CORRUPT)


def test_the_code_is_found_behind_a_foreign_one_on_the_same_line() -> None:
    error = PenstockError.from_text("[PYTHON_DATA_SOURCE_ERROR] Failed in planPartitions: [STALE_READ] history begins at 5")
    assert (error.code, error.detail) == ("STALE_READ", "history begins at 5")


def test_the_outermost_own_error_wins() -> None:
    error = PenstockError.from_text("[FEED_FAILED] window 7: [SINK_CONFLICT] CDC1.csv")
    assert (error.code, error.detail) == ("FEED_FAILED", "window 7: [SINK_CONFLICT] CDC1.csv")


def test_an_error_without_detail_is_found() -> None:
    assert PenstockError.from_text("x [CANCELLED]\ny").code == "CANCELLED"
    assert PenstockError.from_text(str(PenstockError("CANCELLED", ""))).code == "CANCELLED"


@pytest.mark.parametrize(
    ("text", "detail"),
    [("", "no message"), (" \n", "no message"), ("\nJava heap space\nat x", "Java heap space"), ("[NOT_OURS] x", "[NOT_OURS] x")],
)
def test_text_without_a_code_of_ours_is_a_failed_run_that_passes(text: str, detail: str) -> None:
    error = PenstockError.from_text(text)
    assert (error.code, error.kind, error.detail) == ("FEED_FAILED", ErrorKind.TRANSIENT, detail)


def test_from_text_of_a_subclass_gives_the_root() -> None:
    assert type(InvariantError.from_text("[STALE_READ] x")) is PenstockError
