"""Fields of a YAML written by hand that translate never writes, or that concern veRL alone.

``complete`` has filled in what the file leaves out, so each field is present.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from trinity_compat.common.errors import UserError
from trinity_compat.common.nested import leaves, value_at
from trinity_compat.translate.defaults import trainer_config
from trinity_compat.translate.launch_view import ARR
from trinity_compat.translate.sections import VerlSettings
from trinity_compat.translate.sections.data import SEED, SHUFFLE, TRAIN, VAL, WORKFLOW
from trinity_compat.translate.selectors import selector_of
from trinity_compat.translate.trinity_reader import NEVER, TrinityReader
from trinity_compat.trinity.config.complete import EVAL_TASKSETS, TASKSETS, CompletedConfig

READER = "pkg://trinity_compat.explorer.data.tasksets"
TASKSETS_KEY = "data.tasksets"
SAMPLING = "data.taskset_sampling"  # ours too: a taskset's reference → how its answers are sampled
MIN_RESPONSE = "data.min_response_length"  # ours: veRL has no such key
_ENGINE = "explorer.rollout_model"
_PARSER = f"{_ENGINE}.tool_call_parser"
# veRL 0.9.1's (experimental/agent_loop/tool_parser.py), and vLLM's names of those that it calls otherwise.
_FORMATS = (*("hermes", "gpt-oss", "qwen3_coder", "glm", "seed", "minimax", "kimi", "deepseek_v4", "gemma4"),)
_PARSERS = {"openai": "gpt-oss", "seed_oss": "seed", "kimi_k2": "kimi", "minimax_m2": "minimax"}
TOOL_PARSERS = (*_FORMATS, *_PARSERS)
_ENGINE_KEYS = ("max_num_batched_tokens", "max_num_seqs")  # veRL's rollout has them itself
_TRAINER = "trainer.trainer_config"
_SECTIONS = ("actor_rollout_ref", "critic", "trainer", "algorithm", "data")
_MODELS = ("model", "actor", "ref", "rollout")
_SAMPLED = ("temperature", "top_p", "top_k")
_WORKFLOW_ARGUMENTS = (
    *("files", "filter_overlong_prompts", "truncation", "apply_chat_template_kwargs"),
    *("max_prompt_length", "tokenizer", "trust_remote_code"),
)
_FORMAT = ("prompt_key", "response_key", "messages_key", "system_prompt_key", "system_prompt")


def settings_by_hand(config: Mapping[str, object]) -> VerlSettings:
    """Return (veRL key, value) pairs of a completed file that translate did not write.

    Raises UserError for settings that would be trained otherwise than the file says.
    """
    reading = TrinityReader(config)
    check(reading)
    yield from _tasksets(reading)
    yield from _sampling(reading)
    # Trinity always saves at the end.
    interval = reading.get("trainer.save_interval")
    yield "trainer.save_freq", interval or NEVER
    wanted = reading.get("trainer.save_hf_checkpoint")
    if wanted == "always" or (wanted == "last" and not interval):
        yield f"{ARR}.actor.checkpoint.save_contents", ["model", "optimizer", "extra", "hf_model"]
    yield from _critic(reading)
    if parser := reading.get(_PARSER):
        yield f"{ARR}.rollout.multi_turn.format", _tool_format(str(parser))
    if thoughts := reading.get(f"{_ENGINE}.reasoning_parser"):
        yield f"{ARR}.rollout.engine_kwargs.vllm.reasoning_parser", thoughts
    if reading.get(f"{_ENGINE}.enable_expert_parallel"):
        sizes = [int(reading.get(f"{_ENGINE}.{size}_parallel_size") or 1) for size in ("tensor", "data")]
        if (ranks := math.prod(sizes)) > 1:  # veRL sets vLLM's argument by it; one rank spreads nothing
            yield f"{ARR}.rollout.expert_parallel_size", ranks
    for name, value in (reading.get(f"{_ENGINE}.extra_engine_args") or {}).items():
        if name not in _ENGINE_KEYS:
            yield f"{ARR}.rollout.engine_kwargs.vllm.{name}", value


def _critic(reading: TrinityReader) -> VerlSettings:
    """Return the critic's keys, as the trainer's section sets them.

    Source: ``_build_critic_config`` in trainer/verl/config.py of trinity-rft 0.6.0.
    """
    strategy = str(reading.get("trainer.trainer_strategy") or "")
    if reading.get("algorithm.algorithm_type") != "ppo" or not strategy.startswith("fsdp"):
        return
    yield from ((f"critic.{name}", strategy) for name in ("strategy", "fsdp.strategy"))
    if (tokens := reading.get("trainer.max_token_len_per_gpu")) is not None:
        yield from ((f"critic.{name}_max_token_len_per_gpu", tokens) for name in ("ppo", "forward"))


def _tool_format(parser: str) -> str:
    """Return veRL's name of a parser of tool calls. Raises UserError for a parser that veRL lacks."""
    name = _PARSERS.get(parser, parser)
    if name not in _FORMATS:
        raise UserError(
            f"{_PARSER}={parser}: veRL has no parser of tool calls of that name",
            hint=f"it has {', '.join(_FORMATS)}",
        )
    return name


