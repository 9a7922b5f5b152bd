"""``trinity-compat compare``: two or more runs side by side, with a verdict."""

from __future__ import annotations

from pathlib import Path

import click
from rich.console import Console

from trinity_compat.cli._shared import NAMED_FILE, name_and_value, write
from trinity_compat.common.errors import UserError
from trinity_compat.common.output_text import styled
from trinity_compat.compare.axes import AXES, Axis
from trinity_compat.compare.margins import CompareOptions, Margins
from trinity_compat.compare.verdict import Comparison


@click.command(name="compare")
@click.argument("sides", nargs=-1, required=True, type=NAMED_FILE, metavar="A B [C…]")
@click.option("--axis", type=click.Choice(AXES), default="step", help="Axis on which the curves are aligned.")
@click.option("--updates-per-step", "-r", type=click.IntRange(1), help="Optimizer updates per veRL step.")
@click.option("--samples-per-step", type=click.IntRange(1), help="Responses per veRL step (batch × n).")
@click.option("--paired", is_flag=True, help="Pair the runs: the k-th run of each side has the same seed.")
@click.option(
    "--metric", "metrics", multiple=True, help="Compare only metrics with this prefix; may be repeated."
)
@click.option("--pair", "pairs", multiple=True, metavar="THEIRS=OURS", help="Treat metric THEIRS as OURS.")
@click.option(
    "--rules",
    type=NAMED_FILE,
    metavar="FILE|FAMILY",
    help="Rules whose `metrics` hold such pairs (docs/rules.md).",
)
@click.option(
    "--margin",
    "margins",
    multiple=True,
    metavar="NAME=VALUE",
    help="Count metric (or group) NAME as the same within VALUE: 0.02, or 5% of A's level.",
)
@click.option(
    "--margins",
    "margin_file",
    type=click.Path(path_type=Path),
    help="YAML file of margins, one `NAME: VALUE` a line.",
)
@click.option(
    "--plan",
    metavar="VALUE",
    help="Plan seeds: print how many a side are needed to detect a difference of VALUE (0.02, 5%).",
)
@click.option("--assert", "assertions", multiple=True, metavar="EXPR", help="Exit 1 unless EXPR holds.")
@click.option(
    "--configs", is_flag=True, help="Take A and B as launches and compare their effective configurations."
)
@click.option("--format", "form", type=click.Choice(["text", "json", "md", "html"]), default="text")
@click.option(
    "-o", "--output", type=click.Path(dir_okay=False, path_type=Path), help="File to write instead of stdout."
)
def command(
    sides: tuple[str, ...],
    axis: Axis,
    updates_per_step: int | None,
    samples_per_step: int | None,
    paired: bool,
    metrics: tuple[str, ...],
    pairs: tuple[str, ...],
    rules: str | None,
    margins: tuple[str, ...],
    margin_file: Path | None,
    plan: str | None,
    assertions: tuple[str, ...],
    configs: bool,
    form: str,
    output: Path | None,
) -> int:
    """Compare runs: do they train the same?

    A side is a path, several paths joined by commas (its seeds), or LABEL=PATH[,PATH…]. A path is a job
    directory, a TensorBoard directory, a W&B offline run, an mlflow store, CSV, JSON(L) or a veRL log;
    a directory of such runs is a side with several seeds. B, C, … are each compared with A. --plan takes
    one side as well.

    Exit code: 0, 1 when an --assert fails, 2 when the input is wrong.
    """
    if len(sides) < 2 and plan is None:
        raise UserError("compare needs two sides", hint="trinity-compat compare A B, or A --plan 0.02")
    if configs:
        from trinity_compat.cli.diff import differences, rendered

        _refuse_beside("--configs", "compares configurations", ("sides", "configs", "output", "form"))
        _print(rendered(differences(sides), form), output)
        return 0
    given = given_margins(margins, margin_file)
    options = CompareOptions(
        axis, updates_per_step, samples_per_step, paired, metrics, _pairs(pairs, rules), given
    )
    if plan is not None:
        return _plan(sides, plan, options, form, output)
    return _compare_runs(sides, options, assertions, form, output)


