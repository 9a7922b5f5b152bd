"""Planning of a run: from a Trinity YAML to the data that its processes need.

The only input is the Trinity configuration, with the veRL keys that it carries. Overlays (profiles,
``--set``) act on the veRL configuration composed from it; the YAML itself stays as ``translate`` wrote it.

The way: ``read_request`` (configuration, command line, overlays) → ``_begun`` (veRL's complete
configuration) → ``STEPS``, each of which takes the draft and returns it with what it decides → ``_finished``
(the plan).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from trinity_compat.common import optional_packages
from trinity_compat.common.errors import UserError
from trinity_compat.common.nested import Tree, value_at
from trinity_compat.common.network import outward_address
from trinity_compat.common.plugin_packages import Plugin
from trinity_compat.common.redaction import resolved
from trinity_compat.job import runtime_env
from trinity_compat.job.run_spec import ExpertSpec, Mode, RowsSpec, RunSpec, SyncSpec, seed_of
from trinity_compat.job.vllm_arguments import changes, given_in, release_for
from trinity_compat.run.job_dir.job_dir import JobDir
from trinity_compat.run.plan import (
    colocate,
    engine,
    environment,
    error_locations,
    file_rows,
    ignored_keys,
    micro_batches,
    mode_and_gpus,
    paths,
    pipelines,
    plugin_uses,
    refusals,
    run_length,
    serving,
    single_side,
    verl_checkout,
    verl_trainer,
    workflows,
)
from trinity_compat.run.plan.devices import detect_device, is_elsewhere, usable
from trinity_compat.run.plan.read_settings import max_staleness, retries, setting_of, spec_fields
from trinity_compat.run.plan.request import RunRequest, read_request
from trinity_compat.run.plan.run_plan import RunPlan, closing_notes, opening_notes
from trinity_compat.run.plan.source import RunOptions, Source
from trinity_compat.run.plan.verl_view import Step, VerlView
from trinity_compat.translate import verl_from_trinity
from trinity_compat.translate.replay import replay_of
from trinity_compat.translate.trinity_reader import TrinityReader
from trinity_compat.translate.update_steps import mini_batches
from trinity_compat.trinity.workflows.plugins import registered_in
from trinity_compat.verl_config.pinned import compose_pinned, in_keys_of


@dataclass(frozen=True, slots=True)
class DraftPlan:
    """A plan in the making: what has been decided so far, with the lines that say it.

    ``launch`` is veRL's complete configuration with the overlays, ``verl`` the same as far as it has been
    adapted to this run.
    """

    request: RunRequest
    job: JobDir
    launch: VerlView
    verl: VerlView
    sync: SyncSpec
    mode: Mode = "both"
    rows: RowsSpec | None = None
    experts: ExpertSpec | None = None
    notes: tuple[str, ...] = ()

    def adapted(self, step: Step) -> DraftPlan:
        """Return the draft after a step that adapts veRL's configuration."""
        verl, notes = step
        return replace(self, verl=verl, notes=(*self.notes, *notes))


def plan_source(source: Source, options: RunOptions, *, cwd: Path) -> RunPlan:
    """Plan a run of a source, with notes on keys that it does not read.

    Raises UserError, of a YAML at the line of the field that it is about, for what veRL or this run refuses
    too.
    """

    def planned(config: Tree, sets: Sequence[str]) -> RunPlan:
        return make_plan(config, replace(options, sets=tuple(sets)), cwd=cwd)

    with error_locations.relocate_errors(source, options.sets):
        plan, written = planned(source.config, options.sets), ignored_keys.written_for(source)
        plan = ignored_keys.with_ignored_keys(plan, source, options.sets, written)
        ignored_keys.refuse_overruled(source, options.sets, planned, written)
        elsewhere = is_elsewhere(plan.spec.device, dry_run=options.dry_run)
        config = environment.filled(source.config, os.environ)
        refusals.check_strategy(config, plan.spec.verl, source.record)
        refusals.check(plan.spec.verl, source.record, cwd=plan.cwd, elsewhere=elsewhere)
        if plan.spec.mode not in ("bench", "serve"):
            micro_batches.check(plan.spec.verl, source.record)
        return plan


def make_plan(config: Tree, options: RunOptions, *, cwd: Path, device: str | None = None) -> RunPlan:
    """Turn a Trinity configuration (plain containers) into a plan, without writing anything.

    Raises UserError for values that cannot be run.
    """
    draft = _begun(
        read_request(config, options, usable(device or options.device or detect_device()), cwd), config
    )
    for step in STEPS:
        draft = step(draft)
    return _finished(draft)


