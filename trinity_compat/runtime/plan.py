"""From a Trinity YAML to what the processes of a run need.

Reads the Trinity configuration only, with what it passes through, whatever it came from. Overlays
(profiles, ``--set``) act on the veRL configuration that the way back gives; they are kept beside the
YAML, which stays as ``translate`` wrote it.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, cast, get_args

from trinity_compat.addresses import outward_address
from trinity_compat.errors import UserError
from trinity_compat.gpus import trainer_gpus
from trinity_compat.runtime import attention, checkout, length, micro_batches, profiles
from trinity_compat.runtime.devices import detect_device, usable
from trinity_compat.runtime.jobdir import JobDir
from trinity_compat.runtime.overlay import Overlay, apply
from trinity_compat.runtime.split import split_gpus
from trinity_compat.secret import resolved, shown, without_passwords
from trinity_compat.spec import Mode, RunSpec, SyncSpec
from trinity_compat.synchronizer.policy import expected_lag, explorer_interval, trainer_interval
from trinity_compat.translate import inverse
from trinity_compat.translate.replay import note_of, replay_of
from trinity_compat.trinity_config.watch import plain, values_of, watched
from trinity_compat.verl_config.pinned import compose_pinned
from trinity_compat.vllm_arguments import changes, given_in, release_for

_SHARED_MEMORY = Path("/dev/shm")
_LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR")


@dataclass(frozen=True, slots=True)
class Options:
    """What the command line says about a run, the launch itself apart."""

    profiles: tuple[str, ...] = ()
    sets: tuple[str, ...] = ()  # KEY=VALUE, veRL's or Trinity's spelling
    mode: Mode | None = None  # None: the configuration's, else both
    checkpoints: str | None = None  # of mode bench
    job: str | None = None
    database: str | None = None
    explorers: int = 1
    explorer: int | None = None  # the one of them that this command starts; None: all
    restarts: int = 0
    dry_run: bool = False
    device: str | None = None  # cpu or cuda; None: what this machine has
    gpus: int | None = None  # of a dry run: how many the cluster has


@dataclass(frozen=True, slots=True)
class Plan:
    """A run that could start. ``notes`` are lines for the user, in the order to say them."""

    spec: RunSpec
    job: JobDir
    local_dir: str | None  # where the script expects its checkpoints
    ray: Mapping[str, Any]
    cwd: Path  # where the launch was made
    run_cwd: Path  # where its processes run: the same, unless a veRL checkout lies there
    notes: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)  # for every process
    explorer: int | None = None  # of several, the one to start here
    log_folder: str = ""  # below log/, with log.group_by_node: this node's address
    unread: Mapping[str, Any] = field(default_factory=dict)  # path → value that nothing of the plan took


def make_plan(config: Mapping[str, Any], options: Options, *, cwd: Path, device: str | None = None) -> Plan:
    """Turn a Trinity configuration (plain containers) into a plan. Touches no file.

    Raises UserError for values that cannot be run."""
    device = usable(device or options.device or detect_device())
    overlays = _overlays(options, device)
    config, read = watched(given := _with_trinity_sets(config, overlays))
    r, how = inverse.updates_per_step(config)
    told = plain(inverse.to_verl(config)) | length.steps_of(config, options.sets)
    overlays = [*attention.overlay(_laid_over(told, overlays), device), *overlays]
    verl = resolved(compose_pinned(_laid_over(told, overlays), inverse.flavour_of(config)), os.environ)
    length.refuse_idle_epochs(options.sets, verl["trainer"].get("total_training_steps"))
    notes = [f"r = {r} optimizer updates per veRL step ({how})"] if how else []
    notes += [line for overlay in overlays for line in overlay.lines]
    notes += micro_batches.divide(verl)
    notes += changes(given_in(verl), release_for(device))
    job = JobDir(_job_root(config, options, cwd))
    local_dir = verl["trainer"].get("default_local_dir")
    verl["trainer"]["default_local_dir"] = str(job.root)
    verl["trainer"]["device"] = device
    verl["trainer"]["use_v1"] = False  # as trainer/config.py has it: ours is veRL's v0 trainer
    run_cwd = cwd
    if checkout.holds_verl(cwd):
        verl, run_cwd = checkout.absolute_paths(verl, cwd), job.root
        notes.append(f"veRL's sources in {cwd} are not used: the run needs the installed veRL")
    mode = options.mode or _mode_of(config, device)
    notes += split_gpus(
        verl, config, mode=mode, explorers=options.explorers, device=device, sets=options.sets
    )
    spec = _spec(config, verl, options, job, device=device, mode=mode, r=_updates(verl, r))
    _check_colocated(spec)
    return Plan(
        spec=spec,
        job=job,
        local_dir=local_dir,
        ray=(verl.get("ray_kwargs") or {}).get("ray_init") or {},
        cwd=cwd,
        run_cwd=run_cwd,
        notes=(
            *notes,
            *_filter_note(verl),
            *_save_freq_note(verl, spec),
            *([note_of(spec.replay)] if spec.replay else []),
            *_database_note(config, spec, options, cwd),
        ),
        env=_log_level(config) | {name: value for overlay in overlays for name, value in overlay.env},
        explorer=_one_explorer(options, spec.mode),
        log_folder=outward_address() if (config.get("log") or {}).get("group_by_node") else "",
        unread={path: value for path, value in values_of(given).items() if path not in read},
    )


def _overlays(options: Options, device: str) -> list[Overlay]:
    """In the order in which they act: the device's profile, the user's profiles, ``--set``."""
    wanted = list(dict.fromkeys([*(["cpu"] if device == "cpu" else []), *options.profiles]))
    return [*(Overlay.of_profile(profiles.load(name)) for name in wanted), Overlay.of_sets(options.sets)]


def _with_trinity_sets(config: Mapping[str, Any], overlays: Sequence[Overlay]) -> dict[str, Any]:
    out = _copy(config)
    for overlay in overlays:
        apply(overlay.trinity, out)
    return out


def _laid_over(values: Mapping[str, Any], overlays: Sequence[Overlay]) -> dict[str, Any]:
    """``values`` with the overlays' last, so that they win and interpolations follow them."""
    out = dict(values)
    for overlay in overlays:
        for key, value in overlay.verl.items():
            out.pop(key, None)
            out[key] = value
    return out


