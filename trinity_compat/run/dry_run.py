"""``run --dry-run``: the plan and its check by veRL and vLLM, notes, the YAML. Nothing of the script runs."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from trinity_compat.common import file_modes
from trinity_compat.common.errors import UserError
from trinity_compat.common.nested import value_at
from trinity_compat.job.gpus import Side, check_gpus
from trinity_compat.job.run_spec import RunSpec
from trinity_compat.launch.job_files import is_configuration
from trinity_compat.run import config_files
from trinity_compat.run.advice import advise, against_stock
from trinity_compat.run.checks import loggers, preflight, start_check
from trinity_compat.run.checks.report import StartReport
from trinity_compat.run.job_dir.job_dir import locked
from trinity_compat.run.plan import error_locations, overlay, refusals, stages
from trinity_compat.run.plan.devices import gpus_here, is_elsewhere
from trinity_compat.run.plan.run_plan import RunPlan, describe
from trinity_compat.run.plan.source import RunOptions, Source, from_yaml
from trinity_compat.run.script import intercept_check, launch_source, static_reading
from trinity_compat.run.script.run_script import check_script
from trinity_compat.run.script.shared_folder import ScriptCall


@dataclass(frozen=True, slots=True)
class Blocker:
    """Reason for which a run here would end; ``fix``: what to write or do instead, "" where not known."""

    message: str
    fix: str = ""


@dataclass(frozen=True, slots=True)
class DryRun:
    """A launch as it would run: the YAML, remarks on it, the plan, and what veRL and vLLM say of it.

    ``blockers``: of a run on this machine, though it may run on another one.
    ``wrote``: the folder with the run's files, where ``--job`` asks for them.
    """

    yaml: str
    notes: Sequence[str]
    plan: Sequence[str]
    start: StartReport
    blockers: Sequence[Blocker] = ()
    wrote: str | None = None

    def lines(self, *, show_yaml: bool = False) -> Iterator[str]:
        """Yield the plan and the notes; with ``show_yaml`` as comments above the YAML."""
        wrote = [f"wrote     {self.wrote}"] if self.wrote else []
        for line in (*self.plan, *wrote, *self.notes):
            yield f"# {line}" if show_yaml else line
        if show_yaml:
            yield self.yaml


def lines(
    path: str, arguments: Sequence[str], options: RunOptions, *, show_yaml: bool = False
) -> Iterator[str]:
    """Yield the plan of each launch, a blank line between them, and with ``show_yaml`` what a run would read.

    With ``options.job`` the files of a run's config folder are written there. Raises UserError.
    """
    for number, one in enumerate(launches(path, arguments, options)):
        if number:
            yield "---" if show_yaml else ""
        yield from one.lines(show_yaml=show_yaml)


def launches(path: str, arguments: Sequence[str], options: RunOptions) -> Iterator[DryRun]:
    """Yield each launch as it would run; writes and raises as ``lines`` does."""
    found = list(sources(path, arguments, options))
    if options.job and len({rest.job for _, rest in found}) < len(found):
        raise UserError(
            f"{path} makes {len(found)} launches, and --job names one folder", hint="leave out --job"
        )
    for source, rest in found:
        yield _dry_run(source, rest)


def spec_of(path: str) -> RunSpec:
    """Return what the only launch of ``path`` would run on this machine or its cluster. Raises UserError."""
    found = list(sources(path, (), RunOptions(dry_run=True)))
    if len(found) != 1:
        raise UserError(f"{path} makes {len(found)} launches", hint="give a script that makes one")
    source, options = found[0]
    return against_stock.plan_and_compare(source, options, cwd=Path.cwd()).spec


def _dry_run(source: Source, options: RunOptions) -> DryRun:
    plan = against_stock.plan_and_compare(source, options, cwd=Path.cwd())
    # A run reads this from Ray; a dry run from the option.
    if options.gpus is not None and plan.spec.device != "cuda":
        raise UserError(f"--gpus {options.gpus}: this run is for a CPU", hint="add --device cuda")
    if options.gpus is not None:
        _check_gpus(plan.spec, options.gpus, "--gpus")
    lacks = []
    for each in preflight.missing(plan):
        text, where = error_locations.in_file(each.message, source)
        lacks.append(Blocker(f"{where}: {text}" if where and where.line else text, each.hint or ""))
    missing = tuple(f"note: {each.message}" for each in lacks)
    with error_locations.relocate_errors(source, options.sets):
        report = start_check.check(plan, source.record, execute=False)
    if options.job:
        _write(replace(plan, notes=(*plan.notes, *missing)), source, options, report)
    return DryRun(
        yaml=source.yaml_text.rstrip("\n"),
        notes=(*source.notes, *plan.notes, *missing),
        plan=(
            *start_check.lines(report),
            *describe(plan),
            *(_assumed(plan) if is_elsewhere(plan.spec.device, dry_run=options.dry_run) else ()),
            *preflight.remarks(plan),
            *advise.remarks(plan.spec, source, options, source.record.get("script", "")),
        ),
        start=report,
        blockers=(*lacks, *_of_this_machine(plan, source, options)),
        wrote=str(plan.job.root / "config") if options.job else None,
    )


def _of_this_machine(plan: RunPlan, source: Source, options: RunOptions) -> Iterator[Blocker]:
    """Yield what this machine lacks for the plan: GPUs, packages and keys of loggers."""
    spec = plan.spec
    sizes = [value_at(source.config, f"cluster.{name}", 1) for name in ("node_num", "gpu_per_node")]
    wanted = math.prod(size if isinstance(size, int) else 1 for size in sizes)
    if spec.device == "cpu" and options.device is None and wanted > 1:
        lack = f"the launch is for {wanted} GPUs, and none is here"
        yield Blocker(lack, "--device cpu trains it on the CPU")
    looks = [partial(_check_gpus, spec, gpus_here(spec.device) if options.gpus is None else options.gpus)]
    # The value that a script gives is known where it runs.
    exported = any(name.startswith("WANDB_") for name in source.record.get("exported", ()))
    if not exported and not spec.serve:
        looks.append(partial(loggers.check, spec.verl))
    for look in looks:
        try:
            look()
        except UserError as error:
            yield Blocker(error.message, error.hint or "")


def _check_gpus(spec: RunSpec, have: float, option: str = "") -> None:
    side: Side = "explorer" if spec.mode in ("explore", "serve") else "trainer"
    check_gpus(spec, side, have, option=option)


def _assumed(plan: RunPlan) -> Iterator[str]:
    """Yield a line with the packages that the plan needs and this machine lacks."""
    verl = plan.spec.verl
    flash = ["flash-attn"] if overlay.flash_attn_is_missing(verl, plan.spec.device) else []
    stand_in = f" (a run without flash-attn takes profile {overlay.FLASH_ATTN_PROFILE})" if flash else ""
    if packages := [
        *flash,
        *refusals.missing_for_training(verl),
        *refusals.missing_for_media(verl, plan.cwd),
    ]:
        yield (
            f"assumed   {', '.join(packages)} on the machine with the GPUs; not installed here, where there"
            f" are none{stand_in}"
        )


def _write(plan: RunPlan, source: Source, options: RunOptions, report: StartReport) -> None:
    """Write the config folder. Raises UserError for a folder that holds a run, whose files must stay."""
    # The spec that lies there is the one that `status` and a resume read.
    if (plan.job.root / "buffer").exists():
        raise UserError(
            f"--job {options.job}: this folder holds a run; a dry run would replace its configuration",
            hint="name an empty folder",
        )
    plan.job.create(["config"])
    with locked(plan.job, plan.spec.mode), file_modes.umask(plan.job.umask):
        config_files.write(plan, source, options, report)


def sources(path: str, arguments: Sequence[str], options: RunOptions) -> Iterator[tuple[Source, RunOptions]]:
    """Return the runs of a YAML or a script without executing any of it. Raises UserError."""
    if is_configuration(path):
        source = from_yaml(Path(path))
        found = stages.parts(source, options, Path.cwd())
        for part in found:  # files are written only where --job names the place
            yield part.source, part.options if options.job else replace(part.options, job=None)
        if not found:
            yield source, options
        return
    check_script(Path(path))
    call = ScriptCall(path, tuple(arguments), options, str(Path.cwd()), dict(os.environ))
    intercept_check.check(path, arguments, call.environ, options.mains)
    for invocation in static_reading.invocations(call):
        yield launch_source.source_of(invocation, call)
