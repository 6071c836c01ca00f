"""Records of bootstraps of format version 1, written once and kept: a driver of any later Penstock goes on with them.

``python tests/compat/test_bootstrap_records.py`` writes them again; do so only for a new format version, into a new directory.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from penstock.model.batch import BatchKind
from penstock.model.errors import PenstockError
from penstock.model.span import Span
from penstock.store.log import bootstrap_log
from penstock.store.log.bootstrap_log import BootstrapLog, BootstrapPlan, PulledPart
from penstock.store.objects.object_file import ObjectKind, ObjectMeta
from penstock.store.objects.objects import ObjectSpace

GOLDEN = Path(__file__).parent / "golden" / "store-bootstrap-v1"
SPAN = Span(7)
PLAN = BootstrapPlan(SPAN.span_id, 1_000, (Span(7, b"", b"\x80"), Span(7, b"\x80", b"")), '{"start":{"ts":1000,"text":"bin.000001:4"}}')
PART = PulledPart(
    (
        ObjectMeta(
            path=f"spans/{SPAN.span_id}/bulk/bootstrap-00000000000000001000-000001-000000-0123456789abcdef.arrow",
            object_kind=ObjectKind.BULK,
            side=BatchKind.DATA,
            span_id=SPAN.span_id,
            table_id=7,
            min_ts=1_000,
            max_ts=1_000,
            rows=3,
            nbytes=300,
            size=700,
            footer_size=400,
            commit_ts=1_000,
            min_key=b"\x80",
            max_key=b"\x90",
        ),
    ),
    1_005,
    2,
)


def write_golden() -> None:
    shutil.rmtree(GOLDEN, ignore_errors=True)
    log = BootstrapLog(ObjectSpace(GOLDEN.as_uri()), SPAN.span_id)
    log.begin(PLAN)
    log.finish(PLAN, 1, PART)


def test_the_records_are_read() -> None:
    assert bootstrap_log.VERSION == 1, "a new version needs golden files of its own"
    log = BootstrapLog(ObjectSpace(GOLDEN.as_uri()), SPAN.span_id)
    assert log.plan() == PLAN
    assert log.finished(PLAN) == {1: PART}


def test_the_records_are_written_as_they_were(tmp_path: Path) -> None:
    log = BootstrapLog(ObjectSpace(tmp_path.as_uri()), SPAN.span_id)
    log.begin(PLAN)
    log.finish(PLAN, 1, PART)
    written = {f.relative_to(tmp_path): f.read_bytes() for f in tmp_path.rglob("*.json")}
    assert written == {f.relative_to(GOLDEN): f.read_bytes() for f in GOLDEN.rglob("*.json")}


def test_a_damaged_record_is_an_error(tmp_path: Path) -> None:
    shutil.copytree(GOLDEN, tmp_path, dirs_exist_ok=True)
    plan = next(tmp_path.rglob("plan.json"))
    plan.write_bytes(plan.read_bytes().replace(b"1000", b"1001", 1))
    with pytest.raises(PenstockError, match=r"\[OBJECT_CORRUPT\]"):
        BootstrapLog(ObjectSpace(tmp_path.as_uri()), SPAN.span_id).plan()


if __name__ == "__main__":
    write_golden()
