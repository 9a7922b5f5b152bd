"""Memory of a GPU on each side, against that of its card: one formula for each term, with its source.

A GPU of the trainer keeps the state of its models, and beside it what one moment of an update needs; the
largest of these moments is the peak. Held against published figures in tests/advise/published_memory.json.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from trinity_compat.advise.model_shape import BYTES, ModelShape

GIB = 2**30
WEIGHT_BYTES, MOMENT_BYTES = 4, 8  # of a trained parameter in float32: itself, Adam's two moments
_GRADIENT, _MASTER = 4, 12  # Megatron: a float32 gradient; the float32 weight and moments of its optimizer
_REDUCED = BYTES + 4  # a gradient as it is made, and in float32 for its reduction
# Of a logit in an update: itself and its copy or gradient in bfloat16; in Megatron's cross entropy also the
# float32 softmax that it keeps (core/tensor_parallel/cross_entropy.py).
LOGIT_BYTES = {"fsdp": 4, "fsdp2": 4, "megatron": 8}
_ENTROPY = 4  # of a logit: softmax and product of `entropy_from_logits` (verl/utils/torch_functional.py)
_BLOCK = 16  # tokens of a block of the KV cache, vLLM's default
_BATCHED = 8192  # tokens that an engine computes at once, vLLM's max_num_batched_tokens
_LAYER_VALUES = 34  # bytes of a token and hidden value in a layer (arXiv 2205.05198, without scores)
_OUTSIDE_GIB = 1.5  # CUDA's context, NCCL's buffers and CUDA graphs


@dataclass(frozen=True, slots=True)
class Spread:
    """Shares of a model's state on each GPU.

    ``shards``: GPUs over which FSDP splits it, 0 for all. The others are Megatron's sizes; ``distributed``:
    its optimizer's state is split over the data-parallel ranks.
    """

    shards: int = 0
    tensor: int = 1
    pipeline: int = 1
    expert: int = 1
    expert_tensor: int = 1
    distributed: bool = True


@dataclass(frozen=True, slots=True)
class ResidentParts:
    """Numbers of models with each part on a trainer's devices while it is not used."""

    weights: int = 0
    optimizers: int = 0
    references: int = 0


@dataclass(frozen=True, slots=True)
class Training:
    """A trainer's own sizes.

    ``tokens``: of a micro-batch on one GPU, of ``update`` tokens on all of them; ``scored``: of a micro-batch
    of log-probabilities, of ``batch``. ``models``: trained ones; ``references``: models that give
    log-probabilities alone. ``lora``: rank of the trained adapter, 0 where the whole model is trained.
    ``weight_bytes``: of a trained weight.

    ``checkpointed``: activations are computed again in the backward pass; ``kept_on_gpu``: what stays of them
    is on the GPU. ``fused``: kernels that never hold all logits; ``entropy``: it is part of the loss;
    ``chunked``: of some tokens at a time. ``on_cpu``: share of the optimizer that steps on the CPU;
    ``all_on_cpu``: FSDP2's offload_policy. ``stays``: of all models between steps; ``beside``: of those other
    than the actor in its update.
    """

    tokens: int
    models: int
    references: int
    checkpointed: bool
    fused: bool
    engine: str = "fsdp"
    spread: Spread = Spread()
    update: float = math.inf
    scored: int = 0
    batch: float = math.inf
    lora: int = 0
    weight_bytes: int = WEIGHT_BYTES
    kept_on_gpu: bool = True
    entropy: bool = False
    chunked: bool = False
    on_cpu: float = 0.0
    all_on_cpu: bool = False
    stays: ResidentParts = ResidentParts()
    beside: ResidentParts = ResidentParts()

    @property
    def is_megatron(self) -> bool:
        """Return True for Megatron's layout, else it is FSDP's."""
        return self.engine == "megatron"


@dataclass(frozen=True, slots=True)
class TrainerMemory:
    """GiB of one trainer GPU at its peak, by part.

    ``references``: of the reference and the critic beside the actor; ``activations``: of the moment ``at``.
    """

    weights: float
    gradients: float
    optimizer: float
    references: float
    activations: float
    at: str = ""

    @property
    def allocated(self) -> float:
        """GiB that torch has allocated (veRL's ``perf/max_memory_allocated_gb``)."""
        return self.weights + self.gradients + self.optimizer + self.references + self.activations

    @property
    def total(self) -> float:
        """GiB at the peak of an update, what lies outside of torch included."""
        return self.allocated + _OUTSIDE_GIB


@dataclass(frozen=True, slots=True)
class EngineMemory:
    """GiB of one GPU of an engine, and the tokens that its KV cache holds; 0 where the weights leave none."""

    requested: float
    weights: float
    working: float
    kv: float
    kv_tokens: int


@dataclass(frozen=True, slots=True)
class Saving:
    """GiB that a GPU of ``side`` (trainer or engine) needs less with ``key`` at ``value``."""

    side: str
    key: str
    value: object
    gib: float

    def __str__(self) -> str:
        return f"−{self.gib:.1f} GiB: {self.key}={self.value}"


