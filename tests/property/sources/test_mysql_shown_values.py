"""Whatever bytes a log holds for UUIDs, addresses, vectors, compressed values and JSON: a column of the right length, or an error."""

from __future__ import annotations

import zlib

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.model.errors import PenstockError
from penstock.source.mysql.rows.shown_values import shown
from penstock.source.mysql.wire import constants as wire

FORMS = (wire.F_JSON, wire.F_UUID, wire.F_INET4, wire.F_INET6, wire.F_COMPRESSED, wire.F_VECTOR)


def compressed(value: bytes) -> bytes:
    return bytes([0x80 | 2]) + len(value).to_bytes(2, "big") + zlib.compress(value)


bodies = st.one_of(
    st.none(),
    st.binary(max_size=40),
    st.binary(min_size=16, max_size=16),
    st.binary(min_size=4, max_size=4),
    st.binary(min_size=1, max_size=60).map(compressed),
)


@settings(max_examples=200, deadline=None)
@given(st.sampled_from(FORMS), st.lists(bodies, max_size=6), st.integers(0, 2), st.data())
def test_any_bytes_give_a_whole_column_or_an_error(form: int, values: list[bytes | None], skipped: int, data: st.DataObject) -> None:
    for at, value in enumerate(values):
        if value and data.draw(st.booleans()):
            place = data.draw(st.integers(0, len(value) - 1))
            values[at] = value[:place] + bytes([data.draw(st.integers(0, 255))]) + value[place + 1 :]
    array = pa.array(values, pa.binary()).slice(min(skipped, len(values)))
    found, code = array, ""
    try:
        found = shown(array, form, "c")
    except PenstockError as error:
        code = error.code
    assert code in {"", "DECODE_FAILED"}
    if code:
        return
    found.validate(full=True)
    assert len(found) == len(array)
    assert [v is None for v in found.to_pylist()] == [v is None for v in array.to_pylist()]
    assert pa.types.is_binary(found.type) == (form == wire.F_COMPRESSED)


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.one_of(st.none(), st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=1, max_size=8)), max_size=6)
)
def test_a_vector_reads_back_to_the_same_floats(vectors: list[list[float] | None]) -> None:
    packed = [None if v is None else pa.array(v, pa.float32()).buffers()[1].to_pybytes()[: 4 * len(v)] for v in vectors]
    texts = shown(pa.array(packed, pa.binary()), wire.F_VECTOR, "c").to_pylist()
    for vector, text in zip(vectors, texts, strict=True):
        assert (vector is None) == (text is None)
        if text is not None and vector is not None:
            read = pa.array([float(number) for number in text[1:-1].split(",")], pa.float32())
            assert read.equals(pa.array(vector, pa.float32()))
