"""``tidemill completion``: prints the completion script for a shell."""

from __future__ import annotations

import click


@click.command(
    "completion",
    epilog="""\b
Examples:
  tidemill completion bash >> ~/.bashrc
  tidemill completion zsh > ~/.zfunc/_tidemill      (with ~/.zfunc in fpath)
  tidemill completion fish > ~/.config/fish/completions/tidemill.fish""",
)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def command(shell: str) -> None:
    """Print the completion script for SHELL."""
    from click.shell_completion import get_completion_class

    from tidemill.cli.main import command as whole

    found = get_completion_class(shell)
    if found is None:
        raise click.UsageError(f"there is no completion for {shell}")
    click.echo(found(whole, {}, "tidemill", "_TIDEMILL_COMPLETE").source())
