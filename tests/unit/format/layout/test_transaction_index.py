"""The transaction index: its text, and that nothing that was damaged is taken for one."""

from pathlib import Path

import numpy as np
import pytest
import xxhash

from penstock.format.layout.transaction_index import (
    IndexedFile,
    TransactionIndex,
    index_path,
    messages_path,
    parse_transaction_index,
    parse_transactions_path,
)
from penstock.format.transaction_runs import pack_runs
from penstock.model.errors import PenstockError

A, B = IndexedFile("s/a/1/CDC000001.csv", "s", "a", 5), IndexedFile("s/b/1/CDC000001.csv", "s", "b", 1)
STATE = IndexedFile("s/c/1/CDC000001.csv", "s", "c", 9, state=True)
BODY = (
    '{"from-ts":10,"to-ts":30,"files":[{"path":"s/a/1/CDC000001.csv","schema":"s","table":"a","rows":5},'
    '{"path":"s/b/1/CDC000001.csv","schema":"s","table":"b","rows":1},'
    '{"path":"s/c/1/CDC000001.csv","schema":"s","table":"c","rows":9,"state":true}]}\n'
    "11,0,0,2\n"
    "20,0,2,3\n"
    "20,1,0,1\n"
)


def runs(*found: tuple[int, int]) -> bytes:
    return pack_runs(np.array([ts for ts, _ in found], np.uint64), np.array([rows for _, rows in found]))


def written(body: str) -> bytes:
    return f"penstock-transactions 1 {xxhash.xxh3_128_hexdigest(body.encode())}\n{body}".encode()


def test_the_text_is_as_documented_and_reads_back() -> None:
    index = TransactionIndex.of(10, 30, [(A, runs((11, 2), (20, 3))), (B, runs((20, 1))), (STATE, b"")])
    assert index.render() == written(BODY)
    again = parse_transaction_index(index.render(), "x")
    assert (again.from_ts, again.to_ts, again.files) == (10, 30, (A, B, STATE))
    assert again.parts.equals(index.parts)
    assert again.transactions().rows() == [(11, 2), (20, 4)]


def test_the_example_of_the_documentation_is_an_index() -> None:
    page = (Path(__file__).resolve().parents[4] / "docs" / "storage-layout.md").read_text(encoding="utf-8")
    index = parse_transaction_index(page.partition("```transactions\n")[2].partition("```")[0].encode(), "the example")
    assert [file.table for file in index.files] == ["orders", "lines", "stock"]
    assert index.transactions()["rows"].to_list() == [3, 2]


def test_a_window_of_state_alone_has_no_transactions() -> None:
    index = TransactionIndex.of(0, 30, [(STATE, b"")])
    assert parse_transaction_index(index.render(), "x").transactions().rows() == []


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("20,1,0,1\n", ""),
        ("20,1,0,1", "20,7,0,1"),
        ("20,1,0,1", "20,-1,0,1"),
        ("20,1,0,1", "20,2,0,1"),
        ("11,0,0,2", "21,0,0,2"),
        ("11,0,0,2", "10,0,0,2"),
        ('"to-ts":30', '"to-ts":19'),
        ("11,0,0,2", "11,0,x,2"),
        ('"from-ts"', '"from"'),
    ],
)
def test_what_does_not_fit_together_is_refused(old: str, new: str) -> None:
    assert old in BODY
    with pytest.raises(PenstockError, match=r"FILE_MALFORMED.* the/path: "):
        parse_transaction_index(written(BODY.replace(old, new)), "the/path")


def test_damage_is_refused() -> None:
    whole = written(BODY)
    for at in range(0, len(whole), 7):
        damaged = whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :]
        with pytest.raises(PenstockError, match="FILE_MALFORMED"):
            parse_transaction_index(damaged, "x")
    with pytest.raises(PenstockError, match="FILE_MALFORMED"):
        parse_transaction_index(b"", "x")


def test_paths() -> None:
    assert index_path(30) == ".penstock/transactions/00000000000000000030"
    assert parse_transactions_path(index_path(2**64 - 1)) == (2**64 - 1, True)
    assert parse_transactions_path(messages_path(30)) == (30, False)
    assert parse_transactions_path("s/transactions/00000000000000000030") is None
    assert parse_transactions_path(".penstock/transactions/30") is None
