"""The way back of a YAML that trains on rows of files: sft, cpt, dpo, and an expert's rows in mix.

trinity-rft 0.6.0: ``buffer.train_batch_size`` rows are one update (of dpo: pairs), read from
``buffer.trainer_input.experience_buffer``; its ``mode`` has to be train, and nothing is generated or
evaluated. A veRL step is one update then. With ``algorithm.sample_strategy: mix`` (mix_sample_strategy.py)
⌈``expert_data_ratio`` × rows⌉ of them are read as rows of sft from the buffer in
``buffer.trainer_input.auxiliary_buffers`` that ``sft_dataset_name`` names; the others are fresh answers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields
from typing import Any

from trinity_compat.common.errors import UserError
from trinity_compat.common.plain_numbers import is_whole
from trinity_compat.common.suggestions import nearest, question
from trinity_compat.job.run_spec import ExpertSpec, RowFormat, RowsSpec
from trinity_compat.translate.selectors import SEQUENTIAL, SHUFFLE, selector_of
from trinity_compat.translate.trinity_reader import TrinityReader
from trinity_compat.trinity.algorithms.model import Schema
from trinity_compat.trinity.algorithms.selection import schema_of
from trinity_compat.trinity.config.complete import expert_rows

BUFFER = "buffer.trainer_input.experience_buffer"
BATCH = "buffer.train_batch_size"
STRATEGY = "trainer.trainer_strategy"
ACTOR, ROLLOUT = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"
_COMPAT = "trainer.trainer_config.trinity_compat"
_OF_VERL = ("prompt_dict_keys", "response_dict_keys", "response_then_eos")  # of a translated launch
_FORMAT_TYPES = ("messages", "plaintext")
_MEDIA = ("image_key", "video_key")


def schema_in(config: Mapping[str, object]) -> Schema:
    """Return the kind of rows that the algorithm trains on; "experience" if it needs an explorer."""
    section = TrinityReader(config).get("algorithm")
    return schema_of(section) if isinstance(section, Mapping) else "experience"


def verl_keys(reading: TrinityReader) -> dict[str, object]:
    """Return the veRL keys of a YAML that trains on rows; none for one that trains on an explorer's answers.

    Raises UserError without a number of rows.
    """
    schema = schema_in(reading.config)
    if schema == "experience":
        return {}
    size = reading.get(BATCH)
    if not is_whole(size, least=1):
        raise UserError(
            f"{BATCH} is {size!r}: {schema} needs a number of {'pairs' if schema == 'dpo' else 'rows'}"
            " for each update"
        )
    keys: dict[str, object] = {
        "data.train_batch_size": size,
        f"{ACTOR}.ppo_mini_batch_size": size,
        f"{ROLLOUT}.n": 2 if schema == "dpo" else 1,
        f"{ROLLOUT}.name": "vllm",  # veRL wants one named; none is started
        "trainer.val_before_train": False,
        "data.train_files": _paths(reading.get(f"{BUFFER}.path")),
    }
    return keys | (_whole_pairs(reading) if schema == "dpo" else _forward_pass(reading))


def _forward_pass(reading: TrinityReader) -> dict[str, object]:
    """Return the size of a forward pass: veRL demands it for answers, and here for validation rows."""
    key = f"{ROLLOUT}.log_prob_micro_batch_size_per_gpu"
    given = reading.get(f"trainer.trainer_config.{key}")
    size = given or reading.get(f"trainer.trainer_config.{ACTOR}.ppo_micro_batch_size_per_gpu")
    return {key: size} if size else {}


def _whole_pairs(reading: TrinityReader) -> dict[str, object]:
    """Return the keys that keep the two rows of a DPO pair in one micro-batch.

    The batch is cut by rows, not by tokens, and nothing is reordered.
    """
    key = f"{ACTOR}.ppo_micro_batch_size_per_gpu"
    size = reading.get(f"trainer.trainer_config.{key}", 2)
    if not is_whole(size) or size % 2 or size < 2:
        raise UserError(
            f"trainer.trainer_config.{key}={size}: dpo compares two rows, which one micro-batch must hold",
            hint="write an even number",
        )
    return {
        key: size,
        f"{ACTOR}.use_dynamic_bsz": False,
        f"{ACTOR}.shuffle": False,
        f"{ROLLOUT}.log_prob_use_dynamic_bsz": False,
        f"{ROLLOUT}.log_prob_micro_batch_size_per_gpu": size,
        "actor_rollout_ref.ref.log_prob_use_dynamic_bsz": False,
        "actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu": size,
        "trainer.balance_batch": False,
    }


def rows_of(config: Mapping[str, object]) -> RowsSpec | None:
    """Return the rows that the YAML trains on, paths as written; None if an explorer generates them.

    Raises UserError for what cannot be read or turned into a row.
    """
    schema, reading = schema_in(config), TrinityReader(config)
    if schema == "experience":
        return None
    mode = reading.get("mode", "both")
    if mode != "train":
        raise UserError(
            f"mode: {mode}: {schema} trains on rows of a file and generates no answers",
            hint="write mode: train",
        )
    return rows_in(schema, reading, BUFFER)


def rows_in(schema: str, reading: TrinityReader, section: str) -> RowsSpec:
    """Return the rows of one buffer of the trainer's. ``section``: its path. Raises UserError."""
    kind = reading.get(f"{section}.storage_type", "queue")
    if str(kind).lower() != "file":
        raise UserError(
            f"{section}.storage_type={kind}: {schema} reads rows of a file", hint="write storage_type: file"
        )
    paths = _paths(reading.get(f"{section}.path"))
    if not paths:
        raise UserError(f"{section}.path is missing: {schema} trains on the rows of a file")
    selector = selector_of(TrinityReader(reading.get(section)), section)
    carried = reading.get(f"{_COMPAT}.rows", {})
    return RowsSpec(
        schema=schema,
        paths=tuple(paths),
        split=reading.get(f"{section}.split", "train"),
        subset=reading.get(f"{section}.subset_name"),
        format=_format(schema, reading, section),
        shuffle=selector["type"] == SHUFFLE,
        seed=int(str(selector["seed"])),
        selector=None if selector["type"] in (SEQUENTIAL, SHUFFLE) else selector,
        epochs=int(reading.get("buffer.total_epochs", 1)),
        max_length=reading.get("model.max_model_len"),
        **{name: carried[name] for name in ("sampler", "whole_epochs", "truncation") if name in carried},
        val_paths=tuple(_paths(carried.get("val_paths"))),
    )