def with_trainer_config(full: CompletedConfig) -> CompletedConfig:
    """Return ``trainer.trainer_config`` as trinity-rft's trainer takes it.

    Models at its top belong below ``actor_rollout_ref``. Left out are keys that the trainer freezes because
    the configuration's own fields set them, and keys that nothing there reads (``actor.kl_loss_coef``,
    ``rollout.top_p``). The plan names those that it has not read.

    Source: ``_normalize_trainer_config`` and FROZEN_KEYS in trainer/verl/config.py of trinity-rft 0.6.0, and
    the dataclasses of that file.
    """
    section = full.at(_TRAINER)
    if not isinstance(section, dict):
        return full
    for name in _MODELS:
        if isinstance(below := section.get(name), dict):
            kept = section.setdefault("actor_rollout_ref", {})
            if name not in kept:
                kept[name] = section.pop(name)
                for key, _ in leaves(below):
                    full.sources[f"{_TRAINER}.actor_rollout_ref.{name}.{key}"] = f"{_TRAINER}.{name}.{key}"
    strategy = "megatron" if full.at("trainer.trainer_strategy") == "megatron" else "fsdp"
    takes = trainer_config(full.target, strategy)
    for key, _ in list(leaves({name: section[name] for name in _SECTIONS if name in section})):
        above, _, last = key.rpartition(".")
        found = value_at(section, above)
        if isinstance(found, dict) and (key in takes.ignored or not takes.takes(key)):
            found.pop(last, None)
    return full


def check(reading: TrinityReader) -> None:
    """Raise UserError for tasksets and models that no run here can serve as requested."""
    for kind in (TASKSETS, EVAL_TASKSETS):
        tasksets = reading.get(kind) or []
        for number, taskset in enumerate(tasksets):
            place, section = f"{kind}.{number}", TrinityReader(taskset)
            if reading.get("mode") == "serve":  # it asks nobody
                continue
            _check_storage(place, section)
            # Those of other workflows are looked at where these are placed: run/plan/workflows.py.
            if section.get("default_workflow_type", WORKFLOW) == WORKFLOW:
                for name in section.get("workflow_args") or {}:
                    if name not in _WORKFLOW_ARGUMENTS:
                        raise UserError(
                            f"{place}.workflow_args.{name}: {WORKFLOW} takes none of that name",
                            hint=f"it takes {', '.join(_WORKFLOW_ARGUMENTS)}",
                        )
                _check_rewarded_alike(kind, place, section, TrinityReader(tasksets[0]))
            longest, given = reading.get("model.max_response_tokens"), section.get("rollout_args.max_tokens")
            if given not in (None, longest):
                raise UserError(
                    f"{place}.rollout_args.max_tokens={given}: it should equal"
                    f" model.max_response_tokens={longest}",
                    hint="write the same",
                )
    if len(reading.get("model.lora_configs") or []) > 1:
        raise UserError("model.lora_configs: a run has at most one", hint="keep one of them")


def _check_storage(place: str, section: TrinityReader) -> None:
    if not section.get("path"):
        raise UserError(f"{place}.path is missing: a taskset needs a file, a folder or a dataset's name")
    kind = section.get("storage_type", "file")
    if kind not in ("file", "sql"):
        raise UserError(
            f"{place}.storage_type={kind}: tasks are read from files or a table, and again in each epoch;"
            " Trinity-RFT's queue holds experiences, not tasks",
            hint="write file or sql",
        )


def _check_rewarded_alike(kind: str, place: str, section: TrinityReader, first: TrinityReader) -> None:
    """Raise UserError unless all tasksets are scored alike, as veRL's reward manager does."""
    field = "reward_fn_args"
    if section.get(field) != first.get(field):
        raise UserError(
            f"{place}.{field}={section.get(field)}: {kind}.0 has {first.get(field)}, and trinity-compat"
            " needs the same in all",
            hint="write the same, or one taskset alone",
        )


