"""What looks like a secret: such a value is neither demanded nor written into a YAML."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

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
_URL = re.compile(r"(://[^/\s:@]*:)\S+@")
_NAME = re.compile(r"([A-Za-z][\w-]*)[\"']?\s*[:=]\s*[\"']?")
_VALUE = re.compile(r"[^\s,}\"'&]*")
_WHOLE = re.compile(r"[-+~]*(?:(?:env|set)=)?(?:[\w-]+\.)*([A-Za-z][\w-]*)=(?=.)", re.S)
_HIDDEN = "***"


def is_secret(name: str) -> bool:
    """Whether an environment variable of this name holds a secret, as far as its name tells."""
    words = name.upper().split("_")
    found = _WORDS.intersection(words) or words[-1] == "PAT"
    return bool(found) and not (found == {"TOKEN"} and _OF_TEXT.intersection(words))


def masked(words: Sequence[str]) -> Iterator[str]:
    """A command line with ``***`` for what is given to a secret's name, and for passwords in URLs."""
    hide = False
    for word in words:
        yield _HIDDEN if hide else _masked(word)
        hide = word.startswith("--") and "=" not in word and _is_secret_option(word[2:])


def _masked(word: str) -> str:
    word = _URL.sub(rf"\1{_HIDDEN}@", word)
    whole = _WHOLE.match(word)
    if whole and _is_secret_option(whole[1]):
        return f"{whole[0]}{_HIDDEN}"
    return "".join(_without_values(word))


def _without_values(word: str) -> Iterator[str]:
    """The word's pieces, for secrets inside a dictionary or a URL's query."""
    done = 0
    for match in _NAME.finditer(word):
        value = _VALUE.match(word, match.end())
        if match.start() >= done and value and value[0] and _is_secret_option(match[1]):
            yield word[done : match.end()] + _HIDDEN
            done = value.end()
    yield word[done:]


def _is_secret_option(name: str) -> bool:
    name = name.replace("-", "_")
    if name.isupper():
        return is_secret(name)
    found = _SMALL.search(name.lower())
    return found is not None and (found[0] != "token" or is_secret(name))
