"""Detection of secrets by name, and their redaction in output and files.

Printed and recorded text has ``***`` (``shown``, ``masked``, ``hidden``). Files that are
read again (a YAML, config/run.json) has a reference to the environment, ``${oc.env:NAME}``, which veRL,
Trinity-RFT and this runtime resolve (``referred``, ``resolved``).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache

from trinity_compat.common.plain_numbers import is_number


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
    " metrics monitor name number output partition primary problem prompt prompts public query question"
    " reference rejected repeat response responses reward rewards routing row score scores solution sort"
    " source split state string system target task text tool tools truth turns uid value video videos"
    " workflow"
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
_OF_KEYS = _set(
    "access api auth openai private secret"
)  # several of these are secrets, other keys are columns
_NO_KEYS = _set("monkey donkey turkey hockey jockey whiskey")
# Small, these are words of other names: forward_pass, path.
_LARGE_ONLY = frozenset(["pass", "pat"])
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
_REFERENCE = re.compile(r"\$\{oc\.env:(\w+)\}")
_NUMBER = re.compile(r"\$\{oc\.decode:\$\{oc\.env:(\w+)\}\}")
_WITH_DEFAULT = re.compile(r"\$\{oc\.env:(\w+),[^{}]+\}")  # the default may be the secret
_PREFIX = "TRINITY_COMPAT_SECRET_"  # of the variables that hand a run's secrets to its processes
# From a word's beginning and without a way back, so that a long word is gone through once: what a lookahead
# has found is taken as it is (Python 3.10 has no possessive quantifiers).
_NAME = re.compile(
    r"(?<![\w-])(?=(?P<before>(?:(?![A-Za-z])[\w-])*))(?P=before)(?=(?P<name>[A-Za-z][\w-]*))(?P=name)"
    r"[\"']?\s*[:=]\s*[\"']?"
)
_VALUE = re.compile(
    r"\[[^\]\n]*\]?|\{[^{}\n]*\}?|(?:(?:bearer|basic|digest|token)\s+)?[^\s,}\"'&]*", re.I
)  # a list or a mapping is one value
_QUOTED = {quote: re.compile(rf"(?:[^{quote}\\]|\\.)*(?={quote})", re.S) for quote in "\"'"}
_COOKIES = re.compile(r"[^\"'\n]*")
# Secrets that their form or what stands before them tells, under any name and in any sentence.
_TOLD = tuple(
    re.compile(pattern)
    for pattern in (
        r"://[^:@/\s]*:(?!\$\{oc\.env:\w+\}@)(?P<secret>[^\s\"<]+)@",  # a URL's password
        r"\b[Bb]earer\s+(?P<secret>(?=\S*\d)[\w.~+/=-]{8,})",
        r"(?<!\S)(?:-u|--user|--proxy-user)[ =][\"']?[^\s:\"'/]+:(?!\d+\b)(?P<secret>[^\s\"']+)",  # curl's
        # tokens of Hugging Face, OpenAI and others, GitHub, GitLab, Slack, AWS, Google, and JSON web tokens
        r"(?<![A-Za-z0-9])(?P<secret>hf_(?=[a-z]*[A-Z0-9])[A-Za-z0-9]{16,})",
        r"(?<![\w-])(?P<secret>(?:sk|nvapi)-(?=[\w-]*\d)[\w-]{16,})",
        r"(?<![A-Za-z0-9])(?P<secret>(?:gh[opsur]|gsk)_(?=[a-z]*[A-Z0-9])[A-Za-z0-9]{16,})",
        r"(?<![A-Za-z0-9])(?P<secret>github_pat_\w{16,})",
        r"(?<![\w-])(?P<secret>glpat-[\w-]{16,})",
        r"(?<![\w-])(?P<secret>xox[abeoprs]-(?=[\w-]*\d)[\w-]{10,})",
        r"(?<![A-Za-z0-9])(?P<secret>(?:AKIA|ASIA)[A-Z0-9]{16})(?![A-Za-z0-9])",
        r"(?<![\w-])(?P<secret>AIza[\w-]{35})",
        r"(?<![\w-])(?P<secret>eyJ[\w-]{8,}\.eyJ[\w-]{8,}\.[\w-]*)",
        r"-----BEGIN [A-Z ]*PRIVATE KEY-----(?P<secret>[^-]+)",
    )
)
_SHORT_WORD = re.compile(r"\w{0,15}")  # too short for any of these; most values are
_OPTION = re.compile(r"(?<![\w-])--?(?P<name>[A-Za-z][\w-]*)\s+[\"']?(?P<secret>[^\s\"'-][^\s\"']*)")
# The values of variables under a secret's name that scripts have, and the names: a value may stand elsewhere.
_known: dict[str, str] = {}
_MOST_KNOWN = 1000
_HEADER = re.compile(r"(?:proxy-)?authorization|(?:set-)?cookie|x-[\w-]+|api-key", re.I)
_IN_MESSAGES, _ANYWHERE = 1, 2  # how sure it is that a value under a secret's name is one
_BEFORE = 200  # characters before a name that may say what it is of
_RANDOM = re.compile(r"(?=\D*\d)(?=[^A-Za-z]*[A-Za-z])[^\s/$]{8,}")  # no word, column or path
_LONG_NUMBER = 5  # shorter ones are counts and switches
_PLAIN_NUMBER = re.compile(r"-?\d+(\.\d+)?(e[-+]?\d+)?", re.I)
_MEASURED = re.compile(r"[-+]?\d+\.\d+(e[-+]?\d+)?")  # veRL's rollout_corr/chi2_token:0.17
_WHOLE = re.compile(r"[-+~]*(?:(?:env|set)=)?(?:[\w-]+\.)*([A-Za-z][\w-]*)=(?=.)", re.S)
_HIDDEN = "***"


def remember(name: str, value: str) -> None:
    """Hide the value of variable ``name`` wherever it stands from now on, if the name is a secret's."""
    if is_secret(name) and _RANDOM.fullmatch(value) and len(_known) < _MOST_KNOWN:
        _known.setdefault(value, name)


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
    if word == "keys":
        return last and bool(_OF_KEYS.intersection(before))
    if word.endswith("key"):
        return last and word not in _NO_KEYS and not _OF_COLUMN.intersection(before)
    return word.endswith("token") and last and not _OF_TEXT.intersection(words)


