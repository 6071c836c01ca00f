"""The verb ``store``: look into the event store of a data directory, check it, merge it, let old history go. Runs anywhere.

``ls``, ``show`` and ``check`` only read files, so a server may run on the directory; ``compact`` and ``gc`` own the store while they
run and need the directory's lock.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console
from rich.table import Table

from penstock.cli.options import output_option
from penstock.cli.shown.line import say
from penstock.cli.shown.output import show_result
from penstock.model.errors import PenstockError

if TYPE_CHECKING:
    from penstock.store.event_store import ColumnarEventStore
    from penstock.store.inspection import SpanInspection
    from penstock.store.objects.objects import ObjectSpace

_directory = click.argument("data_dir", type=click.Path(path_type=Path, file_okay=False))
_span_option = click.option("--span", "span_id", type=int, help="Only this span; otherwise all.")


@click.group()
def store() -> None:
    """Look into the event store of a server's data directory.

    \b
    Examples:
      penstock store ls ./data
      penstock store ls ./data/sources/shop   (of a source with a name)
      penstock store show ./data 4242 --output json
      penstock store check ./data
      penstock store compact ./data           (the server must be stopped: it merges by itself)
      penstock store gc ./data
    """  # noqa: D301


@store.command()
@_directory
@output_option
def address(data_dir: Path, output: str) -> None:
    """Show where Spark reads the tables of a running server. Prints the token: whoever has it can read them all.

    \b
    spark.read.format("penstock").option("data-dir", "./data").option("table", "shop.orders") finds it by itself;
    elsewhere: .option("location", LOCATION).option("token", TOKEN)
    """  # noqa: D301
    from penstock.store.flight.address import read_address

    found = read_address(data_dir)
    if output != "table":
        show_result({"location": found.location, "token": found.token}, output)
    else:
        click.echo(f"location  {found.location}\ntoken     {found.token}")


@store.command()
@_directory
@output_option
def ls(data_dir: Path, output: str) -> None:
    """List the spans with what they hold, from the files alone."""
    rows = [_summary(span) for span in _inspected(data_dir)[1]]
    if output != "table":
        show_result(rows, output)
        return
    shown = Table("span", "table", "flushed ts", "history from", "objects", "merged", "replaced", "in checkpoints", "MiB")
    for r in rows:
        cells = [r["span_id"], r["table_id"], r["flushed_ts"], r["history_start_ts"], r["objects"], r["merged"], r["replaced"]]
        shown.add_row(*(str(c) for c in [*cells, r["checkpoint_objects"], f"{r['nbytes'] / 2**20:.1f}"]))
    Console().print(shown)


@store.command()
@_directory
@click.argument("span_id", type=int)
@output_option
def show(data_dir: Path, span_id: int, output: str) -> None:
    """Show the objects of one span."""
    import msgspec

    span = _chosen(_inspected(data_dir)[1], span_id)[0]
    objects = [*((o, "manifest") for o in span.manifest.objects), *((o, "checkpoint") for o in span.checkpoint_objects)]
    if output != "table":
        listed = [msgspec.to_builtins(o) | {"held_by": holder} for o, holder in objects]
        show_result(_summary(span) | {"object_list": listed, "orphans": list(span.orphans)}, output)
        return
    shown = Table("object", "kind", "side", "ts", "rows", "MiB", "created", "replaced", "held by")
    for meta, holder in objects:
        cells = [meta.path.rpartition("/")[2], meta.object_kind, meta.side.name.lower(), f"{meta.min_ts} to {meta.max_ts}", meta.rows]
        shown.add_row(*(str(c) for c in [*cells, f"{meta.size / 2**20:.1f}", meta.create_ts or "", meta.delete_ts or "", holder]))
    Console().print(shown)


@store.command()
@_directory
@_span_option
@output_option
def check(data_dir: Path, span_id: int | None, output: str) -> None:
    """Verify checksums, order and coverage of every object, and the records of the log; exit 1 if anything is wrong."""
    import msgspec

    from penstock.store.inspection import check_log, check_span

    space, found = _inspected(data_dir)
    spans = _chosen(found, span_id)
    log = _store_directory(data_dir) / "wal"
    # One log holds the newest rows of all spans.
    segments = len(list(log.glob("*.wal"))) if span_id is None else 0
    problems = [p for span in spans for p in check_span(space, span)] + (list(check_log(log)) if span_id is None else [])
    objects = sum(len({o.path for o in (*s.manifest.objects, *s.checkpoint_objects)}) for s in spans)
    if output != "table":
        body = {"spans": len(spans), "objects": objects, "segments": segments, "problems": [msgspec.to_builtins(p) for p in problems]}
        show_result(body, output)
    else:
        for problem in problems:
            where = f"span {problem.span_id}" if problem.span_id else "log"
            say(f"{where}: {problem.path}: [{problem.code}] {problem.what}")
        click.echo(f"checked: {len(spans)} spans, {objects} objects, {segments} segments of the log, {len(problems)} problems")
        left_out = "the write-ahead log, because it is all spans'; " if span_id is not None else ""
        click.echo(f"not checked: {left_out}whether rows are those of the source, which penstock verify compares")
    if problems:
        raise PenstockError("OBJECT_CORRUPT", f"{len(problems)} problems in {len({p.path for p in problems})} files")


@store.command()
@_directory
@_span_option
@output_option
def compact(data_dir: Path, span_id: int | None, output: str) -> None:
    """Merge the objects of a stopped server's store now, however little there is to merge."""
    with _owned(data_dir) as opened:
        replaced = {s: opened.merge(s) for s in ([span_id] if span_id is not None else opened.span_ids())}
    _tell(output, "replaced", {str(s): n for s, n in replaced.items()}, "objects replaced by merged ones")


