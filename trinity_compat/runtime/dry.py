"""``run --dry-run``: the YAML and the plan, without executing any of the script."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from trinity_compat.errors import UserError
from trinity_compat.launch import read_script
from trinity_compat.runtime import captured, foreseen, micro_batches, plan, refusals, unread
from trinity_compat.runtime.intercept import Invocation
from trinity_compat.runtime.plan import Options
from trinity_compat.runtime.session import Request, check_script
from trinity_compat.runtime.source import Source, from_yaml


def lines(path: str, arguments: Sequence[str], options: Options) -> Iterator[str]:
    """The YAML that a run would read, then the plan as comments. Raises UserError."""
    for source, rest in sources(path, arguments, options):
        made = unread.named(plan.make_plan(source.config, rest, cwd=Path.cwd()), source, rest.sets)
        refusals.check(made.spec.verl, source.record, cwd=made.cwd, explorers=made.spec.explorers)
        if made.spec.mode != "bench":
            micro_batches.check(made.spec.verl, source.record)
        yield source.yaml_text.rstrip("\n")
        for line in (*made.notes, *plan.describe(made)):
            yield f"# {line}"


def sources(path: str, arguments: Sequence[str], options: Options) -> Iterator[tuple[Source, Options]]:
    """What a YAML or a script would run, without executing any of it. Raises UserError."""
    if path.endswith((".yaml", ".yml")):
        yield from_yaml(Path(path)), options
        return
    check_script(Path(path))
    request = Request(path, tuple(arguments), {}, str(Path.cwd()), dict(os.environ))
    foreseen.check(path, arguments, request.environ)
    launches = read_script(path, args=arguments, env=request.environ).launches
    if not launches:
        raise UserError(f"{path} starts no veRL training main that can be read without running it")
    for launch in launches:
        open_words = [piece for word in launch.arguments for piece in word.open]
        if open_words:
            raise UserError(
                f"{open_words[0].expression} cannot be known without running something",
                where=open_words[0].where,
                hint="give the variable that holds it in the environment, or run without --dry-run",
            )
        words = tuple(word.text for word in launch.arguments)
        yield captured.source_of(Invocation(launch.module, words), request, options)
