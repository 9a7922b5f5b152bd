"""A Trinity configuration, completed as trinity-rft itself completes it before it starts anything.

Source: ``common/config_validator.py`` of trinity-rft 0.6.0, ``Config.check_and_update`` of 0.4.1. Values that
it refuses are refused here in the same words; changes of a file's own values are reported in a note. A step
is an optimizer update, as in Trinity: docs/decisions/a-trinity-step-is-an-update.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from math import ceil, lcm, prod

from trinity_compat.common.errors import UserError
from trinity_compat.common.nested import copied, leaves, put, value_at
from trinity_compat.common.plain_numbers import is_number, is_whole
from trinity_compat.common.releases import TRINITY, TRINITY_OLD
from trinity_compat.trinity.config.defaults import algorithm_defaults, with_defaults
from trinity_compat.trinity.config.schema import FieldType, Schema, schema

TASKSETS, EVAL_TASKSETS = "buffer.explorer_input.tasksets", "buffer.explorer_input.eval_tasksets"
_INPUT = "buffer.explorer_input"
_SINGLE = f"{_INPUT}.taskset"
_SAMPLING = ("temperature", "top_p", "top_k", "logprobs")
_ENGINE = "explorer.rollout_model"
_EVAL_INTERVAL = "explorer.eval_interval"
_GPUS = ("cluster.node_num", "cluster.gpu_per_node")
_MOST_GPUS = 2**16
_LEAST: Mapping[int, tuple[str, ...]] = {
    1: (
        *("algorithm.repeat_times", "buffer.batch_size"),
        *("model.max_model_len", "model.max_prompt_tokens", "model.max_response_tokens"),
        *(f"{_ENGINE}.engine_num", f"{_ENGINE}.tensor_parallel_size"),
        "trainer.ulysses_sequence_parallel_size",
    ),
    # 0: the machine's own, what follows, no end
    0: (
        *_GPUS,
        "buffer.train_batch_size",
        "buffer.total_epochs",
        "buffer.total_steps",
        "trainer.total_steps",
    ),
}
_ON_ROWS = ("sft", "cpt", "dpo")  # algorithms that train on a file's rows
# Values of the engine's own section that replace the model's.
_OF_THE_MODEL = (
    *("max_prompt_tokens", "max_response_tokens", "min_response_tokens"),
    *("enable_prompt_truncation", "enable_thinking"),
)


@dataclass(slots=True)
class CompletedConfig:
    """A completed configuration.

    ``config`` holds every value that trinity-rft would have; ``sources`` maps its paths whose value stands
    elsewhere in the file to that place; ``notes`` are lines for the user; ``file`` has the file's values.
    """

    config: dict[str, object]
    target: str
    sources: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    file: Mapping[str, object] = field(default_factory=dict)

    def at(self, path: str) -> object:
        """Return the value at ``path``."""
        return value_at(self.config, path)

    def in_file(self, path: str) -> object:
        """Return the file's own value at ``path``; None without one."""
        return value_at(self.file, path)

    def number(self, path: str) -> int:
        """Return a whole number that has a default. Raises UserError for another value."""
        value = self.at(path)
        if not is_whole(value):
            raise UserError(f"{path} is {value!r}, it should be a whole number")
        return value

    def put(self, path: str, value: object, source: str = "") -> None:
        """Write one value."""
        put(self.config, path, value)
        if source:
            self.sources[path] = source

    def put_if_none(self, path: str, source: str) -> None:
        """Copy the value at ``source`` to ``path`` if that has none."""
        value = self.at(source)
        if self.at(path) is None and value is not None:
            self.put(path, value, source)


def completed(config: Mapping[str, object], target: str) -> CompletedConfig:
    """Return ``config`` with the defaults of trinity-rft ``target``, and the values that follow from them.

    Raises UserError for what trinity-rft refuses, except for checks that need a machine (GPUs, files).
    """
    rules = schema(target)
    # Enums in the spelling of their value, whatever case or alias the file has.
    canonical = {
        name: _spelled(value, _type_of(name, rules.root, rules), rules) for name, value in config.items()
    }
    one = CompletedConfig(canonical, target)
    _tasksets_of_one(one)
    one.file = copied(one.config)
    one.config = with_defaults(one.config, rules.root, target)
    for step in (
        _sizes,
        _algorithm,
        _model,
        _cluster,
        _engine,
        _further_models,
        _synchronizer,
        _batches,
        _rows,
        _tasksets,
        _trainer,
        _clipping,
        _old_release,
    ):
        step(one)
    return one


