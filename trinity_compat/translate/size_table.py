"""The sizes of a launch as a table: prompts, answers, updates, ranks, micro-batches, tokens, engines.

Each follows from those above it. What has to divide what is in ``size_rules``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from trinity_compat.common.errors import UserError, Where
from trinity_compat.common.plain_numbers import is_whole
from trinity_compat.launch import entrypoints
from trinity_compat.translate import micro_batch_sizes, size_rules
from trinity_compat.translate.booleans import with_booleans
from trinity_compat.translate.env_references import EnvReferences
from trinity_compat.translate.launch_view import ARR, NODES, PER_NODE, LaunchView
from trinity_compat.translate.launch_warnings import launch_sizes, size_cautions
from trinity_compat.translate.model import Caution, TranslateOptions
from trinity_compat.translate.size_rules import SizesOfLaunch, UnknownSize
from trinity_compat.translate.translator import refuse_other_mains, view_of
from trinity_compat.translate.update_steps import BATCH
from trinity_compat.verl_config.model import EffectiveConfig

_ROLLOUT = f"{ARR}.rollout"
_N = f"{_ROLLOUT}.n"
_LENGTHS = ("data.max_prompt_length", "data.max_response_length")
_OF_AN_ENGINE = tuple(
    f"{_ROLLOUT}.{name}"
    for name in ("tensor_model_parallel_size", "data_parallel_size", "pipeline_model_parallel_size")
)


@dataclass(frozen=True, slots=True)
class SizeRow:
    """One size.

    ``key`` is a setting of the launch, ``made`` (``key=value`` as the user wrote it, or a product of sizes
    above) says where ``value`` is from, None where it is not known. ``parts`` names what the size cuts the
    size above it into, and how many.
    """

    value: int | None
    unit: str
    made: str
    key: str = ""
    where: Where | None = None
    parts: str = ""


@dataclass(frozen=True, slots=True)
class SizeTable:
    """The sizes of a launch, by what they are of, and veRL's rules that they break."""

    groups: Mapping[str, Sequence[SizeRow]]
    broken: Sequence[Caution]


def size_table(effective: EffectiveConfig, *, root: Path | None = None) -> SizeTable:
    """Return the sizes of a launch of main_ppo.

    Config files that the launch names are read inside ``root``. Raises UserError for another main, and for a
    value that veRL refuses too.
    """
    refuse_other_mains(effective)
    launch = effective.launch
    if launch.taken_for in entrypoints.SUPERVISED:
        raise UserError(f"{launch.module} trains on texts, without prompts and answers", where=launch.where)
    view, _ = view_of(with_booleans(effective), TranslateOptions(), root, EnvReferences())
    of = launch_sizes(view)
    made = _Table(of, view)
    groups = {
        "a step": made.step(),
        "the trainer's GPUs": made.ranks_of_roles(),
        "what a rank computes at a time": made.micro_batches(),
        "tokens": made.tokens(),
    }
    schedule = view.async_schedule
    if schedule is None or schedule.in_turns:  # else the engines have GPUs of their own
        groups["the engines"] = made.engines()
    return SizeTable({title: list(rows) for title, rows in groups.items()}, list(size_cautions(view)))


