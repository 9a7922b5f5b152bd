"""The configuration key behind an error that verl or vllm raised, and a message about it."""

from __future__ import annotations

import linecache
import re
from collections.abc import Iterable, Iterator, Mapping
from types import TracebackType

_ROLLOUT = "actor_rollout_ref.rollout"
_FULL_KEY = re.compile(r"^full_key: (.+)$", re.MULTILINE)
_ARGUMENT = re.compile(r"unexpected keyword argument '(\w+)'")
_HEADS = re.compile(r"attention heads \((\d+)\) must be divisible by tensor parallel size")
_HEADS_OF_SEQUENCES = re.compile(r"num_\w+_heads \d+ must be divisible by ulysses_sp_size")
# What follows from a model's config.json, in vLLM's words.
_OF_MODEL = re.compile(
    rf"{_HEADS.pattern}|greater than the derived max_model_len|does not support float16|Number of experts in"
    " the model must be|Quantization method specified in the model config"
)
# What every release of vLLM that a run takes refuses in the same words, each with the arguments that must be
# given: defaults depend on the device.
_OF_EVERY_RELEASE = (
    (_OF_MODEL, ()),
    (re.compile("must be greater than or equal to max_num_seqs"), ("max_num_batched_tokens", "max_num_seqs")),
    (
        re.compile(r"max_num_batched_tokens \(\d+\) is smaller than max_model_len"),
        ("max_num_batched_tokens", "max_model_len"),
    ),
    (re.compile("cannot be greater than the max_model_len"), ("long_prefill_token_threshold",)),
    (re.compile("num_speculative_tokens was provided but without"), ("speculative_config",)),
    (re.compile("Expected num_speculative_tokens to be greater than zero"), ("speculative_config",)),
    (re.compile("enable_expert_parallel must be True to use EPLB"), ()),
    (re.compile("num_redundant_experts is set to"), ()),
    (re.compile("are mutually exclusive"), ()),
    (re.compile("Unknown attention backend"), ()),
    (re.compile("Unknown quantization method: (?!bitsandbytes)"), ()),  # which 0.24.0 has, and 0.28.0 has not
    (re.compile(r"vLLM does not take argument --.*: (invalid \w+|Value .* cannot be converted)"), ()),
)
# Limits that not every such release has.
_NEWER_LIMITS = ("max_logprobs", "long_prefill_token_threshold", "data_parallel_rpc_port")
_LIMITS = ("greater_than", "greater_than_equal", "less_than", "less_than_equal")
_DOTTED = re.compile(r"[A-Za-z_]\w*(?:\.\w+)*")
_WORDS = 500  # characters: longer messages are cut
# vLLM's names for keys of verl's rollout section, and for keys of other sections.
_SPELLED = {"tensor_parallel_size": "tensor_model_parallel_size"}
_ENGINE_KEYS = {
    "model": "actor_rollout_ref.model.path",
    "trust_remote_code": "actor_rollout_ref.model.trust_remote_code",
    "hf_overrides": "actor_rollout_ref.model.override_config",
}


def key_of(error: BaseException, section: str, keys: Iterable[str]) -> str:
    """Return the dotted key that ``error`` names; else ``section``, in which it arose.

    ``keys``: every key of the configuration, with its sections.
    """
    text = str(error)
    # veRL's update_model_config calls itself for each mapping on the way to a key.
    frames = [frame.tb_frame for frame in _frames(_innermost(error).__traceback__)]
    at = [str(each.f_locals.get("key")) for each in frames if each.f_code.co_name == "update_model_config"]
    if at:
        role = "critic" if section.startswith("critic") else "actor_rollout_ref"
        return ".".join([role, "model.override_config", *at])
    if found := _FULL_KEY.search(text):
        section = found[1].strip()
    if found := _ARGUMENT.search(text):
        return f"{section}.{found[1]}"
    known = list(keys)
    if section in known and not any(key.startswith(f"{section}.") for key in known):
        return section
    return _mentioned(f"{text} {_source_line(error)}", section, known) or section


def _innermost(error: BaseException) -> BaseException:
    while error.__cause__ is not None:  # Hydra wraps the error of what it called
        error = error.__cause__
    return error


def _mentioned(text: str, section: str, keys: list[str]) -> str:
    """Return the longest key, or end of a key, in ``text``.

    The key must be below ``section``, or spelled with its own section.
    """
    found = [
        (key.startswith(f"{section}."), len(word), key)
        for word in dict.fromkeys(_DOTTED.findall(text))
        for key in _ending_in(word, keys)
        if not section or key.startswith(f"{section}.") or "." in word
    ]
    return max(found, default=(False, 0, ""))[2]


