"""Planning of a run: from a Trinity YAML to the data that its processes need.

The only input is the Trinity configuration, with the veRL keys that it carries. Overlays (profiles,
``--set``) act on the veRL configuration composed from it; the YAML itself stays as ``translate`` wrote it.

The steps: ``read_request`` (configuration, command line, overlays) → ``_composed`` (veRL's configuration) →
``_fitted`` (adapted to this job and device) → ``choose_mode``, ``assign_gpus`` → ``_spec``. Each step returns
a new configuration and changes none.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from trinity_compat.common import optional_packages
from trinity_compat.common.errors import UserError
from trinity_compat.common.nested import Tree, value_at
from trinity_compat.common.network import outward_address
from trinity_compat.common.redaction import resolved
from trinity_compat.job import runtime_env
from trinity_compat.job.distillation import is_distilled
from trinity_compat.job.gpus import ENGINES
from trinity_compat.job.run_spec import Mode, RunSpec, SyncSpec, seed_of
from trinity_compat.job.vllm_arguments import changes, given_in, release_for
from trinity_compat.run.job_dir.job_dir import JobDir
from trinity_compat.run.plan import (
    colocate,
    engine,
    environment,
    file_rows,
    gpu_split,
    micro_batches,
    paths,
    pipelines,
    plugin_uses,
    reward_model,
    run_length,
    serving,
    single_side,
    teachers,
    verl_checkout,
    verl_trainer,
    workflows,
)
from trinity_compat.run.plan.devices import detect_device, usable
from trinity_compat.run.plan.gpu_split import fits_no_share, groups_fitted, split_gpus
from trinity_compat.run.plan.read_settings import max_staleness, retries, setting_of, spec_fields
from trinity_compat.run.plan.request import RunRequest, read_request
from trinity_compat.run.plan.run_plan import RunPlan, closing_notes, opening_notes
from trinity_compat.run.plan.source import RunOptions
from trinity_compat.run.plan.verl_view import Step, VerlView
from trinity_compat.translate import verl_from_trinity
from trinity_compat.translate.replay import replay_of
from trinity_compat.translate.trinity_reader import TrinityReader
from trinity_compat.translate.update_steps import mini_batches
from trinity_compat.trinity.workflows.plugins import registered_in
from trinity_compat.verl_config.pinned import compose_pinned
from trinity_compat.verl_config.runnable import in_keys_of


def make_plan(config: Tree, options: RunOptions, *, cwd: Path, device: str | None = None) -> RunPlan:
    """Turn a Trinity configuration (plain containers) into a plan, without writing anything.

    Raises UserError for values that cannot be run.
    """
    request = read_request(config, options, usable(device or options.device or detect_device()), cwd)
    composed = _composed(request)
    job = JobDir(paths.job_root(request.trinity, options, cwd))
    rows = file_rows.training_rows(request.trinity, options, cwd)
    fitted, notes = _fitted(composed, request, job)
    mode, mode_notes = choose_mode(fitted, request, splits=rows is None)
    verl, gpu_notes = assign_gpus(fitted, request, mode) if rows is None else (fitted, [])
    nodes = colocate.machines(request.device, fitted.trainer.nodes)
    sync, sync_notes = colocate.weights(verl_from_trinity.sync_of(request.trinity), mode, options.sets, nodes)
    experts = file_rows.expert_rows(request.trinity, cwd)
    verl, row_notes = file_rows.cut_evenly(verl, rows, experts)
    verl, token_notes = micro_batches.with_room(verl, fitted)
    folders = workflows.folders_of(options, cwd)
    plugins = plugin_uses.used(verl.tree, registered_in(folders))
    spec = replace(_spec(request, verl, job, mode, sync), rows=rows, experts=experts, plugins=plugins)
    colocate.check(spec)
    spec, offload_notes = colocate.offload(spec, cwd)
    trainer_notes = verl_trainer.check(spec)
    spec, endpoint_notes = _serving(spec, request)
    file = environment.filled(config, os.environ)
    job_notes = paths.job_that_set_renames(request.trinity, file, options, cwd)
    return RunPlan(
        spec=spec,
        job=job,
        local_dir=composed.trainer.local_dir,
        ray=_ray_options(verl.tree),
        cwd=cwd,
        run_cwd=job.root if verl_checkout.holds_verl(cwd) else cwd,
        notes=(
            *opening_notes(request),
            *notes,
            *job_notes,
            *mode_notes,
            *gpu_notes,
            *row_notes,
            *token_notes,
            *sync_notes,
            *offload_notes,
            *trainer_notes,
            *endpoint_notes,
            *plugin_uses.lines(plugins, request.plugins_before),
            *closing_notes(request, verl, spec),
        ),
        env=_log_level(request.trinity)
        | runtime_env.variables(verl.tree)
        | {name: value for each in request.overlays for name, value in each.env},
        explorer=_one_explorer(options, mode),
        log_folder=outward_address() if TrinityReader(request.trinity).get("log.group_by_node") else "",
        unread=request.unread,
    )


def _composed(request: RunRequest) -> VerlView:
    """Compose veRL's complete configuration, before it is adapted to this run. Raises UserError."""
    verl = compose_pinned(request.verl_values, verl_from_trinity.flavour_of(request.trinity))
    view = VerlView.of(resolved(verl, os.environ))
    run_length.refuse_idle_epochs(request.options.sets, request.trinity, view.trainer.total_steps)
    return view