@dataclass(frozen=True, slots=True)
class _Table:
    of: SizesOfLaunch
    view: LaunchView

    def size(self, key: str, default: int | None = None) -> int | None:
        return _known(partial(self.of.size, key, default))

    def given(self, key: str, parts: str = "") -> SizeRow:
        """A size that a setting is."""
        value = self.view.value(key)
        number = value if is_whole(value) else None
        return SizeRow(
            number, size_rules.units()[key], self.of.written(key), key, self.view.where(key), parts
        )

    def answers(self, prompts: str) -> int | None:
        """The answers to the prompts that a setting counts."""
        return _product(self.size(prompts), self.size(_N, 1))

    def gpus(self) -> int | None:
        return _known(lambda: self.of.gpus)

    def ranks(self, role: str) -> int | None:
        return _known(partial(self.of.ranks, role))

    def step(self) -> Iterator[SizeRow]:
        """Prompts and answers of a step and of its updates."""
        of = self.of
        yield self.given(BATCH)
        yield self.given(_N)
        yield SizeRow(self.answers(BATCH), "answers of a step", of.product(BATCH, _N))
        for role in size_rules.updated(of):
            mini = f"{role}.ppo_mini_batch_size"
            yield self.given(mini, _cut(self.size(BATCH), self.size(mini), "updates a step"))
            yield SizeRow(
                self.answers(mini), f"answers of an update of the {_name(role)}", of.product(mini, _N)
            )

    def ranks_of_roles(self) -> Iterator[SizeRow]:
        """GPUs, ranks, and the answers of a rank."""
        of = self.of
        yield self.given(NODES)
        yield self.given(PER_NODE)
        yield SizeRow(self.gpus(), "GPUs", of.product(NODES, PER_NODE))
        for role in size_rules.updated(of):
            sharing = [key for key in of.engine.sequence_keys(role) if self.size(key, 1) != 1]
            for key in sharing:
                yield SizeRow(
                    self.size(key), "GPUs that share a row", of.written(key), key, self.view.where(key)
                )
            by = " ÷ ".join(["GPUs", *map(of.written, sharing)])
            yield SizeRow(self.ranks(role), f"data-parallel ranks of the {_name(role)}", by)
            for what, prompts in (("a step", BATCH), ("an update", f"{role}.ppo_mini_batch_size")):
                share = _whole(self.answers(prompts), self.ranks(role))
                unit = f"answers of {what} on each rank of the {_name(role)}"
                yield SizeRow(share, unit, f"{of.product(prompts, _N)} ÷ ranks")

    def micro_batches(self) -> Iterator[SizeRow]:
        """Micro-batches, by answers or by tokens."""
        fits = "a micro-batch has as many answers as fit"
        for size in micro_batch_sizes.sizes(self.of.value):
            if size.all_gpus == micro_batch_sizes.CRITIC:
                key, tokens = micro_batch_sizes.critic_tokens(self.of.value)
                row = self.given("critic.ppo_max_token_len_per_gpu", fits)
                if key != row.key and isinstance(tokens, int):
                    made = f"{key}={tokens}"
                    row = replace(row, value=tokens, made=made, key=key, where=self.view.where(key))
                yield row
            elif size.is_dynamic(self.of.value):
                limit = "log_prob_max_token_len_per_gpu" if size.is_of_step else "ppo_max_token_len_per_gpu"
                section = size.all_gpus.rpartition(".")[0]
                yield self.given(f"{section}.{limit}", fits)
            elif self.of.value(size.per_gpu) is None and self.of.value(size.all_gpus) is not None:
                yield self.given(size.all_gpus)
            else:
                prompts = BATCH if size.is_of_step else f"{size.role}.ppo_mini_batch_size"
                share = _whole(self.answers(prompts), self.ranks(size.role))
                of_what = "a step" if size.is_of_step else "an update"
                yield self.given(
                    size.per_gpu,
                    _cut(share, self.size(size.per_gpu), f"micro-batches {of_what} on each rank"),
                )

    def tokens(self) -> Iterator[SizeRow]:
        """Lengths."""
        yield from map(self.given, _LENGTHS)
        prompt, answer = map(self.size, _LENGTHS)
        both = None if prompt is None or answer is None else prompt + answer
        yield SizeRow(both, "tokens of the longest row", " + ".join(map(self.of.written, _LENGTHS)))
        if self.of.value(longest := f"{_ROLLOUT}.max_model_len") is not None:
            yield self.given(longest)

    def engines(self) -> Iterator[SizeRow]:
        """Engines of stock veRL, which hold all GPUs of the launch."""
        keys = [key for key in _OF_AN_ENGINE if key == _OF_AN_ENGINE[0] or self.size(key, 1) != 1]
        yield from map(self.given, keys)
        engines = _whole(self.gpus(), _product(*(self.size(key, 1) for key in keys)))
        yield SizeRow(engines, "engines", " ÷ ".join(["GPUs", *map(self.of.written, keys)]))
        answers = self.answers(BATCH)
        share = None if engines is None or answers is None else -(-answers // engines)
        yield SizeRow(
            share, "answers of a step on each engine", f"{self.of.product(BATCH, _N)} ÷ engines, rounded up"
        )
        for name in ("max_num_seqs", "max_num_batched_tokens"):
            yield self.given(f"{_ROLLOUT}.{name}")


def _name(role: str) -> str:
    return role.rpartition(".")[2]


def _known(size: Callable[[], int]) -> int | None:
    try:
        return size()
    except UnknownSize:
        return None


def _product(*sizes: int | None) -> int | None:
    known = [size for size in sizes if size is not None]
    return math.prod(known) if len(known) == len(sizes) else None


def _whole(number: int | None, by: int | None) -> int | None:
    """The share; None where it is not whole."""
    return None if number is None or by is None or number % by else number // by


def _cut(whole: int | None, by: int | None, into: str) -> str:
    if whole is None or by is None:
        return ""
    return f"does not divide {whole}" if whole % by else f"{whole // by} {into}"
