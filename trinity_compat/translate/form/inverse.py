"""The beginner's form of a configuration: fields read from the veRL settings, the rest as further settings.

The form's own launch is compared with the configuration's, so that a setting without a field is kept, and
what no setting of veRL can hold is named.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from trinity_compat.common.errors import RunError, UserError
from trinity_compat.common.nested import leaves, value_at
from trinity_compat.common.plain_numbers import is_number
from trinity_compat.common.releases import TRINITY
from trinity_compat.job.settings import SECTION, SETTINGS
from trinity_compat.translate.form.fields import FIELDS, LOGGERS, SAMPLED, SIDES, defaults
from trinity_compat.translate.form.made import made_from
from trinity_compat.translate.form.sides import options_of, sides_of
from trinity_compat.translate.form.values import LONGEST, launch_of, values_of
from trinity_compat.translate.pipeline import translate_launch
from trinity_compat.translate.verl_from_trinity import completed_config, flavour_of, verl_settings
from trinity_compat.translate.verl_script import key_in_launch, verl_script
from trinity_compat.verl_config.grammar import hydra_text
from trinity_compat.verl_config.pinned import compose_pinned
from trinity_compat.verl_config.releases import ENGINE_FLAVOURS, FLAVOURS, MODEL_ENGINE

_ARR = "actor_rollout_ref"
_NODE = 8  # GPUs
# A reference to a variable; one that is optional has a default.
_REFERENCE = re.compile(r"\$\{oc\.env:(\w+)(?:,([^{}$]*))?\}", re.ASCII)
_OPTIONAL = re.compile(r"(\$\{oc\.env:\w+),(?:\'\'|\"\")?\}", re.ASCII)
_OURS = f"trainer.trainer_config.{SECTION}."
_GPU_MEMORY = f"{_ARR}.rollout.gpu_memory_utilization"
_MISSING = object()
_PLAIN = {field.name: field.default for field in SIDES if field.name != "tensor_parallel"}
Lost = tuple[str, object, object]  # path, value loaded, value of the form


@dataclass(frozen=True, slots=True)
class LoadedForm:
    """A form, field → text, and what it does not hold: settings of the configuration that differ."""

    texts: Mapping[str, str]
    lost: tuple[Lost, ...] = ()


@dataclass(frozen=True, slots=True)
class _Settings:
    """The veRL settings of a configuration; ``own`` as written, the others veRL's defaults."""

    own: Mapping[str, object]
    whole: Mapping[str, object]
    flavour: str
    config: Mapping[str, object]

    @classmethod
    def of(cls, config: Mapping[str, object]) -> _Settings:
        """Raises UserError and RunError for a configuration that no launch of veRL means."""
        full = completed_config(config, TRINITY)
        own, flavour = verl_settings(full), flavour_of(full.config)
        # An engine beside the trainer may have more than veRL's default: what it has is the form's.
        memory = value_at(full.config, "explorer.rollout_model.gpu_memory_utilization")
        own |= {} if memory is None else {_GPU_MEMORY: memory}
        return cls(own, dict(leaves(compose_pinned(own, flavour))), flavour, full.config)

    def __getitem__(self, key: str) -> object:
        return self.own[key] if key in self.own else self.whole.get(key)


def form_of(config: Mapping[str, object]) -> LoadedForm:
    """Return the form of a Trinity configuration that a launch of veRL means.

    Raises UserError for another one, and for one whose settings the form has no room for.
    """
    try:
        verl_script(config, "the text")  # refuses what main_ppo does not train
        wanted = _Settings.of(config)
    except RunError as error:
        raise UserError(
            f"{error.message}: the form is for launches of veRL", hint="Expert has every field of it"
        ) from None
    texts = {**defaults(), **_without_problems(_fields(wanted))}
    shared = sides_of(wanted.config, _updates(wanted))
    if shared["sharing"] == "split" and sides_of(_made(texts | _PLAIN).config, _updates(wanted)) == shared:
        texts |= _PLAIN  # a launch that cannot take turns, as with a reward model
    texts["settings"] = "\n".join(_further(wanted, _made(texts)))
    if len(texts["settings"]) > LONGEST:
        raise UserError("its settings are too many for this form", hint="Expert has room for them")
    result = made_from(texts)
    if not result.works:
        return LoadedForm(texts)
    found = _Settings.of(result.config)
    return LoadedForm(texts, tuple(_lost(wanted, found)))