def _tasksets(reading: TrinityReader) -> VerlSettings:
    """Return each taskset by a name of ours, with the settings of its reader."""
    if not reading.get(TASKSETS) and not reading.get(EVAL_TASKSETS):
        return
    known = {}
    for kind, path, key in (("train", TASKSETS, TRAIN), ("eval", EVAL_TASKSETS, VAL)):
        found = reading.get(path) or []
        names = [f"{kind}/{number}" for number in range(len(found))]
        for number, (name, taskset) in enumerate(zip(names, found, strict=True)):
            called = f"{'eval_' if kind == 'eval' else ''}taskset_{number}"
            known[name] = _taskset(taskset, f"{path}.{number}", called)
        yield key, names
    yield TASKSETS_KEY, known
    yield "data.custom_cls.path", READER
    yield "data.custom_cls.name", "Tasksets"
    # The first taskset's, where veRL asks; the order is the reader's own.
    selector = TrinityReader(known.get("train/0", {}))
    yield SHUFFLE, selector.get("selector.type") == "shuffle"
    yield SEED, None
    # Upstream keeps a prompt that is too long as a masked answer with reward 0: nothing is trained on it.
    arguments = f"{TASKSETS}.0.workflow_args"
    drops = reading.get(f"{arguments}.filter_overlong_prompts", reading.get("model.enable_prompt_truncation"))
    yield "data.filter_overlong_prompts", bool(drops)
    for name, value in _section(reading, f"{arguments}.apply_chat_template_kwargs").items():
        yield f"data.apply_chat_template_kwargs.{name}", value
    yield from _scoring(reading)


def _scoring(reading: TrinityReader) -> VerlSettings:
    """Return arguments of the reward manager beyond those that the way back of a translated file reads."""
    arguments = f"{TASKSETS}.0.reward_fn_args"
    for name, value in _section(reading, arguments).items():
        own = f"{arguments}.{name}"
        if name == "custom_reward_function":
            _section(reading, own)
            for argument, given in _section(reading, f"{own}.reward_kwargs").items():
                yield f"reward.custom_reward_function.reward_kwargs.{argument}", given
        elif name == "sandbox_fusion":
            for argument, given in _section(reading, own).items():
                yield f"reward.sandbox_fusion.{argument}", given
        elif name not in ("reward_fn_key", "reward_manager"):
            yield f"reward.reward_kwargs.{name}", value


def _section(reading: TrinityReader, path: str) -> Mapping[str, object]:
    """Return the section at ``path``, whose keys trinity-rft leaves open.

    Raises UserError for a single value.
    """
    value = reading.get(path) or {}
    if not isinstance(value, Mapping):
        raise UserError(f"{path}={value}: write its keys in a section below it")
    return value


def _taskset(taskset: Mapping[str, object], place: str, name: str) -> dict[str, object]:
    section = TrinityReader(taskset)
    # An evaluation asks each row.
    drawn = {} if place.startswith(EVAL_TASKSETS) else {"selector": selector_of(section, place)}
    return {
        "place": place,
        "name": section.get("name") or name,
        "path": section.get("path"),
        "storage_type": section.get("storage_type", "file"),
        "files": section.get("workflow_args.files"),
        "split": section.get("split", "train"),
        "subset_name": section.get("subset_name"),
        "format": {key: section.get(f"format.{key}") for key in _FORMAT},
        **drawn,
    }


def _sampling(reading: TrinityReader) -> VerlSettings:
    if own := {name: row for kind in ("train", "eval") for name, row in _sampled_apart(reading, kind)}:
        yield SAMPLING, own
    yield f"{ARR}.rollout.repetition_penalty", reading.get(f"{_ENGINE}.repetition_penalty", 1.0)
    if least := reading.get("model.min_response_tokens"):
        yield MIN_RESPONSE, least
    thinking = reading.get("model.enable_thinking")
    if thinking is not None:
        yield "data.apply_chat_template_kwargs.enable_thinking", thinking


def _sampled_apart(reading: TrinityReader, kind: str) -> Iterator[tuple[str, dict[str, object]]]:
    """Yield the sampling of tasksets that differ from the first of their kind.

    The first one's sampling is the run's. Tasksets of an evaluation have a number of answers of their own,
    the others algorithm.repeat_times.
    """
    fields = {name: f"rollout_args.{name}" for name in _SAMPLED}
    if kind == "eval":
        fields["n"] = "repeat_times"
    tasksets = reading.get(TASKSETS if kind == "train" else EVAL_TASKSETS) or []
    asked = [
        {name: value for name, path in fields.items() if (value := section.get(path)) is not None}
        for section in map(TrinityReader, tasksets)
    ]
    for number, each in enumerate(asked):
        if each != asked[0]:
            yield f"{kind}/{number}", each
