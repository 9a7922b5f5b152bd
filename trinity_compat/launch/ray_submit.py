"""``ray job submit``: its options and its entry point, read alike in a script and in a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

from trinity_compat.common.errors import UserError

_FLAGS = {"--no-wait", "--verbose", "-v", "--help"}
RUNTIME = ("--runtime-env", "--runtime-env-json")
ADDRESSES = ("RAY_API_SERVER_ADDRESS", "RAY_ADDRESS")  # for a submission without --address
_HERE = {"", "localhost", "127.0.0.1", "::1", "0.0.0.0", "auto"}


@dataclass(frozen=True, slots=True)
class RaySubmitOptions:
    """The options as given, and where among the words the entry point begins."""

    options: Mapping[str, str]
    entry: int


def read(words: Sequence[str]) -> RaySubmitOptions:
    """Read ``ray job submit …``; ``words`` follow ``ray``. A word that reading can't know is empty.

    Raises UserError for options that Ray itself refuses (``parse_runtime_env_args``, dashboard_sdk.py).
    """
    options: dict[str, str] = {}
    index = 2
    while index < len(words) and words[index] != "--":
        word = words[index]
        if word and not word.startswith("-"):
            index -= 1  # no -- in front of it
            break
        name, sep, value = word.partition("=")
        if word and not sep and word not in _FLAGS:
            index += 1
            value = words[index] if index < len(words) else ""
        options[name] = value
        index += 1
    if all(option in options for option in RUNTIME):
        raise UserError(
            f"ray job submit takes {' or '.join(RUNTIME)}, not both, and submits nothing",
            hint="move the keys of one into the other",
        )
    return RaySubmitOptions(options, index + 1)


def words_of(options: Mapping[str, str]) -> list[str]:
    """Return the words that ``read`` read as ``options``."""
    return [name if name in _FLAGS else f"{name}={value}" for name, value in options.items()]


def env_vars(text: str) -> dict[str, str]:
    """Return the variables that a runtime environment, as YAML or JSON, sets; none where it isn't one."""
    import yaml  # only here: reading a shell script needs none of it

    from trinity_compat.common.bounded_yaml import safe_load

    try:
        found = safe_load(text)
    except yaml.YAMLError:
        return {}
    variables = found.get("env_vars") if isinstance(found, dict) else None
    return {str(name): str(value) for name, value in variables.items()} if isinstance(variables, dict) else {}


def is_local(address: str) -> bool:
    """Return whether the cluster at ``address`` is this machine's."""
    try:
        host = urlsplit(address).hostname if "//" in address else address.split(":")[0]
    except ValueError:  # not an address at all
        return False
    return (host or "") in _HERE