@dataclass(frozen=True, slots=True)
class ModeMemory:
    """Memory of both sides in one mode, against the card's ``card_gib``.

    ``trainer``: None where its engine is not estimated. ``resident``: GiB of the trainer's state that stay
    beside an engine; ``awake``: GiB of an engine that stay beside the trainer. ``longest``: tokens of the
    longest answer with its prompt. ``savings``: by their effect.
    """

    trainer: TrainerMemory | None
    engine: EngineMemory
    card_gib: float
    resident: float
    longest: int
    awake: float = 0.0
    savings: tuple[Saving, ...] = field(default=(), compare=False)

    @property
    def needs(self) -> dict[str, float]:
        """GiB of a GPU while each side works."""
        engine = {"engine": self.engine.requested + self.resident}
        return {"trainer": self.trainer.total + self.awake, **engine} if self.trainer else engine

    @property
    def problems(self) -> tuple[str, ...]:
        """Say what does not fit."""
        found, needs = [], self.needs
        if needs.get("trainer", 0.0) > self.card_gib:
            beside = f", {self.awake:.0f} of them an engine's" if self.awake else ""
            found.append(f"a trainer GPU needs {needs['trainer']:.0f} GiB of {self.card_gib:.0f}{beside}")
        if self.engine.kv_tokens < self.longest:
            found.append(
                f"an engine's KV cache holds {self.engine.kv_tokens} tokens, and an answer has up to"
                f" {self.longest}"
            )
        if needs["engine"] > self.card_gib:
            found.append(
                f"an engine takes {self.engine.requested:.0f} GiB beside {self.resident:.0f} GiB of the"
                f" trainer, of {self.card_gib:.0f}"
            )
        return tuple(found)


@dataclass(frozen=True, slots=True)
class _State:
    """Bytes of one trained model on a GPU."""

    weights: float
    gradients: float
    optimizer: float


