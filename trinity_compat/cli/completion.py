"""``trinity-compat completion``: completion of the command line in a shell."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

SHELLS = ("bash", "zsh", "fish")


@click.command("completion")
@click.argument("shell", type=click.Choice(SHELLS))
def command(shell: str) -> None:
    """Print the lines with which SHELL completes commands, options, their values and files.

    bash: `eval "$(trinity-compat completion bash)"` in ~/.bashrc. zsh: the same with zsh in ~/.zshrc, after
    compinit. fish: `trinity-compat completion fish > ~/.config/fish/completions/trinity-compat.fish`.

    Exit code: 0.
    """
    from trinity_compat.cli import cli

    found = get_completion_class(shell)
    assert found is not None
    # Without BashComplete.source, which starts a bash to learn its release.
    maker = found(cli, {}, "trinity-compat", "_TRINITY_COMPAT_COMPLETE")
    click.echo(maker.source_template % maker.source_vars())
