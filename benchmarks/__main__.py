"""``python -m benchmarks NAME``: speed and memory as ratios to a baseline measured in the same run."""

from __future__ import annotations

import importlib
import sys

import click

# Name -> module with `run(quick) -> Report` and a docstring that says what is compared.
BENCHMARKS = {
    "api": "benchmarks.api",
    "control": "benchmarks.control",
    "encode": "benchmarks.encode",
    "engine": "benchmarks.engine",
    "feed": "benchmarks.feed",
    "latency": "benchmarks.latency",
    "puller": "benchmarks.puller",
    "reread": "benchmarks.reread",
    "scale": "benchmarks.scale",
    "shared_storage": "benchmarks.shared_storage",
    "sources": "benchmarks.sources",
    "sink": "benchmarks.sink",
    "store": "benchmarks.store",
    "targets": "benchmarks.targets",
}


@click.command(name="bench")
@click.argument("name", type=click.Choice(sorted(BENCHMARKS)))
@click.option("--json", "as_json", is_flag=True, help="End with one JSON object on the last line.")
@click.option("--quick", is_flag=True, help="A smaller size.")
@click.option("--save", is_flag=True, help="Keep the run in benchmarks/results; make docs then renews docs/benchmarks.md.")
def bench(name: str, as_json: bool, quick: bool, save: bool) -> None:
    """Measure NAME against its baselines, and exit 0 only if every target holds.

    Every figure is a ratio to a baseline that the same run measures, because machines are noisy. `feed` compares delivery through
    Spark with plain processes that encode the same batches, and with Spark writing the same changes from Parquet.

    Example: make bench NAME=feed ARGS=--quick
    """
    module = importlib.import_module(BENCHMARKS[name])
    report = module.run(quick)
    if save:
        click.echo(f"  kept in {report.save('quick' if quick else 'full')}")
    sys.exit(0 if report.emit(as_json=as_json) else 1)


if __name__ == "__main__":
    bench()
