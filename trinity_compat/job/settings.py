"""Settings of a run that neither veRL nor Trinity has, each declared once.

They are written as ``trainer.trainer_config.trinity_compat.NAME`` in a YAML, or as ``--set
trinity_compat.NAME=VALUE``. From this table come the names that ``--set`` knows, the check of a value with
its message, the default, the rule of the fingerprint and the reference of the site.

To add a setting, add its row here, the field of ``RunSpec`` that the row names, and the code that reads this
field.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from trinity_compat.common.errors import UserError
from trinity_compat.common.suggestions import nearest, question
from trinity_compat.job.run_spec import Handover, OnAgentFailure, OnFailure, VerlTrainer

SECTION = "trinity_compat"
SettingValue = Any  # a checked value: of the setting's kind, or None
_DIFFERS = "a group that fails is masked or made again"
# Modules that take part in every run, also in one without an explorer.
_OF_ANY_RUN = {f"trinity_compat.{name}" for name in ("trainer.main", "trainer.config", "run.supervise.sides")}
_WHEN_MADE = "when a group is made, not what is in it"
_VERSIONS = "a group says its versions"
_ZERO = "when an answer gets 0"


@dataclass(frozen=True, slots=True)
class RunSetting:
    """A row of the table.

    Attributes:
        name: the setting's name below ``trinity_compat``.
        kind: ``number`` is a float, ``whole`` an int, ``flag`` true or false, ``choice`` one of ``choices``.
        example: a valid value that is not the default.
        default: the value of a run that does not set it; None where unset has a meaning of its own.
        field: the field of RunSpec, "" where it is an argument of a step of the plan.
        help: one line for the documentation.
        acts: the modules that read it, separated by spaces.
        write: what to write, as the message of a bad value says it; ignored for a choice.
        low: the least value of a number; with ``above_low`` the value must exceed it.
        below: a number must be less.
        no_limit: how "no limit" (None in RunSpec) is written; "" where null means unset.
        fallback: the field of a Trinity YAML that holds where this is unset, if no launch is behind the YAML.
        voids: the part of the fingerprint that a change voids; "" where stored answers stay valid.
        why: the reason for ``voids``.
    """

    name: str
    kind: Literal["number", "whole", "flag", "choice"]
    example: object
    default: SettingValue
    field: str
    help: str
    acts: str
    write: str = "write true or false"
    low: float = 0
    above_low: bool = False
    below: float | None = None
    choices: tuple[str, ...] = ()
    no_limit: Literal["", "null", "0"] = ""
    fallback: str = ""
    voids: str = ""
    why: str = ""

    @property
    def key(self) -> str:
        """The spelling of ``--set`` and of messages."""
        return f"{SECTION}.{self.name}"

    @property
    def acts_on_rows(self) -> bool:
        """Return whether it acts in a run on rows of files, too, which has neither explorer nor groups."""
        return not _OF_ANY_RUN.isdisjoint(self.acts.split())

    def checked(self, value: object, spelled: str = "") -> SettingValue:
        """Return ``value`` as the run uses it; None means no limit.

        ``spelled``: the name of the field in the user's file, if that is not ``key``. Raises UserError.
        """
        if value is None and self.no_limit != "0":
            return None
        if not self._is_valid(value):
            raise UserError(
                f"{spelled or self.key} is {value!r}: {self.valid_values}",
                hint=question(nearest(str(value), self.choices)) if self.choices else None,
            )
        if self.no_limit == "0" and not value:
            return None
        return float(str(value)) if self.kind == "number" else value

    @property
    def valid_values(self) -> str:
        """The end of the message of a bad value."""
        if not self.choices:
            return self.write
        return f"it may be {', '.join(self.choices[:-1])} or {self.choices[-1]}"

    def _is_valid(self, value: object) -> bool:
        if self.kind == "choice":
            return isinstance(value, str) and value in self.choices
        if self.kind == "flag" or isinstance(value, bool):
            return self.kind == "flag" and isinstance(value, bool)
        if not isinstance(value, int if self.kind == "whole" else int | float):
            return False
        if not math.isfinite(value):
            return False
        is_high_enough = value > self.low if self.above_low else value >= self.low
        return is_high_enough and (self.below is None or value < self.below)


_ROWS = (
    RunSetting(
        "agent_failure",
        "choice",
        example="zero",
        default="raise",
        field="agent_failure",
        help="what becomes of a group whose agent loop or workflow has failed in every attempt: `raise` ends"
        " the run, as in veRL; `zero` trains it with empty answers, scored 0",
        acts="trinity_compat.explorer.scheduling.group_builder",
        choices=get_args(OnAgentFailure),
        why=_DIFFERS,
    ),
    RunSetting(
        "agent_timeout",
        "number",
        write="write a number of seconds",
        example=3600,
        default=1800.0,
        field="agent_timeout_s",
        help="seconds for a trajectory of an agent loop or a workflow, without the engine's time",
        acts="trinity_compat.explorer.main",
        above_low=True,
        no_limit="null",
        fallback="explorer.max_timeout",
        why=_DIFFERS,
    ),
    RunSetting(
        "group_timeout",
        "number",
        write="write a number of seconds",
        example=600,
        default=None,
        field="group_timeout_s",
        help="seconds after which a group is cancelled, and its task begins again with the newest weights; no"
        " effect under sync_style fixed",
        acts="trinity_compat.explorer.scheduling.scheduler",
        above_low=True,
        fallback="explorer.max_timeout",
        why=_WHEN_MADE,
    ),
    RunSetting(
        "handover",
        "choice",
        example="device",
        default="files",
        field="handover",
        help="in turns on the same GPUs, the way of the weights: `files`, by synchronizer.sync_method, or"
        " `device`, by veRL's own copy on the GPU, which no GPU has run yet (docs/synchronizer.md)",
        acts="trinity_compat.trainer.exchange trinity_compat.explorer.scheduling.version_selector",
        choices=get_args(Handover),
        why="the same weights arrive",
    ),
    RunSetting(
        "keep_steps",
        "whole",
        write="write a number of trainer steps, 0 or more",
        example=20,
        default=None,
        field="keep_steps",
        help="trained steps whose texts, token ids and log-probs stay in the buffer; unset: all",
        acts="trinity_compat.trainer.retention",
        why="what stays of groups that are trained",
    ),
    RunSetting(
        "over_sample_rate",
        "number",
        write="write a part of a step, from 0 to below 1",
        example=0.25,
        default=0.0,
        field="over_sample_rate",
        help="the part of a step's groups that is cancelled and made later, once the others are complete; not"
        " under sync_style fixed, with algorithm.filter_groups or with a pipeline's operators",
        acts="trinity_compat.explorer.scheduling.scheduler",
        below=1,
        fallback="explorer.over_rollout.ratio",
        why=_WHEN_MADE,
    ),
    RunSetting(
        "partial_rollout",
        "flag",
        example=False,
        default=True,
        field="partial_rollout",
        help="answers in flight continue over a change of weights; `false`: they begin again with the new",
        acts="trinity_compat.explorer.main",
        why=_VERSIONS,
    ),
    RunSetting(
        "reward_failure",
        "choice",
        example="retry",
        default=None,
        field="scoring.on_error",
        help="what becomes of an answer whose reward function fails, takes too long or dies: reward 0, two"
        " more attempts, or the end of the run; unset: as in veRL (docs/rewards.md)",
        acts="trinity_compat.explorer.rewards.processes.pool",
        choices=get_args(OnFailure),
        voids="reward function",
        why=_ZERO,
    ),
    RunSetting(
        "reward_memory",
        "number",
        write="write a number of GB",
        example=3,
        default=None,
        field="scoring.memory_gb",
        help="GB that a scoring process may allocate beyond its start; unset: no limit",
        acts="trinity_compat.explorer.rewards.processes.pool",
        above_low=True,
        voids="reward function",
        why=_ZERO,
    ),
    RunSetting(
        "reward_timeout",
        "number",
        write="write a number of seconds, or null for no limit",
        example=7,
        default=300.0,
        field="scoring.timeout_s",
        help="seconds for the scoring of an answer; 1800 where a reward model scores by itself",
        acts="trinity_compat.explorer.rewards.processes.pool",
        above_low=True,
        no_limit="null",
        voids="reward function",
        why=_ZERO,
    ),
    RunSetting(
        "seeded_requests",
        "flag",
        example=True,
        default=False,
        field="seeded_requests",
        help="each answer gets its own seed, also on an accelerator and in each sync_style",
        acts="trinity_compat.explorer.engine.sampling",
        voids="sampling",
        why="seeds decide which answers are drawn",
    ),
    RunSetting(
        "staleness_threshold",
        "number",
        write="write a number, 0 or more",
        example=0.5,
        default=None,
        field="staleness_threshold",
        help="groups that may be begun ahead, as a part of those of one weight version (veRL's"
        " `async_training.staleness_threshold`); not under sync_style fixed; unset: max_staleness alone",
        acts="trinity_compat.explorer.scheduling.version_selector",
        why=_VERSIONS,
    ),
    RunSetting(
        "stale_cache",
        "flag",
        example=True,
        default=False,
        field="stale_cache",
        help="under sync_style fully_async, answers in flight keep the key-value caches that former weights"
        " made, and are not read again at each version: log-probs differ from those of any one version",
        acts="trinity_compat.explorer.main",
        why=_VERSIONS,
    ),
    RunSetting(
        "stall_timeout",
        "number",
        write="write a number of seconds, or 0 for no limit",
        example=60,
        default=600.0,
        field="stall_timeout_s",
        help="seconds without progress after which a process is named and killed (docs/durability.md)",
        acts="trinity_compat.explorer.main trinity_compat.trainer.main",
        no_limit="0",
        why="when a run that hangs is ended",
    ),
    RunSetting(
        "steps_as_rows",
        "flag",
        example=True,
        default=None,
        field="",
        help="each experience of a workflow's run is a row of its own, which is compared with all others of"
        " its group; unset: where the algorithm's advantage is computed per step, a row per conversation",
        acts="trinity_compat.run.plan.workflows",
        why="`data.workflows` has it",
    ),
    RunSetting(
        "termination_grace",
        "number",
        write="write a number of seconds, or 0 for an end at once",
        example=120,
        default=20.0,
        field="termination_grace_s",
        help="seconds from SIGTERM for the step in training and its checkpoint (docs/durability.md)",
        acts="trinity_compat.run.supervise.sides",
        why="when a run is ended",
    ),
    RunSetting(
        "token_scores",
        "whole",
        write="write a number of groups, 0 or more",
        example=0,
        default=4,
        field="token_scores",
        help="groups of each step whose tokens keep the trainer's log-probabilities and entropies, which the"
        " studio shows: of those whose rewards differ the worst",
        acts="trinity_compat.trainer.exchange",
        why="what is kept of groups that are trained",
    ),
    RunSetting(
        "trainer",
        "choice",
        example="v1",
        default="v0",
        field="trainer",
        help="which of veRL's two trainers trains (docs/trainer.md)",
        acts="trinity_compat.trainer.config",
        choices=get_args(VerlTrainer),
        why="how answers are trained on, not how they are made",
    ),
)
SETTINGS: Mapping[str, RunSetting] = {row.name: row for row in _ROWS}


def page() -> str:
    """The text of docs/reference/settings.md."""
    lines = [
        "# Settings of a run",
        "",
        "Written by `scripts/site/make_reference.py` from `trinity_compat/job/settings.py`.",
        "",
        "These settings are neither veRL's nor Trinity's. Write them in the section",
        "`trainer.trainer_config.trinity_compat` of a YAML, or as `--set trinity_compat.NAME=VALUE`. *Voids*",
        "names the part of the fingerprint that a change makes invalid, so that groups waiting for training",
        "are generated again ([durability](../durability.md)).",
        "",
        "| setting | what it does | value | default | unset, a Trinity YAML's | voids | acts in |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in _ROWS:
        fallback = f"`{row.fallback}`" if row.fallback else "–"
        default = "unset" if row.default is None else f"`{_in_yaml(row.default)}`"
        value = row.valid_values.removeprefix("write ").removeprefix("it may be ")
        if row.no_limit == "null" and "null" not in value:
            value += ", or null for no limit"
        value += f" (`{_in_yaml(row.example)}`)"
        acts = ", ".join(f"`{name.removeprefix('trinity_compat.')}`" for name in row.acts.split())
        lines.append(
            f"| `{row.name}` | {row.help} | {value} | {default} | {fallback} | {row.voids or 'no'} | {acts} |"
        )
    return "\n".join(lines) + "\n"


def _in_yaml(value: object) -> str:
    return (
        str(value).lower()
        if isinstance(value, bool)
        else f"{value:g}"
        if isinstance(value, float)
        else str(value)
    )