def _made(texts: Mapping[str, str]) -> _Settings:
    """Return the settings of a form whose fields are valid."""
    values, _ = values_of(texts)
    translation, _ = translate_launch(launch_of(values), options_of(values))
    return _Settings.of(translation.config)


def _without_problems(texts: Mapping[str, str]) -> dict[str, str]:
    """Return the texts that their fields take; the others' settings become further ones."""
    found = dict(texts)
    while problems := [each.name for each in values_of(found)[1] if each.name in found]:
        for name in problems:
            found.pop(name, None)
    return found


def _fields(wanted: _Settings) -> dict[str, str]:
    """Return the fields whose settings have a text, field → text."""
    found: dict[str, str | None] = {
        "model": _text(wanted[f"{_ARR}.model.path"]),
        "train_files": _lines(wanted["data.train_files"]),
        "val_files": _lines(wanted["data.val_files"]),
        "algorithm": _one_of(wanted["algorithm.adv_estimator"], SAMPLED),
        "gpus": _gpus(wanted["trainer.nnodes"], wanted["trainer.n_gpus_per_node"]),
        "prompt_length": _number(wanted["data.max_prompt_length"]),
        "answer_length": _number(wanted["data.max_response_length"]),
        "batch_size": _number(wanted["data.train_batch_size"]),
        "group_size": _number(wanted[f"{_ARR}.rollout.n"]),
        "epochs": _number(wanted["trainer.total_epochs"]),
        "project": _text(wanted["trainer.project_name"]),
        "name": _text(wanted["trainer.experiment_name"]),
        "mini_batch": _number(wanted[f"{_ARR}.actor.ppo_mini_batch_size"]),
        "learning_rate": _number(wanted[f"{_ARR}.actor.optim.lr"]),
        "tensor_parallel": _number(wanted[f"{_ARR}.rollout.tensor_model_parallel_size"]),
        "engine_memory": _number(wanted[_GPU_MEMORY]),
        "offload_reference": "on" if wanted[f"{_ARR}.ref.fsdp_config.param_offload"] else "",
        "logger": _logger(wanted["trainer.logger"]),
        "save_every": _every(wanted["trainer.save_freq"]),
        "test_every": _every(wanted["trainer.test_freq"]),
        "test_first": "on" if wanted["trainer.val_before_train"] else "",
        **_kl(wanted),
        **_micro_batches(wanted),
        **_reward(wanted),
        **_workflow(wanted),
        **sides_of(wanted.config, _updates(wanted)),
    }
    if found["mini_batch"] == found["batch_size"]:
        found["mini_batch"] = ""
    return {name: _as_default(name, text) for name, text in found.items() if text is not None}


def _as_default(name: str, text: str) -> str:
    """Return the default where the text is the same number."""
    field = FIELDS[name]
    is_same = field.kind == "number" and text and float(text) == float(field.default or "nan")
    return field.default if is_same else text


def _kl(wanted: _Settings) -> dict[str, str | None]:
    in_loss, in_reward = wanted[f"{_ARR}.actor.use_kl_loss"], wanted["algorithm.use_kl_in_reward"]
    if in_loss:
        return {"kl": "loss", "kl_coef": _number(wanted[f"{_ARR}.actor.kl_loss_coef"])}
    if in_reward:
        return {"kl": "reward", "kl_coef": _number(wanted["algorithm.kl_ctrl.kl_coef"])}
    return {"kl": "none"}


def _micro_batches(wanted: _Settings) -> dict[str, str | None]:
    if wanted[f"{_ARR}.actor.use_dynamic_bsz"]:
        return {"tokens_per_gpu": _number(wanted[f"{_ARR}.actor.ppo_max_token_len_per_gpu"])}
    return {
        "tokens_per_gpu": "",
        "micro_batch": _number(wanted[f"{_ARR}.actor.ppo_micro_batch_size_per_gpu"]),
    }


def _reward(wanted: _Settings) -> dict[str, str | None]:
    file, name = (_text(wanted[f"reward.custom_reward_function.{part}"]) for part in ("path", "name"))
    if file and name:
        return {"reward": "function", "reward_source": f"{file}:{name}"}
    if wanted["reward.reward_model.enable"]:
        return {"reward": "model", "reward_source": _text(wanted["reward.reward_model.model_path"])}
    return {"reward": "rule", "reward_source": ""}


def _workflow(wanted: _Settings) -> dict[str, str | None]:
    tools = _text(wanted[f"{_ARR}.rollout.multi_turn.tool_config_path"])
    if wanted[f"{_ARR}.rollout.agent.default_agent_loop"] != "tool_agent" or not tools:
        return {}
    return {"workflow": "tool_agent", "tools": tools}


