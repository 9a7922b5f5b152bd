"""Tasksets in veRL's configuration (``data.workflows``): plain JSON, for all processes of a run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from trinity_compat.common.errors import UserError
from trinity_compat.common.nested import Tree, section_at
from trinity_compat.trinity.workflows.run_rows import Parting

SECTION = "data.workflows"
AGENT = "trinity_workflow"  # a task of this agent_name has its whole prompt as text, in prompt_text
TOKENS = "response_tokens"  # … whose reward gets the answer's number of tokens, in extra_info
PLUGIN = "trinity_plugin"  # … of this one its whole row, in raw_task, and its taskset's reference
LIMIT_S = 1800.0  # upstream's default of explorer.max_timeout


@dataclass(frozen=True, slots=True)
class Taskset:
    """Rows of a taskset, their workflow and reward.

    ``place`` is its path in the YAML, for messages. ``format`` is Trinity's section (prompt_key,
    response_key, system_prompt, reply_prefix, …).
    """

    place: str
    name: str
    path: str
    workflow: str
    reward: str | None = None
    split: str = "train"
    subset: str | None = None
    format: Mapping[str, object] = field(default_factory=dict)
    workflow_args: Mapping[str, object] = field(default_factory=dict)
    reward_fn_args: Mapping[str, object] = field(default_factory=dict)
    chat_template: str | None = None
    enable_thinking: bool | None = None
    drop_overlong: bool = True
    limit_s: float = LIMIT_S  # for a task's runs in all, the engine's time too: explorer.max_timeout
    storage: str = "file"  # or sql: a table of the taskset's name
    by_step: bool = False  # the algorithm reads facts of each of a run's experiences
    parting: Parting = "joined"  # what becomes of them
    program: bool = False  # its workflow is agent_program: the program has processes of its own
    plugin: bool = False  # its workflow or its reward is a class that plugins or trinity-rft register

    def text(self, key: str, default: str | None = None) -> str | None:
        """Text of a field of ``format``, else ``default``. Raises UserError for other types."""
        found = self.format.get(key)
        if found is not None and not isinstance(found, str):
            raise UserError(f"{self.place}.format.{key} is {found!r}: write a text")
        return default if found is None else found

    @property
    def prompt_key(self) -> str:
        """Column of the prompt."""
        return self.text("prompt_key") or "prompt"

    @property
    def response_key(self) -> str:
        """The column with the truth."""
        return self.text("response_key") or "response"


def reference(kind: str, number: int) -> str:
    """Name of a taskset in ``data.train_files`` and ``data.val_files``: ``train/0``."""
    return f"{kind}/{number}"


def have_classes(section: Tree) -> bool:
    """Return whether a class or a program generates a taskset's answers, maybe in several calls of the model.

    A row of theirs may be longer than one answer. ``section``: as for ``referred``.
    """
    return any(isinstance(each, Mapping) and each.get("plugin") for each in section.values())


def has_chats(verl: Tree, mode: str) -> bool:
    """Return whether a workflow or an endpoint of the run may ask for chat completions."""
    return mode == "serve" or have_classes(section_at(verl, SECTION))


def referred(name: str, section: Tree) -> Taskset:
    """The taskset behind a reference. ``section``: the run's ``data.workflows``. Raises UserError."""
    found = section.get(name)
    if not isinstance(found, Mapping):
        raise UserError(f"{name!r} names no taskset", hint="let the YAML's tasksets name the data files")
    return Taskset(**found)
