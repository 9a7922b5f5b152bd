"""The mode of a run, and the GPUs of each side and of the models beside them."""

from __future__ import annotations

from trinity_compat.common.nested import value_at
from trinity_compat.job.distillation import is_distilled
from trinity_compat.job.gpus import ENGINES
from trinity_compat.job.run_spec import Mode
from trinity_compat.run.plan import colocate, gpu_split, reward_model, serving, single_side, teachers
from trinity_compat.run.plan.read_settings import setting_of
from trinity_compat.run.plan.request import RunRequest
from trinity_compat.run.plan.verl_view import Step, VerlView
from trinity_compat.translate import verl_from_trinity
from trinity_compat.translate.replay import replay_of


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
    if is_fixed or not (why := gpu_split.fits_no_share(verl)):
        return mode, []
    return "colocate", [f"{why}: explorer and trainer share all of them in turns (colocate), as in veRL"]


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
    """Return whether mode colocate would be refused (`colocate.check`, `teachers`, `reward_model`)."""
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
    verl, teacher_notes = teachers.with_teachers(verl, device=request.device, mode=mode, explorers=parts)
    alone = single_side.is_asked(request.trinity, request.options)
    reward = reward_model.with_reward_model(
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
        shared, split_notes = gpu_split.split_gpus(
            reward.verl,
            request.trinity,
            mode=mode,
            explorers=explorers,
            device=request.device,
            sets=request.options.sets,
            reward=reward,
        )
    fitted, group_notes = gpu_split.groups_fitted(shared)
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