def _begun(request: RunRequest, config: Tree) -> DraftPlan:
    """Compose veRL's complete configuration, with the overlays. Raises UserError.

    ``config``: the file's own, without the sets.
    """
    trinity, options = request.trinity, request.options
    composed = compose_pinned(request.verl_values, verl_from_trinity.flavour_of(trinity))
    verl = VerlView.of(resolved(composed, os.environ))
    run_length.refuse_idle_epochs(options.sets, trinity, verl.trainer.total_steps)
    return DraftPlan(
        request,
        JobDir(paths.job_root(trinity, options, request.cwd)),
        verl,
        verl,
        verl_from_trinity.sync_of(trinity),
        rows=file_rows.training_rows(trinity, options, request.cwd),
        notes=(
            *opening_notes(request),
            *paths.job_that_set_renames(
                trinity, environment.filled(config, os.environ), options, request.cwd
            ),
        ),
    )


def divide_micro_batches(draft: DraftPlan) -> DraftPlan:
    """Divide sizes of micro-batches by all GPUs of the launch, before these are split."""
    return draft.adapted(micro_batches.divided(draft.verl))


def generate_by_vllm(draft: DraftPlan) -> DraftPlan:
    """Take vLLM for another engine, engines for its data-parallel ranks, and this release's arguments."""
    device = draft.request.device
    draft = draft.adapted(engine.on_vllm(draft.verl))
    draft = draft.adapted(engine.sized(draft.verl.changed(engine.left_out(draft.verl)), device))
    return draft.adapted((draft.verl, [*changes(given_in(draft.verl.tree), release_for(device))]))


def place_in_job(draft: DraftPlan) -> DraftPlan:
    """Keep what is saved in the job's folder, and nothing of a veRL checkout that lies in the launch's."""
    own = {
        "trainer.default_local_dir": str(draft.job.root),
        "trainer.device": draft.request.device,
        "trainer.use_v1": setting_of(draft.request.trinity, "trainer") == "v1",
    }
    verl = plugin_uses.with_loss(draft.verl.changed(own))
    return draft.adapted(verl_checkout.without_checkout(verl, draft.request.cwd))


def cut_updates(draft: DraftPlan) -> DraftPlan:
    """Cut a step into whole updates of the critic; those of the actor are the YAML's."""
    return draft.adapted(micro_batches.whole_updates(draft.verl))


def add_workflows(draft: DraftPlan) -> DraftPlan:
    """Carry workflows, operators of pipelines and prepared tasks to where both sides find them."""
    request = draft.request
    trinity, cwd, folders = request.trinity, request.cwd, workflows.folders_of(request.options, request.cwd)
    draft = draft.adapted(workflows.with_tasksets(draft.verl, trinity, folders, cwd))
    workflows.check_update(draft.verl, trinity, environment.filled(request.written, os.environ))
    explorers = request.options.explorers
    draft = draft.adapted(pipelines.with_operators(draft.verl, trinity, folders, cwd, explorers=explorers))
    taskset, mode = workflows.first_taskset(trinity), request.options.mode or value_at(trinity, "mode")
    return draft.adapted(pipelines.with_task_pipeline(draft.verl, trinity, taskset, cwd, mode))


def choose_mode(draft: DraftPlan) -> DraftPlan:
    """Take turns on all GPUs, or split them."""
    mode, notes = mode_and_gpus.choose_mode(draft.verl, draft.request, splits=draft.rows is None)
    return replace(draft, mode=mode, notes=(*draft.notes, *notes))


def assign_gpus(draft: DraftPlan) -> DraftPlan:
    """Assign GPUs to both sides; rows of files need no explorer."""
    if draft.rows is not None:
        return draft
    return draft.adapted(mode_and_gpus.assign_gpus(draft.verl, draft.request, draft.mode))


def size_micro_batches(draft: DraftPlan) -> DraftPlan:
    """Size micro-batches for the trainer's own GPUs."""
    experts = file_rows.expert_rows(draft.request.trinity, draft.request.cwd)
    draft = draft.adapted(file_rows.cut_evenly(draft.verl, draft.rows, experts))
    return replace(draft.adapted(micro_batches.with_room(draft.verl, draft.launch)), experts=experts)


def choose_transport(draft: DraftPlan) -> DraftPlan:
    """Choose the way of the weights that fits the mode and the machines."""
    machines = colocate.machines(draft.request.device, draft.launch.trainer.nodes)
    sync, notes = colocate.weights(draft.sync, draft.mode, draft.request.options.sets, machines)
    return replace(draft, sync=sync, notes=(*draft.notes, *notes))


# Each takes what the ones before it decided.
STEPS: Sequence[Callable[[DraftPlan], DraftPlan]] = (
    divide_micro_batches,
    generate_by_vllm,
    place_in_job,
    cut_updates,
    add_workflows,
    choose_mode,
    assign_gpus,
    size_micro_batches,
    choose_transport,
)


