"""Files without the rows of some keys."""

from collections import Counter

import msgspec
import pyarrow as pa

from penstock.sink.lake.data_files import LakeFile, read_rows
from penstock.sink.lake.rewriting import Rewriting
from penstock.sink.lake.settings import Codec
from penstock.target.storage import ObjectTarget

ROWS = [(i, None if i % 7 == 0 else f"t{i % 5}") for i in range(60)]


def written(name: str) -> tuple[ObjectTarget, Rewriting, list[LakeFile]]:
    target = ObjectTarget.open(f"memory://{name}/")
    rewriting = Rewriting(target, "d/t/9-1-merged", Codec.ZSTD)
    parts = [ROWS[at : at + 20] for at in range(0, len(ROWS), 20)]
    return target, rewriting, [rewriting.write(table(part)) for part in parts]


def table(rows: list[tuple[int, str | None]]) -> pa.Table:
    return pa.table({"id": pa.array([r[0] for r in rows], pa.int32()), "v": pa.array([r[1] for r in rows], pa.string())})


def rows_in(target: ObjectTarget, files: list[LakeFile]) -> list[tuple[int, str | None]]:
    return [row for f in files for row in zip(*read_rows(target, f.path).to_pydict().values(), strict=True)]


def left(files: list[LakeFile], found: list[tuple[LakeFile, LakeFile | None]]) -> list[LakeFile]:
    gone = {old.path for old, _ in found}
    return [*(f for f in files if f.path not in gone), *(new for _, new in found if new is not None)]


def test_only_files_that_lose_a_row_are_written_again() -> None:
    target, rewriting, files = written("rewriting")
    target.delete(files[2].path)  # its bounds say that it has none of these keys: it is not opened
    keys = pa.table({"id": pa.array([3, 4, -1], pa.int32())})
    found = rewriting.without(files, keys, table(ROWS).schema)
    assert [old for old, _ in found] == [files[0]]
    assert rows_in(target, left(files[:2], found)) == [*ROWS[20:40], *(r for r in ROWS[:20] if r[0] not in (3, 4))]


def test_a_file_that_loses_all_rows_leaves_nothing() -> None:
    target, rewriting, files = written("rewriting-all")
    found = rewriting.without(files, pa.table({"id": pa.array(range(20), pa.int32())}), table(ROWS).schema)
    assert found == [(files[0], None)]
    assert rows_in(target, left(files, found)) == ROWS[20:]


def test_equal_rows_go_as_often_as_they_are_counted() -> None:
    target = ObjectTarget.open("memory://rewriting-counted/")
    rewriting = Rewriting(target, "d/t/9-1-merged", Codec.ZSTD)
    texts = [[None, "a", "a"], ["a", "b", None], ["b", "a", None]]
    files = [rewriting.write(pa.table({"v": pa.array(part, pa.string())})) for part in texts]
    gone = pa.table({"v": ["a", None, "b", "c"], "_count": [3, 2, 1, 5]})
    rest = left(files, rewriting.without(files, gone, pa.schema([pa.field("v", pa.string())])))
    values = Counter(v for f in rest for v in read_rows(target, f.path).column("v").to_pylist())
    assert values == Counter({"a": 1, None: 1, "b": 1})


def test_columns_are_known_by_ids_where_they_have_some() -> None:
    def numbered(name: str, kind: pa.DataType, number: int) -> pa.Field:
        return pa.field(name, kind, metadata={"PARQUET:field_id": str(number)})

    target = ObjectTarget.open("memory://rewriting-ids/")
    rewriting = Rewriting(target, "d/t/9-1-merged", Codec.ZSTD)
    old = pa.schema([numbered("id", pa.int32(), 1), numbered("v", pa.string(), 2)])
    file = rewriting.write(pa.Table.from_arrays([pa.array([1, 2], pa.int32()), pa.array(["a", "b"])], schema=old))
    file = msgspec.structs.replace(file, bounds={})
    now = pa.schema([numbered("v", pa.int64(), 1), numbered("id", pa.string(), 2), numbered("n", pa.int32(), 3)])
    found = rewriting.without([file], pa.table({"v": pa.array([2], pa.int64())}), now)
    assert rows_in(target, left([file], found)) == [(1, "a")]
    counted = pa.table({"v": pa.array([1], pa.int64()), "id": ["a"], "n": pa.nulls(1, pa.int32()), "_count": [1]})
    assert rewriting.without([file], counted, now) != []
    assert rows_in(target, rewriting.reshaped([file], lambda rows: [({}, rows)], now)) == [(1, "a", None), (2, "b", None)]
