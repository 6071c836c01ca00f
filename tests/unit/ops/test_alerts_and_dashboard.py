"""The alert rules and the dashboard are whole, and name only metrics, labels, stages and commands that exist."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
import yaml
from pages import dashboard

from penstock.cli.main import cli
from penstock.model.metrics.names import METRICS, MetricKind, MetricName
from penstock.server.health.feed_watch import _HINTS

ROOT = Path(__file__).resolve().parents[3]
RULES = yaml.safe_load((ROOT / "ops" / "prometheus" / "alerts.yml").read_text(encoding="utf-8"))
BOARD = json.loads((ROOT / "ops" / "grafana" / "penstock.json").read_text(encoding="utf-8"))
SHOWN: dict[str, MetricName] = {name: metric for metric in METRICS for name in metric.shown}
GIVEN = {"instance", "job", "source"}
"""What Prometheus adds, and the server for a source with a name."""
METRIC = re.compile(r"\b(penstock_\w+)(?:\{([^}]*)\})?")


def problems(expression: str, metrics: dict[str, MetricName] = SHOWN) -> list[str]:
    """What an expression names that is not there."""
    used = METRIC.findall(expression)
    found = [name for name, _ in used if name not in metrics]
    known = [metrics[name] for name, _ in used if name in metrics]
    for name, selector in (one for one in used if one[0] in metrics):
        labels = set(re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", selector))
        found += sorted(f"{name}{{{label}}}" for label in labels - _labels(metrics[name]))
    grouped = {label for text in re.findall(r"\b(?:by|on)\s*\(([^)]*)\)", expression) for label in re.findall(r"\w+", text)}
    return found + sorted(f"by ({label})" for label in grouped if not all(label in _labels(m) for m in known))


def _labels(metric: MetricName) -> set[str]:
    return {*metric.labels, *GIVEN, *(["le"] if metric.kind is MetricKind.HISTOGRAM else [])}


def alerts() -> list[dict[str, Any]]:
    return [rule for group in RULES["groups"] for rule in group["rules"]]


def panels() -> list[dict[str, Any]]:
    return [panel for panel in BOARD["panels"] if panel["type"] != "row"]


def queries() -> Iterator[tuple[str, str]]:
    for panel in panels():
        yield from ((target["expr"], target["legendFormat"]) for target in panel["targets"])


@pytest.mark.parametrize(
    ("expression", "found"),
    [
        ("penstock_feed_state == 1", []),
        ("penstock_feed_sate == 1", ["penstock_feed_sate"]),
        ("penstock_feed_rows > 1", ["penstock_feed_rows"]),
        ('penstock_feed_state{stage="x"}', ["penstock_feed_state{stage}"]),
        ("max by (feed, table) (penstock_feed_state)", ["by (table)"]),
        ("sum by (le) (penstock_reread_seconds_bucket)", []),
    ],
)
def test_what_is_not_there_is_found(expression: str, found: list[str]) -> None:
    assert problems(expression) == found


@pytest.mark.parametrize("rule", alerts(), ids=lambda r: r["alert"])
def test_an_alert_names_what_is_there(rule: dict[str, Any]) -> None:
    assert problems(rule["expr"]) == []
    assert rule.keys() <= {"alert", "expr", "for", "labels", "annotations"}
    assert rule["labels"]["severity"] in {"warning", "critical"}
    assert rule["annotations"].keys() == {"summary", "description"}
    labels = {label for name, _ in METRIC.findall(rule["expr"]) for label in _labels(SHOWN[name])} | GIVEN
    assert set(re.findall(r"\$labels\.(\w+)", str(rule["annotations"]))) <= labels
    stages = re.findall(r'stage(?:=|!~)"([^"]*)"', rule["expr"])
    assert {stage for text in stages for stage in text.split("|")} <= _HINTS.keys()
    for command in re.findall(r"`penstock ([^`]*)`", rule["annotations"]["description"]):
        check_command(command.split())


def check_command(words: list[str]) -> None:
    """Fail where a command is none of the command line."""
    command: click.Command = cli
    context = click.Context(cli)
    for word in words:
        if word.startswith("--"):
            assert word in {option for parameter in command.params for option in parameter.opts}, words
        elif isinstance(command, click.Group):
            found = command.get_command(context, word)
            assert found is not None, words
            command = found
    assert not isinstance(command, click.Group), words


def test_alerts_have_names_of_their_own() -> None:
    names = [rule["alert"] for rule in alerts()]
    assert len(names) == len(set(names)) > 10


def test_the_dashboard_names_what_is_there() -> None:
    assert [(expression, found) for expression, _ in queries() if (found := problems(expression))] == []
    for expression, legend in queries():
        grouped = {label for text in re.findall(r"by \(([^)]*)\)", expression) for label in re.findall(r"\w+", text)}
        assert set(re.findall(r"\{\{(\w+)\}\}", legend)) <= grouped, expression


def test_the_dashboard_is_whole() -> None:
    assert len({panel["id"] for panel in BOARD["panels"]}) == len(BOARD["panels"])
    assert {v["name"] for v in BOARD["templating"]["list"]} == {"datasource", "feed"}
    taken: set[tuple[int, int]] = set()
    for panel in BOARD["panels"]:
        place = panel["gridPos"]
        cells = {(x, y) for x in range(place["x"], place["x"] + place["w"]) for y in range(place["y"], place["y"] + place["h"])}
        assert not cells & taken, panel["title"]
        assert max(x for x, _ in cells) < 24
        taken |= cells
    assert all(panel["targets"] for panel in panels())


def test_the_dashboard_is_current() -> None:
    assert dashboard.FILE.read_text(encoding="utf-8") == dashboard.render()


def test_the_queues_of_the_store_and_every_feed_are_watched() -> None:
    text = json.dumps(BOARD) + json.dumps(RULES)
    wanted = (
        "store_wal_queue_ratio",
        "store_flush_queue_spans",
        "feed_problem_seconds",
        "feed_checkpoint_lag_seconds",
        "table_doubt_seconds",
    )
    assert [name for name in wanted if f"penstock_{name}" not in text] == []


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
def test_promtool_takes_the_rules_and_the_dashboard(tmp_path: Path) -> None:
    expressions = [e.replace("$__rate_interval", "5m").replace("$feed", ".*") for e, _ in queries()]
    rules = [{"record": f"panel:{at}", "expr": expression} for at, expression in enumerate(expressions)]
    file = tmp_path / "board.yml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "board", "rules": rules}]}), encoding="utf-8")
    own = ROOT / "ops" / "prometheus"
    for verb, path in (("check", file), ("check", own / "alerts.yml"), ("test", own / "alerts_test.yml")):
        done = subprocess.run(["promtool", verb, "rules", str(path)], capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