def _compare_runs(
    sides: tuple[str, ...],
    options: CompareOptions,
    assertions: tuple[str, ...],
    form: str,
    output: Path | None,
) -> int:
    from trinity_compat.compare.assertion import failure
    from trinity_compat.compare.sources import read_side, same_runs
    from trinity_compat.compare.verdict import compare

    named = _labelled(sides)
    read = [read_side(paths, label) for label, paths in named]
    for warning in same_runs(read):
        click.echo(warning, err=True)
    comparisons = [compare(read[0], other, options) for other in read[1:]]
    tried = [(e, c, failure(e, c)) for c in comparisons for e in assertions]
    failed = [(e, c, why) for e, c, why in tried if why is not None]
    _print(_render(comparisons, form), output)
    for expression, comparison, why in failed:
        reason = f": {why}" if why else ""
        click.echo(f"assertion failed ({comparison.b.label}): {expression}{reason}", err=True)
    return 1 if failed else 0


def _labelled(sides: tuple[str, ...]) -> list[tuple[str, list[Path]]]:
    """(label, paths) of each side; sides that would be called the same are called by their whole text."""
    named = [_side(text) for text in sides]
    labels = [label for label, _ in named]
    if len(set(labels)) == len(labels):
        return named
    return [(text, paths) for text, (_, paths) in zip(sides, named, strict=True)]


def _side(text: str) -> tuple[str, list[Path]]:
    """``label=path,path`` → (label, paths); a text that is an existing path is taken as it is."""
    if text and Path(text).exists():
        return Path(text).name or text, [Path(text)]
    label, sep, rest = text.partition("=")
    paths = [Path(piece) for piece in (rest if sep else text).split(",") if piece]
    return (label if sep else text), paths


_HEARD_BY_PLAN = (
    "sides",
    "plan",
    "axis",
    "updates_per_step",
    "samples_per_step",
    "metrics",
    "output",
    "form",
)


def _refuse_beside(option: str, does: str, heard: tuple[str, ...]) -> None:
    """An option that ``option`` doesn't hear would look obeyed, an --assert even held."""
    context = click.get_current_context()
    for parameter in context.command.params:
        name = parameter.name or ""
        given = context.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE
        if given and name not in heard:
            raise UserError(f"{parameter.opts[0]} is about runs, {option} {does}")
    if context.params["form"] == "html":
        raise UserError(f"{option} has no HTML", hint="--format text, md or json")


def _plan(sides: tuple[str, ...], plan: str, options: CompareOptions, form: str, output: Path | None) -> int:
    from trinity_compat.compare.margins import amount
    from trinity_compat.compare.seed_planning import as_text, make_plan
    from trinity_compat.compare.sources import read_side

    _refuse_beside("--plan", "plans alone", _HEARD_BY_PLAN)
    difference = amount("--plan", plan)
    read = [read_side(paths, label) for label, paths in _labelled(sides)]
    _print(as_text(make_plan(read, difference, options), form), output)
    return 0


def given_margins(margins: tuple[str, ...], file: Path | None) -> Margins:
    """Return the margins of the file, replaced by those of the command line."""
    from trinity_compat.compare.margins import amount, read

    given = read(file) if file else {}
    named = dict(name_and_value("--margin", text) for text in margins)
    overrides = {name: amount(f"--margin {name}", value) for name, value in named.items()}
    return Margins({**given, **overrides}, frozenset(overrides))


def _pairs(pairs: tuple[str, ...], rules: str | None) -> dict[str, str]:
    """Return the pairs of ``--pair``, added to those of the rules."""
    for pair in pairs:
        if "=" not in pair:
            raise UserError(f"--pair {pair!r} has no '='", hint="--pair eval/gsm8k/accuracy=val-core/…")
    named: dict[str, str] = {}
    if rules:
        from trinity_compat.translate.rows import rules_of  # here: translating is half a second of imports

        named.update(rules_of(rules).metrics)
    return named | dict(pair.split("=", 1) for pair in pairs)


def _render(comparisons: list[Comparison], form: str) -> str:
    from trinity_compat.compare import report

    if form == "json":
        return report.as_json(comparisons)
    if form == "html":
        from trinity_compat.compare.configs import of_runs
        from trinity_compat.compare.html import as_html, together

        metas = [[side.runs[0].meta for side in (c.a, c.b)] for c in comparisons]
        pages = [as_html(c, config_diff=of_runs(*pair)) for c, pair in zip(comparisons, metas, strict=True)]
        return together([c.b.label for c in comparisons], pages) if len(pages) > 1 else pages[0]
    if form == "md":
        return "\n".join(map(report.as_markdown, comparisons))

    def show(console: Console) -> None:
        for comparison in comparisons:
            report.print_text(comparison, console)

    return styled(show, width=160)


def _print(text: str, output: Path | None) -> None:
    write(text if text.endswith("\n") else f"{text}\n", output)
    if output is not None:
        click.echo(f"wrote {output}", err=True)