def _copy(tree: Any) -> Any:
    if isinstance(tree, Mapping):
        return {key: _copy(value) for key, value in tree.items()}
    return [_copy(item) for item in tree] if isinstance(tree, list | tuple) else tree


def _job_root(config: Mapping[str, Any], options: Options, cwd: Path) -> Path:
    if options.job:
        return (cwd / Path(options.job).expanduser()).absolute()
    root = Path(str(config.get("checkpoint_root_dir") or "checkpoints")).expanduser()
    return (cwd / root / str(config["project"]) / str(config["name"])).absolute()


def _updates(verl: Mapping[str, Any], r: int) -> int:
    """r after the overlays, from veRL's own batch sizes. Raises UserError when they don't divide."""
    batch = verl["data"]["train_batch_size"]
    mini = verl["actor_rollout_ref"]["actor"]["ppo_mini_batch_size"]
    if not batch or not mini:
        return r
    if batch % mini:
        fits = [str(size) for size in range(1, batch + 1) if batch % size == 0]
        raise UserError(
            f"data.train_batch_size={batch} is no multiple of actor.ppo_mini_batch_size={mini}",
            hint=f"ppo_mini_batch_size may be {', '.join(fits)}",
        )
    return int(batch // mini)


def _spec(
    config: Mapping[str, Any],
    verl: dict[str, Any],
    options: Options,
    job: JobDir,
    *,
    device: str,
    mode: Mode,
    r: int,
) -> RunSpec:
    total = verl["trainer"].get("total_training_steps")
    sync = inverse.sync_of(config)
    return RunSpec(
        job_dir=str(job.root),
        database_url=options.database or _database_of(config, job),
        verl=verl,
        updates_per_step=r,
        total_steps=int(total) if total else None,
        sync=replace(sync, directory=sync.directory or str(_weights_folder(job, sync))),
        device=device,
        mode=mode,
        explorers=options.explorers,
        max_staleness=_max_staleness(config, sync, r),
        replay=replay_of(config),
        seeded_requests=bool(inverse.compat_of(config).get("seeded_requests", False)),
        env=checkout.python_path(_env_vars(config)),
        resume=bool(config.get("continue_from_checkpoint", True)),
    )


def _max_staleness(config: Mapping[str, Any], sync: SyncSpec, r: int) -> int | None:
    """Raises UserError for a limit that the style itself would break, for ever."""
    limit = inverse.max_staleness_of(config)
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
    steps = range(1, 2 * (sync.offset + sync.interval + explorer_interval(sync)) + 2)
    return max(expected_lag(sync, step) or 0 for step in steps)


def _mode_of(config: Mapping[str, Any], device: str) -> Mode:
    """The YAML's mode; colocate is about an accelerator's memory: on a CPU both sides run at once. Raises
    UserError for one that this runtime does not have."""
    mode: Any = config.get("mode") or "both"
    if mode not in get_args(Mode):
        raise UserError(f"mode: {mode} is not among {', '.join(get_args(Mode))}")
    return "both" if mode == "colocate" and device == "cpu" else cast(Mode, mode)


def _check_colocated(spec: RunSpec) -> None:
    """One device, one explorer, weights through files: NCCL knows a device once in a group."""
    if spec.mode != "colocate":
        return
    _check_one_device(spec)
    if spec.explorers > 1:
        raise UserError(
            "mode colocate shares one device between the trainer and one explorer",
            hint="leave out --explorers",
        )
    if spec.sync.method == "nccl":
        raise UserError(
            "synchronizer.sync_method=nccl: mode colocate has both sides on one device, which NCCL refuses",
            hint="write synchronizer.sync_method=memory",
        )
    if spec.replay and spec.replay.max_uses > 1:  # the trainer would never have to give the device away
        raise UserError(
            "mode colocate: a trainer that finds trained groups again never lets the explorer on the device",
            hint="leave out the replay buffer's reuse_cooldown_time, or give each side a device of its own",
        )


def _check_one_device(spec: RunSpec) -> None:
    """A CPU is one however many processes train on it."""
    devices = trainer_gpus(spec.verl)
    if spec.device != "cpu" and devices > 1:
        raise UserError(
            f"mode colocate: both sides take turns on one device, and the run has {devices}"
            " (trainer.nnodes × trainer.n_gpus_per_node)",
            hint="leave out --mode colocate: the devices are then split between the two sides; or write"
            " --set trainer.nnodes=1 --set trainer.n_gpus_per_node=1",
        )


def _env_vars(config: Mapping[str, Any]) -> dict[str, str]:
    given = (config.get("explorer") or {}).get("env_vars") or {}
    return {str(name): str(value) for name, value in given.items()}


def _weights_folder(job: JobDir, sync: SyncSpec) -> Path:
    """Shared memory for the method of that name, where there is any; else the job directory."""
    if sync.method != "memory" or not _SHARED_MEMORY.is_dir():
        return job.root / "weights"
    tag = hashlib.sha256(str(job.root).encode()).hexdigest()[:12]
    return _SHARED_MEMORY / f"trinity-compat-{os.getuid()}-{tag}"


def _database_of(config: Mapping[str, Any], job: JobDir) -> str:
    """The YAML's database when it names a server; a file of its own stays in the job directory."""
    path = _named_database(config)
    return path if path.startswith("postgresql") else job.default_database_url


def _named_database(config: Mapping[str, Any]) -> str:
    buffer = ((config.get("buffer") or {}).get("trainer_input") or {}).get("experience_buffer") or {}
    return str(buffer.get("path") or "")


def _one_explorer(options: Options, mode: Mode) -> int | None:
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


def _database_note(config: Mapping[str, Any], spec: RunSpec, options: Options, cwd: Path) -> list[str]:
    """A file that the YAML names itself: a rerun or a reset of the job must find its database with it."""
    path, ours = _named_database(config), spec.database_url
    here = f"sqlite:///{(cwd / path.removeprefix('sqlite:///')).absolute()}"
    if options.job or options.database or here == ours or not path.startswith("sqlite:///"):
        return []
    return [f"buffer.trainer_input.experience_buffer.path={path}: the run's database is {ours}"]


def _log_level(config: Mapping[str, Any]) -> dict[str, str]:
    """``log.level`` for the loggers of veRL and vLLM. Raises UserError for a level that nobody knows."""
    level = (config.get("log") or {}).get("level")
    if not level:
        return {}
    name = str(level).upper()
    if name not in _LEVELS:
        raise UserError(f"log.level={level}", hint=f"it may be {', '.join(_LEVELS)}")
    return {"VERL_LOGGING_LEVEL": name, "VLLM_LOGGING_LEVEL": name}


def _save_freq_note(verl: Mapping[str, Any], spec: RunSpec) -> list[str]:
    """veRL saves nothing by default; then a crash costs the whole run."""
    if (verl["trainer"].get("save_freq") or -1) > 0:
        return []
    offer = max(1, min(50, (spec.total_steps or 200) // 10))
    return [
        "warning: trainer.save_freq=-1 saves no checkpoint: a crash rolls back to the start;"
        f" `--set trainer.save_freq={offer}` would keep one every {offer} veRL steps"
    ]


def _filter_note(verl: Mapping[str, Any]) -> list[str]:
    asked, data = verl["algorithm"].get("filter_groups") or {}, verl["data"]
    if not asked.get("enable"):
        return []
    batch = data["train_batch_size"]
    draw, metric = data.get("gen_batch_size") or batch, asked.get("metric") or "reward"
    return [
        f"algorithm.filter_groups: a step draws {draw} tasks at a time until {batch} groups differ in"
        f" {metric}; the number of steps stays, so the data may be read more often than total_epochs says"
    ]


def describe(plan: Plan) -> list[str]:
    """The plan in both units, for ``--dry-run`` and the start of a run."""
    spec, r = plan.spec, plan.spec.updates_per_step
    total = "until the epochs are done" if spec.total_steps is None else _both(spec.total_steps, r)
    return [
        f"job       {plan.job.root}",
        f"device    {spec.device}, {spec.explorers} explorer(s), mode {spec.mode}",
        f"steps     {total}",
        f"sync      {spec.sync.style}: every {_both(spec.sync.interval, r)},"
        f" offset {_both(spec.sync.offset, r)}, by {_transport(spec)}",
        f"database  {without_passwords(spec.database_url)}",
    ]


def _transport(spec: RunSpec) -> str:
    over_gloo = spec.sync.method == "nccl" and spec.device == "cpu"
    return "nccl's way over gloo: there is no GPU" if over_gloo else spec.sync.method


def _both(steps: int, r: int) -> str:
    return f"{steps} veRL steps = {steps * r} Trinity steps (optimizer updates)"


def as_record(plan: Plan, options: Options) -> dict[str, Any]:
    """What ``config/launch.json`` says of the options."""
    told = {**asdict(options), "database": options.database and without_passwords(options.database)}
    told["sets"] = [shown(text) for text in options.sets]
    return {"options": told, "notes": list(plan.notes)}
