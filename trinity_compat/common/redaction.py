"""Detection of secrets by name, and their redaction in output and files.

Printed and recorded text has ``***`` (``shown``, ``masked``, ``hidden``). Files that are
read again (a YAML, config/run.json) has a reference to the environment, ``${oc.env:NAME}``, which veRL,
Trinity-RFT and this runtime resolve (``referred``, ``resolved``).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence


def _set(words: str) -> frozenset[str]:
    return frozenset(words.split())


# Of a name's words (api_key, apiKey, API-KEY: api, key). Whole ones: AUTHOR and MONKEY name no secret.
_WORDS = _set(
    "secret secrets pass password passwords passwd passphrase credential credentials cookie cookies auth"
    " authorization bearer pat pwd"
)
_PARTS = ("secret", "passw", "passphrase", "credential")  # as a part of a word, too
_MAY_FOLLOW = re.compile(r"id|value|str|string|b64|base64|\d+")  # AWS_ACCESS_KEY_ID, openai_key_2
# In front of these a key is a column, or a place in a table.
_OF_COLUMN = _set(
    "answer answers audio audios cache category chosen column context data dict extra feature field fn"
    " foreign group id image images index info input json label labels level message messages metric"
    " metrics monitor number output partition primary problem prompt prompts public query question reference"
    " rejected repeat response responses reward rewards routing row score scores solution sort source split"
    " state string system target task text tool tools truth turns uid value video videos workflow"
)
# Next to these a token is a piece of text.
_OF_TEXT = _set(
    "answer audio batch bos budget chi2 chunk cls count end eos eot first forced image last len length limit"
    " mask max mean min new next num pad padding per prefix prompt response sep size special start step stop"
    " suffix sum think tool unk video"
)
# veRL's and Trinity's own names that the rules would take for secrets.
_VERLS_OWN = _set(
    "balance_dp_token continuous_token enable_thinking_key env_state_hash_key reward_model_key teacher_key"
)
# The name of a teacher's data: a key only where it stands below that section.
_TEACHER_S = re.compile(r"(?:^|\.|\+)teacher_models\.[\w-]+\.key$")
_NO_KEYS = _set("monkey donkey turkey hockey jockey whiskey")
# Small, these are words of other names: forward_pass, path.
_LARGE_ONLY = frozenset(["pass", "pat"])
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
_URL = re.compile(r"(://[^:@/\s]*:)(?!\$\{oc\.env:\w+\}@)(\S+)@")
_REFERENCE = re.compile(r"\$\{oc\.env:(\w+)\}")
_WITH_DEFAULT = re.compile(r"\$\{oc\.env:(\w+),[^{}]+\}")  # the default may be the secret
_PREFIX = "TRINITY_COMPAT_SECRET_"  # of the variables that hand a run's secrets to its processes
# From a word's beginning and without a way back, so that a long word is gone through once: what a lookahead
# has found is taken as it is (Python 3.10 has no possessive quantifiers).
_NAME = re.compile(
    r"(?<![\w-])(?=(?P<before>(?:(?![A-Za-z])[\w-])*))(?P=before)(?=(?P<name>[A-Za-z][\w-]*))(?P=name)"
    r"[\"']?\s*[:=]\s*[\"']?"
)
_VALUE = re.compile(r"[^\s,}\"'&]*")
_MEASURED = re.compile(r"[-+]?\d+\.\d+(e[-+]?\d+)?")  # veRL's rollout_corr/chi2_token:0.17
_WHOLE = re.compile(r"[-+~]*(?:(?:env|set)=)?(?:[\w-]+\.)*([A-Za-z][\w-]*)=(?=.)", re.S)
_HIDDEN = "***"


def is_secret(name: str) -> bool:
    """Return whether the name of a variable, key or option denotes a secret.

    Names of veRL's releases and Trinity's schema do not, except those that contain one (a test reads them
    all): the adjacent words tell a column's or a text's name from a secret's.
    """
    if name in _VERLS_OWN:
        return False
    words = [word.lower() for word in _WORD.findall(name)]
    if any(part in word for word in words for part in _PARTS):
        return True
    return any(_names_one(words, place, small=name.islower()) for place in range(len(words)))


def _names_one(words: Sequence[str], place: int, *, small: bool) -> bool:
    word, before, after = words[place], words[max(0, place - 1) : place], words[place + 1 :]
    if word in _WORDS:
        return not (small and word in _LARGE_ONLY) and (word != "pwd" or len(words) > 1)
    last = all(map(_MAY_FOLLOW.fullmatch, after))
    if word.endswith("key"):
        return last and word not in _NO_KEYS and not _OF_COLUMN.intersection(before)
    return word.endswith("token") and last and not _OF_TEXT.intersection(words)


def without_passwords(text: str) -> str:
    """Return ``text`` with ``***`` in place of the password of every URL."""
    return _URL.sub(rf"\1{_HIDDEN}@", text)


def shown(text: str) -> str:
    """Return a word or line with ``***`` for each value under a secret's name."""
    return _masked(text)


