"""A complete plan of a run, and its description for the user."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from trinity_compat.common.nested import Tree, section_at, value_at
from trinity_compat.common.redaction import without_passwords
from trinity_compat.job.distillation import teacher_entries
from trinity_compat.job.gpus import engine_count, reward_model_engines
from trinity_compat.job.lora import MERGE, lora_rank, why_whole
from trinity_compat.job.run_spec import RunSpec
from trinity_compat.job.served_models import served_models
from trinity_compat.run.job_dir.job_dir import JobDir
from trinity_compat.run.plan import file_rows, paths
from trinity_compat.run.plan.request import RunRequest
from trinity_compat.run.plan.verl_view import VerlView
from trinity_compat.synchronizer.policy import explorer_interval, trainer_interval
from trinity_compat.translate import verl_from_trinity
from trinity_compat.translate.hand_written_yaml import SAMPLING
from trinity_compat.translate.replay import note_of
from trinity_compat.translate.sections.reward import TEACHER
from trinity_compat.translate.trinity_reader import NEVER


@dataclass(frozen=True, slots=True)
class RunPlan:
    """A complete plan of a run. ``notes`` are lines for the user, in order."""

    spec: RunSpec
    job: JobDir
    local_dir: str | None  # where the script expects its checkpoints
    ray: Tree
    cwd: Path  # where the launch was made
    run_cwd: Path  # where its processes run: the same, unless a veRL checkout lies there
    notes: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)  # for every process
    explorer: int | None = None  # of several, the one to start here
    log_folder: str = ""  # below log/, with log.group_by_node: this node's address
    unread: Tree = field(default_factory=dict)  # path → value that nothing of the plan took


def describe(plan: RunPlan) -> list[str]:
    """The plan in both units, for ``--dry-run`` and the start of a run."""
    spec, r = plan.spec, plan.spec.updates_per_step
    total = "until the epochs are done" if spec.total_steps is None else _both(spec.total_steps, r)
    if spec.serve:
        engines = engine_count(section_at(spec.verl, "actor_rollout_ref.rollout"), spec.device)
        return [
            f"job       {plan.job.root}",
            f"device    {spec.device}, mode serve: {engines} engine(s)",
            f"endpoint  {spec.serve.host}:{spec.serve.port}, newer weights within"
            f" {spec.serve.look_every_s:g} s",
            f"database  {without_passwords(spec.database_url)}",
        ]
    if spec.rows:
        return [
            f"job       {plan.job.root}",
            f"device    {spec.device}, mode {spec.mode}, no explorer",
            f"steps     {total}",
            file_rows.line(spec.rows),
            f"database  {without_passwords(spec.database_url)}",
        ]
    teacher = value_at(spec.verl, TEACHER)
    distilled = [
        f"teacher   {entry.path}, {entry.servers} vLLM engine(s){f', for {entry.key}' if entry.key else ''}"
        for entry in teacher_entries(spec.verl)
    ]
    return [
        f"job       {plan.job.root}",
        f"device    {spec.device}, {spec.explorers} explorer(s), mode {spec.mode}",
        f"steps     {total}",
        f"sync      {spec.sync.style}: {_intervals(spec)},"
        f" offset {_both(spec.sync.offset, r)}, {_transport(spec)}",
        f"database  {without_passwords(spec.database_url)}",
        *file_rows.expert_line(spec.experts),
        *([f"teacher   {teacher}, in place of the trainer's reference model"] if teacher else []),
        *distilled,
        *_reward_model(spec),
    ]


def _intervals(spec: RunSpec) -> str:
    r, taken, published = spec.updates_per_step, explorer_interval(spec.sync), trainer_interval(spec.sync)
    if taken == published:
        return f"every {_each(taken, r)}"
    return f"published every {_each(published, r)}, taken every {_each(taken, r)}"


def _each(steps: int, r: int) -> str:
    return _both(steps, r).removeprefix("1 ")


def _reward_model(spec: RunSpec) -> list[str]:
    """Describe the served model that scores, if there is one."""
    if not (engines := reward_model_engines(spec.verl, spec.device)):
        return []
    reward = section_at(spec.verl, "reward")
    custom = section_at(reward, "custom_reward_function").get("path")
    by = f"asked by {custom}" if custom else "its score is the reward"
    further = [
        f"beside    {each.path}, {each.engines} vLLM engine(s)" for each in served_models(spec.verl)[1:]
    ]
    return [
        f"reward    {value_at(reward, 'reward_model.model_path')}, {engines} vLLM engine(s), {by}",
        *further,
    ]


def _transport(spec: RunSpec) -> str:
    over_gloo = spec.sync.method == "nccl" and spec.device == "cpu"
    way = "over gloo, as NCCL would: there is no GPU" if over_gloo else f"by {spec.sync.method}"
    return f"on the GPUs that both sides share, else {way}" if spec.handover == "device" else way


def _both(steps: int, r: int) -> str:
    return f"{steps} veRL step{'s' * (steps != 1)} = {steps * r} Trinity steps (optimizer updates)"


def opening_notes(request: RunRequest) -> list[str]:
    """Lines about the request itself: r, filled-in fields, overlays."""
    of_r = (
        [f"{request.updates_per_step} optimizer updates per veRL step ({request.updates_source})"]
        if request.updates_source
        else []
    )
    return [*of_r, *request.full.notes, *(line for overlay in request.overlays for line in overlay.lines)]


def closing_notes(request: RunRequest, verl: VerlView, spec: RunSpec) -> list[str]:
    """Lines about consequences of the plan that the user may not expect."""
    replayed = [note] if (note := note_of(request.trinity, spec.replay)) else []
    database = paths.database_note(request.trinity, spec, request.options, request.cwd)
    of_training = [*_filter_note(verl), *_save_freq_note(verl, spec)]
    trained, own = value_at(verl.tree, "actor_rollout_ref.rollout.temperature"), value_at(verl.tree, SAMPLING)
    of_sampling = [
        f"{name} is sampled at temperature {sampling['temperature']}; the trainer takes every answer's"
        f" log-probabilities at {trained}, the first taskset's"
        for name, sampling in (own or {}).items()
        if name.startswith("train/") and sampling.get("temperature", trained) != trained
    ]
    of_sampling += _penalty_note(request, verl)
    notes = [] if spec.serve else [*of_training, *_lora_note(verl), *of_sampling]
    rounded = verl_from_trinity.rounded_offset(request.trinity)
    return [*notes, *replayed, *database, *([rounded] if rounded else [])]


def _lora_note(verl: VerlView) -> list[str]:
    """An adapter that travels in whole models though the launch does not ask for that."""
    why = why_whole(verl.tree) if lora_rank(verl.tree) else None
    if why is None or value_at(verl.tree, MERGE):
        return []
    return [f"LoRA: each version is a whole model with the adapter merged in ({why})"]


def _penalty_note(request: RunRequest, verl: VerlView) -> list[str]:
    """A veRL launch's penalty, which stock's agent loops replace by 1.0 (verl 0.9.1, agent_loop.py)."""
    key = "actor_rollout_ref.rollout.repetition_penalty"
    penalty = value_at(verl.tree, key)
    if penalty in (None, 1) or not verl_from_trinity.from_launch(request.written):
        return []
    return [
        f"{key}={penalty} acts here, though stock veRL samples with 1.0: for that, --set"
        f" trainer.trainer_config.trinity_compat.verl.{key}=1.0"
    ]


def _save_freq_note(verl: VerlView, spec: RunSpec) -> list[str]:
    """A run that saves no checkpoint, or only at its end: a crash then costs the whole run."""
    if 0 < verl.trainer.save_freq < NEVER:
        return []
    # At least ten checkpoints in a run, and one every 50 steps in a long one.
    offer = max(1, min(50, (spec.total_steps or 200) // 10))
    saves = "warning: trainer.save_freq=-1 saves no checkpoint"
    if verl.trainer.save_freq >= NEVER:  # a Trinity YAML asked for it: not a warning
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
