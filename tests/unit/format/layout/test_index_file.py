import pytest

from penstock.format.layout.index_file import next_number, parse_index, render_index
from penstock.format.layout.paths import Layout
from penstock.model.errors import PenstockError

LAYOUT = Layout(file_index_width=6)


def test_index_content() -> None:
    assert render_index(LAYOUT, 5) == b"CDC000005.csv\n"
    assert render_index(LAYOUT, 5, "70003") == b"CDC_70003_000005.csv\n"
    assert parse_index(LAYOUT, b"CDC000005.csv\n", "x") == 5
    assert parse_index(LAYOUT, b"CDC000005.csv", "x") == 5
    assert parse_index(LAYOUT, b"CDC_70003_000005.csv\n", "x", "70003") == 5


@pytest.mark.parametrize(
    "content", [b"", b"CDC5.csv\n", b"CDC000005.json\n", b"CDC_1_000005.csv\n", b"CDC000001.csv\nCDC000002.csv\n", b"\xff\xfe"]
)
def test_malformed_indexes(content: bytes) -> None:
    with pytest.raises(PenstockError, match=r"FILE_MALFORMED.*meta/CDC.index: line 1"):
        parse_index(LAYOUT, content, "meta/CDC.index")


@pytest.mark.parametrize(
    ("indexed", "present", "expected"), [(0, set(), 1), (5, {1, 2, 3, 4}, 5), (5, {5}, 6), (5, {5, 6, 7}, 8), (0, {1, 2}, 3)]
)
def test_a_number_whose_file_exists_is_never_used(indexed: int, present: set[int], expected: int) -> None:
    assert next_number(indexed, present.__contains__) == expected
