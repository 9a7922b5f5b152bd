"""``trinity-compat translate``: a veRL launch as Trinity YAML."""

from __future__ import annotations

import os
import shlex
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import click

from trinity_compat.cli._shared import (
    NAMED_FILE,
    WithScriptArguments,
    main_option,
    name_and_value,
    quiet_option,
    release_options,
    rules_option,
    script_options,
    set_option,
    user_entrypoints,
    write,
)
from trinity_compat.common.errors import UserError
from trinity_compat.common.reading_process import restart
from trinity_compat.common.redaction import masked
from trinity_compat.common.releases import TRINITY, TRINITY_OLD
from trinity_compat.launch import (
    Launch,
    Reading,
    merged,
    read_argv,
    read_script,
    read_text,
    refuse_broken_script,
    refuse_lost_arguments,
)
from trinity_compat.launch.bash.programs.clock import one_moment
from trinity_compat.launch.environment import computed_variables, unused_variables
from trinity_compat.launch.job_files import is_configuration
from trinity_compat.translate import (
    Status,
    TranslateOptions,
    Translation,
    frozen_variables,
    translate_config,
    translate_launch,
)
from trinity_compat.translate.env_references import resolved_launch
from trinity_compat.translate.model import FAIL_ON, Finding, Severity, without_routine
from trinity_compat.translate.pipeline import refuse_unstartable
from trinity_compat.trinity.config import TARGETS
from trinity_compat.verl_config import config_from_yaml


@click.command(name="translate", cls=WithScriptArguments)
@click.argument("source", type=NAMED_FILE, required=False)
@click.option(
    "-o", "--output", type=click.Path(dir_okay=False, path_type=Path), help="File to write instead of stdout."
)
@click.option(
    "--target",
    type=click.Choice(TARGETS),
    help=f"trinity-rft release to write for.  [default: {TRINITY}; {TRINITY_OLD} with --as-published]",
)
@release_options
@click.option("--rollout-gpus", type=click.IntRange(min=1), help="Number of GPUs for the explorer.")
@click.option(
    "--sync-offset",
    type=click.IntRange(min=0),
    default=0,
    help="Number of veRL steps that the explorer may be ahead.",
)
@click.option(
    "--as-published",
    is_flag=True,
    help="Write values as the published guide does (steps not multiplied, offset 1).",
)
@click.option(
    "--launch",
    "which",
    default="1",
    metavar="N|all",
    help="Launch of the script to translate, counted from 1.",
)
@click.option(
    "--fail-on", type=click.Choice(FAIL_ON), help="Exit 1 if any finding has this status or a worse one."
)
@click.option(
    "--resolve",
    is_flag=True,
    help="Replace environment variables by their values from --env and the environment.",
)
@click.option("--minimal", is_flag=True, help="Leave out lines that only repeat a default.")
@click.option("--no-comments", is_flag=True, help="Leave out the comments with each line's reason.")
@set_option
@quiet_option
@rules_option
@main_option
@script_options
@click.option(
    "--argv", is_flag=True, help="Read the words after -- as a command line, not as a script's arguments."
)
@click.pass_obj
def command(
    arguments: tuple[str, ...], source: str | None, output: Path | None, which: str, **given: Any
) -> int:
    """Translate a veRL launch script to a Trinity-RFT YAML.

    SOURCE is a shell script (- for stdin) or a veRL YAML. What follows -- are the script's own
    arguments, or with --argv the whole command line. Nothing of a script is run.

    stdout carries YAML only. Exit code: 0, 1 when a finding reaches --fail-on, 2 when there is no
    translation.
    """
    env = dict(name_and_value("--env", text) for text in given["env"])
    options = _options(given, env)
    results, loses = _translate(source, arguments, which, given, options)
    for translation, _ in results:
        refuse_unstartable(translation)
    write("---\n".join(text for _, text in results), output, sources=[source] if source else [])
    if not given["quiet"]:
        # what several launches share once
        times = Counter(line for translation, _ in results for line in _summary_lines(translation))
        for line, count in times.items():
            click.echo(line if count == 1 else f"{line} ({count} launches)", err=True)
    limit = given["fail_on"]
    loses &= limit == Severity.DECIDE
    return int(limit is not None and (loses or any(each.reaches(limit) for each, _ in results)))


def _options(given: dict[str, Any], env: dict[str, str]) -> TranslateOptions:
    return TranslateOptions(
        target=given["target"],
        verl_version=given["verl_version"],
        fork_config=not given["no_fork_config"],
        rollout_gpus=given["rollout_gpus"],
        sync_offset=given["sync_offset"],
        as_published=given["as_published"],
        resolve=given["resolve"],
        env=env,
        environ=dict(os.environ) if given["resolve"] else {},
        assignments=dict(name_and_value("--set", text) for text in given["assignments"]),
        rules=given["rules"],
        mains=user_entrypoints(given["mains"], given["rules"]),
        comments=not given["no_comments"],
        minimal=given["minimal"],
        command=shlex.join(["trinity-compat", *masked(_without_output(sys.argv[1:]))]),
    )


def _without_output(argv: list[str]) -> list[str]:
    """The command line without what only says where the result goes."""
    shown, skip = [], False
    for word in argv:
        if skip or word.startswith("--output="):
            skip = False
        elif word in ("-o", "--output"):
            skip = True
        else:
            shown.append(word)
    return shown