def _paths(value: object) -> list[str]:
    return [str(each) for each in value] if isinstance(value, list | tuple) else [str(value)] if value else []


def _format(schema: str, reading: TrinityReader, section: str) -> RowFormat:
    given = {name: reading.get(f"{section}.format.{name}") for name in _MEDIA}
    for name, value in given.items():
        if value:
            raise UserError(
                f"{section}.format.{name}={value}: rows of a file are trained on as text only",
                hint="leave it out",
            )
    known = {each.name: reading.get(f"{section}.format.{each.name}") for each in fields(RowFormat)}
    known |= {name: reading.get(f"{_COMPAT}.rows.{name}") for name in _OF_VERL}
    known["chat_template"] = known["chat_template"] or reading.get("model.custom_chat_template")
    if known["enable_thinking"] is None:
        known["enable_thinking"] = reading.get("model.enable_thinking")
    values: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in known.items()
    }
    found = RowFormat(**{name: value for name, value in values.items() if value is not None})
    kinds = ("plaintext",) if schema == "cpt" else _FORMAT_TYPES
    if found.prompt_type not in kinds:
        raise UserError(
            f"{section}.format.prompt_type={found.prompt_type}: {schema} takes {' or '.join(kinds)}"
        )
    return found


BUFFERS = "buffer.trainer_input.auxiliary_buffers"
_STRATEGY = "algorithm.sample_strategy_args"
_SIZES = "algorithm.policy_loss_fn_args"


def experts_of(config: Mapping[str, object]) -> ExpertSpec | None:
    """Return an update's share of an expert's rows, paths as the YAML has them; None for other strategies.

    Raises UserError for a buffer that does not exist, and for arguments that count other rows.
    """
    reading = TrinityReader(config)
    each_step = expert_rows(config)
    if not each_step:
        return None
    if reading.get("buffer.batch_size", 0) * reading.get("algorithm.repeat_times", 1) != _fresh(
        reading, each_step
    ):
        raise UserError(
            "algorithm.sample_strategy=mix: the sizes of this file are those of a launch, without an expert's"
            " rows",
            hint="write the YAML by hand (examples/trinity/mix.yaml)",
        )
    name = str(reading.get(f"{_STRATEGY}.sft_dataset_name", "sft_dataset"))
    known = reading.get(BUFFERS, {})
    if name not in known:
        raise UserError(
            f"{BUFFERS}.{name} is missing: sample_strategy mix reads an expert's rows there",
            hint=question(nearest(name, known)) or f"add it, or name another in {_STRATEGY}.sft_dataset_name",
        )
    for path, value, right in _miscounted(reading, each_step):
        raise UserError(f"{path}={value}: an update has {right} of them", hint=f"write {right}")
    return ExpertSpec(rows_in("sft", reading, f"{BUFFERS}.{name}"), each_step)


def _miscounted(reading: TrinityReader, experts: int) -> Iterator[tuple[str, int, int]]:
    """Yield loss arguments whose sizes are not the update's: Trinity would weigh a half by the quotient.

    Trinity's default of 1 counts as not given.
    """
    for kind, right in (("expert", experts), ("usual", _fresh(reading, experts))):
        path = f"{_SIZES}.train_batch_size_{kind}"
        if (size := reading.get(path, 1)) not in (1, right):
            yield path, size, right


def _fresh(reading: TrinityReader, experts: int) -> int:
    """Return the number of fresh answers of an update."""
    return int(reading.get("buffer.train_batch_size")) - experts
