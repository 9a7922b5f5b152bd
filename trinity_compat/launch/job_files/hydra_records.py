"""Records that Hydra leaves of a run: ``.hydra/overrides.yaml``, and the error of a log with its overrides.

Each holds the whole command line of a launch, but for the main.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from trinity_compat.common import limits
from trinity_compat.common.errors import UserError, Where
from trinity_compat.common.readable_files import named_content
from trinity_compat.launch import entrypoints
from trinity_compat.launch.bash.traced_text import Value, literal
from trinity_compat.launch.source_contents import Contents, SourceCommand
from trinity_compat.launch.yaml_nodes import documents, elements, is_scalar, mapping, plain_text

if TYPE_CHECKING:
    from yaml import Node

# behind a time or Ray's "(TaskRunner pid=7)", but not in a comment or a text of a script
_ERROR = re.compile(r"(?m)^[^#'\"\n]{0,200}?Error executing job with overrides: (\[.*\])")
_MAIN = re.compile(r'File "([^"\n]+\.py)", line \d+, in main\b')
_KEY = re.compile(r"(\+\+|\+|~)?[A-Za-z_][\w.@/-]*(=|$)")
_OF_CONFIGURATION = {"one_step_off": entrypoints.ONE_STEP_OFF, "fully_async": entrypoints.FULLY_ASYNC}
_PRIMARY = re.compile(r"ppo_trainer|dapo_trainer|\w*sft_trainer\w*|(one_step_off|fully_async)\w*")


def are_overrides(node: Node) -> bool:
    """Tell whether a YAML document is a list of overrides."""
    texts = [plain_text(item) if is_scalar(item) else "" for item in elements(node)]
    return any(map(entrypoints.OVERRIDE.match, texts)) and all(map(_KEY.match, texts))


def of_overrides(name: str, node: Node) -> SourceCommand:
    """Return the launch of ``overrides.yaml``; Hydra's own configuration beside it names the main."""
    words = [literal(plain_text(item), Where(name, item.start_mark.line + 1)) for item in elements(node)]
    path = Path(name).parent / "hydra.yaml"
    try:
        nodes = documents(named_content(path, limits.SCRIPT).decode()) if path.is_file() else []
    except (UserError, ValueError):
        nodes = []
    job = mapping(mapping(mapping(nodes[0]).get("hydra") or nodes[0]).get("job")) if nodes else {}
    job_name, config_name = plain_text(job.get("name")), plain_text(job.get("config_name"))
    mains = (*entrypoints.TRANSLATED, *entrypoints.SUPERVISED)
    named = (main for main in mains if main.rpartition(".")[2] == job_name)
    of = (main for part, main in _OF_CONFIGURATION.items() if config_name.startswith(part))
    if config_name and not _PRIMARY.fullmatch(config_name):  # not the main's own
        words.insert(0, literal(f"--config-name={config_name}", Where(name, 1)))
    return _command(next(of, "") or next(named, "") or entrypoints.PPO, words, Where(name, 1))


def is_log(text: str) -> bool:
    """Tell whether a text is the log of a run that Hydra ended with an error."""
    return _ERROR.search(text) is not None


def of_log(name: str, text: str) -> Contents | None:
    """Return the launches of a log, each once; None for another text."""
    seen, commands = set(), []
    for found in _ERROR.finditer(text):
        try:
            given = ast.literal_eval(found[1])
        except (SyntaxError, ValueError, RecursionError):
            continue
        if found[1] not in seen and all(isinstance(word, str) for word in given):
            seen.add(found[1])
            where = Where(name, text.count("\n", 0, found.start()) + 1)
            main = _MAIN.search(text, found.end())
            module = entrypoints.module_of(main[1], "/") if main else entrypoints.PPO
            commands.append(_command(module, [literal(word, where) for word in given], where))
    note = "a log: Hydra's error names the overrides of its run, and the line of the script is not known"
    return Contents(tuple(commands), note) if commands else None


def _command(module: str, words: Sequence[Value], where: Where) -> SourceCommand:
    start = [literal(word, where) for word in ("python3", "-m", module)]
    return SourceCommand(where, words=(*start, *words))
