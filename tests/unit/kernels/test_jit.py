import ast
import itertools
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import penstock
from penstock.kernels.jit import binary_array, binary_view, byte_view

PACKAGE = Path(penstock.__file__).parent


def imports(module: Path) -> set[str]:
    tree = ast.parse(module.read_text(encoding="utf-8"))
    named = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    return named | {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}


def test_numba_is_imported_in_this_room_alone() -> None:
    users = {m.relative_to(PACKAGE).as_posix() for m in PACKAGE.rglob("*.py") if any(n.split(".")[0] == "numba" for n in imports(m))}
    assert users == {"kernels/cache_folder.py", "kernels/compiled_mark.py", "kernels/jit.py", "kernels/memory.py"}


@pytest.mark.parametrize("texts", [[], [b""], [b"a", b"", b"bcd"], [b"a", None, b"bc"]])
@pytest.mark.parametrize("start", [0, 1])
def test_an_array_is_seen_and_made_without_its_offset(texts: list[bytes | None], start: int) -> None:
    array = pa.array(texts, pa.binary()).slice(start)
    data, offsets = binary_view(array)
    expected = [t or b"" for t in texts[start:]]
    assert [data[a:b].tobytes() for a, b in itertools.pairwise(offsets)] == expected
    assert binary_array(data, offsets).to_pylist() == expected


def test_no_bytes_are_an_empty_array() -> None:
    for nothing in (None, b"", pa.py_buffer(b"")):
        assert byte_view(nothing).dtype == np.uint8
        assert len(byte_view(nothing)) == 0
    assert byte_view(pa.py_buffer(b"ab")).tolist() == [97, 98]
