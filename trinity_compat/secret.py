"""What looks like a secret, by its name; how it is shown, and how it is written where a run finds it again.

The one place that says so. Printed and recorded text has ``***`` (``shown``, ``masked``, ``hidden``). What is
read again (a YAML, config/run.json) has a reference to the environment, ``${oc.env:NAME}``, which veRL,
Trinity-RFT and this runtime resolve (``referred``, ``resolved``).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence

# Whole words between underscores: TOKENIZERS_PARALLELISM, MAX_TOKENS and AUTHOR name no secret.
_WORDS = frozenset(
    [
        "KEY",
        "APIKEY",
        "TOKEN",
        "SECRET",
        "SECRETS",
        "PASS",
        "PASSWORD",
        "PASSWORDS",
        "PASSWD",
        "PASSPHRASE",
        "CREDENTIAL",
        "CREDENTIALS",
        "COOKIE",
        "COOKIES",
        "AUTH",
        "AUTHORIZATION",
        "BEARER",
    ]
)
# Next to these a token is a piece of text.
_OF_TEXT = frozenset(
    [
        "MAX",
        "MIN",
        "NUM",
        "LEN",
        "LENGTH",
        "PER",
        "BUDGET",
        "LIMIT",
        "SIZE",
        "COUNT",
        "BATCH",
        "EOS",
        "BOS",
        "PAD",
        "UNK",
    ]
)
# A key of veRL is written small, and data.prompt_key names a column.
_SMALL = re.compile(
    r"(api|access|secret|private)_?key|(?<![a-z])token$|secret|passw|credential|authorization"
)
_URL = re.compile(r"(://[^:@/\s]*:)\S+@")
_REFERENCE = re.compile(r"\$\{oc\.env:(\w+)\}")
_WITH_DEFAULT = re.compile(r"\$\{oc\.env:(\w+),[^{}]+\}")  # the default may be the secret
_PREFIX = "TRINITY_COMPAT_SECRET_"  # of the variables that hand a run's secrets to its processes
# From a word's beginning and without a way back, so that a long word is gone through once.
_NAME = re.compile(r"(?<![\w-])(?:(?![A-Za-z])[\w-])*+([A-Za-z][\w-]*+)[\"']?\s*[:=]\s*[\"']?")
_VALUE = re.compile(r"[^\s,}\"'&]*")
_MEASURED = re.compile(r"[-+]?\d+\.\d+(e[-+]?\d+)?")  # veRL's rollout_corr/chi2_token:0.17
_WHOLE = re.compile(r"[-+~]*(?:(?:env|set)=)?(?:[\w-]+\.)*([A-Za-z][\w-]*)=(?=.)", re.S)
_HIDDEN = "***"


def is_secret(name: str) -> bool:
    """Whether an environment variable of this name holds a secret, as far as its name tells."""
    words = name.upper().split("_")
    found = _WORDS.intersection(words) or words[-1] == "PAT"
    return bool(found) and not (found == {"TOKEN"} and _OF_TEXT.intersection(words))


def without_passwords(text: str) -> str:
    """``text`` with ``***`` in place of the password of every URL in it."""
    return _URL.sub(rf"\1{_HIDDEN}@", text)


def shown(text: str) -> str:
    """A word, or a line of text, with ``***`` for what it gives to a secret's name."""
    return _masked(text)


def hidden(key: str, value: object) -> object:
    """``value`` of the dotted ``key`` with ``***`` for every secret in it; a reference is none."""
    return _mapped(key, value, lambda _, text: text if _REFERENCE.fullmatch(text) else _HIDDEN, shown)


def referred(
    tree: Mapping[str, object], *, named: str = "natural"
) -> tuple[dict[str, object], dict[str, str]]:
    """``tree`` (plain containers) with a reference for each secret, and the variables that hold them.

    Names: ``natural`` takes the key's own last name, as people export it (WANDB_API_KEY, API_KEY); ``path``
    one of the whole path that nothing else is called.
    """
    found: dict[str, str] = {}

    def refer(path: str, text: str) -> str:
        if "${oc.env:" in text:
            return _WITH_DEFAULT.sub(r"${oc.env:\1}", text)
        last = path if named == "path" else path.rpartition(".")[2]
        name = ("" if named == "natural" else _PREFIX) + re.sub(r"\W", "_", last).upper()
        found[name] = text
        return f"${{oc.env:{name}}}"

    return _of_section(tree, refer, lambda text: text), found


def resolved(tree: Mapping[str, object], environ: Mapping[str, str]) -> dict[str, object]:
    """``tree`` with each reference replaced whose variable ``environ`` has."""

    def resolve(text: str) -> str:
        match = _REFERENCE.fullmatch(text)
        return environ.get(match[1], text) if match else text

    return _of_section(tree, lambda _, text: resolve(text), resolve)


def _of_section(
    tree: Mapping[str, object], secret: Callable[[str, str], str], other: Callable[[str], str]
) -> dict[str, object]:
    return {name: _mapped(name, value, secret, other) for name, value in tree.items()}


def _mapped(
    path: str, value: object, secret: Callable[[str, str], str], other: Callable[[str], str]
) -> object:
    """``value`` with ``secret(path, text)`` for texts under a secret's name, ``other(text)`` for others."""
    if isinstance(value, Mapping):
        return {
            key: _mapped(f"{path}.{key}" if path else str(key), part, secret, other)
            for key, part in value.items()
        }
    if isinstance(value, list | tuple):
        return [_mapped(path, part, secret, other) for part in value]
    if not isinstance(value, str) or not value:
        return value
    return secret(path, value) if _is_secret_option(path.rpartition(".")[2]) else other(value)


def masked(words: Sequence[str]) -> Iterator[str]:
    """A command line with ``***`` for what is given to a secret's name, and for passwords in URLs."""
    hide = False
    for word in words:
        yield _HIDDEN if hide else _masked(word)
        hide = word.startswith("--") and "=" not in word and _is_secret_option(word[2:])


def _masked(word: str) -> str:
    word = without_passwords(word)
    whole = _WHOLE.match(word)
    if whole and _is_secret_option(whole[1]):
        return f"{whole[0]}{_HIDDEN}"
    return "".join(_without_values(word))


def _without_values(word: str) -> Iterator[str]:
    """The word's pieces, for secrets inside a dictionary or a URL's query."""
    done = 0
    for match in _NAME.finditer(word):
        value = _VALUE.match(word, match.end())
        if value is None or not value[0] or _MEASURED.fullmatch(value[0]):
            continue
        if match.start(1) >= done and _is_secret_option(match[1]):
            yield word[done : match.end()] + _HIDDEN
            done = value.end()
    yield word[done:]


def _is_secret_option(name: str) -> bool:
    name = name.replace("-", "_")
    if name.isupper():
        return is_secret(name)
    found = _SMALL.search(name.lower())
    return found is not None and (found[0] != "token" or is_secret(name))
