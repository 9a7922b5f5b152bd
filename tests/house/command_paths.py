"""The commands of the command line."""

import click

from trinity_compat.cli import cli


def commands(command=cli, path=()):
    """The words of each: ("buffer", "stats")."""
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            yield from commands(command.get_command(context, name), (*path, name))
    else:
        yield path
