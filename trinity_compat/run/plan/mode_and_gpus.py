"""The mode of a run, and the GPUs of each side and of the reward model."""

from __future__ import annotations

from trinity_compat.common.nested import value_at
from trinity_compat.job.run_spec import Mode
from trinity_compat.run.plan import (
    colocate,
    dedicated_gpus,
    reward_model,
    serving,
    single_side,
)
from trinity_compat.run.plan.gpu_split import fits_no_share, split_gpus
from trinity_compat.run.plan.request import RunRequest
from trinity_compat.run.plan.verl_view import Step, VerlView
from trinity_compat.translate import verl_from_trinity
from trinity_compat.translate.replay import replay_of


def choose_mode(verl: VerlView, request: RunRequest, *, splits: bool) -> tuple[Mode, list[str]]:
    """Choose the mode, and return it with notes.

    The command line decides, else the YAML. Mode both becomes colocate where the launch's sizes need all of
    its GPUs, as in veRL, and no option needs a split. ``splits``: the trainer shares GPUs with an explorer.
    """
    if request.options.mode:
        return request.options.mode, []
    mode = colocate.mode_of(request.trinity, request.device)
    is_fixed = not splits or request.device == "cpu" or mode != "both" or _needs_a_split(verl, request)
    if mode == "both" and value_at(request.trinity, "mode") == "colocate":
        # In the YAML of a launch translate wrote the mode, as veRL takes turns itself.
        note = "mode: colocate is for a GPU; on a CPU both sides run at once (mode both)"
        return mode, [] if verl_from_trinity.from_launch(request.trinity) else [note]
    if is_fixed or not (why := fits_no_share(verl)):
        return mode, []
    return "colocate", [f"{why}: both sides take turns on all of them, as in veRL"]


def _needs_a_split(verl: VerlView, request: RunRequest) -> bool:
    """Return whether mode colocate would be refused (`colocate.check`, `reward_model.placed`)."""
    replay = replay_of(request.trinity)
    return (
        request.options.explorers > 1
        or bool(value_at(verl.tree, reward_model.ENABLE))
        or colocate.NCCL_ASKED in request.options.sets
        or (replay is not None and replay.max_uses > 1)
    )


def assign_gpus(verl: VerlView, request: RunRequest, mode: Mode) -> Step:
    """Assign GPUs to each side and to the reward model. Raises UserError where they don't suffice."""
    if mode == "serve":
        return serving.alone(verl, request.trinity, request.device, request.options.sets)
    alone = single_side.is_asked(request.trinity, request.options)
    reward = reward_model.placed(
        verl,
        request.trinity,
        device=request.device,
        mode=mode,
        explorers=request.options.explorers if request.options.explorer is not None else 1,
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
    roomy, memory_notes = _with_memory(shared, verl, request, mode)
    return roomy, [*reward.lines, *split_notes, *memory_notes]


def _with_memory(verl: VerlView, launch: VerlView, request: RunRequest, mode: Mode) -> Step:
    """Raise vLLM's share of memory on GPUs of its own, if the value is still the default of translate."""
    sets = (*request.options.sets, *request.options.joined)
    changed_keys = {text.partition("=")[0].lstrip("+") for text in sets}
    changed_keys |= {key for overlay in request.overlays for key in overlay.verl}
    written = verl_from_trinity.stand_in_of(
        request.trinity, dedicated_gpus.MEMORY, dedicated_gpus.YAML_MEMORY
    )
    if (
        written is None
        or request.device == "cpu"
        or changed_keys & {dedicated_gpus.MEMORY, dedicated_gpus.YAML_MEMORY}
    ):
        return verl, []
    return dedicated_gpus.default_memory(verl, launch, float(written), mode=mode)