def _fitted(composed: VerlView, request: RunRequest, job: JobDir) -> Step:
    """Adapt the configuration to this job and device; the notes name the values that changed.

    The order matters: micro-batches are divided by all GPUs of the launch, before `assign_gpus` splits these;
    and the job's folder is set after the paths of the launch were read.
    """
    verl, notes = micro_batches.divided(composed)
    verl, swapped = engine.on_vllm(verl)
    verl, sizes = engine.sized(verl.changed(engine.left_out(verl)), request.device)
    notes += [*swapped, *sizes]
    notes += changes(given_in(verl.tree), release_for(request.device))
    verl = verl.changed(
        {
            "trainer.default_local_dir": str(job.root),
            "trainer.device": request.device,
            "trainer.use_v1": setting_of(request.trinity, "trainer") == "v1",
        }
    )
    verl, checkout_notes = verl_checkout.without_checkout(plugin_uses.with_loss(verl), request.cwd)
    folders = workflows.folders_of(request.options, request.cwd)
    verl, workflow_notes = workflows.placed(verl, request.trinity, folders, request.cwd)
    workflows.check_update(verl, request.trinity, environment.filled(request.written, os.environ))
    verl, pipeline_notes = pipelines.placed(
        verl, request.trinity, folders, request.cwd, explorers=request.options.explorers
    )
    taskset = workflows.first_taskset(request.trinity)
    mode = request.options.mode or value_at(request.trinity, "mode")
    verl, juicer_notes = pipelines.tasks_placed(verl, request.trinity, taskset, request.cwd, mode)
    return verl, [*notes, *checkout_notes, *workflow_notes, *pipeline_notes, *juicer_notes]


