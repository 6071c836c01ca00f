"""The verb ``completion``: what makes a shell complete the words of this command line. Runs anywhere."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

_VARIABLE = "_PENSTOCK_COMPLETE"


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print a script that completes verbs and options in a SHELL.

    \b
    Examples:
      penstock completion bash > ~/.local/share/bash-completion/completions/penstock
      penstock completion zsh > ~/.zfunc/_penstock
      penstock completion fish > ~/.config/fish/completions/penstock.fish
    """  # noqa: D301
    kind = get_completion_class(shell)
    assert kind is not None
    root = ctx.find_root()
    # Its own source() would ask bash for its version, which is none of ours.
    completer = kind(root.command, {}, "penstock", _VARIABLE)
    click.echo(completer.source_template % completer.source_vars())