def _translate(
    source: str | None,
    arguments: tuple[str, ...],
    which: str,
    given: dict[str, Any],
    options: TranslateOptions,
) -> tuple[list[tuple[Translation, str]], bool]:
    """The translations with their texts, and whether words of the script do not reach a launch."""
    root = Path(given["cwd"]) if given["cwd"] else None
    if source is not None and is_configuration(source) and not given["argv"]:
        given_to_it = {**options.environ, **options.env}
        config = config_from_yaml(
            source, options.verl_version, fork_config=options.fork_config, environ=given_to_it
        )
        results = [translate_config(config, options)]
        _warn_of_files(results, quiet=given["quiet"])
        return results, False
    reading, frozen = _read(source, arguments, given, options)
    options = replace(options, frozen=frozen, surroundings=frozenset(reading.surroundings))
    refuse_lost_arguments(reading)
    for diagnostic in merged(reading.diagnostics):
        if diagnostic.severity == "error" or not given["quiet"]:
            click.echo(diagnostic, err=True)
    chosen = _chosen(reading, which, quiet=given["quiet"])
    results = []
    for launch in chosen:
        restart(str(launch.where))
        results.append(translate_launch(launch, options, root=root))
    if not given["quiet"] and not options.resolve:
        named = {name for _, text in results for name in frozen_variables.named(text)}
        for diagnostic in unused_variables(
            reading, os.environ, {*options.env, *named}, also="--resolve, or "
        ):
            click.echo(diagnostic, err=True)
    _warn_of_files(results, quiet=given["quiet"])
    return results, any(diagnostic.loses for diagnostic in reading.diagnostics)


def _warn_of_files(results: list[tuple[Translation, str]], *, quiet: bool) -> None:
    for translation, _ in results if not quiet else ():
        unread = frozen_variables.not_read_by_hydra(translation.environment, os.environ, "--resolve, or ")
        for diagnostic in (*translation.notes, *unread):
            click.echo(diagnostic, err=True)


def _read(
    source: str | None, arguments: tuple[str, ...], given: dict[str, Any], options: TranslateOptions
) -> tuple[Reading, frozenset[str]]:
    """The reading, and the variables from which the script has computed more than it hands on."""
    if given["argv"]:
        words = [*([source] if source else []), *arguments]
        return read_argv(words, env=options.env, mains=options.mains), frozenset()
    if source is None:
        raise UserError("no script is given", hint="trinity-compat translate run.sh, or - for stdin")
    read: Callable[..., Reading]
    if source == "-":
        text = sys.stdin.buffer.read().decode(errors="surrogateescape")
        read = partial(read_text, text, name="<stdin>", cwd=given["cwd"], args=arguments, mains=options.mains)
    else:
        read = partial(read_script, source, cwd=given["cwd"], args=arguments, mains=options.mains)
    with one_moment():
        if options.resolve:
            return _under_environment(read, options), frozenset()
        plain = read(env=options.env)
        return plain, computed_variables(plain, lambda extra: read(env={**options.env, **extra}))


def _under_environment(read: Callable[..., Reading], options: TranslateOptions) -> Reading:
    """Read again with the user's environment where the script computes from a variable.

    Otherwise the values are filled in afterwards, which keeps more exact places.
    """
    plain = read(env=options.env)
    environ = {**options.environ, **options.env}
    known = read(env=environ, given=options.env)
    try:
        filled = [resolved_launch(launch, environ).arguments for launch in plain.launches]
    except UserError:
        return plain  # said with its place when the launch is translated
    texts = [[word.text for word in words] for words in filled]
    return plain if texts == [[word.text for word in each.arguments] for each in known.launches] else known


def _chosen(reading: Reading, which: str, *, quiet: bool) -> list[Launch]:
    count = len(reading.launches)
    if not count:
        refuse_broken_script(reading)
        raise UserError(f"{reading.source}: no veRL training is started")
    if which == "all":
        return list(reading.launches)
    if not which.isdigit() or not 1 <= int(which) <= count:
        raise UserError(f"--launch {which}: {reading.source} has {count} launch(es)", hint="1, 2, … or all")
    if count > 1 and which == "1" and not quiet:
        click.echo(
            f"note: {reading.source} has {count} launches; the first is translated (--launch N|all)", err=True
        )
    return [reading.launches[int(which) - 1]]


def _summary_lines(translation: Translation) -> Iterator[str]:
    """Yield the counts, what lies beyond the mild, and the cautions."""
    counts = dict.fromkeys(Status, 0)
    for finding in translation.findings:
        counts[finding.status] += 1
    summary = ", ".join(f"{number} {status}" for status, number in counts.items() if number)
    yield f"{len(translation.findings)} keys: {summary}"
    alike: dict[tuple[str, Status, str], list[Finding]] = {}
    for finding in translation.findings:
        if finding.status.rank >= Status.APPROXIMATED.rank and finding.where is not None:
            alike.setdefault((finding.code, finding.status, finding.reason), []).append(finding)
    for (code, status, reason), found in alike.items():
        place = found[0].where
        keys = [each.key if each.where == place else f"{each.key} ({each.where})" for each in found]
        number = f"{len(keys)} keys: " if len(keys) > 1 else ""
        yield f"{place}: {code} {status} {number}{', '.join(keys)}: {reason}"
    said, routine = without_routine(translation.warnings)
    yield from map(str, said)
    if routine:
        yield routine