def _spec(request: RunRequest, verl: VerlView, job: JobDir, mode: Mode, sync: SyncSpec) -> RunSpec:
    config, r = request.trinity, _updates(verl, request.r)
    return RunSpec(
        job_dir=str(job.root),
        database_url=paths.database_of(config, job, request.options, request.cwd),
        verl=in_keys_of(optional_packages.version("verl"), verl.tree, verl_from_trinity.flavour_of(config)),
        updates_per_step=r,
        total_steps=run_length.of_launch(config, request.options.sets, verl.trainer.total_steps) or None,
        sync=replace(sync, directory=sync.directory or str(paths.weights_folder(job, sync))),
        device=request.device,
        mode=mode,
        own_cluster=single_side.is_asked(config, request.options),
        explorers=request.options.explorers,
        max_staleness=max_staleness(config, sync, r),
        replay=replay_of(config, updates=r, seed=seed_of(verl.tree), steps=verl.trainer.total_steps or None),
        agent_retries=retries(config),
        env=verl_checkout.python_path(
            _env_vars(config) | workflows.environment(request.options, request.cwd)
        ),
        resume=bool(config.get("continue_from_checkpoint", True)),
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


def _updates(verl: VerlView, r: int) -> int:
    """Return r after the overlays, from veRL's batch sizes. Raises UserError where they don't divide."""
    batch, mini = verl.batches.train, verl.batches.mini
    if not batch or not mini:
        return r
    return mini_batches(batch, mini)


def _env_vars(config: Tree) -> dict[str, str]:
    variables = TrinityReader(config).get("explorer.env_vars") or {}
    return {str(name): str(value) for name, value in variables.items()}


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


def _ray_options(verl: Tree) -> Tree:
    """Return the options for the run's own Ray; its runtime environment is that of each side's job."""
    given = value_at(verl, "ray_kwargs.ray_init") or {}
    return {name: value for name, value in given.items() if name != "runtime_env"}


def _log_level(config: Tree) -> dict[str, str]:
    """``log.level`` for the loggers of veRL and vLLM. Raises UserError for an unknown level."""
    level = TrinityReader(config).get("log.level")
    if not level:
        return {}
    name = str(level).upper()
    if name not in _LEVELS:
        raise UserError(f"log.level={level}", hint=f"use one of {', '.join(_LEVELS)}")
    return {"VERL_LOGGING_LEVEL": name, "VLLM_LOGGING_LEVEL": name}


def choose_mode(verl: VerlView, request: RunRequest, *, splits: bool) -> tuple[Mode, list[str]]:
    """Choose the mode, and return it with notes.

    The command line decides, else the YAML. A launch takes turns on its GPUs, as in veRL, unless something
    asks for a split or needs one; so do sizes that need all of the GPUs. ``splits``: the trainer shares GPUs
    with an explorer.
    """
    if request.options.mode:
        return request.options.mode, []
    mode = colocate.mode_of(request.trinity, request.device)
    is_fixed = not splits or request.device == "cpu" or mode != "both" or _needs_a_split(verl, request)
    if mode == "both" and value_at(request.trinity, "mode") == "colocate":
        # In the YAML of a launch translate wrote the mode, as veRL takes turns itself.
        note = "mode: colocate is for a GPU; on a CPU both sides run at once (mode both)"
        return mode, [] if verl_from_trinity.from_launch(request.trinity) else [note]
    if not is_fixed and _as_stock(verl, request):
        return "colocate", []
    if is_fixed or not (why := fits_no_share(verl)):
        return mode, []
    return "colocate", [f"{why}: both sides take turns on all of them, as in veRL"]


def _as_stock(verl: VerlView, request: RunRequest) -> bool:
    """Return whether the launch takes turns on its GPUs, and nothing asks for a split.

    In turns generation is ahead of training only with answers that outlast the trainer's turn.
    """
    asked = {text.partition("=")[0] for text in request.options.sets} & {ENGINES, "mode"}
    sync = verl_from_trinity.sync_of(request.trinity)
    as_written = verl_from_trinity.takes_turns(request.trinity) and not asked
    keeps = sync.style == "fully_async" and setting_of(request.trinity, "partial_rollout")
    waits = (sync.style, sync.offset) == ("fixed", 0)
    return as_written and (keeps or waits) and gpu_split.fits_turns(verl)


def _needs_a_split(verl: VerlView, request: RunRequest) -> bool:
    """Return whether mode colocate would be refused (`colocate.check`, the models' ``placed``)."""
    replay = replay_of(request.trinity)
    return (
        request.options.explorers > 1
        or bool(value_at(verl.tree, reward_model.ENABLE))
        or is_distilled(verl.tree)
        or colocate.NCCL_ASKED in request.options.sets
        or (replay is not None and replay.max_uses > 1)
    )


def assign_gpus(verl: VerlView, request: RunRequest, mode: Mode) -> Step:
    """Assign GPUs to each side and to the models beside them. Raises UserError where they don't suffice."""
    if mode == "serve":
        return serving.alone(verl, request.trinity, request.device, request.options.sets)
    parts = request.options.explorers if request.options.explorer is not None else 1
    verl, teacher_notes = teachers.placed(verl, device=request.device, mode=mode, explorers=parts)
    alone = single_side.is_asked(request.trinity, request.options)
    reward = reward_model.placed(
        verl,
        request.trinity,
        device=request.device,
        mode=mode,
        explorers=parts,
        room=single_side.room(verl, mode) if alone else None,
    )
    explorers = request.options.explorers
    if alone and request.device != "cpu":
        shared, split_notes = single_side.filled(
            reward.verl, request.trinity, mode=mode, explorers=explorers, reward=reward
        )
    else:
        shared, split_notes = split_gpus(
            reward.verl,
            request.trinity,
            mode=mode,
            explorers=explorers,
            device=request.device,
            sets=request.options.sets,
            reward=reward,
        )
    fitted, group_notes = groups_fitted(shared)
    roomy, memory_notes = _with_memory(fitted, verl, request, mode)
    return roomy, [*reward.lines, *split_notes, *teacher_notes, *group_notes, *memory_notes]


def _with_memory(verl: VerlView, launch: VerlView, request: RunRequest, mode: Mode) -> Step:
    """Raise vLLM's share of memory on GPUs of its own, if the value is still the default of translate."""
    sets = (*request.options.sets, *request.options.joined)
    changed_keys = {text.partition("=")[0].lstrip("+") for text in sets}
    changed_keys |= {key for overlay in request.overlays for key in overlay.verl}
    written = verl_from_trinity.stand_in_of(request.trinity, gpu_split.MEMORY, gpu_split.YAML_MEMORY)
    if written is None or request.device == "cpu" or changed_keys & {gpu_split.MEMORY, gpu_split.YAML_MEMORY}:
        return verl, []
    return gpu_split.default_memory(verl, launch, float(written), mode=mode)