def _type_of(name: str, class_name: str, rules: Schema) -> FieldType:
    known = rules.classes[class_name].get(name)
    return known.type if known else FieldType("any")


def _spelled(value: object, kind: FieldType, rules: Schema) -> object:
    if kind.kind == "enum" and isinstance(value, str):
        return kind.meaning(value) or value
    if isinstance(value, Mapping):
        if kind.kind == "class":
            names = {name: _type_of(str(name), kind.class_name, rules) for name in value}
        else:
            names = dict.fromkeys(value, kind.item or FieldType("any"))
        return {name: _spelled(part, names[name], rules) for name, part in value.items()}
    if isinstance(value, list):
        return [_spelled(part, kind.item or FieldType("any"), rules) for part in value]
    return value


def _tasksets_of_one(one: CompletedConfig) -> None:
    """Turn ``taskset`` into a list of one, and ``task_selector`` into ``data_selector``, its newer name."""
    section = one.at(_INPUT)
    if not isinstance(section, dict):
        return
    if section.get("taskset"):
        if section.get("tasksets"):
            raise UserError(
                f"{_SINGLE}: taskset and tasksets cannot both be given", hint="write tasksets alone"
            )
        _moved(one, _SINGLE, f"{TASKSETS}.0")
        section["tasksets"] = [section.pop("taskset")]
    for path, taskset in _each(one):
        if one.target != TRINITY_OLD and taskset.get("task_selector"):
            _moved(one, f"{path}.task_selector", f"{path}.data_selector")
            taskset["data_selector"] = taskset.pop("task_selector")


def _moved(one: CompletedConfig, source: str, target: str) -> None:
    """Record the new place of everything below ``source``, which may have been moved before."""
    section = one.at(source)
    names = [name for name, _ in leaves(section)] if isinstance(section, Mapping) else []
    origin = one.sources.get(source, source)
    for name in names:
        one.sources[f"{target}.{name}"] = one.sources.pop(f"{source}.{name}", f"{origin}.{name}")


def _each(one: CompletedConfig) -> Iterator[tuple[str, dict[str, object]]]:
    """Yield (path, section) of every taskset, those of evaluations too."""
    for path in (TASKSETS, EVAL_TASKSETS):
        for position, taskset in enumerate(_listed(one.at(path))):
            yield f"{path}.{position}", taskset


def _algorithm(one: CompletedConfig) -> None:
    """Complete the sampling of experiences, and the schedule's older name (AlgorithmConfigValidator)."""
    # The functions of an algorithm are named by trinity/algorithms, which tests hold to the data.
    own = algorithm_defaults(one.target).algorithms.get(str(one.at("algorithm.algorithm_type")), {})
    strategy = "algorithm.sample_strategy"
    if one.at(strategy) is None and own:
        one.put(strategy, own["sample_strategy"])
    style = "algorithm.optimizer.warmup_style"
    if one.at(style) is not None:
        one.put("algorithm.optimizer.lr_scheduler_type", one.at(style), style)


def _model(one: CompletedConfig) -> None:
    """Complete the critic's path, and lengths that follow from each other (ModelConfigValidator)."""
    if not one.at("model.model_path"):
        raise UserError("model.model_path is not given", hint="write the model's folder or its name on a hub")
    if not one.at("model.critic_model_path"):
        one.put("model.critic_model_path", one.at("model.model_path"), "model.model_path")
    whole, prompt, answer = (
        value_at(one.config, f"model.{name}")
        for name in ("max_model_len", "max_prompt_tokens", "max_response_tokens")
    )
    whole, prompt, answer = _lengths(whole, prompt, answer)
    one.put("model.max_model_len", whole)
    one.put("model.max_prompt_tokens", prompt)
    one.put("model.max_response_tokens", answer)
    least = one.number("model.min_response_tokens")
    if least >= answer:
        one.put("model.min_response_tokens", max(answer - 1, 0))
        one.notes.append(
            f"model.min_response_tokens={least}: {max(answer - 1, 0)}, below max_response_tokens"
        )


