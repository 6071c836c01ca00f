"""The verb ``doctor``: do a database, a target and a feed's configuration allow capture, and what makes them do so? Runs anywhere.

Only reads, apart from one object that it creates in the target and deletes again. Exit code 0 means that everything is as it must be (what
only should be otherwise, or is a note, is shown), 1 that something is not, 2 that the question could not be asked.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from penstock.cli.given import URI, read_tree
from penstock.cli.options import output_option
from penstock.cli.shown.line import say
from penstock.cli.shown.output import show_result
from penstock.model.errors import PenstockError
from penstock.settings.masking import mask_text

if TYPE_CHECKING:
    from penstock.model.finding import Finding


@click.command()
@click.argument("uri", required=False, type=URI)
@click.option("--table", "tables", multiple=True, metavar="PATTERN", help="database.table; * and ? match. Repeat.  [default: all tables]")
@click.option("--sink", metavar="URI", type=URI, help="Check this target too: an object is created in it and deleted again.")
@click.option(
    "--config",
    "config_file",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Check a feed's TOML file, and the source, tables and sink that it names.",
)
@click.option(
    "--set", "assignments", multiple=True, metavar="KEY=VALUE", help="A setting of the feed, as in --set flush-interval=10s. Repeat."
)
@output_option
def doctor(
    uri: str | None, tables: tuple[str, ...], sink: str | None, config_file: Path | None, assignments: tuple[str, ...], output: str
) -> int:
    """Check a database, a target and a feed's configuration: every problem at once, each with what fixes it.

    The tables that the patterns match are listed with what will happen to each. Exits 1 only if something is not as it must be.

    \b
    Examples:
      penstock doctor postgresql://cdc:{env:DB_PASSWORD}@db:5432/shop --table 'public.*'
      penstock doctor mysql://cdc:{ask}@db:3306 --table 'shop.*' --sink s3://lake/shop
      penstock doctor --config shop.toml
      penstock doctor mysql://cdc:{ask}@db:3306 --output json
    """  # noqa: D301
    given = {"source": uri, "tables": list(tables) or None, "sink": {"uri": sink} if sink else None}
    tree = read_tree(config_file, assignments, given)
    if not (tree.get("source") or config_file or sink):
        raise click.UsageError("Give the URI of a database, --sink or --config.")
    findings = _examine(tree, whole=config_file is not None)
    wrong = any(f.blocks for f in findings)
    if output != "table":
        rows = [
            {"name": f.name, "ok": f.ok, "level": str(f.level), "found": f.found, "wanted": f.wanted, "statement": f.statement}
            for f in findings
        ]
        show_result({"ok": not wrong, "findings": rows}, output)
    else:
        _show(findings)
    return int(wrong)


def _examine(tree: Mapping[str, Any], *, whole: bool) -> list[Finding]:
    """Return what is found of all that a tree names; ``whole`` where it is a feed's configuration."""
    from penstock.config.tree import flatten
    from penstock.sink.catalog import check_target
    from penstock.source.catalog import examine

    found: list[Finding] = []
    if whole:
        found += _configuration(tree)
    source, sink, patterns = tree.get("source"), tree.get("sink"), tree.get("tables", [])
    chosen = [p for p in patterns if isinstance(p, str)] if isinstance(patterns, list) else []
    alone = not whole and sink is None
    if isinstance(source, str):
        found += examine(source, chosen) if alone else _asked("source", lambda: examine(source, chosen))
    if isinstance(sink, Mapping) and isinstance(sink.get("uri"), str):
        options = flatten({key: value for key, value in sink.items() if key != "uri"})
        found += _asked("target", lambda: check_target(sink["uri"], options, tree.get("name")))
    return found


def _configuration(tree: Mapping[str, Any]) -> list[Finding]:
    """Return one finding for each problem of a configuration, the server's part in one file with it included."""
    from penstock.config.server_tree import ServerConfig
    from penstock.config.tree import load_feed_config
    from penstock.model.finding import Finding
    from penstock.settings.loader import load

    feed = {"name": "default"} | {key: value for key, value in tree.items() if key != "server"}
    checks: list[Callable[[], object]] = [lambda: load_feed_config(feed)]
    server = tree.get("server")
    if isinstance(server, Mapping):
        checks.append(lambda: load(ServerConfig, dict(server) | {"source": tree.get("source", "")}, "server"))
    found = []
    for check in checks:
        try:
            check()
        except PenstockError as error:
            found += [Finding("configuration", False, mask_text(line), error.hint) for line in error.detail.splitlines()]
    return found or [Finding("configuration", True, f"valid, {len(tree.get('tables', []))} patterns", "valid")]


def _asked(name: str, check: Callable[[], list[Finding]]) -> list[Finding]:
    """Return what a check finds; that it cannot be made is a finding, so that the others are shown as well."""
    from penstock.model.finding import Finding

    try:
        return check()
    except PenstockError as error:
        return [Finding(name, False, mask_text(f"[{error.code}] {error.detail}"), error.hint)]


def _show(findings: Sequence[Finding]) -> None:
    width = max(len(f.name) for f in findings)
    for finding in findings:
        label = "ok" if finding.ok else finding.level.upper()
        say(f"{label:<6}  {finding.name:<{width}}  {finding.found}")
        if not finding.ok:
            say(f"        {'':<{width}}  wanted: {finding.wanted}")
            if finding.statement:
                say(f"        {'':<{width}}  run:    {finding.statement}")
    counts = [f"{sum(not f.ok and f.level == level for f in findings)} {level}" for level in ("must", "should", "note")]
    shown = ", ".join(c for c in counts if not c.startswith("0 "))
    click.echo(f"{len(findings)} checked, {shown or 'all as they must be'}")
