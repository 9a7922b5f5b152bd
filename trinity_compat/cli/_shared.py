"""Options and output that several commands share."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TypeVar

import click
from click.shell_completion import CompletionItem

from trinity_compat.common.atomic_write import replacing
from trinity_compat.common.errors import UserError, Where
from trinity_compat.common.output_text import leaving
from trinity_compat.common.readable_files import also_reading
from trinity_compat.common.releases import VERL_RELEASES
from trinity_compat.launch.entrypoints import TRANSLATED, parse_user_mains
from trinity_compat.launch.job_files import is_configuration

_STDOUT = Path("-")
_Command = TypeVar("_Command", bound=Callable[..., object])


class _NamedFile(click.types.StringParamType):
    """Text that may name a file or a folder, which a shell completes; ``-`` and URLs are taken too."""

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        return [CompletionItem(incomplete, type="file")]


NAMED_FILE = _NamedFile()


def main_option(command: _Command) -> _Command:
    """Add the option ``--main MODULE=MAIN``, which a user may repeat."""
    return click.option(
        "--main",
        "mains",
        multiple=True,
        metavar="MODULE=MAIN",
        help=f"Treat MODULE, a training main of your own, as MAIN: {' or '.join(TRANSLATED)}.",
    )(command)


def also_read_option(command: _Command) -> _Command:
    """Add the option ``--also-read DIR``, which a user may repeat."""
    return click.option(
        "--also-read",
        multiple=True,
        metavar="DIR",
        type=click.Path(exists=True, file_okay=False),
        expose_value=False,
        callback=lambda ctx, _, folders: ctx.with_resource(also_reading(folders)),
        help="Folder outside --cwd whose files the script may read; may be repeated.",
    )(command)


def script_options(command: _Command) -> _Command:
    """Add ``--cwd`` and ``--env``, what a script is read for, and ``--also-read``, what it may read."""
    for option in (
        also_read_option,
        click.option(
            "--env",
            "env",
            multiple=True,
            metavar="NAME=VALUE",
            help="Environment variable of the script; may be repeated.",
        ),
        click.option(
            "--cwd",
            type=click.Path(exists=True, file_okay=False, path_type=Path),
            help="Directory that the script is started from.",
        ),
    ):
        command = option(command)
    return command


def release_options(command: _Command) -> _Command:
    """Add ``--verl-version`` and ``--no-fork-config``: the configuration that a launch is composed with."""
    no_fork_config = click.option(
        "--no-fork-config",
        is_flag=True,
        help="Use a veRL release's configuration even if the script is inside a copy of veRL's source.",
    )
    return verl_version_option(no_fork_config(command))


def verl_version_option(command: _Command) -> _Command:
    """Add ``--verl-version``, the release that a launch is composed with."""
    return click.option(
        "--verl-version",
        metavar="VERSION",
        callback=_known_release,
        help=f"veRL release of the script, where the inferred one is wrong: {', '.join(VERL_RELEASES)}.",
    )(command)


def _known_release(_: click.Context, __: click.Parameter, version: str | None) -> str | None:
    if version is not None:
        from trinity_compat.verl_config.releases import check_version  # here: few command lines name one

        check_version(version)
    return version


def check_planned_source(source: str | None, version: str | None) -> None:
    """Raise UserError for a source that no run can be planned from.

    It is the record of a run, or a Trinity YAML, which has no defaults of veRL's, with ``--verl-version``.
    """
    from trinity_compat.rewrite.record import is_record  # here: light commands need none of it

    if source is not None and is_record(source):
        raise UserError(
            f"{source} is the record of a run, not a shell script or a Trinity YAML",
            hint=f"trinity-compat upgrade {source} > run.sh writes its command",
        )
    if version is not None and source is not None and is_configuration(source):
        raise UserError(
            f"--verl-version {version}: {source} is a Trinity YAML, whose values are no release's",
            hint="leave it out; for a launch script it names the release whose defaults the launch has",
        )


def rules_option(command: _Command) -> _Command:
    """Add the option ``--rules FILE|FAMILY``."""
    return click.option(
        "--rules",
        type=NAMED_FILE,
        metavar="FILE|FAMILY",
        help="File of your own rules, or name of a fork family; overrides the shipped rules (docs/rules.md).",
    )(command)


def set_option(command: _Command) -> _Command:
    """Add the option ``--set PATH=VALUE``, which a user may repeat, to a command that runs nothing."""
    return click.option(
        "--set",
        "assignments",
        multiple=True,
        metavar="PATH=VALUE",
        help="Set a path of the Trinity YAML or a veRL key of the launch.",
    )(command)


def format_option(command: _Command) -> _Command:
    """Add ``--format text|json``; ``trinity-compat schema`` describes the JSON."""
    return click.option(
        "--format", "form", type=click.Choice(["text", "json"]), default="text", show_default=True
    )(command)


def quiet_option(command: _Command) -> _Command:
    """Add the option ``--quiet``, which prints errors only."""
    return click.option("-q", "--quiet", is_flag=True, help="Print errors only.")(command)


def user_entrypoints(given: Sequence[str], rules: str | None = None) -> dict[str, str]:
    """Return the mains of ``--main`` and of the rules. Raises UserError for a wrong one."""
    from_rules: Mapping[str, str] = {}
    if rules:
        from trinity_compat.translate.rows import rules_of  # here: it takes longer than to parse a script

        from_rules = rules_of(rules).mains
    return {**from_rules, **parse_user_mains([name_and_value("--main", text) for text in given])}


class WithScriptArguments(click.Command):
    """Keeps what follows -- apart, as ``ctx.obj``: click would drop the dashes."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        at = args.index("--") if "--" in args else len(args)
        ctx.obj = tuple(args[at + 1 :])
        return super().parse_args(ctx, args[:at])


def name_and_value(option: str, text: str) -> tuple[str, str]:
    """Split ``NAME=VALUE`` in two. Raises UserError that names the option."""
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise UserError(f"{option} {text}: not of the form NAME=VALUE")
    return name, value


def write(text: str, output: Path | None, *, sources: Iterable[str | Path] = ()) -> None:
    """Write ``text``, as ``leaving`` has it, to stdout (``output`` None or ``-``) or the file ``output``.

    Raises UserError as ``writing`` does. Bytes of a script that are not UTF-8 are shown as ``\\udce9``.
    """
    with writing(output, sources=sources) as file:
        file.write(leaving(text).encode())


@contextmanager
def writing(output: Path | None, *, sources: Iterable[str | Path] = ()) -> Iterator[IO[bytes]]:
    """Open the output of ``-o``: stdout (None or ``-``), or ``output`` as ``replacing`` does.

    Raises UserError where it cannot be written, and where it is one of the ``sources`` that were read.
    """
    if output in (None, _STDOUT):
        sys.stdout.flush()
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    refuse_overwriting(output, sources)
    try:
        with replacing(output) as file:
            yield file
    except OSError as error:
        raise UserError(f"cannot write: {error.strerror}", where=Where(str(output))) from None


def refuse_overwriting(output: Path, sources: Iterable[str | Path]) -> None:
    """Raise UserError where ``output`` is one of the files that the command reads, by any name."""
    for source in sources:
        if _is_same_file(output, Path(source)):
            raise UserError(
                "this is the file that is read, and would be overwritten",
                where=Where(str(output)),
                hint="name another file with -o",
            )


def _is_same_file(output: Path, source: Path) -> bool:
    try:
        return source.is_file() and output.samefile(source)
    except (OSError, ValueError):
        return False
