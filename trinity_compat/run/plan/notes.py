"""Notes of a plan: what a user should know of it before the run starts."""

from __future__ import annotations

from trinity_compat.common.nested import value_at
from trinity_compat.job.lora import MERGE, lora_rank, why_whole
from trinity_compat.job.run_spec import RunSpec
from trinity_compat.run.plan import (
    dedicated_gpus,
    paths,
)
from trinity_compat.run.plan.read_settings import least_staleness
from trinity_compat.run.plan.request import RunRequest
from trinity_compat.run.plan.verl_view import VerlView
from trinity_compat.translate import verl_from_trinity
from trinity_compat.translate.native_yaml import SAMPLING
from trinity_compat.translate.replay import note_of
from trinity_compat.translate.trinity_reader import NEVER


def opening_notes(request: RunRequest) -> list[str]:
    """Lines about the request itself: r, filled-in fields, overlays."""
    of_r = (
        [f"r = {request.r} optimizer updates per veRL step ({request.r_source})"] if request.r_source else []
    )
    return [*of_r, *request.full.notes, *(line for overlay in request.overlays for line in overlay.lines)]


def closing_notes(request: RunRequest, launch: VerlView, verl: VerlView, spec: RunSpec) -> list[str]:
    """Lines about consequences of the plan that the user may not expect."""
    replayed = [told] if (told := note_of(request.trinity, spec.replay)) else []
    database = paths.database_note(request.trinity, spec, request.options, request.cwd)
    of_training = [*_filter_note(verl), *_idle_note(spec, launch), *_save_freq_note(verl, spec)]
    notes = [] if spec.serve else [*of_training, *_lora_note(verl), *_sampling_note(verl)]
    rounded = verl_from_trinity.rounded_offset(request.trinity)
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
    if not split or spec.sync.style != "fixed" or least_staleness(spec.sync):
        return []
    return list(dedicated_gpus.idle(spec, machines=launch.trainer.nodes))


def _save_freq_note(verl: VerlView, spec: RunSpec) -> list[str]:
    """A run that saves no checkpoint, or only at its end: a crash then costs the whole run."""
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
