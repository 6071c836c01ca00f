"""``penstock package``: this installation as an archive for executors on other machines. Runs anywhere."""

from __future__ import annotations

from pathlib import Path

import click


@click.command()
@click.option(
    "--output", type=click.Path(path_type=Path, dir_okay=False), default=Path("penstock.tar.gz"), show_default=True, help="The archive."
)
@click.option("--level", type=click.IntRange(1, 9), default=5, show_default=True, help="How hard it is compressed.")
def package(output: Path, level: int) -> None:
    """Make an archive of this installation, interpreter included, that Spark ships to its executors.

    \b
    penstock package --output penstock.tar.gz
    then in the server's file:
      [spark]
      master = "spark://cluster:7077"
      archive = "penstock.tar.gz"

    Executors then need no Python and no Penstock of their own: a machine with the same processor architecture, a C library at least as
    new as this one's, Java and Spark. Make it again after every update, on the oldest system that the cluster has.
    """  # noqa: D301
    from penstock.cli.shown.line import say
    from penstock.feed.spark.installation import pack
    from penstock.model.errors import PenstockError

    if not output.name.endswith((".tar.gz", ".tgz")):
        raise PenstockError("CONFIG_INVALID", f"{output}: Spark unpacks .tar.gz and .tgz")
    made = pack(output, level)
    say(f"{output}: {made.nbytes / 2**20:,.0f} MiB, {made.unpacked_nbytes / 2**20:,.0f} MiB unpacked, {made.files:,} files")
    say(f"{len(made.distributions)} packages: {', '.join(made.distributions)}")
