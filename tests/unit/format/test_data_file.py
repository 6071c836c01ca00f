"""Whole files: compression."""

import pytest

from penstock.format.data_file import decode_file
from penstock.format.protocols import Compression, DataFormat, Protocol
from penstock.model.batch import Op
from penstock.model.errors import PenstockError
from penstock.model.table import Column, TableSchema
from penstock.model.types import ColumnType, TypeKind
from testing.checks.whole_file import paired_rows, whole_file

K = TypeKind
TS = 433305438660591626
ID = Column(1, "Id", ColumnType(K.INT, length=11), False, True)
NAME = Column(2, "name", ColumnType(K.VARCHAR, length=20))
TABLE = TableSchema(7, "hr", "employee", 5, (ID, NAME))


@pytest.mark.parametrize("compression", [c for c in Compression if c is not Compression.NONE])
def test_compressed_files(compression: Compression) -> None:
    chosen = DataFormat(Protocol.CANAL_JSON, compression)
    records = paired_rows(TABLE, (TS, Op.INSERT, b"k", 1, "x" * 10_000))
    content = whole_file(chosen, TABLE, [records])
    assert len(content) < len(whole_file(DataFormat(Protocol.CANAL_JSON), TABLE, [records])) // 5
    assert chosen.extension == {"gzip": ".json.gz", "zstd": ".json.zst", "lz4": ".json.lz4"}[compression.value]
    assert decode_file(content, TABLE, chosen, "f").rows() == [(TS, Op.INSERT, 1, "x" * 10_000)]
    with pytest.raises(PenstockError, match="not whole"):
        decode_file(content[:-9], TABLE, chosen, "f")
