"""What receivers said last is shown as metrics; who is lost counts, and shows nothing more."""

from __future__ import annotations

from prometheus_client import CollectorRegistry

from penstock.feed.receivers.board import PartBoard
from penstock.feed.receivers.messages import Orders, PartReport, Report, SpanReport
from penstock.feed.receivers.metrics import ReceiverCollector
from penstock.feed.receivers.settings import ReceiverSettings
from penstock.model.span import Span
from penstock.model.timestamp import compose_ts
from penstock.store.stats import SpanStats
from testing.twins.clock import SimulatedClock


def test_reports_are_shown_until_the_receiver_is_lost() -> None:
    clock, shown = SimulatedClock(), CollectorRegistry()
    board = PartBoard(ReceiverSettings(2), clock, lambda _: 1)
    shown.register(ReceiverCollector(2, board.view, lambda: board.lost_total, clock))
    runs = [board.begin_run(slot) for slot in range(2)]
    for table_id in range(1, 5):
        board.ensure(Span(table_id))
    told = [Orders(), Orders()]
    resolved_ts = compose_ts(clock.now_ms() - 3_000)

    def report(slot: int) -> None:
        parts = []
        for order in told[slot].parts:
            spans = [SpanReport(SpanStats(s.span.span_id, s.span.table_id, resolved_ts, 0, 0, 7), retrying=slot == 1) for s in order.spans]
            parts.append(PartReport(order.part, "grpc://x", tuple(spans), entries=100 + order.part, nbytes=1_000 + order.part))
        told[slot] = board.receive(Report("", f"{slot}-a", slot, runs[slot], f"host-{slot}", 1, tuple(parts)))

    def value(name: str, **labels: str) -> float | None:
        return shown.get_sample_value(name, labels)

    assert (value("penstock_receivers"), value("penstock_receivers_wanted"), value("penstock_receivers_lost_total")) == (0, 2, 0)
    for slot in (0, 1) * 3:
        report(slot)
    held = [{order.part for order in orders.parts} for orders in told]
    spans = [sum(len(order.spans) for order in orders.parts) for orders in told]
    assert sum(spans) == 4
    for slot in (0, 1):
        labels = {"slot": str(slot), "host": f"host-{slot}"}
        assert value("penstock_receiver_parts", **labels) == len(held[slot]) > 0
        assert value("penstock_receiver_spans", **labels) == spans[slot]
        assert value("penstock_receiver_failing_spans", **labels) == slot * spans[slot]
        assert value("penstock_receiver_memory_rows", **labels) == 7 * spans[slot]
        assert value("penstock_receiver_resolved_lag_seconds", **labels) == 3.0
        for part in held[slot]:
            assert value("penstock_receiver_part_entries_total", part=str(part)) == 100 + part
            assert value("penstock_receiver_part_received_bytes_total", part=str(part)) == 1_000 + part
    board.end_run(0, None)
    assert (value("penstock_receivers"), value("penstock_receivers_lost_total")) == (1, 1)
    assert value("penstock_receiver_parts", slot="0", host="host-0") is None
    assert value("penstock_receiver_part_entries_total", part=str(min(held[0]))) is None
