"""From a Trinity YAML to what the processes of a run need.

Reads the Trinity configuration only, with what it passes through, whatever it came from. Overlays
(profiles, ``--set``) act on the veRL configuration that the way back gives; they are kept beside the
YAML, which stays as ``translate`` wrote it.

The way: ``_ask`` (what was asked, overlays included) → ``_composed`` (veRL's configuration) → the steps of
``_fitted`` (what this run makes of it) → ``_spec``. Nothing is changed on the way: each step returns anew.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from trinity_compat.common.containers import Tree
from trinity_compat.common.errors import UserError
from trinity_compat.common.nested import copied, value_at
from trinity_compat.common.network import outward_address
from trinity_compat.common.paths import from_home
from trinity_compat.common.redaction import resolved
from trinity_compat.job.lora import MERGE, lora_rank, why_whole
from trinity_compat.job.run_spec import Mode, RunSpec, SyncSpec, seed_of
from trinity_compat.job.vllm_arguments import changes, given_in, release_for
from trinity_compat.run.job_dir.job_dir import JobDir
from trinity_compat.run.plan import (
    attention,
    colocate,
    dedicated_gpus,
    engine,
    environment,
    file_rows,
    juicer,
    micro_batches,
    paths,
    pipelines,
    profiles,
    reward_model,
    run_length,
    serving,
    single_side,
    verl_checkout,
    workflows,
)
from trinity_compat.run.plan.devices import detect_device, gpus_here, is_elsewhere, usable
from trinity_compat.run.plan.gpu_split import fits_no_share, split_gpus
from trinity_compat.run.plan.options import RunOptions
from trinity_compat.run.plan.overlay import Overlay, apply
from trinity_compat.run.plan.read_settings import check_values, spec_fields
from trinity_compat.run.plan.run_plan import RunPlan
from trinity_compat.run.plan.verl_view import Step, VerlView
from trinity_compat.synchronizer.policy import expected_lag, explorer_interval, trainer_interval
from trinity_compat.translate import verl_from_trinity
from trinity_compat.translate.native_yaml import SAMPLING
from trinity_compat.translate.replay import note_of, replay_of
from trinity_compat.translate.trinity_reader import NEVER, TrinityReader
from trinity_compat.translate.update_steps import mini_batches
from trinity_compat.trinity.config.complete import CompletedConfig
from trinity_compat.trinity.config.read_tracking import plain, values_of, watched
from trinity_compat.verl_config.pinned import compose_pinned

_LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR")


@dataclass(frozen=True, slots=True)
class _Asked:
    """What was asked of a run, the configuration and the command line taken together."""

    options: RunOptions
    device: str
    cwd: Path
    given: Tree  # the Trinity configuration, with the sets that name its paths
    full: CompletedConfig  # what trinity-rft makes of it, watched
    read: set[str]  # its paths that were read, growing as that happens
    overlays: Sequence[Overlay]  # in the order in which they act
    told: Tree  # dotted veRL key → value: what the configuration and the overlays say
    r: int  # optimizer updates of one veRL step, as the configuration says
    how: str  # … and how that is known; "" where that needs no words

    @property
    def trinity(self) -> Tree:
        return self.full.config

    @property
    def unread(self) -> dict[str, object]:
        """Path → value of what the file says and nobody read, at its place or where it was taken to."""
        read = self.read | {source for path, source in self.full.sources.items() if path in self.read}
        return {path: value for path, value in values_of(self.given).items() if path not in read}


def make_plan(config: Tree, options: RunOptions, *, cwd: Path, device: str | None = None) -> RunPlan:
    """Turn a Trinity configuration (plain containers) into a plan.

    Touches no file, but reads a template that the configuration names.

    Raises UserError for values that cannot be run.
    """
    asked = _ask(config, options, usable(device or options.device or detect_device()), cwd)
    composed = _composed(asked)
    job = JobDir(paths.job_root(asked.trinity, options, cwd))
    of_files = file_rows.of_run(asked.trinity, options, cwd)
    fitted, notes = _fitted(composed, asked, job)
    mode, why = _mode(fitted, asked, splits=of_files is None)
    verl, shares = _with_gpus(fitted, asked, mode) if of_files is None else (fitted, [])
    nodes = colocate.machines(asked.device, fitted.trainer.nodes)
    sync, moved = colocate.weights(verl_from_trinity.sync_of(asked.trinity), mode, options.sets, nodes)
    experts = file_rows.beside(asked.trinity, cwd)
    verl, cut = file_rows.cut_evenly(verl, of_files, experts)
    spec = replace(_spec(asked, verl, job, mode, sync), rows=of_files, experts=experts)
    colocate.check(spec)
    spec, endpoint = _serving(spec, asked)
    found = paths.earlier_jobs(asked.trinity, environment.filled(config, os.environ), options, cwd)
    told = [*found, *why, *shares, *cut, *moved, *endpoint]
    return RunPlan(
        spec=spec,
        job=job,
        local_dir=composed.trainer.local_dir,
        ray=value_at(verl.tree, "ray_kwargs.ray_init") or {},
        cwd=cwd,
        run_cwd=job.root if verl_checkout.holds_verl(cwd) else cwd,
        notes=(*_notes_of(asked), *notes, *told, *_closing_notes(asked, composed, verl, spec)),
        env=_log_level(asked.trinity) | {name: value for each in asked.overlays for name, value in each.env},
        explorer=_one_explorer(options, mode),
        log_folder=outward_address() if TrinityReader(asked.trinity).get("log.group_by_node") else "",
        unread=asked.unread,
    )


def _ask(config: Tree, options: RunOptions, device: str, cwd: Path) -> _Asked:
    wanted = _overlays(options, device)
    given = _with_trinity_sets(config, wanted)
    full = verl_from_trinity.in_full(environment.filled(given, os.environ), options.target)
    if not verl_from_trinity.from_launch(full.config):
        _count_gpus(full, options, device)
        _read_template(full, cwd)
    check_values(full.config)
    trinity, read = watched(full.config)
    full = replace(full, config=trinity)
    r, how = verl_from_trinity.updates_per_step(trinity)
    told = plain(verl_from_trinity.told_by(full)) | run_length.steps_of(trinity, options.sets)
    # flash-attn's stand-in comes first: a profile or a --set may name another one.
    elsewhere = is_elsewhere(device, dry_run=options.dry_run)
    stand_in = [] if elsewhere else attention.overlay(_laid_over(told, wanted), device)
    overlays = [*stand_in, *wanted]
    return _Asked(options, device, cwd, given, full, read, overlays, _laid_over(told, overlays), r, how)


def _count_gpus(full: CompletedConfig, options: RunOptions, device: str) -> None:
    """What the file leaves to the machine, as trinity-rft does. Raises UserError where that has no GPU."""
    if full.at("cluster.gpu_per_node") is None:
        found = options.gpus or gpus_here(device)
        if not found:
            raise UserError(
                "cluster.gpu_per_node is not given, and this machine shows no GPU",
                hint="write it, or give the number with --dry-run --gpus N",
            )
        full.put("cluster.gpu_per_node", found)
    if full.at("cluster.node_num") is None:
        full.put("cluster.node_num", 1)


def _read_template(full: CompletedConfig, cwd: Path) -> None:
    """The chat template that the file names by its path. Raises UserError."""
    path = full.at("model.chat_template_path")
    if path is None or full.at("model.custom_chat_template") is not None:
        return
    try:
        text = (cwd / from_home(str(path))).read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"model.chat_template_path={path} cannot be read ({error})") from error
    full.put("model.custom_chat_template", text, "model.chat_template_path")


def _overlays(options: RunOptions, device: str) -> list[Overlay]:
    """In the order in which they act: the device's profile, the user's profiles, ``--set``."""
    wanted = list(dict.fromkeys([*(["cpu"] if device == "cpu" else []), *options.profiles]))
    return [*(Overlay.of_profile(profiles.load(name)) for name in wanted), Overlay.of_sets(options.sets)]


def _with_trinity_sets(config: Tree, overlays: Sequence[Overlay]) -> dict[str, object]:
    out = copied(config)
    for overlay in overlays:
        apply(paths.named_by(overlay.verl) | dict(overlay.trinity), out)
    return out


def _laid_over(values: Tree, overlays: Sequence[Overlay]) -> dict[str, object]:
    """``values`` with the overlays' last, so that they win and interpolations follow them."""
    out = dict(values)
    for overlay in overlays:
        for key, value in overlay.verl.items():
            out.pop(key, None)
            out[key] = value
    return out


