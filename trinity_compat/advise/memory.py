"""Memory of a GPU on each side, against that of its card."""

from __future__ import annotations

from dataclasses import dataclass

from trinity_compat.advise.model_shape import BYTES, ModelShape

GIB = 2**30
WEIGHT_BYTES, MOMENT_BYTES = 4, 8  # of a trained parameter in float32: itself, Adam's two moments
_BLOCK = 16  # tokens of a block of the KV cache, vLLM's default
_BATCHED = 8192  # tokens that an engine computes at once, vLLM's max_num_batched_tokens
_LAYER_VALUES = 34  # bytes of a token and hidden value that a layer keeps for its backward pass
_LOGIT_BYTES = 6  # of a logit: bfloat16, and float32 for its softmax
_OUTSIDE_GIB = 1.5  # CUDA's context, NCCL's buffers and CUDA graphs


@dataclass(frozen=True, slots=True)
class Training:
    """A trainer's own sizes.

    ``tokens``: of a micro-batch on one GPU; ``models``: trained ones; ``references``: models that give
    log-probabilities alone; ``checkpointed``: activations are computed again in the backward pass; ``fused``:
    kernels that never hold all logits.
    """

    tokens: int
    models: int
    references: int
    checkpointed: bool
    fused: bool


@dataclass(frozen=True, slots=True)
class ResidentParts:
    """Numbers of models with each part on a trainer's devices between its steps."""

    weights: int
    optimizers: int
    references: int


@dataclass(frozen=True, slots=True)
class TrainerMemory:
    """GiB of one trainer GPU, by part."""

    weights: float
    gradients: float
    optimizer: float
    references: float
    activations: float

    @property
    def total(self) -> float:
        """GiB at the peak of an update, what lies outside of torch included."""
        parts = (self.weights, self.gradients, self.optimizer, self.references, self.activations)
        return sum(parts) + _OUTSIDE_GIB


@dataclass(frozen=True, slots=True)
class EngineMemory:
    """GiB of one GPU of an engine, and the tokens that its KV cache holds; 0 where the weights leave none."""

    requested: float
    weights: float
    working: float
    kv: float
    kv_tokens: int


@dataclass(frozen=True, slots=True)
class ModeMemory:
    """Memory of both sides in one mode, against the card's ``card_gib``.

    ``trainer``: None where its engine is not estimated. ``resident``: GiB of the trainer's state that stay
    beside an engine. ``longest``: tokens of the longest answer with its prompt.
    """

    trainer: TrainerMemory | None
    engine: EngineMemory
    card_gib: float
    resident: float
    longest: int

    @property
    def problems(self) -> tuple[str, ...]:
        """Say what does not fit."""
        found = []
        if self.trainer and self.trainer.total > self.card_gib:
            found.append(f"a trainer GPU needs {self.trainer.total:.0f} GiB of {self.card_gib:.0f}")
        if self.engine.kv_tokens < self.longest:
            found.append(
                f"an engine's KV cache holds {self.engine.kv_tokens} tokens, and an answer has up to"
                f" {self.longest}"
            )
        if self.engine.requested + self.resident > self.card_gib:
            found.append(
                f"an engine takes {self.engine.requested:.0f} GiB beside {self.resident:.0f} GiB of the"
                f" trainer, of {self.card_gib:.0f}"
            )
        return tuple(found)


def of_trainer(shape: ModelShape, training: Training, gpus: int) -> TrainerMemory:
    """Return the memory of a GPU of ``gpus`` that share all models (FSDP).

    Weights, gradients and Adam's moments are float32, a reference's weights bfloat16 (veRL 0.9.1,
    verl/workers/engine/fsdp/transformer_impl.py: ``torch_dtype``, ``reduce_dtype``). Gathered weights of two
    layers in bfloat16 come with the activations. A micro-batch has ``tokens`` tokens on each GPU (veRL 0.9.1,
    verl/workers/engine/utils.py: ``max_token_len_per_gpu * sp_size``, over sp_size GPUs). For each of them a
    layer keeps 34 bytes a hidden value (Korthikanti et al., arXiv 2205.05198, without attention scores), or
    its input alone where it is computed again.
    """
    share = shape.weights / gpus / GIB
    kept = shape.layers * BYTES + _LAYER_VALUES if training.checkpointed else shape.layers * _LAYER_VALUES
    logits = 0 if training.fused else shape.vocabulary * _LOGIT_BYTES
    gathered = 2 * shape.weights / shape.layers * BYTES
    return TrainerMemory(
        weights=WEIGHT_BYTES * share * training.models,
        gradients=WEIGHT_BYTES * share * training.models,
        optimizer=MOMENT_BYTES * share * training.models,
        references=BYTES * share * training.references,
        activations=(training.tokens * (kept * shape.hidden + logits) + gathered) / GIB,
    )


def resident(shape: ModelShape, parts: ResidentParts, gpus: int) -> float:
    """Return the GiB that stay on each of ``gpus`` between a trainer's steps, when gradients are freed."""
    nbytes = WEIGHT_BYTES * parts.weights + MOMENT_BYTES * parts.optimizers + BYTES * parts.references
    return nbytes * shape.weights / gpus / GIB


def of_engine(
    shape: ModelShape, *, width: int, slots: int, utilization: float, card_gib: float
) -> EngineMemory:
    """Return the memory of a GPU of an engine of ``width``.

    vLLM 0.28: requested is the card's memory × gpu_memory_utilization (v1/worker/utils.py:
    ``request_memory``); the KV cache gets what weights, the working memory of the largest batch, and what
    lies outside of torch leave of it (v1/worker/gpu_worker.py: ``determine_available_memory``), in blocks of
    16 tokens (v1/core/kv_cache_utils.py: ``get_num_blocks``, page size × layers). Heads that are fewer than
    the ranks are kept by several of them.
    """
    requested = card_gib * utilization
    weights = shape.weights * BYTES / width / GIB
    working = (_BATCHED * shape.hidden * _LAYER_VALUES / width + slots * shape.vocabulary * 4) / GIB
    kv = max(0.0, requested - weights - working - _OUTSIDE_GIB)
    of_block = _BLOCK * shape.kv_bytes / min(width, shape.kv_heads)
    return EngineMemory(requested, weights, working, kv, int(kv * GIB // of_block) * _BLOCK)