def _lengths(whole: int | None, prompt: int | None, answer: int | None) -> tuple[int, int, int]:
    """Return (whole, prompt, answer) lengths, each given or what the others leave. Raises UserError."""
    if whole is None:
        if prompt is None or answer is None:
            raise UserError(
                "model.max_model_len is not given",
                hint="write it, or model.max_prompt_tokens and model.max_response_tokens",
            )
        return prompt + answer, prompt, answer
    if prompt is None and answer is None:
        return whole, whole // 2, whole - whole // 2
    if prompt is None:
        answer = min(answer or 0, whole - 1)
        return whole, whole - answer, answer
    if answer is None:
        prompt = min(prompt, whole - 1)
        return whole, prompt, whole - prompt
    if prompt + answer > whole:
        raise UserError(
            f"model.max_model_len={whole} is less than max_prompt_tokens + max_response_tokens ="
            f" {prompt} + {answer}",
            hint=f"write {prompt + answer}, or leave it out",
        )
    return whole, prompt, answer


def _cluster(one: CompletedConfig) -> None:
    """Remove numbers of 0: they stand for the GPUs of the machine or its Ray."""
    for name in ("node_num", "gpu_per_node"):
        if not one.at(f"cluster.{name}"):
            section = one.at("cluster")
            assert isinstance(section, dict)
            section.pop(name, None)


def _engine(one: CompletedConfig) -> None:
    """Complete the engine's fields from the model's section (ExplorerConfigValidator)."""
    engine = str(one.at(f"{_ENGINE}.engine_type"))
    if engine.startswith("vllm"):  # vllm_async is an older name
        one.put(f"{_ENGINE}.engine_type", "vllm", f"{_ENGINE}.engine_type")
    one.put_if_none(f"{_ENGINE}.repetition_penalty", "model.repetition_penalty")
    # A length that follows from prompt and answer is the run's to fit to the model.
    if one.in_file("model.max_model_len") is not None:
        one.put_if_none(f"{_ENGINE}.max_model_len", "model.max_model_len")
    for name in _OF_THE_MODEL:
        if (own := one.in_file(f"{_ENGINE}.{name}")) is not None:
            one.put(f"model.{name}", own, f"{_ENGINE}.{name}")


def _sizes(one: CompletedConfig) -> None:
    """Check the file's numbers that a plan divides by. Raises UserError."""
    for least, paths in _LEAST.items():
        for path in paths:
            value = one.in_file(path)
            if value is not None and one.number(path) < least:
                raise UserError(f"{path}={value}: it should be {least} or more")
    if (gpus := prod(one.number(path) for path in _GPUS if one.at(path))) > _MOST_GPUS:
        raise UserError(f"{_GPUS[1]}={one.at(_GPUS[1])}: {gpus} GPUs in all are more than {_MOST_GPUS}")


