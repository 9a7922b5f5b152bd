"""Checks of a form's texts, and the veRL settings that they mean."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from trinity_compat.common.errors import UserError, Where
from trinity_compat.common.suggestions import nearest, question
from trinity_compat.launch.entrypoints import PPO
from trinity_compat.launch.model import EnvRef, Launch, Word, WordPart
from trinity_compat.translate.form.fields import FIELDS, GROUPED, OFFLINE, FormField
from trinity_compat.verl_config.grammar import hydra_text

_ARR = "actor_rollout_ref"
_NODE = 8  # GPUs
LONGEST = 20_000  # characters of a field
_VARIABLE = re.compile(r"\$(?:\{(\w+)\}|(\w+))", re.ASCII)
_MARK = "TCvar"
_SETTING = re.compile(r"(?:\+\+|\+|~)?\w[\w.@/-]*=.*|~\w[\w.@/-]*", re.ASCII)


class FieldProblem(UserError):
    """A text that a field does not take. ``name`` is the field's."""

    def __init__(self, name: str, message: str, hint: str | None = None, line: int = 0) -> None:
        super().__init__(message, where=Where(name, line), hint=hint)
        self.name = name


@dataclass(frozen=True, slots=True)
class FormValues:
    """The values of a form whose texts are valid; a number that is left empty is None."""

    texts: Mapping[str, str]
    numbers: Mapping[str, int | float | None]

    def __getitem__(self, name: str) -> str:
        return self.texts[name]

    def whole(self, name: str) -> int:
        """Return a number that is not optional."""
        return int(self.numbers[name] or 0)

    def files(self, name: str) -> list[str]:
        """Return the lines of a field."""
        return [line for text in self.texts[name].splitlines() if (line := text.strip())]


def values_of(texts: Mapping[str, str]) -> tuple[FormValues, list[FieldProblem]]:
    """Return the values of the fields, and a problem for each text that its field does not take.

    A field that ``texts`` lacks has its default. A flag that is off is "" there.
    """
    given = {name: texts.get(name, field.default) for name, field in FIELDS.items()}
    problems: list[FieldProblem] = []
    numbers: dict[str, int | float | None] = {}
    for name, field in FIELDS.items():
        text = given[name] = _clean(given[name], field)
        try:
            _check(text, field)
            if field.kind in ("whole", "number"):
                numbers[name] = _number(text, field)
        except FieldProblem as problem:
            problems.append(problem)
    values = FormValues(given, numbers)
    return values, problems or list(_together(values))


def _clean(text: str, field: FormField) -> str:
    text = text.replace("\r\n", "\n")
    if field.name == "settings":  # whose lines are counted
        return text.rstrip()
    text = text.strip()
    return text if field.kind == "lines" else " ".join(text.split("\n"))


def _check(text: str, field: FormField) -> None:
    if len(text) > LONGEST:
        raise FieldProblem(field.name, f"has {len(text)} characters", f"write {LONGEST} at most")
    if not text and not field.optional and field.kind != "flag":
        raise FieldProblem(field.name, "is empty", f"the default is {field.default}")
    if strange := next((char for char in text if not char.isprintable() and char != "\n"), None):
        raise FieldProblem(field.name, f"has the character {strange!r}", "remove it")
    if field.choices is not None and text not in field.choices:
        hint = question(nearest(text, field.choices)) or f"write {', '.join(field.choices)}"
        raise FieldProblem(field.name, f"{text!r} is not one of its choices", hint)


def _number(text: str, field: FormField) -> int | float | None:
    """Return the number of a text. Raises FieldProblem."""
    if not text:
        return None
    wanted = "a whole number" if field.kind == "whole" else "a number"
    try:
        found = int(text) if field.kind == "whole" and len(text) < 16 else float(text)
    except ValueError:
        found = math.nan
    if not math.isfinite(found) or (field.kind == "whole" and not isinstance(found, int)):
        raise FieldProblem(
            field.name, f"{text[:40]!r} is not {wanted}", f"the default is {field.default or 'empty'}"
        )
    if found < field.low:
        raise FieldProblem(field.name, f"{text} is too small", f"write {wanted} of {field.low:g} or more")
    if found > field.high:
        raise FieldProblem(field.name, f"{text} is too large", f"write {wanted} of {field.high:g} or less")
    return found


