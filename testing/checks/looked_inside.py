"""What tests look at inside shipped classes, which have no methods for tests.

Private names that several tests need are here and nowhere else. Runs in tests.
"""

from __future__ import annotations

from penstock.meta.table_states import TableState
from penstock.puller.log_service import LogService
from penstock.puller.quota import ByteQuota
from penstock.store.event_store import ColumnarEventStore
from penstock.store.history import HistoryNeeds


def wait_for_waiters(quota: ByteQuota, count: int, timeout_s: float) -> bool:
    """Wait until so many callers wait for a quota; return whether they do."""
    with quota._changed:
        return quota._changed.wait_for(lambda: len(quota._waiters) >= count, timeout_s)


def pins_of(needs: HistoryNeeds, span_id: int) -> dict[str, int]:
    """Return the pins of a span by the name of who holds them."""
    with needs._lock:
        return dict(needs._pins.get(span_id, {}))


def object_rows(store: ColumnarEventStore, span_id: int) -> dict[str, int]:
    """Return how many rows the objects of a span hold, by their kind."""
    rows: dict[str, int] = {}
    for meta in store.view(span_id).state.objects:
        rows[meta.object_kind] = rows.get(meta.object_kind, 0) + meta.rows
    return rows


def open_doubts(service: LogService) -> list[TableState]:
    """Return the tables that must be read again."""
    return [s for s in service.table_states() if s.is_open]
