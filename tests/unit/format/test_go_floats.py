"""Floats as Go writes them, against the rules applied to Python's shortest digits."""

import math

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.format.go_floats import go_floats, plain_floats, rewritten_texts


def texts(values: list[float | None], rewrite: object) -> list[str | None]:
    return rewritten_texts(pa.array(values, pa.float64()), rewrite).to_pylist()


@pytest.mark.parametrize(
    ("value", "general", "plain"),
    [
        (0.0, "0", "0"),
        (1.0, "1", "1"),
        (-2.5, "-2.5", "-2.5"),
        (1e-4, "0.0001", "0.0001"),
        (1e-5, "1e-05", "0.00001"),
        (999999.0, "999999", "999999"),
        (1e6, "1e+06", "1000000"),
        (1234567.0, "1.234567e+06", "1234567"),
        (1e100, "1e+100", "1" + "0" * 100),
        (5e-324, "5e-324", "0." + "0" * 323 + "5"),
        (math.inf, "+Inf", "+Inf"),
        (-math.inf, "-Inf", "-Inf"),
        (math.nan, "NaN", "NaN"),
    ],
)
def test_values_that_go_wrote(value: float, general: str, plain: str) -> None:
    assert texts([value, None], go_floats) == [general, None]
    assert texts([value, None], plain_floats) == [plain, None]


@settings(max_examples=200)
@given(st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1, max_size=20))
def test_both_forms_read_back_as_the_same_number_and_plain_ones_have_no_exponent(values: list[float]) -> None:
    assert [float(text or "") for text in texts(list(values), go_floats)] == values
    plain = texts(list(values), plain_floats)
    assert [float(text or "") for text in plain] == values
    assert not any("e" in (text or "") for text in plain)
