"""``penstock bench NAME``: speed and memory as ratios to a baseline measured in the same run."""

from __future__ import annotations

import importlib
import sys

import click

# Name -> module with `run(quick) -> Report` and a docstring that says what is compared.
BENCHMARKS = {
    "encode": "penstock.cli.bench.encode",
    "feed": "penstock.cli.bench.feed",
    "puller": "penstock.cli.bench.puller",
    "sources": "penstock.cli.bench.sources",
    "sink": "penstock.cli.bench.sink",
    "store": "penstock.cli.bench.store",
}


@click.command(name="bench")
@click.argument("name", type=click.Choice(sorted(BENCHMARKS)))
@click.option("--json", "as_json", is_flag=True, help="End with one JSON object on the last line.")
@click.option("--quick", is_flag=True, help="A smaller size.")
def bench(name: str, as_json: bool, quick: bool) -> None:
    """Measure NAME against its baselines, and exit 0 only if every target holds.

    Every figure is a ratio to a baseline that the same run measures, because machines are noisy. `feed` compares delivery through
    Spark with plain processes that encode the same batches, and with Spark writing the same changes from Parquet.

    Example: penstock bench feed --json --quick
    """
    module = importlib.import_module(BENCHMARKS[name])
    report = module.run(quick)
    sys.exit(0 if report.emit(as_json=as_json) else 1)