def without_passwords(text: str) -> str:
    """Return ``text`` with ``***`` for passwords of URLs, tokens, and other secrets that need no name."""
    return _replaced(text, _told(text), lambda _: _HIDDEN)


def shown(text: str) -> str:
    """Return a word or line with ``***`` for each secret: also values under a secret's name."""
    whole = _WHOLE.match(text)
    if whole and _TEACHER_S.search(whole[0][:-1]):
        return without_passwords(text)
    if whole and is_secret(whole[1]):
        return f"{without_passwords(whole[0])}{_HIDDEN}"
    return _replaced(text, _secrets(text), lambda _: _HIDDEN)


_KEPT = 200
_LONG_WORD = re.compile(r"\S{1000,}")


def shown_message(text: str) -> str:
    """Return a message of ours with ``***`` for each secret; a colon in its words is not an assignment.

    A word that is longer than a terminal's page, such as a key of thousands of parts, is cut.
    """
    told = _replaced(text, _secrets(text, _IN_MESSAGES), lambda _: _HIDDEN)
    return _LONG_WORD.sub(lambda word: f"{word[0][:_KEPT]}… ({len(word[0]):,} characters)", told)


def hidden(key: str, value: object) -> object:
    """Return ``value`` of the dotted ``key`` with ``***`` for every secret in it; references remain."""
    return _mapped(
        key,
        value,
        lambda _, text: text if isinstance(text, str) and _REFERENCE.fullmatch(text) else _HIDDEN,
        lambda _, text: shown(text),
    )


