"""Micro-batch sizes: upstream's workers demand each of them while use_dynamic_bsz is off.

Until 0.7 veRL took a size over all GPUs too and divided it by its data-parallel ranks (fsdp_workers.py,
megatron_workers.py). What one GPU got then is what it gets now: its memory is what the size is about, and the
trainer's smaller share of the GPUs changes nothing in it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from trinity_compat.translate.launch_view import ARR, LaunchView, Put, Verdict
from trinity_compat.translate.model import Status
from trinity_compat.translate.registry import Said, derivation
from trinity_compat.translate.sections.gpus import ranks_of

TC = "trainer.trainer_config"
ACTOR = f"{ARR}.actor.ppo_micro_batch_size"
DYNAMIC = f"{ARR}.actor.use_dynamic_bsz"


@dataclass(frozen=True, slots=True)
class _Size:
    """One micro-batch size: ``key`` counts over all GPUs, ``key``_per_gpu per GPU."""

    key: str
    role: str  # whose model it is
    like: str = ACTOR  # whose size it takes when the launch gives none

    @property
    def per_gpu(self) -> str:
        return f"{self.key}_per_gpu"


@derivation
def micro_batches(view: LaunchView) -> Said:
    """The actor's, the old log-probabilities', the reference's and the critic's."""
    actor, ref = f"{ARR}.actor", f"{ARR}.ref"
    sizes = [_Size(ACTOR, actor), _Size(f"{ARR}.rollout.log_prob_micro_batch_size", actor)]
    sizes.append(_Size(f"{ref}.log_prob_micro_batch_size", ref))
    if view.critic:
        sizes.append(_Size("critic.ppo_micro_batch_size", "critic"))
    dynamic = view.flag(DYNAMIC)
    for size in sizes:
        if view.value(size.per_gpu) is not None:
            yield Put(f"{TC}.{size.per_gpu}", view.integer(size.per_gpu), (size.per_gpu,))
        elif dynamic:
            yield Verdict(size.key, Status.NO_EFFECT, "use_dynamic_bsz is on", "TC032")
        elif not view.old_trinity or view.value(size.key) is not None:
            yield from _derived(view, size)


def _derived(view: LaunchView, size: _Size) -> Iterator[Put | Verdict]:
    for key in (size.key, f"{size.like}_per_gpu", size.like):
        value = view.value(key)
        if value is None:
            continue
        ranks = 1 if key.endswith("_per_gpu") else ranks_of(view, size.role)
        share = f" ÷ {ranks} ranks of the launch" if ranks > 1 else ""
        note = f"{key.removeprefix(ARR + '.')}={value}{share}: upstream demands it without dynamic batches"
        yield Put(f"{TC}.{size.per_gpu}", max(1, view.integer(key) // ranks), (size.key,), note)
        return
    yield Put(f"{TC}.{size.per_gpu}", 1, (size.key,), "not given: one sequence at a time")
    reason = "the launch gives no micro-batch size, which veRL itself refuses; 1 is written"
    yield Verdict(size.per_gpu, Status.APPROXIMATED, reason)