def _composed(asked: _Asked) -> VerlView:
    """veRL's complete configuration, before anything of this run's own. Raises UserError."""
    verl = compose_pinned(asked.told, verl_from_trinity.flavour_of(asked.trinity))
    view = VerlView.of(resolved(verl, os.environ))
    run_length.refuse_idle_epochs(asked.options.sets, asked.trinity, view.trainer.total_steps)
    return view


def _fitted(composed: VerlView, asked: _Asked, job: JobDir) -> Step:
    """The configuration for this job on this device, and what became of the launch's own values.

    The order matters: the micro-batches are of all the GPUs that the launch names, so they come before the
    GPUs are split (`_with_gpus`); and a job's folder is no path of the launch's.
    """
    verl, notes = micro_batches.divided(composed)
    verl, swapped = engine.on_vllm(verl)
    verl, sizes = engine.sized(verl.changed(engine.left_out(verl)), asked.device)
    notes += [*swapped, *sizes]
    notes += changes(given_in(verl.tree), release_for(asked.device))
    verl = _of_this_run(verl, asked.device, job)
    verl, more = verl_checkout.without_checkout(verl, asked.cwd)
    folders = workflows.folders_of(asked.options, asked.cwd)
    verl, asking = workflows.placed(verl, asked.trinity, folders, asked.cwd)
    workflows.check_update(verl, asked.trinity, environment.filled(asked.given, os.environ))
    verl, cleaning = pipelines.placed(
        verl, asked.trinity, folders, asked.cwd, explorers=asked.options.explorers
    )
    taskset = workflows.first_taskset(asked.trinity)
    mode = asked.options.mode or value_at(asked.trinity, "mode")
    verl, making = juicer.tasks_placed(verl, asked.trinity, taskset, asked.cwd, mode)
    return verl, [*notes, *more, *asking, *cleaning, *making]


