"""Estimated speeds of both sides, by a model's sizes and a card's bandwidth and arithmetic.

A decoding step reads the weights once and each answer's cache; everything else is arithmetic. Shares of the
data sheet's figures that real engines and trainers reach are assumed, and printed.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from trinity_compat.advise.cards import Card
from trinity_compat.advise.model import Speeds
from trinity_compat.advise.model_shape import BYTES, ModelShape

BANDWIDTH, PREFILL, TRAINING = 0.6, 0.5, 0.4  # shares of the card's figures
DECODING_S = 0.004  # of a decoding step, for its scheduling and the starts of its kernels
HANDOVER_GBS = 10.0  # GB/s of weights from the trainer to the engines
OFFLOAD_GBS = 25.0  # GB/s of a card to the memory of its machine
STATE_BYTES = 16  # of a parameter in training: float32 weight, gradient, and Adam's two moments


@dataclass(frozen=True, slots=True)
class Passes:
    """Passes over each trained token: ``forward`` ones alone, and ``backward`` ones with their forward.

    ``checkpointed``: activations are computed again in the backward pass.
    """

    forward: int
    backward: int
    checkpointed: bool

    @property
    def flops(self) -> int:
        """Arithmetic for each active parameter and token: 2 forward, 4 backward, 2 for computing again."""
        return 2 * self.forward + self.backward * (8 if self.checkpointed else 6)


def estimated(shape: ModelShape, card: Card, passes: Passes, *, context: float, slots: int) -> Speeds:
    """Return the speeds of engines of one GPU. ``context``: mean tokens of an answer with its prompt."""
    read = card.bandwidth * 1e9 * BANDWIDTH
    computed = card.tflops * 1e12
    return Speeds(
        step_s=shape.weights * BYTES / read,
        answer_s=2 * shape.active / (computed * PREFILL) + shape.kv_bytes * context / read,
        slots=slots,
        training=computed * TRAINING / (passes.flops * shape.active),
        prefill=computed * PREFILL / (2 * shape.active),
        handover_s=shape.weights * BYTES / (HANDOVER_GBS * 1e9),
        overhead_s=DECODING_S,
    )


def of_width(speeds: Speeds, width: int) -> Speeds:
    """Return the speeds of engines of ``width`` GPUs, which share all work evenly."""
    return replace(
        speeds,
        step_s=speeds.step_s / width,
        answer_s=speeds.answer_s / width,
        prefill=speeds.prefill and speeds.prefill * width,
    )


def generating(speeds: Speeds, tokens_per_s: float) -> Speeds:
    """Return ``speeds`` of engines whose GPUs make ``tokens_per_s`` tokens a second with all slots in use."""
    return slower(speeds, speeds.full_rate / tokens_per_s)


def slower(speeds: Speeds, factor: float) -> Speeds:
    """Return ``speeds`` with everything of an engine ``factor`` times as slow."""
    return replace(
        speeds,
        overhead_s=speeds.overhead_s * factor,
        step_s=speeds.step_s * factor,
        answer_s=speeds.answer_s * factor,
        prefill=speeds.prefill and speeds.prefill / factor,
    )


def offload_s(shape: ModelShape, gpus: int) -> float:
    """Return the seconds in which the training state of ``gpus`` GPUs moves to host memory, or back."""
    return shape.weights * STATE_BYTES / gpus / (OFFLOAD_GBS * 1e9)
