"""The facts that each process of a run needs, as JSON: written once, read by each side."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from trinity_compat.common import database_url, regular_files
from trinity_compat.common.atomic_write import write_text
from trinity_compat.common.errors import UserError
from trinity_compat.common.plugin_packages import Plugin
from trinity_compat.common.redaction import referred, resolved, without_passwords

Mode = Literal["both", "train", "explore", "bench", "serve", "colocate"]
SERVE_KEY = "TRINITY_COMPAT_SERVE_KEY"  # of the environment: who sends it may use what mode serve serves
OnFailure = Literal["zero", "retry", "raise"]
OnAgentFailure = Literal["raise", "zero"]
VerlTrainer = Literal["v0", "v1"]
Handover = Literal["files", "device"]
SyncStyle = Literal["fixed", "trainer_driven", "explorer_driven", "fully_async"]


@dataclass(frozen=True, slots=True)
class SyncSpec:
    """The times at which weights move.

    Intervals and ``offset`` count veRL steps here (YAML: × r updates). ``trainer_interval`` and
    ``explorer_interval`` replace ``interval`` on one side.
    """

    style: SyncStyle = "fixed"
    interval: int = 1
    offset: int = 0
    timeout_s: float = 3600.0
    method: Literal["checkpoint", "memory", "nccl"] = "memory"
    directory: str = ""  # where versions lie: shared memory, or the job directory
    trainer_interval: int | None = None
    explorer_interval: int | None = None


@dataclass(frozen=True, slots=True)
class ReplaySpec:
    """Replay: a step is trained on the groups of the highest priority.

    The priority is the version of a group's weights in optimizer updates (``updates_per_version`` to a veRL
    step), less ``decay`` for each use, plus normal noise of standard deviation ``sigma``. A group can be used
    again ``cooldown_s`` seconds after its last use, ``max_uses`` times in all.
    """

    max_uses: int = 1
    cooldown_s: float = 0.0
    decay: float = 2.0
    sigma: float = 0.0
    updates_per_version: int = 1
    seed: int = 0


@dataclass(frozen=True, slots=True)
class ScoringSpec:
    """Limits of scoring, and the treatment of failures.

    ``timeout_s``: for one answer, None for no limit. ``memory_gb``: limit of a scoring process. ``on_error``:
    the reward function raises or returns no number; ``on_hang``: it takes longer or ends its process.
    ``zero`` is a reward of 0, counted; ``retry`` tries twice more, then ends the run; ``raise`` ends it.
    """

    timeout_s: float | None = 300.0
    on_error: OnFailure = "raise"
    on_hang: OnFailure = "zero"
    memory_gb: float | None = None


@dataclass(frozen=True, slots=True)
class RowFormat:
    """The columns of a file's rows, and how they become a conversation.

    The fields of trinity-rft's ``format`` (common/config.py: FormatConfig) that apply to rows of files, with
    its defaults.
    """

    prompt_type: str = "messages"  # or plaintext
    prompt_key: str = "prompt"
    response_key: str = "response"
    system_prompt_key: str | None = None
    system_prompt: str | None = None
    messages_key: str = "message"
    tools_key: str = "tools"
    chosen_key: str = "chosen"
    rejected_key: str = "rejected"
    enable_concatenated_multi_turn: bool = False
    chat_template: str | None = None
    enable_thinking: bool | None = None
    # Of veRL's SFTDataset: keys inside a column, and an answer that ends with the end of sequence instead of
    # the template's words.
    prompt_dict_keys: tuple[str, ...] = ()
    response_dict_keys: tuple[str, ...] = ()
    response_then_eos: bool = False


@dataclass(frozen=True, slots=True)
class RowsSpec:
    """Rows of files that are trained on without asking an explorer for answers.

    ``schema``: sft, cpt or dpo. ``paths``: Parquet, JSON or JSON lines files, or one folder or name of a
    dataset, of which ``split`` and ``subset`` are taken. Rows come in the order of the file, by a
    permutation of each epoch (``shuffle``, ``seed``), or as ``selector`` draws them (a taskset's, as
    translate/selectors.py has it); with ``whole_epochs`` an epoch's last rows that do not
    fill a step are left out, else a step goes on into the next epoch. A row of more than ``max_length``
    tokens is an error, or cut on the left or right (``truncation``). ``val_paths``: rows whose loss is
    measured.
    """

    schema: str
    paths: tuple[str, ...]
    split: str = "train"
    subset: str | None = None
    format: RowFormat = RowFormat()
    shuffle: bool = False
    seed: int = 42
    sampler: Literal["trinity", "verl"] = "trinity"  # whose permutation
    whole_epochs: bool = False
    epochs: int = 1
    max_length: int | None = None
    truncation: Literal["error", "left", "right"] = "error"
    selector: Mapping[str, Any] | None = None
    val_paths: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ExpertSpec:
    """An expert's rows that each step trains beside fresh answers.

    ``each_step`` of ``rows``, which repeat when they are used up.
    """

    rows: RowsSpec
    each_step: int


@dataclass(frozen=True, slots=True)
class ServeSpec:
    """Address of mode serve (port 0: a free one), and the period of its checks for newer weights."""

    host: str
    port: int
    look_every_s: float


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """Digests of everything on which stored answers depend (``fingerprint``).

    ``parts``: part → setting, or ``setting: file`` → its value or the file's digest. ``files``: part →
    absolute path → digest.
    """

    parts: Mapping[str, Mapping[str, str]]
    files: Mapping[str, Mapping[str, str]]


@dataclass(frozen=True, slots=True)
class RunSpec:
    """One decoupled run. ``verl`` is the complete veRL configuration as the pinned veRL composes it."""

    job_dir: str
    database_url: str
    verl: Mapping[str, Any]
    updates_per_step: int  # r: mini-batches in one veRL step
    total_steps: int | None  # veRL steps; None: until the epochs are done
    sync: SyncSpec
    device: str = "cpu"
    mode: Mode = "both"
    offloads: bool = False  # the trainer's state leaves devices in turns, whatever the launch's flags say
    handover: Handover = "files"  # in turns; device: files where that fails
    own_cluster: bool = False  # of mode train or explore: the file is this side's alone, and so are its GPUs
    explorers: int = 1
    checkpoints: tuple[int, ...] = ()  # veRL steps that a bench evaluates; 0: the model path
    max_staleness: int | None = None  # veRL steps
    staleness_threshold: float | None = None  # veRL's: groups begun ahead, as a part of a version's own
    replay: ReplaySpec | None = None  # None: each group once, in task order
    seeded_requests: bool = False  # a seed for each answer, whatever the device and the style
    partial_rollout: bool = True  # answers in flight go on over a change of weights; else they begin again
    stale_cache: bool = False  # their key-value caches are kept, though former weights made them
    over_sample_rate: float = 0.0  # of a step's groups, the last ones: ended, and made later
    group_timeout_s: float | None = None  # a group that takes longer: the same
    agent_timeout_s: float | None = 1800.0  # for a trajectory of an agent loop, without the engine's time
    termination_grace_s: float = 20.0  # from SIGTERM, for the step that is being trained and its checkpoint
    stall_timeout_s: float | None = 600.0  # without progress: tokens, answers, calls that come back
    agent_failure: OnAgentFailure = "raise"  # of a group that has failed once more than agent_retries
    agent_retries: int = 2
    scoring: ScoringSpec = ScoringSpec()
    keep_steps: int | None = None  # trained steps whose texts and tokens stay; None: all
    token_scores: int = 4  # groups of a step whose tokens keep the trainer's log-probs and entropies
    trainer: VerlTrainer = "v0"  # which of veRL's two trainers trains
    env: Mapping[str, str] = field(default_factory=dict)  # for the explorer's processes
    resume: bool = True
    rows: RowsSpec | None = None  # trained on in place of an explorer's answers
    experts: ExpertSpec | None = None  # trained on beside them
    serve: ServeSpec | None = None  # of mode serve
    fingerprint: Fingerprint | None = None  # of the files as the run started; None before that
    plugins: tuple[Plugin, ...] = ()  # of other distributions, that the run uses

    def as_saved(self) -> tuple[dict[str, object], dict[str, str]]:
        """Return the specification as JSON, and the variables that resolve its secrets.

        A value that looks like a secret becomes a reference to the environment.
        """
        # A whole configuration is in plain containers already, which asdict would go through leaf by leaf.
        plain = json.loads(json.dumps({**asdict(replace(self, verl={})), "verl": self.verl}))
        saved, variables = referred({name: plain.pop(name) for name in ("verl", "env")}, named="path")
        return {**plain, **saved}, variables

    def save(self, path: Path) -> None:
        """Write the file, private to this user where the database's URL holds a password.

        A database inside the job is named relative to it.
        """
        url = database_url.relative(self.database_url, Path(self.job_dir))
        text = json.dumps({**self.as_saved()[0], "database_url": url}, indent=1, sort_keys=True) + "\n"
        write_text(path, text, mode=None if without_passwords(text) == text else 0o600)

    @classmethod
    def load(cls, path: Path) -> RunSpec:
        """Read what ``save`` wrote, as ``JOB/config/NAME``, with the secrets that the environment has.

        A job that was renamed or copied since names its own database and folders, not those of whatever lies
        at its old place.
        """
        try:
            return cls.of_text(regular_files.followed_text(path), path.absolute().parent.parent)
        except (FileNotFoundError, NotADirectoryError):
            raise UserError(f"{path} is missing: {path.parent.parent} is not a job directory") from None
        except OSError as error:
            raise UserError(f"{path} cannot be read: {error.strerror}") from error
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise UserError(
                f"{path} is not what this release wrote ({type(error).__name__}: {error})",
                hint="run the same command again, which rewrites the file, or restore the job folder",
            ) from error

    @classmethod
    def of_text(cls, text: str, job: Path) -> RunSpec:
        """The same of text that was read from the folder ``job``. Raises ValueError, KeyError, TypeError."""
        data, here = json.loads(text), job.resolve()
        url = database_url.absolute(data["database_url"], here)
        return cls.of_json({**_moved(data, str(here)), "database_url": url})

    @classmethod
    def of_json(cls, data: Mapping[str, Any]) -> RunSpec:
        """Read the JSON of ``as_saved`` or of ``asdict``."""
        replay, serve, mark = data.get("replay"), data.get("serve"), data.get("fingerprint")
        sections = {
            "sync": SyncSpec(**data["sync"]),
            "checkpoints": tuple(data.get("checkpoints", ())),
            "replay": replay and ReplaySpec(**replay),
            "scoring": ScoringSpec(**data.get("scoring", {})),
            "rows": _rows(data.get("rows")),
            "experts": _experts(data.get("experts")),
            "serve": serve and ServeSpec(**serve),
            "fingerprint": mark and Fingerprint(**mark),
            "plugins": tuple(Plugin(**each) for each in data.get("plugins", ())),
        }
        secrets = resolved({name: data[name] for name in ("verl", "env") if name in data}, os.environ)
        return cls(**{**data, **secrets, **sections})


def _rows(data: Mapping[str, Any] | None) -> RowsSpec | None:
    if data is None:
        return None
    lists = {name: tuple(data[name]) for name in ("paths", "val_paths")}
    inner = {name: tuple(data["format"][name]) for name in ("prompt_dict_keys", "response_dict_keys")}
    return RowsSpec(**{**data, **lists, "format": RowFormat(**{**data["format"], **inner})})


def _experts(data: Mapping[str, Any] | None) -> ExpertSpec | None:
    rows = _rows(data["rows"]) if data else None
    return ExpertSpec(rows, data["each_step"]) if data and rows else None


def has_baseline(verl: Mapping[str, Any]) -> bool:
    """Return True where each group ends with a greedy answer, the baseline of its others.

    Source: veRL 0.9.1, ray_trainer.py: fit.
    """
    return bool(verl["algorithm"].get("adv_estimator") == "remax")


def seed_of(verl: Mapping[str, Any]) -> int:
    """The run's seed: data.seed, else rollout.seed; where neither is given, that of veRL 0.9.1 (42)."""
    given = (verl["data"].get("seed"), verl["actor_rollout_ref"]["rollout"].get("seed"))
    return int(next((seed for seed in given if seed is not None), 42))


def _moved(data: Mapping[str, Any], here: str) -> Mapping[str, Any]:
    """``data`` with its ``job_dir`` replaced by ``here`` wherever a value names the job or lies in it."""
    before = data["job_dir"]

    def follow(value: object) -> object:
        if isinstance(value, dict):
            return {key: follow(part) for key, part in value.items()}
        if isinstance(value, list):
            return [follow(part) for part in value]
        if not isinstance(value, str):
            return value
        inside = value == before or value.startswith(f"{before}/")
        return f"{here}{value.removeprefix(before)}" if inside else value

    return data if before == here else {name: follow(value) for name, value in data.items()}
