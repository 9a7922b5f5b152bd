"""Micro-batch sizes: upstream's workers demand each of them while use_dynamic_bsz is off.

Until 0.7 veRL took a size over all GPUs too and divided it by its data-parallel ranks (fsdp_workers.py,
megatron_workers.py). What one GPU got then is what it gets now: its memory is what the size is about, and the
trainer's smaller share of the GPUs changes nothing in it.
"""

from __future__ import annotations

from collections.abc import Iterator

from trinity_compat.translate.launch_view import ARR, LaunchView, PathValue, Verdict
from trinity_compat.translate.micro_batch_sizes import ACTOR, CRITIC, DYNAMIC, REF, ROLLOUT, MicroBatchSize
from trinity_compat.translate.model import Status
from trinity_compat.translate.registry import Derived, derivation
from trinity_compat.translate.sections.gpus import ranks_of

TC = "trainer.trainer_config"


@derivation
def micro_batches(view: LaunchView) -> Derived:
    """The actor's, the old log-probabilities', the reference's and the critic's."""
    dynamic = view.flag(DYNAMIC)
    for size in map(MicroBatchSize, (ACTOR, ROLLOUT, REF, *([CRITIC] if view.critic else []))):
        if view.value(size.per_gpu) is not None:
            yield PathValue(f"{TC}.{size.per_gpu}", view.integer(size.per_gpu), (size.per_gpu,))
        elif dynamic:
            yield Verdict(size.all_gpus, Status.NO_EFFECT, "use_dynamic_bsz is on", "TC032")
        elif not view.old_trinity or view.value(size.all_gpus) is not None:
            yield from _derived(view, size)


def _derived(view: LaunchView, size: MicroBatchSize) -> Iterator[PathValue | Verdict]:
    for key in (size.all_gpus, f"{ACTOR}_per_gpu", ACTOR):
        value = view.value(key)
        if value is None:
            continue
        ranks = 1 if key.endswith("_per_gpu") else ranks_of(view, size.role)
        share = f" ÷ {ranks} ranks of the launch" if ranks > 1 else ""
        note = f"{key.removeprefix(ARR + '.')}={value}{share}: upstream demands it without dynamic batches"
        yield PathValue(f"{TC}.{size.per_gpu}", max(1, view.integer(key) // ranks), (size.all_gpus,), note)
        return
    yield PathValue(f"{TC}.{size.per_gpu}", 1, (size.all_gpus,), "not given: one sequence at a time")
    reason = "the launch gives no micro-batch size, which veRL itself refuses; 1 is written"
    yield Verdict(size.per_gpu, Status.APPROXIMATED, reason)
