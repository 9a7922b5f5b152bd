"""Sizes with which stock veRL ends, at its start or at its first update: one table, with each rule's source.

A place in a source is that of the pinned release; ``since`` is the first release with the rule. What only the
split of a run's GPUs breaks is fitted by its plan (``run/plan/micro_batches.py``).

The critic's micro-batches have no rule: its engine cuts by tokens, whatever its keys say (``critic_tokens``).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

from trinity_compat.common.nested import value_at
from trinity_compat.common.plain_numbers import is_whole
from trinity_compat.common.releases import VERL, VERL_RELEASES
from trinity_compat.common.resources import data_json
from trinity_compat.common.training_engines import ULYSSES, TrainingEngine, engine_of
from trinity_compat.translate import micro_batch_sizes
from trinity_compat.translate.launch_view import NODES, PER_NODE
from trinity_compat.translate.micro_batch_sizes import DYNAMIC, USE_V1, MicroBatchSize, Value
from trinity_compat.translate.run_refusals import MOE_TENSOR_PARALLEL, uneven_experts
from trinity_compat.translate.update_steps import BATCH

_ARR = "actor_rollout_ref"
_ACTOR, _REF, _ROLLOUT, _CRITIC = (*(f"{_ARR}.{name}" for name in ("actor", "ref", "rollout")), "critic")
_REWARD = "reward.reward_model"
_N = f"{_ROLLOUT}.n"
_PROMPT, _RESPONSE = "data.max_prompt_length", "data.max_response_length"
_TP, _SP = f"{_ROLLOUT}.tensor_model_parallel_size", f"{_ACTOR}.{ULYSSES}"
_PADDING = f"{_ARR}.model.use_remove_padding"
_TOKENS = f"{_ACTOR}.ppo_max_token_len_per_gpu"
_V1_MODE, _BACKEND = "trainer.v1.trainer_mode", f"{_ROLLOUT}.checkpoint_engine.backend"
_OWN_GPUS = (f"{_ROLLOUT}.nnodes", f"{_ROLLOUT}.n_gpus_per_node")
OF_STOCK = frozenset({USE_V1, _V1_MODE, _BACKEND, *_OWN_GPUS})  # a run here has its own values of these
_MOST_SHOWN = 8  # sizes that fit
VLLMS_HEADS = "vLLM's verify_with_parallel_config"  # in every release


@dataclass(frozen=True, slots=True)
class BrokenRule:
    """A rule that a launch breaks.

    ``keys``: the settings that it follows from, the nearest first. ``until``: the last release that takes
    the sizes as they are; None where none does.
    """

    keys: tuple[str, ...]
    message: str
    hint: str
    until: str | None = None


class UnknownSize(Exception):
    """A rule needs a size that is not a number, or not known."""


@dataclass(eq=False)
class UnknownHeads(UnknownSize):
    """The GPUs of ``size`` share the heads of the model of ``key``, which are not known."""

    size: str
    key: str


@dataclass(frozen=True, slots=True)
class SizesOfLaunch:
    """The sizes of a launch.

    ``value`` gives a key's value, of `OF_STOCK` stock veRL's, ``is_set`` says whether the launch itself gives
    it, ``written`` is ``key=value`` as the user wrote it. ``model``: name and config.json of the model of a
    key, None where they are not known. ``visible``: the GPUs that the script leaves visible to veRL, None
    where it does not say.
    """

    value: Value
    is_set: Callable[[str], bool]
    written: Callable[[str], str]
    model: Callable[[str], tuple[str, Mapping[str, object]] | None] = lambda _: None
    visible: int | None = None

    def size(self, key: str, default: int | None = None) -> int:
        """Return a positive number. Raises UnknownSize."""
        value = self.value(key)
        value = default if value is None else value
        if not is_whole(value, least=1):
            raise UnknownSize
        return value

    def product(self, *keys: str) -> str:
        """Return ``key=value × key=value``."""
        return " × ".join(self.written(key) for key in keys)

    @property
    def gpus(self) -> int:
        """The GPUs of the whole launch."""
        return self.size(NODES, 1) * self.size(PER_NODE, 8)

    @property
    def engine(self) -> TrainingEngine:
        """The training engine of all roles."""
        return engine_of(self.value(f"{_ACTOR}.strategy"))

    def sharing(self, role: str) -> int:
        """Return the GPUs that compute one row of ``role`` together."""
        return self.engine.sharing(role, lambda key: self.size(key, 1))

    def ranks(self, role: str) -> int:
        """Return the data-parallel ranks of ``role``. Raises UnknownSize where they are not whole."""
        if self.engine.is_alone(role, self.value):
            return 1
        ranks, rest = divmod(self.gpus, self.sharing(role))
        if rest or not ranks:
            raise UnknownSize
        return ranks

    def spread(self, role: str) -> int:
        """Return the GPUs over which the tokens of one row are spread."""
        return max((self.size(key, 1) for key in self.engine.split_keys(role)), default=1)

    def heads(self, size: str, key: str) -> tuple[str, int, int]:
        """Return the name, attention heads and heads of keys and values of the model of ``key``.

        Raises UnknownHeads: ``size`` is not checked against them.
        """
        name, config = self.model(key) or ("", {})
        found = [
            value_at(config, f"text_config.{heads}") or config.get(heads)
            for heads in ("num_attention_heads", "num_key_value_heads")
        ]
        asked, kept = (each if type(each) is int and each > 0 else 0 for each in found)
        if not asked:
            raise UnknownHeads(size, key)
        return name, asked, kept or asked


def units() -> Mapping[str, str]:
    """Return the unit of each key that is a size: prompts or answers, of all GPUs or of one."""
    return data_json("translators/by_hand/verl/size_units.json")


Broken = Iterator[BrokenRule]


@dataclass(frozen=True, slots=True)
class SizeRule:
    """A rule of veRL's. ``source``: file and line; ``since``, ``until``: the releases where it decides."""

    source: str
    since: str
    find: Callable[[SizesOfLaunch], Broken]
    until: str = VERL