def _together(values: FormValues) -> Iterator[FieldProblem]:
    """Yield the problems of fields that do not fit each other."""
    gpus = values.whole("gpus")
    if gpus > _NODE and gpus % _NODE:
        below = gpus // _NODE * _NODE
        yield FieldProblem(
            "gpus", f"{gpus} are not whole nodes of {_NODE}", f"write {below} or {below + _NODE}"
        )
    whole = values.whole("prompt_length") + values.whole("answer_length")
    if (tokens := values.numbers["tokens_per_gpu"]) is not None and tokens < whole:
        yield FieldProblem(
            "tokens_per_gpu",
            f"{tokens} do not hold a prompt and its answer, which have up to {whole} tokens",
            f"write {whole} or more",
        )
    if values["algorithm"] in OFFLINE:
        return
    yield from _of_sides(values)
    if values["workflow"] == "tool_agent" and not values["tools"]:
        yield FieldProblem("tools", "is empty", "write the path of the tools' YAML")
    if values["algorithm"] in GROUPED and values.whole("group_size") < 2:
        name = FIELDS["algorithm"].choices or {}
        yield FieldProblem(
            "group_size",
            f"{name[values['algorithm']]} compares the answers to one prompt, and 1 has none beside it",
            "write 2 or more",
        )
    if values["reward"] != "rule" and not values["reward_source"]:
        wanted = "FILE.py:FUNCTION" if values["reward"] == "function" else "the folder of the reward model"
        yield FieldProblem("reward_source", "is empty", f"write {wanted}")
    if values["reward"] == "function" and not re.fullmatch(
        r".+:[A-Za-z_]\w*", values["reward_source"] or "a:a"
    ):
        yield FieldProblem(
            "reward_source", "names no function", f"write {values['reward_source']}:compute_score"
        )
    for line, text in enumerate(values["settings"].splitlines(), start=1):
        if (text := text.strip()) and not _SETTING.fullmatch(text):
            yield FieldProblem(
                "settings", f"line {line}: {text[:60]!r} is not a setting", "write key=value", line
            )
        elif text.lstrip("+~").startswith("hydra."):
            yield FieldProblem(
                "settings", f"line {line}: Hydra's own settings train nothing", "remove it", line
            )


def _of_sides(values: FormValues) -> Iterator[FieldProblem]:
    """Yield the problems of how explorer and trainer share the GPUs."""
    gpus, width, own = (values.numbers[name] for name in ("gpus", "tensor_parallel", "rollout_gpus"))
    is_split = values["sharing"] == "split"
    if not is_split and (values.whole("sync_offset") or own):
        name = "sync_offset" if values.whole("sync_offset") else "rollout_gpus"
        yield FieldProblem(name, "is for sides that work side by side", "choose that in Both sides")
    if is_split and gpus == 1:
        yield FieldProblem("sharing", "1 GPU has no room for two sides", "let them take turns")
    elif is_split and own and width and (own >= (gpus or 0) or own % width):
        yield FieldProblem(
            "rollout_gpus",
            f"{own} of {gpus} GPUs are not whole engines of {width} with GPUs left for the trainer",
            f"write a multiple of {width} below {gpus}",
        )
    if values.numbers["max_staleness"] is not None and values["sync_style"] != "fully_async":
        yield FieldProblem("max_staleness", "is for the style fully_async", "leave it empty")


def launch_of(values: FormValues) -> Launch:
    """Return the launch of veRL that a form means. The place of each word is its field."""
    words = [_word(name, key, value) for name, key, value in _settings(values)]
    lines = enumerate(values["settings"].splitlines(), start=1)
    words += [Word(_parts(text.strip()), Where("settings", line)) for line, text in lines if text.strip()]
    return Launch(PPO, tuple(words), Where("form"))


