"""Manifests: the largest number wins, a number is taken once."""

from pathlib import Path

import msgspec
import pytest

from penstock.model.errors import PenstockError
from penstock.model.span import Span
from penstock.store.objects.manifest import Manifest, decode_manifest, encode_manifest, load_manifests, manifest_prefix, write_manifest
from penstock.store.objects.objects import ObjectSpace

FIRST = Manifest(1, 7, Span(3), 10, 9, 8, None, "me")


def numbered(number: int, **changes: object) -> Manifest:
    return msgspec.structs.replace(FIRST, number=number, **changes)


def test_the_newest_of_every_span_is_found_and_two_stay(tmp_path: Path) -> None:
    space = ObjectSpace(tmp_path.as_uri())
    for number in range(1, 5):
        assert write_manifest(space, numbered(number, resolved_ts=number)) == numbered(number, resolved_ts=number)
    other = numbered(1, span_id=8)
    write_manifest(space, other)
    assert load_manifests(space) == {7: numbered(4, resolved_ts=4), 8: other}
    assert [name.rpartition("/")[2] for name in space.list_names(manifest_prefix(7))] == ["000000000003.json", "000000000004.json"]


def test_a_number_that_is_taken_is_one_s_own_attempt_or_another_owner(tmp_path: Path) -> None:
    space = ObjectSpace(tmp_path.as_uri())
    write_manifest(space, FIRST)
    assert write_manifest(space, numbered(1, resolved_ts=99)) == FIRST, "the answer to the first attempt was lost"
    with pytest.raises(PenstockError, match="FENCED"):
        write_manifest(space, numbered(1, writer="somebody else"))


def test_anything_else_is_corrupt() -> None:
    payload = encode_manifest(FIRST)
    assert decode_manifest("m", payload) == FIRST
    for bad in (payload[:-2], payload.replace(b'"me"', b'"we"'), payload.replace(b'"version":1', b'"version":2'), b"[]"):
        with pytest.raises(PenstockError, match="OBJECT_CORRUPT"):
            decode_manifest("m", bad)