def _ending_in(word: str, keys: list[str]) -> Iterator[str]:
    """Yield the keys that end in ``word``. A single name must contain "_", or plain text would match."""
    parts = word.removeprefix("self.").removeprefix("config.")
    if "." not in parts and "_" not in parts:
        return
    yield from (key for key in keys if key == parts or key.endswith(f".{parts}"))


def words_of(error: BaseException) -> str:
    """Return the message on one line, without the text that Hydra and pydantic put around it.

    For an assertion without a message: the line of code that failed. For another error: its class.
    """
    if hasattr(error, "errors"):  # pydantic's: without the input and a link
        text = "; ".join(str(each["msg"]).removeprefix("Value error, ") for each in error.errors())
    else:
        text = str(error)
    if found := re.search(r"^Error in [^\n]*\n(.+?)(?:\nfull_key: |\Z)", text, re.DOTALL):
        text = re.sub(r"^(\w+)\((['\"])(.*)\2,?\)$", r"\3", found[1].strip(), flags=re.DOTALL)
    text = " ".join(text.split())
    if text in ("", "AssertionError()"):
        line = _source_line(error)
        text = f"it asserts `{line}`" if line else f"it raises {type(error).__name__} without a message"
    return text if len(text) <= _WORDS else f"{text[: _WORDS - 1]}…"


def raised_by(error: BaseException, packages: Mapping[str, str]) -> str:
    """Return the one of ``packages`` that raised the error, the first one if none is found.

    ``packages``: import name → name and release for the user.
    """
    names = [frame.tb_frame.f_code.co_filename for frame in _frames(error.__traceback__)]
    for name in reversed(names):
        for package, shown in packages.items():
            if f"/{package}/" in name:
                return shown
    return next(iter(packages.values()))


def _frames(trace: TracebackType | None) -> Iterator[TracebackType]:
    while trace is not None:
        yield trace
        trace = trace.tb_next


def _source_line(error: BaseException) -> str:
    """Return the source line of a failed assertion, "" for other errors."""
    error = _innermost(error)
    if not isinstance(error, AssertionError):
        return ""
    *_, last = _frames(error.__traceback__)
    return linecache.getline(last.tb_frame.f_code.co_filename, last.tb_lineno).strip()


def heads_of(error: Exception) -> int | None:
    """Return the attention heads that an engine's ranks cannot share; None for another error."""
    found = _HEADS.search(str(error))
    return int(found[1]) if found else None


def is_of_sequences(error: Exception) -> bool:
    """Return whether veRL's error says that ranks which share a sequence cannot share the heads."""
    return bool(_HEADS_OF_SEQUENCES.search(str(error)))


def is_of_model(error: Exception) -> bool:
    """Return whether vLLM's error follows from the model's config.json."""
    return bool(_OF_MODEL.search(str(error)))


def is_of_every_release(error: Exception, given: Iterable[str]) -> bool:
    """Return whether every release of vLLM that a run takes refuses the ``given`` arguments for that reason.

    A choice that one release lacks may be another's; the releases' choices only grew.
    """
    for each in error.errors() if hasattr(error, "errors") else ():
        if each["type"] in _LIMITS:
            return not any(part in _NEWER_LIMITS for part in each["loc"])
    text, names = str(error), set(given)
    return any(words.search(text) and names.issuperset(needed) for words, needed in _OF_EVERY_RELEASE)


def engine_key(argument: str, extra: Iterable[str], section: str = _ROLLOUT) -> str:
    """Return the veRL key behind an argument of vLLM's.

    ``section``: the engine's, ``extra``: the names in its engine_kwargs.vllm.
    """
    if argument in extra:
        return f"{section}.engine_kwargs.vllm.{argument}"
    if section == _ROLLOUT and argument in _ENGINE_KEYS:
        return _ENGINE_KEYS[argument]
    return f"{section}.{_SPELLED.get(argument, argument)}"


def argument_of(error: Exception, given: Iterable[str]) -> str | None:
    """Return the argument among ``given`` that an error of vLLM's names first."""
    names = set(given)
    places = [part for each in error.errors() for part in each["loc"]] if hasattr(error, "errors") else []
    text = words_of(error)
    options = [option.replace("-", "_") for option in re.findall(r"--([\w-]+)", text)]
    words = options + [word for word in _DOTTED.findall(text) if "_" in word]
    return next((str(name) for name in (*words, *places) if name in names), None)