@store.command()
@_directory
@output_option
def gc(data_dir: Path, output: str) -> None:
    """Let history go that is older than what a stopped server's store keeps."""
    with _owned(data_dir) as opened:
        left = opened.collect_garbage()
    _tell(output, "left", {"all": left}, "objects left the manifests")


def _tell(output: str, name: str, counts: dict[str, int], what: str) -> None:
    if output != "table":
        show_result({name: counts, "total": sum(counts.values())}, output)
    else:
        click.echo(f"{sum(counts.values())} {what}")


def _inspected(data_dir: Path) -> tuple[ObjectSpace, list[SpanInspection]]:
    from penstock.store.inspection import inspect_store
    from penstock.store.objects.objects import ObjectSpace

    space = ObjectSpace((_store_directory(data_dir) / "objects").as_uri())
    return space, inspect_store(space)


def _store_directory(data_dir: Path) -> Path:
    """Return where the store of a data directory lies; the store's own directory may be given as well."""
    for directory in (data_dir / "store", data_dir):
        if (directory / "objects").is_dir():
            return directory.absolute()
    raise PenstockError("CONFIG_INVALID", f"{data_dir} holds no event store", "Name the --data-dir of a server.")


def _chosen(spans: list[SpanInspection], span_id: int | None) -> list[SpanInspection]:
    chosen = [s for s in spans if span_id in (None, s.manifest.span_id)]
    if span_id is not None and not chosen:
        raise PenstockError("SPAN_UNKNOWN", f"the event store has no flushed span {span_id}", "See `penstock store ls`.")
    return chosen


def _summary(span: SpanInspection) -> dict[str, Any]:
    manifest, objects = span.manifest, span.manifest.objects
    return {
        "span_id": manifest.span_id,
        "table_id": manifest.span.table_id,
        "start_key": manifest.span.start_key.hex(),
        "end_key": manifest.span.end_key.hex(),
        "resolved_ts": manifest.resolved_ts,
        "flushed_ts": manifest.flushed_ts,
        "history_start_ts": manifest.history_start_ts,
        "checkpoint_start_ts": span.checkpoint_start_ts,
        "base_ts": manifest.base_ts,
        "objects": len(objects),
        "merged": sum(o.object_kind == "merged" and not o.delete_ts for o in objects),
        "replaced": sum(o.delete_ts > 0 for o in objects),
        "checkpoint_objects": len(span.checkpoint_objects),
        "rows": sum(o.rows for o in objects),
        "nbytes": sum(o.size for o in {o.path: o for o in (*objects, *span.checkpoint_objects)}.values()),
    }


@contextmanager
def _owned(data_dir: Path) -> Iterator[ColumnarEventStore]:
    """Open the store as its owner; refused while a server has the directory."""
    from penstock.server.data_directory import SERVER_ID, SOURCES, DataDirectory
    from penstock.store.event_store import ColumnarEventStore

    directory = _store_directory(data_dir)
    owned = directory.parent if directory.name == "store" else directory
    above = owned.parent.parent
    # The store of a source with a name is the server's in whose data directory it is.
    lock = DataDirectory(above if owned.parent.name == SOURCES and (above / SERVER_ID).exists() else owned)
    try:
        with ColumnarEventStore(directory) as opened:
            yield opened
    finally:
        lock.close()