def _finished(draft: DraftPlan) -> RunPlan:
    """Write the decisions down as the processes need them. Raises UserError for what they cannot do."""
    request, verl, cwd = draft.request, draft.verl, draft.request.cwd
    plugins = plugin_uses.used(verl.tree, registered_in(workflows.folders_of(request.options, cwd)))
    spec = _spec(draft, plugins)
    colocate.check(spec)
    spec, offload_notes = colocate.offload(spec, cwd)
    trainer_notes = verl_trainer.check(spec)
    spec, endpoint_notes = _serving(spec, request)
    ray = value_at(verl.tree, "ray_kwargs.ray_init") or {}
    return RunPlan(
        spec=spec,
        job=draft.job,
        local_dir=draft.launch.trainer.local_dir,
        # The runtime environment is that of each side's job.
        ray={name: value for name, value in ray.items() if name != "runtime_env"},
        cwd=cwd,
        run_cwd=draft.job.root if verl_checkout.holds_verl(cwd) else cwd,
        notes=(
            *draft.notes,
            *offload_notes,
            *trainer_notes,
            *endpoint_notes,
            *plugin_uses.lines(plugins, request.plugins_before),
            *closing_notes(request, verl, spec),
        ),
        env=_log_level(request.trinity)
        | runtime_env.variables(verl.tree)
        | {name: value for each in request.overlays for name, value in each.env},
        explorer=_one_explorer(request.options, draft.mode),
        log_folder=outward_address() if TrinityReader(request.trinity).get("log.group_by_node") else "",
        unread=request.unread,
    )


def _spec(draft: DraftPlan, plugins: tuple[Plugin, ...]) -> RunSpec:
    request, verl, sync = draft.request, draft.verl, draft.sync
    config, options, batches = request.trinity, request.options, verl.batches
    # r after the overlays, from veRL's batch sizes.
    r = (
        mini_batches(batches.train, batches.mini)
        if batches.train and batches.mini
        else request.updates_per_step
    )
    env_vars = TrinityReader(config).get("explorer.env_vars") or {}
    env = {str(name): str(value) for name, value in env_vars.items()}
    return RunSpec(
        job_dir=str(draft.job.root),
        database_url=paths.database_of(config, draft.job, options, request.cwd),
        verl=in_keys_of(optional_packages.version("verl"), verl.tree, verl_from_trinity.flavour_of(config)),
        updates_per_step=r,
        total_steps=run_length.of_launch(config, options.sets, verl.trainer.total_steps) or None,
        sync=replace(sync, directory=sync.directory or str(paths.weights_folder(draft.job, sync))),
        device=request.device,
        mode=draft.mode,
        own_cluster=single_side.is_asked(config, options),
        explorers=options.explorers,
        max_staleness=max_staleness(config, sync, r),
        replay=replay_of(config, updates=r, seed=seed_of(verl.tree), steps=verl.trainer.total_steps or None),
        agent_retries=retries(config),
        env=verl_checkout.python_path(env | workflows.environment(options, request.cwd)),
        resume=bool(config.get("continue_from_checkpoint", True)),
        rows=draft.rows,
        experts=draft.experts,
        plugins=plugins,
        **spec_fields(config, verl.tree, sync),
    )


def _serving(spec: RunSpec, request: RunRequest) -> tuple[RunSpec, list[str]]:
    """Add the endpoint of mode serve, and a separate folder for the weights that it loads from checkpoints.

    A trainer may be publishing to the folder of the run.
    """
    if spec.mode != "serve":
        return spec, []
    endpoint, lines = serving.endpoint_of(request.trinity, request.written)
    apart = replace(spec.sync, directory=f"{spec.sync.directory}-{spec.mode}")
    return replace(spec, serve=endpoint, sync=apart, rows=None, experts=None), lines


def _one_explorer(options: RunOptions, mode: Mode) -> int | None:
    """Check ``--explorer``. Raises UserError for a number out of range, or beside a trainer."""
    number = options.explorer
    if number is not None and mode != "explore":
        raise UserError(
            "--explorer N needs --mode explore",
            hint="start the trainer by another command, with --mode train",
        )
    if number is not None and number >= options.explorers:
        raise UserError(
            f"--explorer {number} of --explorers {options.explorers}: numbers start at 0",
            hint="give every command the same --explorers, and each its own --explorer",
        )
    return number


_LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR")


def _log_level(config: Tree) -> dict[str, str]:
    """``log.level`` for the loggers of veRL and vLLM. Raises UserError for an unknown level."""
    level = TrinityReader(config).get("log.level")
    if not level:
        return {}
    name = str(level).upper()
    if name not in _LEVELS:
        raise UserError(f"log.level={level}", hint=f"use one of {', '.join(_LEVELS)}")
    return {"VERL_LOGGING_LEVEL": name, "VLLM_LOGGING_LEVEL": name}