def _synchronizer(one: CompletedConfig) -> None:
    """Complete the transport of weights in this mode and its intervals (SynchronizerConfigValidator)."""
    method, mode = one.at("synchronizer.sync_method"), one.at("mode")
    if method == "nccl" and mode == "colocate":
        one.put("synchronizer.sync_method", "memory")
    elif method == "nccl" and (mode != "both" or one.at("model.lora_configs")):
        one.put("synchronizer.sync_method", "checkpoint")
    style = "synchronizer.sync_style"
    newer = schema(TRINITY).find(style)
    assert newer is not None
    one.put(style, newer.type.meaning(str(one.at(style))), style)  # 0.4.1 has other names for two of them
    interval = one.number("synchronizer.sync_interval")
    if interval < 1:
        raise UserError(f"synchronizer.sync_interval={interval}: it should be 1 or more")
    for side in ("explorer", "trainer"):
        one.put_if_none(f"synchronizer.{side}_sync_interval", "synchronizer.sync_interval")
    if mode == "bench":
        return
    # The interval of evaluations is rounded to that of weights (IntervalConfigValidator).
    path = _EVAL_INTERVAL
    interval, between = one.number(path), one.number("synchronizer.explorer_sync_interval")
    if interval % between == 0:
        return
    rounded = max(interval // between, 1) * between
    one.put(path, rounded, path)
    one.notes.append(
        f"{path}={interval}: every {rounded} steps, as trinity-rft itself makes of it: the explorer has"
        f" new weights every {between} (synchronizer.sync_interval)"
    )


def _further_models(one: CompletedConfig) -> None:
    """Give each auxiliary model the defaults of an engine."""
    for position, model in enumerate(_listed(one.at("explorer.auxiliary_models"))):
        full = with_defaults(model, "InferenceModelConfig", one.target)
        one.put(f"explorer.auxiliary_models.{position}", full)
        for name in (*_SAMPLING[:3], "max_response_tokens"):
            one.put_if_none(f"explorer.auxiliary_models.{position}.{name}", f"model.{name}")


def _listed(value: object) -> list[dict[str, object]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _batches(one: CompletedConfig) -> None:
    """Complete ``train_batch_size``, the answers of one update.

    If an update has another number of tasks than the explorer's batch, the explorer's steps are converted to
    updates. Raises UserError.
    """
    tasks, repeats = one.number("buffer.batch_size"), one.number("algorithm.repeat_times")
    rows = one.number("buffer.train_batch_size") or tasks * repeats
    one.put("buffer.train_batch_size", rows)
    answers = rows - expert_rows(one.config)
    if answers == tasks * repeats:
        one.sources["buffer.batch_size"] = "buffer.train_batch_size"  # the same number twice
        return
    path, alone = "buffer.train_batch_size", one.at("mode") == "train"
    if rows != answers or not alone:
        _check_whole_groups(path, rows, answers, repeats)
    if alone:  # no explorer here has a batch of another size
        one.put("buffer.batch_size", max(1, answers // repeats), path)
        return
    each = answers // repeats
    syncs = "synchronizer.explorer_sync_interval"
    for name in ("buffer.total_steps", _EVAL_INTERVAL, syncs, "synchronizer.sync_offset"):
        # An interval of evaluations that is a multiple of no sync interval would be rounded again.
        multiple_of = one.number(syncs) if name == _EVAL_INTERVAL else 1
        _in_updates(one, name, tasks, each, in_file=one.in_file(name), multiple_of=multiple_of)
    one.put("buffer.batch_size", each, path)
    experts = f" and {rows - answers} rows of an expert's" if rows != answers else ""
    one.notes.append(
        f"{path}={rows}: an update trains on {each} tasks × {repeats} answers{experts}, the"
        f" explorer's batch is {tasks} tasks; what counts its steps is counted in updates"
    )


def expert_rows(config: Mapping[str, object]) -> int:
    """Return the number of an expert's rows in an update; 0 for another strategy.

    Source: Trinity's MixSampleStrategy (mix_sample_strategy.py). Raises UserError for a ratio that leaves one
    of the two without rows.
    """
    if value_at(config, "algorithm.sample_strategy") != "mix":
        return 0
    path, size = "algorithm.sample_strategy_args.expert_data_ratio", "buffer.train_batch_size"
    ratio, rows = value_at(config, path), value_at(config, size)
    ratio = 0.5 if ratio is None else ratio
    if not is_number(ratio) or not 0 < ratio < 1:
        raise UserError(f"{path}={ratio}: write the expert's part of an update, above 0 and below 1")
    if not is_whole(rows):
        raise UserError(f"{size} is {rows!r}, it should be a whole number")
    taken = ceil(ratio * rows)
    if taken >= rows:
        raise UserError(f"{path}={ratio} leaves no fresh answer in {size}={rows}", hint="write a smaller one")
    return taken


def _check_whole_groups(path: str, rows: int, answers: int, repeats: int) -> None:
    """Raise UserError if an update would take a part of a group."""
    if answers % repeats == 0:
        return
    near = max(answers // repeats, 1) * repeats
    asks = f"an update takes whole groups of {repeats} answers (algorithm.repeat_times)"
    if rows == answers:
        raise UserError(f"{path}={rows}: {asks}", hint=f"write {near} or {near + repeats}")
    raise UserError(
        f"{path}={rows}: {rows - answers} rows are an expert's and {answers} fresh answers; {asks}",
        hint=f"write an algorithm.sample_strategy_args.expert_data_ratio that leaves {near} or"
        f" {near + repeats}: {(rows - near) / rows:g}",
    )


def _rows(one: CompletedConfig) -> None:
    """Set the storage of rows to files if none is given: the default is a queue, which nothing fills."""
    buffer = "buffer.trainer_input.experience_buffer"
    on_rows = one.at("algorithm.algorithm_type") in _ON_ROWS
    if on_rows and one.at(f"{buffer}.path") and one.in_file(f"{buffer}.storage_type") is None:
        one.put(f"{buffer}.storage_type", "file")
        one.notes.append(f"{buffer}.storage_type is not given: the rows are those of the files at its path")


def _in_updates(
    one: CompletedConfig, path: str, tasks: int, each: int, *, in_file: object, multiple_of: int
) -> None:
    """Convert explorer steps at ``path`` to updates: exactly if they are in the file, else about.

    Raises UserError, with numbers that are multiples of ``multiple_of`` too.
    """
    count = one.at(path)
    if not is_whole(count) or not count:
        return
    if count * tasks % each and in_file is not None:
        # After so many steps both sides have done whole ones.
        whole = lcm(lcm(tasks, each) // tasks, multiple_of)
        near = [number for number in (count // whole * whole, (count // whole + 1) * whole) if number]
        raise UserError(
            f"{path}={in_file} explorer steps of {tasks} tasks are not a whole number of updates of {each}"
            " tasks (buffer.train_batch_size ÷ algorithm.repeat_times)",
            hint=f"write {' or '.join(map(str, near))}",
        )
    one.put(path, max(1, count * tasks // each), path)


def _tasksets(one: CompletedConfig) -> None:
    """Complete a taskset from the sections around it (BufferConfigValidator)."""
    for path, taskset in list(_each(one)):
        put(one.config, path, with_defaults(taskset, "TasksetConfig", one.target))
        if path.startswith(EVAL_TASKSETS):
            one.put_if_none(f"{path}.default_workflow_type", f"{_INPUT}.default_eval_workflow_type")
        one.put_if_none(f"{path}.default_workflow_type", f"{_INPUT}.default_workflow_type")
        one.put_if_none(f"{path}.default_reward_fn_type", f"{_INPUT}.default_reward_fn_type")
        for name in _SAMPLING:
            one.put_if_none(f"{path}.rollout_args.{name}", f"model.{name}")
        one.put_if_none(f"{path}.rollout_args.max_tokens", "model.max_response_tokens")
    # The way back samples training answers by the model's section.
    for name in _SAMPLING[:3] if one.at(TASKSETS) else ():
        one.put_if_none(f"{TASKSETS}.0.rollout_args.{name}", f"model.{name}")
        own = one.at(f"{TASKSETS}.0.rollout_args.{name}")
        if own is not None:
            one.put(f"model.{name}", own, f"{TASKSETS}.0.rollout_args.{name}")


def _trainer(one: CompletedConfig) -> None:
    """Complete the tokens of a micro-batch (TrainerConfigValidator)."""
    if one.at("trainer.max_token_len_per_gpu") is not None or one.at("mode") in ("explore", "bench", "serve"):
        return
    strategy = str(one.at("trainer.trainer_strategy"))
    name = (
        "ulysses_sequence_parallel_size" if strategy.startswith("fsdp") else "megatron.context_parallel_size"
    )
    size = one.at(f"trainer.{name}")
    split = size if isinstance(size, int) and size > 0 else 1
    one.put("trainer.max_token_len_per_gpu", ceil(2 * one.number("model.max_model_len") / split))


def _clipping(one: CompletedConfig) -> None:
    """Clip by the optimizer's field, as 0.6.0's veRL 0.8 does; 0.4.1 clips by the trainer's."""
    path, older = "algorithm.optimizer.clip_grad", "trainer.grad_clip"
    if one.target == TRINITY_OLD:
        return
    own, bound = one.at(older), one.at(path)
    one.put(older, bound, path)
    if one.in_file(older) is not None and own != bound:
        one.notes.append(
            f"{older}={own}: gradients are clipped by {path}={bound}, as trinity-rft itself does"
        )


def _old_release(one: CompletedConfig) -> None:
    if one.target == TRINITY_OLD:
        one.put("group", "")  # a label of the monitor there, a part of the job's folder in 0.6.0
        # Its trainer has only the rollout's log-probabilities.
        one.put("algorithm.bypass_old_logprobs", True)
