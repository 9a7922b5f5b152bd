"""From what verl or vllm raised to the key of the configuration that it is about, and words for it."""

from __future__ import annotations

import linecache
import re
from collections.abc import Iterable, Iterator, Mapping
from types import TracebackType

_ROLLOUT = "actor_rollout_ref.rollout"
_FULL_KEY = re.compile(r"^full_key: (.+)$", re.MULTILINE)
_ARGUMENT = re.compile(r"unexpected keyword argument '(\w+)'")
_DOTTED = re.compile(r"[A-Za-z_]\w*(?:\.\w+)*")
_WORDS = 500  # characters of a message that are worth a reader's time
# vLLM's names of what verl's rollout section calls otherwise, and of what stands elsewhere.
_SPELLED = {"tensor_parallel_size": "tensor_model_parallel_size"}
_ENGINE_KEYS = {
    "model": "actor_rollout_ref.model.path",
    "trust_remote_code": "actor_rollout_ref.model.trust_remote_code",
    "hf_overrides": "actor_rollout_ref.model.override_config",
}


def key_of(error: BaseException, section: str, keys: Iterable[str]) -> str:
    """The dotted key that ``error`` is about, as far as its text tells; else ``section``, in which it arose.

    ``keys``: every key of the configuration, with its sections.
    """
    text = str(error)
    if override := _overriding(error):
        return f"{'critic' if section.startswith('critic') else 'actor_rollout_ref'}.model.{override}"
    if found := _FULL_KEY.search(text):
        section = found[1].strip()
    if found := _ARGUMENT.search(text):
        return f"{section}.{found[1]}"
    known = list(keys)
    if section in known and not any(key.startswith(f"{section}.") for key in known):
        return section
    return _mentioned(f"{text} {_source_line(error)}", section, known) or section


def _overriding(error: BaseException) -> str:
    """The key that verl's update_model_config was setting (a call for each mapping around it), or empty."""
    frames = [frame.tb_frame for frame in _frames(_innermost(error).__traceback__)]
    at = [str(each.f_locals.get("key")) for each in frames if each.f_code.co_name == "update_model_config"]
    return ".".join(["override_config", *at]) if at else ""


def _innermost(error: BaseException) -> BaseException:
    while error.__cause__ is not None:  # Hydra says what it called, around the error itself
        error = error.__cause__
    return error


def _mentioned(text: str, section: str, keys: list[str]) -> str:
    """The longest key, or end of a key, that ``text`` contains.

    A key below ``section`` counts, and one that is spelled with its own section.
    """
    found = [
        (key.startswith(f"{section}."), len(word), key)
        for word in dict.fromkeys(_DOTTED.findall(text))
        for key in _ending_in(word, keys)
        if not section or key.startswith(f"{section}.") or "." in word
    ]
    return max(found, default=(False, 0, ""))[2]


def _ending_in(word: str, keys: list[str]) -> Iterator[str]:
    """Keys of which ``word`` is the end. A name alone must be one that no plain text has: with "_"."""
    parts = word.removeprefix("self.").removeprefix("config.")
    if "." not in parts and "_" not in parts:
        return
    yield from (key for key in keys if key == parts or key.endswith(f".{parts}"))


def words_of(error: BaseException) -> str:
    """The message on one line, without the frame of Hydra and pydantic.

    For an assertion without a text it is the line of code that failed, for another error its class.
    """
    if hasattr(error, "errors"):  # pydantic's: what went wrong, without the input and a link
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
    """The line of a bare assertion: its text is all that veRL says of it."""
    error = _innermost(error)
    if not isinstance(error, AssertionError):
        return ""
    *_, last = _frames(error.__traceback__)
    return linecache.getline(last.tb_frame.f_code.co_filename, last.tb_lineno).strip()


def engine_key(argument: str, extra: Iterable[str], section: str = _ROLLOUT) -> str:
    """The veRL key behind an argument of vLLM's.

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
    told = [word for word in _DOTTED.findall(words_of(error)) if "_" in word]
    return next((str(name) for name in (*told, *places) if name in names), None)