def _mode(verl: VerlView, asked: _Asked, *, splits: bool) -> tuple[Mode, list[str]]:
    """The mode that was asked for; else turns where the launch's sizes need all of its GPUs, as in veRL, and
    nothing else needs them to be split. ``splits``: whether the trainer shares its GPUs with an explorer."""
    if asked.options.mode:
        return asked.options.mode, []
    mode = colocate.mode_of(asked.trinity, asked.device)
    fixed = not splits or asked.device == "cpu" or mode != "both" or _needs_a_split(verl, asked)
    if mode == "both" and value_at(asked.trinity, "mode") == "colocate":
        # Of a launch's file translate wrote the mode, as veRL takes turns itself.
        said = "mode: colocate is for a GPU; on a CPU both sides run at once (mode both)"
        return mode, [] if verl_from_trinity.from_launch(asked.trinity) else [said]
    if fixed or not (why := fits_no_share(verl)):
        return mode, []
    return "colocate", [f"{why}: both sides take turns on all of them, as in veRL"]


def _needs_a_split(verl: VerlView, asked: _Asked) -> bool:
    """Whether turns are refused anyway (`colocate.check`, `reward_model.placed`)."""
    replay = replay_of(asked.trinity)
    return (
        asked.options.explorers > 1
        or bool(value_at(verl.tree, reward_model.ENABLE))
        or colocate.NCCL_ASKED in asked.options.sets
        or (replay is not None and replay.max_uses > 1)
    )


def _with_gpus(verl: VerlView, asked: _Asked, mode: Mode) -> Step:
    """Each side's GPUs, and the reward model's. Raises UserError where there is no room."""
    if mode == "serve":
        return serving.alone(verl, asked.trinity, asked.device, asked.options.sets)
    alone = single_side.is_asked(asked.trinity, asked.options)
    reward = reward_model.placed(
        verl,
        asked.trinity,
        device=asked.device,
        mode=mode,
        explorers=asked.options.explorers if asked.options.explorer is not None else 1,
        room=single_side.room(verl, mode) if alone else None,
    )
    explorers = asked.options.explorers
    if alone and asked.device != "cpu":
        shared, told = single_side.filled(
            reward.verl, asked.trinity, mode=mode, explorers=explorers, reward=reward
        )
    else:
        shared, told = split_gpus(
            reward.verl,
            asked.trinity,
            mode=mode,
            explorers=explorers,
            device=asked.device,
            sets=asked.options.sets,
            reward=reward,
        )
    roomy, raised = _with_memory(shared, verl, asked, mode)
    return roomy, [*reward.lines, *told, *raised]


def _with_memory(verl: VerlView, launch: VerlView, asked: _Asked, mode: Mode) -> Step:
    """`own_devices.default_memory` where translate wrote a default and nobody has changed it since."""
    sets = (*asked.options.sets, *asked.options.joined)
    said = {text.partition("=")[0].lstrip("+") for text in sets}
    said |= {key for overlay in asked.overlays for key in overlay.verl}
    written = verl_from_trinity.stand_in_of(asked.trinity, dedicated_gpus.MEMORY, dedicated_gpus.YAML_MEMORY)
    if written is None or asked.device == "cpu" or said & {dedicated_gpus.MEMORY, dedicated_gpus.YAML_MEMORY}:
        return verl, []
    return dedicated_gpus.default_memory(verl, launch, float(written), mode=mode)