def broken(sizes: SizesOfLaunch, release: str) -> Iterator[BrokenRule | UnknownHeads]:
    """Yield the rules of ``release`` that the sizes break, and sizes that heads decide which are not known.

    Nothing of other rules of what is not known.
    """
    for rule in RULES:
        first, last = (VERL_RELEASES.index(each) for each in (rule.since, rule.until))
        if not first <= VERL_RELEASES.index(release) <= last:
            continue
        try:
            for found in rule.find(sizes):
                of = "" if rule.source == VLLMS_HEADS else f"verl {VERL}, "
                message = f"{found.message} ({of}{rule.source})"
                yield replace(found, message=message)
        except UnknownHeads as unknown:
            yield unknown
        except UnknownSize:
            continue


def _whole_groups(of: SizesOfLaunch) -> Broken:
    """The GPUs hold whole groups of those that share a row."""
    for role in _roles(of):
        if of.gpus % (sharing := of.sharing(role)):
            keys = [key for key in of.engine.sequence_keys(role) if of.size(key, 1) > 1]
            yield BrokenRule(
                (*keys, PER_NODE, NODES),
                f"{of.product(*keys)}: {of.gpus} GPUs ({of.product(NODES, PER_NODE)}) cannot be divided"
                f" into groups of {sharing}, and veRL's workers fail",
                f"{keys[0]} may be {_listed(of.gpus * of.size(keys[0]) // sharing, of.gpus)}"
                if len(keys) == 1
                else f"their product should divide {of.gpus}",
            )


def _whole_batch(of: SizesOfLaunch) -> Broken:
    """The answers of a step divide by the GPUs, for Megatron by the micro-batches of its ranks."""
    if of.value(DYNAMIC):
        return
    least, by = of.gpus, f"{of.gpus} GPUs ({of.product(NODES, PER_NODE)})"
    keys: tuple[str, ...] = (BATCH, _N, PER_NODE, NODES)
    if of.engine.is_megatron:
        micro = f"{_ACTOR}.ppo_micro_batch_size_per_gpu"
        least = of.ranks(_ACTOR) * of.size(micro)
        by, keys = f"{least} ({of.ranks(_ACTOR)} ranks × {of.written(micro)})", (*keys, micro)
    rows = of.size(BATCH) * of.size(_N, 1)
    if rows % least:
        yield BrokenRule(
            keys,
            f"{of.product(BATCH, _N)}: {rows} answers are not divisible by {by}, and veRL refuses to start",
            f"{BATCH} may be {_around(of.size(BATCH), least // math.gcd(of.size(_N, 1), least))}",
        )