def referred(
    tree: Mapping[str, object], *, named: str = "natural"
) -> tuple[dict[str, object], dict[str, str]]:
    """Return ``tree`` (plain containers) with a reference for each secret, and the variables' values.

    Of a text the secret's part is one, a literal with a value under a secret's name as a whole. Names:
    ``natural`` takes the key's own last name, as people export it (WANDB_API_KEY, API_KEY,
    BASE_URL_PASSWORD), or the script's variable; ``path`` one of the whole path that nothing else is called.
    """
    found: dict[str, str] = {}

    def refer(path: str, value: Scalar) -> str:
        if not isinstance(value, str):
            return f"${{oc.decode:{reference(path, str(value))}}}"
        if "${oc.env:" in value:
            return _WITH_DEFAULT.sub(r"${oc.env:\1}", value)
        return reference(path, value)

    def refer_part(path: str, text: str) -> str:
        if shown(text) == text:
            return text
        told = _told(text)
        if not told and _is_literal(text):
            return reference(f"{path}_secret", text)
        parts = _secrets(text, 0 if _is_literal(text) else _ANYWHERE)
        return _replaced(
            text, parts, lambda part: reference(f"{path}_{_kind(text, *part)}", text[slice(*part)])
        )

    def reference(path: str, text: str) -> str:
        last = path if named == "path" else _known.get(text) or path.rpartition(".")[2]
        base = ("" if named == "natural" else _PREFIX) + re.sub(r"\W", "_", last).upper()
        base = base if is_secret(base) else f"{base}_SECRET"
        name, number = base, 1
        while found.get(name, text) != text:
            number += 1
            name = f"{base}_{number}"
        found[name] = text
        return f"${{oc.env:{name}}}"

    return _of_section(tree, refer, refer_part), found


def resolved(tree: Mapping[str, object], environ: Mapping[str, str]) -> dict[str, object]:
    """Return ``tree`` with each reference replaced whose variable ``environ`` has."""

    def resolve(_: str, value: Scalar) -> Scalar:
        if not isinstance(value, str):
            return value
        number = _NUMBER.fullmatch(value)
        if number and _PLAIN_NUMBER.fullmatch(environ.get(number[1], "")):
            return json.loads(environ[number[1]])
        return _REFERENCE.sub(lambda found: _of(found, environ), value)

    return _of_section(tree, resolve, resolve)


def _of(reference: re.Match[str], environ: Mapping[str, str]) -> str:
    value = environ.get(reference[1], reference[0])
    remember(reference[1], value)
    return value


Scalar = str | int | float


def _of_section(
    tree: Mapping[str, object],
    secret: Callable[[str, Scalar], Scalar],
    other: Callable[[str, str], Scalar],
) -> dict[str, object]:
    return {name: _mapped(name, value, secret, other) for name, value in tree.items()}


def _mapped(
    path: str, value: object, secret: Callable[[str, Scalar], Scalar], other: Callable[[str, str], Scalar]
) -> object:
    """Return ``value`` with ``secret(path, …)`` under a secret's name, ``other`` for other texts."""
    if isinstance(value, Mapping):
        return {
            key: _mapped(f"{path}.{key}" if path else str(key), part, secret, other)
            for key, part in value.items()
        }
    if isinstance(value, list | tuple):
        return [_mapped(path, part, secret, other) for part in value]
    if isinstance(value, str) and value:
        return secret(path, value) if _names_secret(path) else other(path, value)
    if is_number(value) and len(str(value)) >= _LONG_NUMBER:
        return secret(path, value) if _names_secret(path) else value
    return value


@lru_cache(maxsize=8192)  # the plan of a run asks for the same keys several times
def _names_secret(path: str) -> bool:
    """Return whether a dotted key is a secret's, or stands in a section of secrets (``credentials.user``)."""
    *sections, last = path.split(".")
    if _TEACHER_S.search(path):
        return False
    return is_secret(last) or any(part in section.lower() for section in sections for part in _PARTS)


def masked(words: Sequence[str]) -> Iterator[str]:
    """Yield a command line with ``***`` for each secret: also a word behind an option under its name."""
    hide = False
    for word, before in zip(words, ["", *words], strict=False):
        user, colon, _ = word.partition(":")
        if before in ("-u", "--user", "--proxy-user") and colon and not word.replace(":", "").isdigit():
            yield f"{user}:{_HIDDEN}"
        else:
            yield _HIDDEN if hide else shown(word)
        hide = word.startswith("--") and "=" not in word and is_secret(word[2:])