def _of_this_run(verl: VerlView, device: str, job: JobDir) -> VerlView:
    return verl.changed(
        {
            "trainer.default_local_dir": str(job.root),
            "trainer.device": device,
            "trainer.use_v1": False,  # as trainer/config.py has it: ours is veRL's v0 trainer
        }
    )


def _spec(asked: _Asked, verl: VerlView, job: JobDir, mode: Mode, sync: SyncSpec) -> RunSpec:
    config, r = asked.trinity, _updates(verl, asked.r)
    return RunSpec(
        job_dir=str(job.root),
        database_url=paths.database_of(config, job, asked.options, asked.cwd),
        verl=verl.tree,
        updates_per_step=r,
        total_steps=run_length.of_launch(config, asked.options.sets, verl.trainer.total_steps) or None,
        sync=replace(sync, directory=sync.directory or str(paths.weights_folder(job, sync))),
        device=asked.device,
        mode=mode,
        own_cluster=single_side.is_asked(config, asked.options),
        explorers=asked.options.explorers,
        max_staleness=_max_staleness(config, sync, r),
        replay=replay_of(config, updates=r, seed=seed_of(verl.tree), steps=verl.trainer.total_steps or None),
        agent_retries=_retries(config),
        env=verl_checkout.python_path(_env_vars(config) | workflows.environment(asked.options, asked.cwd)),
        resume=bool(config.get("continue_from_checkpoint", True)),
        **spec_fields(config, verl.tree, sync),
    )


def _serving(spec: RunSpec, asked: _Asked) -> tuple[RunSpec, list[str]]:
    """In mode serve the spec with its endpoint, and a folder for the weights that it reads of checkpoints: in
    the run's its trainer may be publishing."""
    if spec.mode != "serve":
        return spec, []
    endpoint, lines = serving.endpoint_of(asked.trinity, asked.given)
    apart = replace(spec.sync, directory=f"{spec.sync.directory}-{spec.mode}")
    return replace(spec, serve=endpoint, sync=apart, rows=None, experts=None), lines


def _updates(verl: VerlView, r: int) -> int:
    """r after the overlays, from veRL's own batch sizes. Raises UserError when they don't divide."""
    batch, mini = verl.batches.train, verl.batches.mini
    if not batch or not mini:
        return r
    return mini_batches(batch, mini)


def _retries(config: Tree) -> int:
    """How often a task whose rollout failed is tried again. Raises UserError."""
    path = "explorer.max_retry_times"
    times = None if verl_from_trinity.from_launch(config) else TrinityReader(config).get(path)
    if times is None:
        return 2
    if isinstance(times, bool) or not isinstance(times, int) or times < 0:
        raise UserError(f"{path} is {times!r}: write a number of times, 0 or more")
    return times


def _max_staleness(config: Tree, sync: SyncSpec, r: int) -> int | None:
    """Raises UserError for a limit that the style itself would break, for ever."""
    limit = verl_from_trinity.max_staleness_of(config)
    lag = _least_staleness(sync)
    if limit is not None and lag > limit:
        raise UserError(
            f"algorithm.sample_strategy_args.max_staleness allows {limit} veRL steps; under sync_style"
            f" {sync.style} its intervals and offset make it {lag}",
            hint=f"write at least {lag * r} (optimizer updates), or a smaller sync_interval or sync_offset",
        )
    return limit


def _least_staleness(sync: SyncSpec) -> int:
    """Steps that a group's weights are behind at worst, however fast both sides are: under ``fixed`` by its
    rule, else because the trainer publishes every so many steps, unless it is asked."""
    if sync.style == "explorer_driven":
        return 0
    if sync.style != "fixed":
        return trainer_interval(sync) - 1
    # The rule repeats with both intervals: so many steps hold its worst one.
    steps = range(1, 2 * (sync.offset + sync.interval + explorer_interval(sync)) + 2)
    return max(expected_lag(sync, step) or 0 for step in steps)


def _env_vars(config: Tree) -> dict[str, str]:
    given = TrinityReader(config).get("explorer.env_vars") or {}
    return {str(name): str(value) for name, value in given.items()}


