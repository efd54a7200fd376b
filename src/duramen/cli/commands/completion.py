"""`duramen completion`: scripts that make a shell complete commands and options."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

EPILOG = """\b
Examples:
  duramen completion bash > ~/.local/share/bash-completion/completions/duramen
  duramen completion zsh  > "${fpath[1]}/_duramen"
  duramen completion fish > ~/.config/fish/completions/duramen.fish

\b
For this session only:  source <(duramen completion bash)
"""


@click.command(
    epilog=EPILOG,
    help="Print the completion script of a shell.",
)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def command(ctx: click.Context, shell: str) -> None:
    completion = get_completion_class(shell)
    if completion is None:
        raise click.UsageError(f"there is no completion for {shell}.")
    # `source_template % source_vars()` instead of `source()`: the latter runs bash to look at its version.
    script = completion(ctx.find_root().command, {}, "duramen", "_DURAMEN_COMPLETE")
    click.echo(script.source_template % script.source_vars())