_Part = tuple[int, int]  # where it begins and ends in a text


def _replaced(text: str, parts: Iterable[_Part], by: Callable[[_Part], str]) -> str:
    """Return ``text`` with ``by(part)`` in place of its parts; of those that overlap the first is taken."""
    pieces, done = [], 0
    for start, end in sorted(parts):
        if start >= done:
            pieces += [text[done:start], by((start, end))]
        done = max(done, end)
    return "".join([*pieces, text[done:]])


def _kind(text: str, start: int, end: int) -> str:
    """Return how a part of a text is called: a password where it is a URL's."""
    return "password" if text[end : end + 1] == "@" and text[start - 1] == ":" else "secret"


def _told(text: str) -> list[_Part]:
    """The secrets in a text that need no name."""
    told = () if _SHORT_WORD.fullmatch(text) else _TOLD
    parts = [found.span("secret") for pattern in told for found in pattern.finditer(text)]
    for value in _known:
        if value in text:
            parts += [found.span() for found in re.finditer(re.escape(value), text)]
    return _clear(text, parts)


def _secrets(text: str, least: int = 0) -> list[_Part]:
    """The secrets in a text, those under their names among them: see ``_named`` for ``least``."""
    return [*_told(text), *_clear(text, (part for part, sure in _named(text) if sure >= least))]


def _clear(text: str, parts: Iterable[_Part]) -> list[_Part]:
    """The parts that are not references already."""
    return [part for part in parts if "${oc.env:" not in text[slice(*part)]]


def _named(text: str) -> Iterator[tuple[_Part, int]]:
    """Values under a secret's name, and how sure that is.

    _ANYWHERE: in prose too, since it is a query's, a header's, an option's, a variable's. _IN_MESSAGES: not
    in prose, where ``password=…`` may be advice. 0: in a word, a line of YAML.
    """
    for match in _NAME.finditer(text):
        name, start = match["name"], match.start("name")
        before = text[max(0, start - _BEFORE) : start]
        if not is_secret(name) or _TEACHER_S.search(before + name) or _is_prose(before, match):
            continue
        value = _value_behind(text, match)
        if value is None or not value[0] or _MEASURED.fullmatch(value[0]) or _is_placeholder(match, value):
            continue
        part = value.start(), value.start() + len(value[0].rstrip("\\"))
        is_header = _HEADER.fullmatch(name) and ":" in match[0]
        is_variable = name.isupper() and name not in ("KEY", "TOKEN") and "=" in match[0]
        if before.endswith(("?", "&", "--")) or is_header or is_variable:
            yield part, _ANYWHERE
        else:
            is_assigned = "=" in match[0] or before.rstrip(" ")[-1:] in ("{", "'", '"')
            yield part, _IN_MESSAGES if is_assigned else 0
    for option in _OPTION.finditer(text):
        if is_secret(option["name"]):
            yield option.span("secret"), _ANYWHERE


def _value_behind(text: str, match: re.Match[str]) -> re.Match[str] | None:
    quote = text[match.end() - 1]
    if quote in _QUOTED and (value := _QUOTED[quote].match(text, match.end())):
        return value
    form = _COOKIES if match["name"].lower().endswith("cookie") and ":" in match[0] else _VALUE
    return form.match(text, match.end())


def _is_placeholder(match: re.Match[str], value: re.Match[str]) -> bool:
    """Return whether ``key=value``, as advice spells a setting, and no setting, stands there."""
    return match["name"].lower() == "key" and value[0].rstrip(".:;)").lower() in ("value", "…")


def _is_prose(before: str, match: re.Match[str]) -> bool:
    """Return whether ``unknown key: trainer.logger`` is part of a sentence: a word precedes it."""
    is_word = match["name"].lower() in ("key", "token", "secret", "secrets", "credentials")
    return is_word and ": " in match[0] and before.rstrip(" ")[-1:].isalnum()


def _is_literal(text: str) -> bool:
    """Return whether a text is a value, or a mapping or list of them, and not a sentence."""
    return not re.search(r"\s", text) or text.lstrip().startswith(("{", "["))