def _one_explorer(options: RunOptions, mode: Mode) -> int | None:
    """Raises UserError for a number that there is not, or one that a trainer would start with."""
    number = options.explorer
    if number is not None and mode != "explore":
        raise UserError("--explorer N needs --mode explore", hint="the trainer is a command of its own then")
    if number is not None and number >= options.explorers:
        raise UserError(
            f"--explorer {number} of --explorers {options.explorers}: they are counted from 0",
            hint="give every command the same --explorers, and each its own --explorer",
        )
    return number


def _log_level(config: Tree) -> dict[str, str]:
    """``log.level`` for the loggers of veRL and vLLM. Raises UserError for a level that nobody knows."""
    level = TrinityReader(config).get("log.level")
    if not level:
        return {}
    name = str(level).upper()
    if name not in _LEVELS:
        raise UserError(f"log.level={level}", hint=f"it may be {', '.join(_LEVELS)}")
    return {"VERL_LOGGING_LEVEL": name, "VLLM_LOGGING_LEVEL": name}


def _notes_of(asked: _Asked) -> list[str]:
    of_r = [f"r = {asked.r} optimizer updates per veRL step ({asked.how})"] if asked.how else []
    return [*of_r, *asked.full.notes, *(line for overlay in asked.overlays for line in overlay.lines)]


def _closing_notes(asked: _Asked, launch: VerlView, verl: VerlView, spec: RunSpec) -> list[str]:
    replayed = [told] if (told := note_of(asked.trinity, spec.replay)) else []
    database = paths.database_note(asked.trinity, spec, asked.options, asked.cwd)
    of_training = [*_filter_note(verl), *_idle_note(spec, launch), *_save_freq_note(verl, spec)]
    notes = [] if spec.serve else [*of_training, *_lora_note(verl), *_sampling_note(verl)]
    rounded = verl_from_trinity.rounded_offset(asked.trinity)
    return [*notes, *replayed, *database, *([rounded] if rounded else [])]


def _lora_note(verl: VerlView) -> list[str]:
    """An adapter that travels in whole models though the launch does not ask for that."""
    why = why_whole(verl.tree) if lora_rank(verl.tree) else None
    if why is None or value_at(verl.tree, MERGE):
        return []
    return [f"LoRA: each version is a whole model with the adapter merged in ({why})"]


def _sampling_note(verl: VerlView) -> list[str]:
    """Tasksets that are sampled at another temperature than the trainer's."""
    trained, own = value_at(verl.tree, "actor_rollout_ref.rollout.temperature"), value_at(verl.tree, SAMPLING)
    return [
        f"{name} is sampled at temperature {sampling['temperature']}; the trainer takes every answer's"
        f" log-probabilities at {trained}, the first taskset's"
        for name, sampling in (own or {}).items()
        if name.startswith("train/") and sampling.get("temperature", trained) != trained
    ]


def _idle_note(spec: RunSpec, launch: VerlView) -> list[str]:
    """GPUs that are split and answers that wait for each training step: the two sides alternate."""
    split = spec.device != "cpu" and spec.mode == "both"
    if not split or spec.sync.style != "fixed" or _least_staleness(spec.sync):
        return []
    return list(dedicated_gpus.idle(spec, machines=launch.trainer.nodes))


def _save_freq_note(verl: VerlView, spec: RunSpec) -> list[str]:
    """veRL saves nothing by default, Trinity at the end alone; then a crash costs the whole run."""
    if 0 < verl.trainer.save_freq < NEVER:
        return []
    # At least ten checkpoints in a run, and one every 50 steps in a long one.
    offer = max(1, min(50, (spec.total_steps or 200) // 10))
    saves = "warning: trainer.save_freq=-1 saves no checkpoint"
    if verl.trainer.save_freq >= NEVER:  # what a Trinity YAML asks for is no fault of it
        saves = "note: trainer.save_interval=0 saves one checkpoint, at the end"
    return [
        f"{saves}: a crash rolls back to the start;"
        f" `--set trainer.save_freq={offer}` would keep one every {offer} veRL steps"
    ]


def _filter_note(verl: VerlView) -> list[str]:
    if not value_at(verl.tree, "algorithm.filter_groups.enable"):
        return []
    batch, metric = verl.batches.train, value_at(verl.tree, "algorithm.filter_groups.metric") or "reward"
    return [
        f"algorithm.filter_groups: a step draws {verl.batches.drawn or batch} tasks at a time until {batch}"
        f" groups differ in {metric}; the number of steps stays, so the data may be read more often than"
        " total_epochs says"
    ]