def _updates_within_a_step(of: SizesOfLaunch) -> Broken:
    """An update has no more prompts than a step."""
    for role in updated(of):
        mini = f"{role}.ppo_mini_batch_size"
        own = role == _ACTOR or of.is_set(mini)  # else it follows the actor's, of which the same is said
        if own and not of.value(f"{role}.use_dynamic_bsz") and of.size(mini) > of.size(BATCH):
            yield BrokenRule(
                (mini, BATCH),
                f"{of.written(mini)} is more than {of.written(BATCH)}, and veRL refuses to start",
                f"{mini} may be {of.size(BATCH)} at most",
            )


def _whole_updates(of: SizesOfLaunch) -> Broken:
    """The answers of a step are those of whole updates, if the trainer v1 does not fill them up."""
    if next(_whole_mini_batch(of), None) or next(_updates_within_a_step(of), None):
        return
    for role in updated(of):
        mini = f"{role}.ppo_mini_batch_size"
        own = role == _ACTOR or of.is_set(mini)
        if own and _padded(of, role) % (of.size(mini) * of.size(_N, 1)):
            yield BrokenRule(
                (mini, BATCH),
                f"{of.written(BATCH)} is not divisible by {of.written(mini)}, and veRL's first update fails",
                f"{mini} may be {_listed(of.size(BATCH), of.size(mini))}",
            )


def updated(of: SizesOfLaunch) -> tuple[str, ...]:
    """Return the roles that are trained."""
    return (_ACTOR, *([_CRITIC] if micro_batch_sizes.has_critic(of.value) else []))


def _whole_mini_batch(of: SizesOfLaunch) -> Broken:
    """The answers of an update divide by the ranks; a role's ranks may share rows."""
    if next(_whole_batch(of), None):
        return
    for role in updated(of):
        mini = f"{role}.ppo_mini_batch_size"
        rows, ranks = of.size(mini) * of.size(_N, 1), of.ranks(role)
        if rows % ranks:
            yield BrokenRule(
                (mini, _N, PER_NODE, NODES),
                f"{of.product(mini, _N)}: the {rows} answers of an update are not divisible by {ranks}"
                f" ranks of {of.gpus} GPUs ({of.product(NODES, PER_NODE)}), and veRL's first update fails",
                f"{mini} may be {_around(of.size(mini), ranks // math.gcd(of.size(_N, 1), ranks))}",
            )


def _whole_micro_batches(all_gpus: str) -> Callable[[SizesOfLaunch], Broken]:
    """A micro-batch divides the answers that a GPU computes at once."""
    size = MicroBatchSize(all_gpus)

    def find(of: SizesOfLaunch) -> Broken:
        needed = next((each for each in micro_batch_sizes.sizes(of.value) if each.all_gpus == all_gpus), None)
        if needed is None or of.value(needed.dynamic[-1]) or not _is_computed(of, all_gpus):
            return
        micro = of.size(size.per_gpu)
        prompts = BATCH if size.is_of_step else f"{size.role}.ppo_mini_batch_size"
        given = of.size(prompts) * of.size(_N, 1)
        rows = _padded(of, size.role) if size.is_of_step else given
        filled = f", filled up to {rows} for whole updates" if rows != given else ""
        share, rest = divmod(rows, of.ranks(size.role))
        if rest or share % micro == 0:
            return
        yield BrokenRule(
            (size.per_gpu, prompts, _N),
            f"{of.written(size.per_gpu)} does not divide the answers of each GPU, {share}"
            f" ({of.product(prompts, _N)}{filled}, on {of.ranks(size.role)} ranks),"
            " and veRL stops at its first step",
            f"{size.per_gpu} may be {_listed(share, micro)}; or write {needed.dynamic[-1]}=True",
        )

    return find


