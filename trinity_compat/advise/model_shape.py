"""Sizes of a model, by the fields of its config.json (transformers' names)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from trinity_compat.common.errors import UserError
from trinity_compat.common.nested import Tree
from trinity_compat.common.plain_numbers import is_whole

BYTES = 2  # of a weight, an activation and a cached key or value in bfloat16
_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")


@dataclass(frozen=True, slots=True)
class ModelShape:
    """Sizes of a language model.

    ``weights``: parameters in all; ``active``: those that one token uses (fewer with experts). ``kv_values``:
    keys and values that a token leaves in the cache, over all layers. ``kv_heads``: heads over which an
    engine's ranks split them. ``experts``: parameters of all routed experts; ``embeddings``: of the
    embedding and the head, which are one where they are ``tied``. ``layer_bytes``: that a token leaves in a
    layer for its backward pass. ``adapted``: parameters of an adapter of rank 1 on every linear layer.
    """

    weights: float
    active: float
    layers: int
    hidden: int
    vocabulary: int
    kv_values: int
    kv_heads: int
    experts: float = 0
    embeddings: float = 0
    tied: bool = True
    layer_bytes: float = 0
    adapted: float = 0

    @property
    def embedding(self) -> float:
        """Parameters of the embedding alone."""
        return self.embeddings if self.tied else self.embeddings / 2

    @property
    def kv_bytes(self) -> int:
        """Bytes of a token in the KV cache."""
        return self.kv_values * BYTES


def of_config(config: Tree) -> ModelShape:
    """Return the shape of the model that config.json describes.

    Embeddings, attention and feed-forward blocks are counted; norms, biases and a vision tower are not.
    Raises UserError for a file without the sizes.
    """
    text = config.get("text_config")
    language = {**config, **text} if isinstance(text, Mapping) else config
    hidden, layers = _size(language, "hidden_size"), _size(language, "num_hidden_layers")
    vocabulary = _size(language, "vocab_size")
    attention, kv_values, kv_heads, made = _attention(language, hidden)
    dense, active, experts = _feed_forward(language, hidden, layers)
    tied = bool(language.get("tie_word_embeddings"))
    embeddings = hidden * vocabulary * (1 if tied else 2)
    inner = active / layers / (3 * hidden)
    return ModelShape(
        weights=embeddings + layers * attention + dense,
        active=hidden * vocabulary + layers * attention + active,
        layers=layers,
        hidden=hidden,
        vocabulary=vocabulary,
        kv_values=kv_values * layers,
        kv_heads=kv_heads,
        experts=experts,
        embeddings=embeddings,
        tied=tied,
        # Both norms' inputs and outputs, what attention makes, and of a gated block four values.
        layer_bytes=BYTES * (4 * hidden + made + 4 * inner),
        adapted=layers * (4 * hidden + made + 3 * (hidden + inner)),
    )


def _attention(config: Tree, hidden: int) -> tuple[int, int, int, int]:
    """Return a layer's weights, its cached values for each token, the heads that split these.

    And the values that it makes of a token: queries, keys, values, and what goes into its output.
    """
    heads = _size(config, "num_attention_heads")
    if latent := _size(config, "kv_lora_rank", 0):  # DeepSeek's latent attention caches the latent alone
        rope, nope = _size(config, "qk_rope_head_dim"), _size(config, "qk_nope_head_dim")
        value, query = _size(config, "v_head_dim"), _size(config, "q_lora_rank", 0)
        asked = query * (hidden + heads * (nope + rope)) if query else hidden * heads * (nope + rope)
        kept = hidden * (latent + rope) + latent * heads * (nope + value)
        made = 2 * heads * (nope + rope + value)
        return asked + kept + heads * value * hidden, latent + rope, 1, made
    kv_heads = _size(config, "num_key_value_heads", heads)
    each = _size(config, "head_dim", hidden // heads)
    cached = 2 * kv_heads * each
    return hidden * (2 * heads * each + cached), cached, kv_heads, 2 * heads * each + cached


def _feed_forward(config: Tree, hidden: int, layers: int) -> tuple[int, int, int]:
    """Return the weights of all feed-forward blocks, those that one token uses, and the routed experts'."""
    inner = _size(config, "intermediate_size", 4 * hidden)
    experts = next((_size(config, name) for name in _EXPERTS if config.get(name)), 0)
    if not experts:
        return layers * 3 * hidden * inner, layers * 3 * hidden * inner, 0
    one = 3 * hidden * _size(config, "moe_intermediate_size", inner)
    shared = _size(config, "n_shared_experts", 0) * one
    shared += 3 * hidden * _size(config, "shared_expert_intermediate_size", 0)
    first = min(layers, _size(config, "first_k_dense_replace", 0))
    plain = first * 3 * hidden * inner
    mixed = layers - first
    used = _size(config, "num_experts_per_tok", 1)
    routed = mixed * experts * one
    return plain + mixed * shared + routed, plain + mixed * (used * one + shared), routed


def scaled(shape: ModelShape, weights: float) -> ModelShape:
    """Return the shape of a model of ``weights`` parameters that is like ``shape``.

    Depth and width grow alike: parameters by their third power, cached values by their square.
    """
    factor = weights / shape.weights
    wide, deep = factor ** (1 / 3), factor ** (2 / 3)
    return replace(
        shape,
        weights=weights,
        active=shape.active * factor,
        layers=max(1, round(shape.layers * wide)),
        hidden=max(1, round(shape.hidden * wide)),
        kv_values=max(1, round(shape.kv_values * deep)),
        experts=shape.experts * factor,
        embeddings=min(weights, shape.embeddings * wide),
        layer_bytes=shape.layer_bytes * wide,
        adapted=shape.adapted * deep,
    )


def _size(config: Tree, name: str, default: int | None = None) -> int:
    value = config.get(name)
    if not is_whole(value, least=0):
        if value is None and default is not None:
            return default
        raise UserError(f"the model's config.json: {name} is {value!r}, not a number of 0 or more")
    if not value and default is None:
        raise UserError(f"the model's config.json: {name} is 0")
    return value