def hidden(key: str, value: object) -> object:
    """Return ``value`` of the dotted ``key`` with ``***`` for every secret in it; references remain."""
    return _mapped(
        key,
        value,
        lambda _, text: text if _REFERENCE.fullmatch(text) else _HIDDEN,
        lambda _, text: shown(text),
    )


def referred(
    tree: Mapping[str, object], *, named: str = "natural"
) -> tuple[dict[str, object], dict[str, str]]:
    """Return ``tree`` (plain containers) with a reference for each secret, and the variables' values.

    Of a URL the password is one, a literal with a secret in it as a whole. Names: ``natural`` takes the key's
    own last name, as people export it (WANDB_API_KEY, API_KEY, BASE_URL_PASSWORD); ``path`` one of the whole
    path that nothing else is called.
    """
    found: dict[str, str] = {}

    def refer(path: str, text: str) -> str:
        if "${oc.env:" in text:
            return _WITH_DEFAULT.sub(r"${oc.env:\1}", text)
        return reference(path, text)

    def refer_whole(path: str, text: str) -> str:
        if _URL.search(text):
            return _URL.sub(lambda url: f"{url[1]}{reference(f'{path}_password', url[2])}@", text)
        return reference(f"{path}_secret", text) if _has_secret(text) else text

    def reference(path: str, text: str) -> str:
        last = path if named == "path" else path.rpartition(".")[2]
        name = ("" if named == "natural" else _PREFIX) + re.sub(r"\W", "_", last).upper()
        found[name] = text
        return f"${{oc.env:{name}}}"

    return _of_section(tree, refer, refer_whole), found


def resolved(tree: Mapping[str, object], environ: Mapping[str, str]) -> dict[str, object]:
    """Return ``tree`` with each reference replaced whose variable ``environ`` has."""

    def resolve(text: str) -> str:
        return _REFERENCE.sub(lambda found: environ.get(found[1], found[0]), text)

    return _of_section(tree, lambda _, text: resolve(text), lambda _, text: resolve(text))


def _of_section(
    tree: Mapping[str, object], secret: Callable[[str, str], str], other: Callable[[str, str], str]
) -> dict[str, object]:
    return {name: _mapped(name, value, secret, other) for name, value in tree.items()}


def _mapped(
    path: str, value: object, secret: Callable[[str, str], str], other: Callable[[str, str], str]
) -> object:
    """Return ``value`` with ``secret(path, text)`` for texts under a secret's name, ``other`` for others."""
    if isinstance(value, Mapping):
        return {
            key: _mapped(f"{path}.{key}" if path else str(key), part, secret, other)
            for key, part in value.items()
        }
    if isinstance(value, list | tuple):
        return [_mapped(path, part, secret, other) for part in value]
    if not isinstance(value, str) or not value:
        return value
    names_one = is_secret(path.rpartition(".")[2]) and not _TEACHER_S.search(path)
    return secret(path, value) if names_one else other(path, value)


def masked(words: Sequence[str]) -> Iterator[str]:
    """Yield a command line with ``***`` for values under a secret's name and passwords in URLs."""
    hide = False
    for word in words:
        yield _HIDDEN if hide else _masked(word)
        hide = word.startswith("--") and "=" not in word and is_secret(word[2:])


def _masked(word: str) -> str:
    word = without_passwords(word)
    whole = _WHOLE.match(word)
    if whole and _TEACHER_S.search(whole[0][:-1]):
        return word
    if whole and is_secret(whole[1]):
        return f"{whole[0]}{_HIDDEN}"
    return "".join(_without_values(word))


def _without_values(word: str) -> Iterator[str]:
    """The word's pieces, for secrets inside a dictionary or a URL's query."""
    done = 0
    for match in _NAME.finditer(word):
        value = _VALUE.match(word, match.end())
        if value is None or not value[0] or _MEASURED.fullmatch(value[0]):
            continue
        if match.start("name") >= done and is_secret(match["name"]) and not _is_prose(word, match):
            yield word[done : match.end()] + _HIDDEN
            done = value.end()
    yield word[done:]


def _is_prose(word: str, match: re.Match[str]) -> bool:
    """Return whether ``key: trainer.logger`` is part of a sentence; in a mapping, punctuation precedes it."""
    small = match["name"].lower() in ("key", "token")
    before = word[: match.start("name")].rstrip(" ")
    return small and ": " in match[0] and before[-1:] not in ("{", ",", '"', "'")


def _has_secret(text: str) -> bool:
    """Return whether a value under another name contains a secret; a word in a sentence is not one."""
    literal = not re.search(r"\s", text) or text.lstrip().startswith(("{", "["))
    return literal and shown(text) != text
