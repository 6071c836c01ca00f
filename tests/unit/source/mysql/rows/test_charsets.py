from __future__ import annotations

import pyarrow as pa
import pytest

from penstock.model.errors import PenstockError
from penstock.source.mysql.rows.charsets import to_utf8


def test_charsets_become_utf8() -> None:
    texts = ["é€", None, "", "plain"]
    raw = pa.array([t.encode("cp1252") if t is not None else None for t in texts], pa.binary())
    assert to_utf8(raw, "latin1", "c").to_pylist() == texts
    assert to_utf8(raw.slice(1), "latin1", "c").to_pylist() == texts[1:]
    assert to_utf8(pa.array(["日本".encode("cp932"), None], pa.binary()), "sjis", "c").to_pylist() == ["日本", None]
    with pytest.raises(PenstockError, match="not UTF-8"):
        to_utf8(pa.array([b"\xff"], pa.binary()), "utf8mb4", "c")
    with pytest.raises(PenstockError, match="not supported"):
        to_utf8(pa.array([b"a"], pa.binary()), "armscii8", "c")