def _updates(wanted: _Settings) -> int:
    sizes = (wanted["data.train_batch_size"], wanted[f"{_ARR}.actor.ppo_mini_batch_size"])
    batch, mini = (size if isinstance(size, int) and size > 0 else 1 for size in sizes)
    return max(1, batch // mini)


def _gpus(nodes: object, each: object) -> str | None:
    if not isinstance(nodes, int) or not isinstance(each, int) or (nodes > 1 and each != _NODE):
        return None
    return str(nodes * each)


def _logger(value: object) -> str | None:
    """Return the logger beside the console; None where there are several."""
    names = value if isinstance(value, list) else [value]
    others = [name for name in names if name != "console"]
    return _one_of(others[0] if others else "none", LOGGERS) if len(others) < 2 else None


def _every(value: object) -> str | None:
    return _number(max(0, value)) if isinstance(value, int) else None


def _one_of(value: object, choices: Mapping[str, str]) -> str | None:
    return str(value) if value in choices else None


def _number(value: object) -> str | None:
    return hydra_text(value) if is_number(value) else None


def _lines(value: object) -> str | None:
    """Return the files of a setting, one a line."""
    texts = [_text(each) for each in (value if isinstance(value, list) else [value])]
    return "\n".join(text for text in texts if text) if all(texts) else None


def _text(value: object) -> str | None:
    """Return a text as a field spells it, its variables as ``$NAME``; None for one that no field holds."""
    if not isinstance(value, str):
        return None
    plain = _REFERENCE.sub("", value)
    if "$" in plain or "\n" in plain:
        return None
    return _REFERENCE.sub(_variable, value)


def _variable(found: re.Match[str]) -> str:
    name, default = found[1], (found[2] or "").strip("'\"")
    follows = found.string[found.end() : found.end() + 1]
    if default:
        return default
    return f"${{{name}}}" if follows.isalnum() or follows == "_" else f"${name}"


def _further(wanted: _Settings, made: _Settings) -> Iterator[str]:
    """Yield ``key=value`` of each setting in which the form's fields differ from the configuration."""
    if wanted.flavour != FLAVOURS[0]:
        yield f"{MODEL_ENGINE}={ENGINE_FLAVOURS.get(wanted.flavour, 'megatron')}"
    for key in dict.fromkeys((*wanted.own, *made.own)):
        plain = _plain(wanted[key])
        if plain == _plain(made[key]):
            continue
        spelled = None if plain is _MISSING else hydra_text(plain)
        if spelled is not None:
            yield f"{key_in_launch(key, wanted.flavour)}={spelled}"


def _plain(value: object) -> object:
    """Return a value with its variables as ``$NAME``; _MISSING for one that no setting of the form holds."""
    if isinstance(value, str):
        text = _text(value)
        return _MISSING if text is None else text
    if isinstance(value, list):
        items = [_plain(each) for each in value]
        return _MISSING if _MISSING in items else items
    return value


def _lost(wanted: _Settings, made: _Settings) -> Iterator[Lost]:
    """Yield what the form's configuration has not as the loaded one, by the YAML's path, else veRL's key."""
    found = [each for each in _missing("", made.config, wanted.config) if not _is_bookkeeping(each[0])]
    yield from found
    if found:  # the keys behind these paths differ as well
        return
    for key in dict.fromkeys((*wanted.own, *made.own)):
        if _plain(wanted[key]) != _plain(made[key]):
            yield key, wanted[key], made[key]


def _is_bookkeeping(path: str) -> bool:
    """Return whether a path is a note of translate's and no setting of the user's."""
    name = path.removeprefix(_OURS)
    return name != path and name.partition(".")[0] not in SETTINGS


def _missing(path: str, new: object, old: object) -> Iterator[Lost]:
    """Yield the values in ``old`` that ``new`` has not; ``old`` may leave out defaults."""
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        for key, each in old.items():
            yield from _missing(f"{path}.{key}" if path else str(key), new.get(key), each)
    elif isinstance(old, list) and isinstance(new, list) and len(new) == len(old):
        for place, (one, other) in enumerate(zip(new, old, strict=True)):
            yield from _missing(f"{path}[{place}]", one, other)
    elif _as_required(new) != _as_required(old):
        yield path, old, new


def _as_required(value: object) -> object:
    """Return a text with its variables as a field's: an empty default is as none."""
    return _OPTIONAL.sub(r"\1}", value) if isinstance(value, str) else value