def _state(shape: ModelShape, training: Training, gpus: int) -> _State:
    """Return a model's state on one of ``gpus``.

    FSDP splits all of it (ZeRO stage 3, arXiv 1910.02054): weight, gradient and Adam's moments in one dtype
    (verl/workers/engine/fsdp/transformer_impl.py: ``torch_dtype``); of an adapter only its own parameters
    have the last two. Megatron splits weights by tensor, pipeline and expert parallelism and keeps them in
    bfloat16 beside a float32 gradient (verl/utils/megatron_utils.py: ``grad_reduce_in_fp32``); 12 bytes of
    the optimizer are split over the data-parallel ranks (docs of Megatron's distributed optimizer).
    """
    spread, adapter = training.spread, training.lora * shape.adapted
    if not training.is_megatron:
        each = 0.0 if training.all_on_cpu else training.weight_bytes / (spread.shards or gpus)
        trained = adapter or shape.weights
        return _State(each * (shape.weights + adapter), each * trained, 2 * each * trained)
    stage = math.ceil(shape.layers / spread.pipeline) / shape.layers
    ends = shape.embedding if spread.pipeline > 1 else shape.embeddings
    by_expert = spread.expert * spread.expert_tensor
    experts = shape.experts * stage / by_expert
    dense = ((shape.weights - shape.experts - shape.embeddings) * stage + ends) / spread.tensor
    copies = [max(1, gpus // (size * spread.pipeline)) for size in (spread.tensor, by_expert)]
    of_dense, of_experts = copies if spread.distributed else (1, 1)
    part = adapter / shape.weights if adapter else 1.0
    held = _MASTER * (dense / of_dense + experts / of_experts) * (1 - training.on_cpu)
    return _State(BYTES * (dense + experts), _GRADIENT * (dense + experts) * part, held * part)


def of_trainer(shape: ModelShape, training: Training, gpus: int) -> TrainerMemory:
    """Return the memory of a GPU of ``gpus`` at the largest moment of its update.

    A micro-batch has no more tokens than its GPU has of the update (``per_gpu``): the ranks of a tensor or
    pipeline group have the same rows.
    """
    spread = training.spread
    per_gpu = spread.tensor * spread.pipeline / gpus
    tokens = min(training.tokens, training.update * per_gpu)
    scored = min(training.scored, training.batch * per_gpu)
    state = _state(shape, training, gpus)
    others = resident(shape, training, training.beside, gpus) * GIB
    accumulates = training.update * per_gpu > training.tokens
    moments = _of_megatron if training.is_megatron else _of_fsdp
    found = (
        TrainerMemory(state.weights / GIB, gradients / GIB, optimizer / GIB, others / GIB, working / GIB, at)
        for at, gradients, optimizer, working in moments(
            shape, training, state, tokens=tokens, scored=scored, accumulates=accumulates
        )
    )
    return max(found, key=lambda moment: moment.allocated)


_Moment = tuple[str, float, float, float]  # its name; bytes of gradients, optimizer, and what else there is


def _of_fsdp(
    shape: ModelShape, training: Training, state: _State, *, tokens: float, scored: float, accumulates: bool
) -> Iterator[_Moment]:
    """Yield the moments of FSDP.

    Of its units the embeddings are the largest: both in FSDP1's root, which stays gathered to the end of the
    backward pass (torch/distributed/fsdp/_runtime_utils.py: ``_root_pre_forward``), each alone in FSDP2
    (verl/utils/fsdp_utils.py: ``_select_fsdp2_wrap_targets``). Layers are gathered one ahead. A unit's
    gradient is made whole in bfloat16, and reduced in float32 after its weights are freed (``_reduce_grad``;
    FSDP2: ``foreach_reduce``). AdamW's step makes one value a parameter (torch/optim/adam.py:
    ``exp_avg_sq_sqrt``). Gradients of earlier micro-batches stay to the end.
    """
    is_first = training.engine == "fsdp"
    unit = shape.embeddings if is_first else shape.embedding
    of_layer = (shape.weights - shape.embeddings) / shape.layers
    gathered = 2 * BYTES * of_layer
    made = not training.lora
    kept, one = _activations(shape, training, tokens)
    in_update, in_scores = _logit_bytes(training)
    before = state.gradients if accumulates else 0.0
    root = BYTES * unit * (2 if made and is_first else 1)
    yield "loss", before, state.optimizer, kept + root + tokens * shape.vocabulary * in_update
    inside = root if is_first else 0.0
    reduced = _REDUCED * of_layer if made else 0.0
    yield "backward pass", before, state.optimizer, kept + one + gathered + reduced + inside
    if made:
        if not is_first:
            yield "reduction", before, state.optimizer, kept + gathered + _REDUCED * unit
        yield "reduction", state.gradients, state.optimizer, _REDUCED * unit
    yield "optimizer's step", state.gradients, state.optimizer, state.gradients
    waiting = state.optimizer if training.stays.optimizers else 0.0
    alone = BYTES * unit + gathered + scored * shape.vocabulary * in_scores
    yield "log-probabilities", 0.0, waiting, alone


def _of_megatron(
    shape: ModelShape, training: Training, state: _State, *, tokens: float, scored: float, accumulates: bool
) -> Iterator[_Moment]:
    """Yield the moments of Megatron, whose gradients have a buffer of their own.

    Tensor parallelism splits a layer's activations (with sequence parallelism, arXiv 2205.05198, section 4.2)
    and the vocabulary; the first stage of a pipeline has as many micro-batches on their way as there are
    stages, the last has the logits.
    """
    spread = training.spread
    kept, one = _activations(shape, training, tokens)
    kept, one = (each / spread.tensor / spread.pipeline for each in (kept, one * spread.pipeline))
    in_update, in_scores = _logit_bytes(training)
    vocabulary = shape.vocabulary / spread.tensor
    ways = spread.pipeline if accumulates else 1
    last = kept + max(one, tokens * vocabulary * in_update)
    yield "loss", state.gradients, state.optimizer, last
    yield "backward pass", state.gradients, state.optimizer, kept * ways + one
    waiting = state.optimizer if training.stays.optimizers else 0.0
    stays = state.gradients if training.stays.weights else 0.0
    yield "log-probabilities", stays, waiting, scored * vocabulary * in_scores


def _activations(shape: ModelShape, training: Training, tokens: float) -> tuple[float, float]:
    """Return bytes that all layers keep for the backward pass, and of the one that is computed again.

    With checkpointing each layer keeps its input alone (arXiv 2205.05198, section 5), which
    ``enable_activation_offload`` moves to host memory.
    """
    whole = tokens * shape.layer_bytes
    if not training.checkpointed:
        return whole * shape.layers, 0.0
    return tokens * shape.layers * BYTES * shape.hidden * training.kept_on_gpu, whole


def _logit_bytes(training: Training) -> tuple[int, int]:
    """Return bytes of a logit in an update and in a pass for log-probabilities, which asks for the entropy.

    ``prepare_model_outputs`` of each engine (verl/workers/engine); none with fused kernels.
    """
    if training.fused:
        return 0, 0
    each = LOGIT_BYTES[training.engine]
    entropy = 0 if training.chunked else _ENTROPY
    return each + entropy * training.entropy, each + entropy


def resident(shape: ModelShape, training: Training, parts: ResidentParts, gpus: int) -> float:
    """Return the GiB of ``parts`` on each of ``gpus``; FSDP's gradients are freed after a step.

    Of a reference the weights in bfloat16.
    """
    state = _state(shape, training, gpus)
    buffers = state.gradients if training.is_megatron else 0.0
    frozen = _state(shape, replace(training, weight_bytes=BYTES, lora=0), gpus).weights
    weights = parts.weights * (state.weights + buffers) + parts.references * frozen
    return (weights + parts.optimizers * state.optimizer) / GIB


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
