"""The file ops/grafana/penstock.json, a dashboard for Grafana, from the panels that are listed here."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

FILE = Path(__file__).resolve().parents[2] / "ops" / "grafana" / "penstock.json"
_SOURCE = {"type": "prometheus", "uid": "${datasource}"}
_WIDTH, _HEIGHT = 24, 8
_FLUSH_BUCKETS = "penstock_sink_flush_duration_seconds_bucket"


class Panel(NamedTuple):
    """One picture: its title, what it says, unit, and expressions with legends."""

    title: str
    text: str
    unit: str
    queries: tuple[tuple[str, str], ...]
    columns: int = 8
    kind: str = "timeseries"


_FEED = 'feed=~"$feed"'
ROWS: tuple[tuple[str, tuple[Panel, ...]], ...] = (
    (
        "At a glance",
        (
            Panel(
                "Feeds by state",
                "How many feeds are in each state.",
                "none",
                (("count by (state) (max by (feed, state) (penstock_feed_state))", "{{state}}"),),
                8,
                "stat",
            ),
            Panel(
                "Feeds that do not go on",
                "At what stage, for how long. Empty is good.",
                "s",
                ((f"max by (feed, stage) (penstock_feed_problem_seconds{{{_FEED}}})", "{{feed}}: {{stage}}"),),
                8,
                "stat",
            ),
            Panel(
                "Components",
                "1 is well.",
                "none",
                (("min by (component) (penstock_component_up)", "{{component}}"), ("min(penstock_meta_up)", "meta database")),
                8,
                "stat",
            ),
        ),
    ),
    (
        "Feeds",
        (
            Panel(
                "Lag",
                "How far the checkpoint is behind the clock.",
                "s",
                ((f"max by (feed) (penstock_feed_checkpoint_lag_seconds{{{_FEED}}})", "{{feed}}"),),
            ),
            Panel(
                "Rows delivered",
                "Rows a second.",
                "rowsps",
                ((f"max by (feed) (rate(penstock_feed_rows_total{{{_FEED}}}[$__rate_interval]))", "{{feed}}"),),
            ),
            Panel(
                "Bytes delivered",
                "Bytes a second.",
                "Bps",
                ((f"max by (feed) (rate(penstock_feed_bytes_total{{{_FEED}}}[$__rate_interval]))", "{{feed}}"),),
            ),
            Panel(
                "Windows",
                "Windows committed a second.",
                "ops",
                ((f"max by (feed) (rate(penstock_feed_windows_total{{{_FEED}}}[$__rate_interval]))", "{{feed}}"),),
            ),
            Panel(
                "Tried again",
                "For how long a feed has been retrying.",
                "s",
                ((f"max by (feed) (penstock_feed_retrying_seconds{{{_FEED}}})", "{{feed}}"),),
            ),
            Panel(
                "History left",
                "For how long what a feed needs next is still kept.",
                "s",
                ((f"min by (feed) (penstock_feed_history_left_seconds{{{_FEED}}})", "{{feed}}"),),
            ),
        ),
    ),
    (
        "Tables",
        (
            Panel(
                "Rows of tables",
                "The ten tables with the most rows a second.",
                "rowsps",
                (
                    (
                        f"topk(10, max by (feed, table) (rate(penstock_table_rows_total{{{_FEED}}}[$__rate_interval])))",
                        "{{feed}}: {{table}}",
                    ),
                ),
                12,
            ),
            Panel(
                "Lag of tables",
                "The ten tables that are furthest behind.",
                "s",
                ((f"topk(10, max by (feed, table) (penstock_table_lag_seconds{{{_FEED}}}))", "{{feed}}: {{table}}"),),
                12,
            ),
            Panel(
                "Tables in doubt",
                "Doubtful, rereading, quarantined.",
                "none",
                (("sum by (state) (penstock_tables_in_doubt)", "{{state}}"),),
            ),
            Panel(
                "In doubt for",
                "Which tables, and for how long.",
                "s",
                (("max by (table, state) (penstock_table_doubt_seconds)", "{{table}}: {{state}}"),),
            ),
            Panel(
                "Rows that differ",
                "What verification on schedule found.",
                "none",
                ((f"max by (feed, table) (penstock_table_differences{{{_FEED}}}) > 0", "{{feed}}: {{table}}"),),
            ),
        ),
    ),
    (
        "Capture and event store",
        (
            Panel(
                "Capture lag",
                "How far the slowest span is behind the clock.",
                "s",
                (("max by (instance, source) (penstock_log_puller_resolved_lag_seconds)", "{{instance}} {{source}}"),),
            ),
            Panel(
                "Received",
                "Bytes a second from the sources.",
                "Bps",
                (
                    (
                        "sum by (instance, source) (rate(penstock_log_puller_received_bytes_total[$__rate_interval]))",
                        "{{instance}} {{source}}",
                    ),
                ),
            ),
            Panel(
                "Capture errors",
                "Errors a second, by code.",
                "ops",
                (("sum by (code) (rate(penstock_log_puller_errors_total[$__rate_interval]))", "{{code}}"),),
            ),
            Panel(
                "Queues of the store",
                "How full the queue before the write-ahead log is, and what waits for objects.",
                "none",
                (
                    ("max by (instance, source) (penstock_store_wal_queue_ratio)", "log queue {{instance}} {{source}}"),
                    ("max by (instance, source) (penstock_store_flush_queue_spans)", "to flush {{instance}} {{source}}"),
                    ("max by (instance, source) (penstock_store_merge_queue_spans)", "to merge {{instance}} {{source}}"),
                ),
            ),
            Panel(
                "Memory and log of the store",
                "Bytes that are in no object yet.",
                "bytes",
                (
                    ("max by (instance, source) (penstock_store_memory_bytes)", "memory {{instance}} {{source}}"),
                    ("max by (instance, source) (penstock_store_wal_bytes)", "log {{instance}} {{source}}"),
                ),
            ),
            Panel(
                "In flight",
                "Bytes between source and store.",
                "bytes",
                (("max by (instance, source) (penstock_log_puller_span_pipeline_inflight_bytes)", "{{instance}} {{source}}"),),
            ),
        ),
    ),
    (
        "Targets",
        (
            Panel(
                "Flush, 99th percentile",
                "From taking a file to its index in the target.",
                "s",
                (
                    (
                        f"histogram_quantile(0.99, max by (feed, le) (rate({_FLUSH_BUCKETS}{{{_FEED}}}[$__rate_interval])))",
                        "{{feed}}",
                    ),
                ),
            ),
            Panel(
                "Files by reason",
                "Files flushed a second.",
                "ops",
                (
                    (
                        f"sum by (reason) (max by (feed, reason) (rate(penstock_sink_flush_count{{{_FEED}}}[$__rate_interval])))",
                        "{{reason}}",
                    ),
                ),
            ),
            Panel(
                "Dead letters",
                "Messages that a target refused for good.",
                "none",
                ((f"max by (feed) (penstock_sink_dead_letters_total{{{_FEED}}})", "{{feed}}"),),
            ),
        ),
    ),
)


def _panel(panel: Panel, number: int, x: int, y: int) -> dict[str, Any]:
    targets = [
        {"refId": chr(65 + at), "datasource": _SOURCE, "expr": e, "legendFormat": legend} for at, (e, legend) in enumerate(panel.queries)
    ]
    return {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "description": panel.text,
        "datasource": _SOURCE,
        "gridPos": {"x": x, "y": y, "w": panel.columns, "h": _HEIGHT},
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
        "targets": targets,
    }


def _panels() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    y = 0
    for title, panels in ROWS:
        found.append({"id": len(found) + 1, "type": "row", "title": title, "gridPos": {"x": 0, "y": y, "w": _WIDTH, "h": 1}, "panels": []})
        x, y = 0, y + 1
        for panel in panels:
            if x + panel.columns > _WIDTH:
                x, y = 0, y + _HEIGHT
            found.append(_panel(panel, len(found) + 1, x, y))
            x += panel.columns
        y += _HEIGHT
    return found


def render() -> str:
    """Return the dashboard as JSON."""
    feeds = "label_values(penstock_feed_state, feed)"
    variables = [
        {"name": "datasource", "type": "datasource", "query": "prometheus", "label": "data source"},
        {
            "name": "feed",
            "type": "query",
            "datasource": _SOURCE,
            "query": feeds,
            "multi": True,
            "includeAll": True,
            "allValue": ".*",
            "refresh": 2,
        },
    ]
    board = {
        "uid": "penstock",
        "title": "Penstock",
        "description": "Feeds, tables, capture, event store and targets. Generated by make docs.",
        "tags": ["penstock", "cdc"],
        "schemaVersion": 39,
        "editable": True,
        "refresh": "10s",
        "time": {"from": "now-1h", "to": "now"},
        "timezone": "utc",
        "templating": {"list": variables},
        "annotations": {"list": []},
        "panels": _panels(),
    }
    return json.dumps(board, indent=1) + "\n"