def _padded(of: SizesOfLaunch, role: str) -> int:
    """Return the answers of a step: the trainer v1 fills them up to whole updates (``_balance_batch``)."""
    group = of.size(_N, 1)
    rows = of.size(BATCH) * group
    if not of.value(USE_V1):
        return rows
    minis = [of.size(f"{_ACTOR}.ppo_mini_batch_size") * group]
    if micro_batch_sizes.has_critic(of.value):
        minis.append(of.size(f"{_CRITIC}.ppo_mini_batch_size") * group)
    multiple = math.lcm(of.ranks(role), *minis)
    return -(-rows // multiple) * multiple


def _is_computed(of: SizesOfLaunch, all_gpus: str) -> bool:
    """Return False for log-probabilities that nobody computes."""
    in_actor = bool(of.value(f"{_ARR}.model.lora_rank") or of.value(f"{_ARR}.model.lora.rank"))
    if all_gpus == micro_batch_sizes.REF:
        return not in_actor  # the actor without its adapter is the reference
    bypassed = bool(of.value("algorithm.rollout_correction.bypass_mode"))
    return all_gpus != micro_batch_sizes.ROLLOUT or not bypassed


def _one_spelling(of: SizesOfLaunch) -> Broken:
    """A micro-batch is given in one spelling."""
    for size in micro_batch_sizes.sizes(of.value):
        keys = (size.all_gpus, size.per_gpu)
        off = of.value(size.dynamic[0])
        if not off and all(of.is_set(key) and of.value(key) is not None for key in keys):
            yield BrokenRule(
                keys,
                f"{of.written(keys[0])} and {of.written(keys[1])} are both set, and veRL refuses to start",
                f"leave out {size.all_gpus}",
            )


def _size_of_a_gpu(of: SizesOfLaunch) -> Broken:
    """The workers take sizes per GPU only. The critic's, which cut by tokens, ask for none."""
    for size in micro_batch_sizes.sizes(of.value):
        if size.role == _CRITIC or of.value(size.dynamic[-1]) or of.value(size.per_gpu) is not None:
            continue
        if of.value(size.all_gpus) is not None and _is_computed(of, size.all_gpus):
            each = max(1, of.size(size.all_gpus) // of.ranks(size.role))
            yield BrokenRule(
                (size.all_gpus,),
                f"{of.written(size.all_gpus)} is over all GPUs, and veRL's workers ask for {size.per_gpu}"
                " since 0.8.0",
                f"write {size.per_gpu}={each}",
                until="0.7.0",
            )


def _old_size(role: str) -> Callable[[SizesOfLaunch], Broken]:
    """A micro-batch over all GPUs divides an update and gives each GPU, or group of GPUs, a row."""
    micro, mini = f"{role}.ppo_micro_batch_size", f"{role}.ppo_mini_batch_size"

    def find(of: SizesOfLaunch) -> Broken:
        if role not in _roles(of) or of.value(f"{role}.use_dynamic_bsz") or of.value(micro) is None:
            return
        spread = of.size(f"{role}.{ULYSSES}", 1)
        if of.size(mini) % of.size(micro) or of.size(micro) * spread < of.gpus:
            able = [size for size in _divisors(of.size(mini)) if size * spread >= of.gpus]
            yield BrokenRule(
                (micro, mini, PER_NODE, NODES),
                f"{of.written(micro)} should divide {of.written(mini)} and be {-(-of.gpus // spread)} or more"
                f" on {of.gpus} GPUs ({of.product(NODES, PER_NODE)}), or veRL refuses to start",
                f"{micro} may be {', '.join(map(str, able))}" if able else f"write {micro}_per_gpu=1",
            )

    return find


def _room_for_a_row(limit: str, dynamic: str, role: str) -> Callable[[SizesOfLaunch], Broken]:
    """A GPU's tokens, over all GPUs that share a row, hold a prompt and an answer of full length."""

    def find(of: SizesOfLaunch) -> Broken:
        if role not in _roles(of) or not of.value(dynamic):
            return
        if limit != _TOKENS and not of.is_set(limit) and of.value(DYNAMIC):
            return  # it follows the actor's, of which the same is said
        whole, spread = of.size(_PROMPT) + of.size(_RESPONSE), of.spread(role)
        tokens = of.size(limit)
        if tokens * spread >= whole:
            return
        over = f" × {spread} GPUs" if spread > 1 else ""
        yield BrokenRule(
            (limit, _TOKENS, _RESPONSE, _PROMPT),
            f"{of.written(limit)}{over} is less than the {whole} tokens of {of.written(_PROMPT)} +"
            f" {of.written(_RESPONSE)}: veRL stops at the first row that is longer",
            f"{limit} should be {-(-whole // spread)} or more",
        )

    return find


def _room_for_a_value(of: SizesOfLaunch) -> Broken:
    """The same of the critic, whose engine always cuts by tokens."""
    limit, tokens = micro_batch_sizes.critic_tokens(of.value)
    if _CRITIC not in _roles(of) or not isinstance(tokens, int):
        return
    whole, spread = of.size(_PROMPT) + of.size(_RESPONSE), of.spread(_CRITIC)
    if tokens * spread < whole:
        own, over = f"{_CRITIC}.ppo_max_token_len_per_gpu", f" × {spread} GPUs" if spread > 1 else ""
        unread = f" ({of.written(own)} is read by v0's trainer only)" if own != limit else ""
        # Hydra adds what no file of veRL's has
        plus = "+" if own != limit and not of.is_set(limit) else ""
        yield BrokenRule(
            (limit, own, _RESPONSE, _PROMPT),
            f"{limit}={tokens}{over}{unread} is less than the {whole} tokens of {of.written(_PROMPT)} +"
            f" {of.written(_RESPONSE)}, and veRL, which cuts the critic's batches by tokens, stops at the"
            " first row that is longer",
            f"{plus}{limit} should be {-(-whole // spread)} or more",
            until="0.8.0" if own != limit and of.size(own) * spread >= whole else None,  # without v1
        )


def _whole_shards(of: SizesOfLaunch) -> Broken:
    """The GPUs hold whole groups of those that FSDP shards a model over."""
    for role in _roles(of) if of.engine.strategy in ("fsdp", "fsdp2") else ():
        key = f"{role}.fsdp_config.fsdp_size" if role != _CRITIC else f"{_CRITIC}.fsdp.fsdp_size"
        shards = of.value(key)
        if isinstance(shards, int) and 0 < shards < of.gpus and of.gpus % shards:
            yield BrokenRule(
                (key, PER_NODE, NODES),
                f"{of.written(key)} does not divide {of.gpus} GPUs ({of.product(NODES, PER_NODE)}), and"
                " veRL's workers fail",
                f"{key} may be -1, {_listed(of.gpus, shards)}",
            )


def _unpadded_sequences(of: SizesOfLaunch) -> Broken:
    """Ranks that share a sequence need rows without padding."""
    if of.engine.strategy in ("fsdp", "fsdp2") and of.size(_SP, 1) > 1 and not of.value(_PADDING):
        yield BrokenRule(
            (_SP, _PADDING),
            f"{of.written(_SP)} with {of.written(_PADDING)}: veRL refuses to start",
            f"write {_PADDING}=True",
        )


def _one_way_to_cut(of: SizesOfLaunch) -> Broken:
    """The actor cuts batches in one way for updates and log-probabilities."""
    other = f"{_ROLLOUT}.log_prob_use_dynamic_bsz"
    if bool(of.value(DYNAMIC)) != bool(of.value(other)):
        yield BrokenRule(
            (other, DYNAMIC),
            f"{of.written(DYNAMIC)} and {of.written(other)} differ, and veRL's actor fails",
            f"leave out {other}, which follows {DYNAMIC}",
        )


def _engines_of_their_own(of: SizesOfLaunch) -> Broken:
    """Under v1's separate_async the engines, and a reward model, have GPUs of their own."""
    if not of.value(USE_V1) or of.value(_V1_MODE) != "separate_async":
        return
    needs = f"and under {_V1_MODE}=separate_async veRL refuses to start"
    for key in _OWN_GPUS:
        count = of.value(key)
        if count is None or (isinstance(count, int) and count < 1):
            message = f"{of.written(key)} leaves the engines no GPUs, {needs}"
            yield BrokenRule((key, _V1_MODE), message, f"write {key}=1 or more")
    if of.value(_BACKEND) == "naive":
        message = f"{_BACKEND}=naive hands weights over on shared GPUs alone, {needs}"
        yield BrokenRule((_BACKEND, _V1_MODE), message, f"write {_BACKEND}=nccl")
    model, pool = "reward.reward_model.enable", "reward.reward_model.enable_resource_pool"
    if of.value(model) and not of.value(pool):
        message = f"{of.written(pool)} puts the reward model on the engines' GPUs, {needs}"
        yield BrokenRule((pool, model, _V1_MODE), message, f"write {pool}=True")


def _with_mbridge(of: SizesOfLaunch) -> Broken:
    for role in _roles(of) if of.engine.is_megatron else ():
        if of.value(key := f"{role}.megatron.use_mbridge") is False:
            yield BrokenRule(
                (key, f"{_ACTOR}.megatron.use_mbridge"),
                f"{of.written(key)}: veRL's Megatron engine asserts that it is True",
                f"leave out {key}",
            )


def _visible_gpus(of: SizesOfLaunch) -> Broken:
    each = of.size(PER_NODE, 8)
    # Other machines may show more than this one does.
    if of.visible is not None and of.size(NODES, 1) == 1 and of.visible < each:
        yield BrokenRule(
            (PER_NODE,),
            f"{of.written(PER_NODE)}: the script's CUDA_VISIBLE_DEVICES leaves {of.visible} GPU(s) to"
            " veRL, which refuses to start",
            f"{PER_NODE} may be {of.visible} at most; or export more devices",
        )


def _heads_of_sequences(role: str) -> Callable[[SizesOfLaunch], Broken]:
    """Ranks that share a sequence share the heads of the model; the reference has the actor's."""
    model = f"{role if role == _CRITIC else _ARR}.model.path"

    def find(of: SizesOfLaunch) -> Broken:
        if role not in _roles(of) or not of.engine.can_halve or (ranks := of.spread(role)) == 1:
            return
        key = next(key for key in of.engine.split_keys(role) if of.size(key, 1) > 1)
        if role == _REF and ranks == of.spread(_ACTOR):
            return  # it follows the actor's, of which the same is said
        name, heads, kept = of.heads(key, model)
        if heads % ranks or (kept % ranks and ranks % kept):
            able = [size for size in _divisors(heads) if not (kept % size and size % kept)]
            yield BrokenRule(
                (key,),
                f"{of.written(key)}: {name} has {heads} attention heads and {kept} of keys and values, which"
                f" {ranks} GPUs cannot share, and veRL's workers fail",
                f"{key} may be {', '.join(map(str, able))}",
            )

    return find


def _heads_of_engines(rollout: str, model: str, needed: str = "") -> Callable[[SizesOfLaunch], Broken]:
    """The GPUs of an engine share the heads of its model. ``needed``: its switch, "" if it has none."""
    key = f"{rollout}.tensor_model_parallel_size"

    def find(of: SizesOfLaunch) -> Broken:
        if (needed and not of.value(needed)) or of.value(f"{rollout}.name") != "vllm":
            return
        if (ranks := of.size(key)) == 1:
            return
        name, heads, _ = of.heads(key, model)
        if heads % ranks:
            yield BrokenRule(
                (key,),
                f"{of.written(key)} does not divide the {heads} attention heads of {name}, and vLLM refuses"
                " to start",
                f"{key} may be {', '.join(map(str, _divisors(heads)))}",
            )

    return find


def _experts_of_engines(of: SizesOfLaunch) -> Broken:
    if workers := uneven_experts(of.value, _ROLLOUT):
        keys = tuple(f"{_ROLLOUT}.{name}" for name in (MOE_TENSOR_PARALLEL, "expert_parallel_size"))
        yield BrokenRule(
            (*keys, _TP),
            f"{of.product(*keys)} is {workers}, not {of.written(_TP)}, and veRL refuses to start",
            "leave one of the two out",
        )


def _roles(of: SizesOfLaunch) -> tuple[str, ...]:
    """Return the models that veRL trains or computes with."""
    needed = {size.role for size in micro_batch_sizes.sizes(of.value)}
    return tuple(role for role in (_ACTOR, _REF, _CRITIC) if role in needed)


def _divisors(number: int) -> list[int]:
    return [size for size in range(1, number + 1) if number % size == 0]


def _listed(number: int, near: int) -> str:
    """List the divisors of ``number``, the nearest to ``near`` of many."""
    found = sorted(_divisors(number), key=lambda size: abs(size - near))[:_MOST_SHOWN]
    return ", ".join(map(str, sorted(found)))


def _around(size: int, step: int) -> str:
    """Return the multiples of ``step`` next to ``size``."""
    below = size // step * step
    return " or ".join(str(each) for each in (below, below + step) if each)


_LENGTHS = "utils/seqlen_balancing.py:384"
RULES = (
    SizeRule("workers/engine/fsdp/transformer_impl.py:247", "0.2.0", _whole_groups),
    SizeRule("utils/config.py:124", "0.2.0", _whole_batch),
    SizeRule("workers/config/actor.py:225", "0.3.0", _updates_within_a_step),
    SizeRule("workers/engine_workers.py:267", "0.8.0", _whole_mini_batch),
    SizeRule("utils/tensordict_utils.py:588", "0.8.0", _whole_updates),
    *(
        SizeRule("workers/engine/utils.py:125", "0.8.0", _whole_micro_batches(key))
        for key in (micro_batch_sizes.ACTOR, micro_batch_sizes.ROLLOUT, micro_batch_sizes.REF)
    ),
    SizeRule("workers/config/actor.py:200", "0.2.0", _one_spelling),
    SizeRule("workers/engine_workers.py:637", "0.8.0", _size_of_a_gpu),
    SizeRule("workers/config/actor.py:233", "0.2.0", _old_size(_ACTOR), until="0.7.0"),
    SizeRule("workers/config/critic.py:111", "0.2.0", _old_size(_CRITIC)),
    SizeRule(_LENGTHS, "0.2.0", _room_for_a_row(_TOKENS, DYNAMIC, _ACTOR)),
    *(
        SizeRule(
            _LENGTHS, "0.2.0", _room_for_a_row(f"{section}.log_prob_max_token_len_per_gpu", dynamic, role)
        )
        for section, dynamic, role in (
            (_ROLLOUT, DYNAMIC, _ACTOR),
            (_REF, f"{_REF}.log_prob_use_dynamic_bsz", _REF),
        )
    ),
    SizeRule(_LENGTHS, "0.8.0", _room_for_a_value),
    SizeRule("workers/engine/fsdp/utils.py:50", "0.8.0", _whole_shards),
    SizeRule("workers/config/actor.py:335", "0.2.0", _unpadded_sequences),
    SizeRule("workers/engine_workers.py:616", "0.8.0", _one_way_to_cut),
    SizeRule("trainer/ppo/v1/trainer_separate_async.py:64", "0.9.0", _engines_of_their_own),
    SizeRule("workers/engine/megatron/transformer_impl.py:191", "0.8.0", _with_mbridge),
    SizeRule("single_controller/ray/base.py:239", "0.2.0", _visible_gpus),
    *(
        SizeRule("models/transformers/monkey_patch.py:343", "0.4.1", _heads_of_sequences(role))
        for role in (_ACTOR, _REF, _CRITIC)
    ),
    SizeRule("workers/config/rollout.py:312", "0.8.0", _experts_of_engines),
    SizeRule(VLLMS_HEADS, "0.2.0", _heads_of_engines(_ROLLOUT, f"{_ARR}.model.path")),
    SizeRule(
        VLLMS_HEADS,
        "0.2.0",
        _heads_of_engines(f"{_REWARD}.rollout", f"{_REWARD}.model_path", f"{_REWARD}.enable"),
    ),
)