def _settings(values: FormValues) -> Iterator[tuple[str, str, object]]:
    """Yield (field, veRL key, value) in the order of a published script."""
    gpus = values.whole("gpus")
    yield "algorithm", "algorithm.adv_estimator", values["algorithm"]
    for name in ("train_files", "val_files"):
        files = values.files(name)
        yield name, f"data.{name}", files[0] if len(files) == 1 else files
    yield "batch_size", "data.train_batch_size", values.numbers["batch_size"]
    yield "prompt_length", "data.max_prompt_length", values.numbers["prompt_length"]
    yield "answer_length", "data.max_response_length", values.numbers["answer_length"]
    yield "prompt_length", "data.filter_overlong_prompts", True
    yield "model", f"{_ARR}.model.path", values["model"]
    yield "model", f"{_ARR}.model.enable_gradient_checkpointing", True
    yield "learning_rate", f"{_ARR}.actor.optim.lr", values.numbers["learning_rate"]
    yield (
        "mini_batch",
        f"{_ARR}.actor.ppo_mini_batch_size",
        values.numbers["mini_batch"] or values.numbers["batch_size"],
    )
    yield from _kl(values)
    yield from _micro_batches(values)
    yield "model", f"{_ARR}.rollout.name", "vllm"
    yield "group_size", f"{_ARR}.rollout.n", values.numbers["group_size"]
    yield "tensor_parallel", f"{_ARR}.rollout.tensor_model_parallel_size", values.numbers["tensor_parallel"]
    yield "engine_memory", f"{_ARR}.rollout.gpu_memory_utilization", values.numbers["engine_memory"]
    if values["algorithm"] == "gae":
        yield "model", "critic.model.path", values["model"]
    yield from _reward(values)
    if values["workflow"] != "single_turn_agent":
        yield "workflow", f"{_ARR}.rollout.agent.default_agent_loop", values["workflow"]
        yield "workflow", f"{_ARR}.rollout.multi_turn.enable", True
        yield "tools", f"{_ARR}.rollout.multi_turn.tool_config_path", values["tools"]
    logger = values["logger"]
    yield "logger", "trainer.logger", ["console", *([logger] if logger != "none" else [])]
    yield "project", "trainer.project_name", values["project"]
    yield "name", "trainer.experiment_name", values["name"]
    yield "gpus", "trainer.nnodes", max(1, gpus // _NODE)
    yield "gpus", "trainer.n_gpus_per_node", min(gpus, _NODE)
    for name, key in (("save_every", "save_freq"), ("test_every", "test_freq")):
        yield name, f"trainer.{key}", values.numbers[name] or -1
    yield "test_first", "trainer.val_before_train", bool(values["test_first"])
    yield "epochs", "trainer.total_epochs", values.numbers["epochs"]


def _kl(values: FormValues) -> Iterator[tuple[str, str, object]]:
    place, coefficient = values["kl"], values.numbers["kl_coef"]
    yield "kl", f"{_ARR}.actor.use_kl_loss", place == "loss"
    yield "kl", "algorithm.use_kl_in_reward", place == "reward"
    if place == "loss":
        yield "kl", f"{_ARR}.actor.kl_loss_type", "low_var_kl"
        yield "kl_coef", f"{_ARR}.actor.kl_loss_coef", coefficient
    if place == "reward":
        yield "kl_coef", "algorithm.kl_ctrl.kl_coef", coefficient
    if values["offload_reference"]:
        yield "offload_reference", f"{_ARR}.ref.fsdp_config.param_offload", True


def _micro_batches(values: FormValues) -> Iterator[tuple[str, str, object]]:
    tokens, size = values.numbers["tokens_per_gpu"], values.numbers["micro_batch"]
    yield "tokens_per_gpu", f"{_ARR}.actor.use_dynamic_bsz", tokens is not None
    if tokens is not None:
        yield "tokens_per_gpu", f"{_ARR}.actor.ppo_max_token_len_per_gpu", tokens
        return
    keys = [f"{_ARR}.actor.ppo_micro_batch_size_per_gpu", f"{_ARR}.rollout.log_prob_micro_batch_size_per_gpu"]
    if values["kl"] != "none":
        keys.append(f"{_ARR}.ref.log_prob_micro_batch_size_per_gpu")
    if values["algorithm"] == "gae":
        keys.append("critic.ppo_micro_batch_size_per_gpu")
    yield from (("micro_batch", key, size) for key in keys)


def _reward(values: FormValues) -> Iterator[tuple[str, str, object]]:
    source = values["reward_source"]
    if values["reward"] == "function":
        path, _, name = source.rpartition(":")
        yield "reward_source", "reward.custom_reward_function.path", path
        yield "reward_source", "reward.custom_reward_function.name", name
    elif values["reward"] == "model":
        yield "reward", "reward.reward_model.enable", True
        yield "reward_source", "reward.reward_model.model_path", source


def _word(name: str, key: str, value: object) -> Word:
    """Return ``key=value`` as one word. Raises FieldProblem for a text that Hydra's grammar cannot hold."""
    names: list[str] = []
    mark = _MARK
    while mark in str(value):
        mark += "x"
    spelled = hydra_text(_marked(value, names, mark))
    if spelled is None or "${" in spelled:
        raise FieldProblem(
            name, f"{value!r} cannot be written in a launch", "remove quotes, backslashes and ${…}"
        )
    pieces = re.split(rf"{mark}(\d+)x", f"{key}={spelled}")  # text, number of a variable, text, …
    parts = [_variable(names[int(piece)]) if at % 2 else WordPart(piece) for at, piece in enumerate(pieces)]
    return Word(tuple(part for part in parts if part.text or part.source), Where(name))


def _marked(value: object, names: list[str], prefix: str) -> object:
    """Return ``value`` with a plain word for each environment variable, which joins the names."""
    if isinstance(value, list):
        return [_marked(item, names, prefix) for item in value]
    if not isinstance(value, str):
        return value

    def mark(found: re.Match[str]) -> str:
        names.append(found[1] or found[2])
        return f"{prefix}{len(names) - 1}x"

    return _VARIABLE.sub(mark, value)


def as_yaml(text: str) -> str:
    """Return a text with its variables as a YAML has them."""
    return _VARIABLE.sub(lambda found: f"${{oc.env:{found[1] or found[2]}}}", text)


def _parts(text: str) -> tuple[WordPart, ...]:
    """Return a setting as the user spells it, its variables as references."""
    pieces = _VARIABLE.split(text)  # text, ${name}, $name, text, …
    parts: list[WordPart] = []
    for at in range(0, len(pieces), 3):
        parts.append(WordPart(pieces[at]))
        if at + 2 < len(pieces):
            parts.append(_variable(pieces[at + 1] or pieces[at + 2]))
    return tuple(part for part in parts if part.text or part.source)


def _variable(name: str) -> WordPart:
    return WordPart("", EnvRef(name, required=name != "HOME"))
