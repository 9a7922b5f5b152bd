"""Launches of veRL's supervised trainers: fsdp_sft_trainer, sft_trainer, sft_trainer_ray.

Their keys are a tree of their own, in every release (``sft_trainer.yaml``, ``sft_trainer_engine.yaml``). Each
key has a row in ``translators/by_hand/sft.json``: status, path in the YAML ("" for none), reason. The keys of
Megatron's sections have theirs in ``sft_megatron.json``, those of engines that trinity-rft lacks in
``sft_engines.json``. Settings that its YAML lacks are written under ``trinity_compat.rows``, for our runtime.

The class of the section ``engine`` names the engine (verl 0.9.1, trainer/config/engine/*.yaml): Megatron's
has no key ``strategy``, which is a default of its dataclass there (workers/config/engine.py).
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from trinity_compat.common.errors import UserError
from trinity_compat.common.nested import put, sections_above, value_at
from trinity_compat.common.releases import TRINITY, TRINITY_OLD
from trinity_compat.common.resources import data_json
from trinity_compat.common.training_engines import TrainingEngine, engine_of
from trinity_compat.launch import torchrun
from trinity_compat.launch.model import Word
from trinity_compat.translate.defaults import trainer_config
from trinity_compat.translate.env_references import EnvReferences
from trinity_compat.translate.model import Caution, Finding, Status, TranslateOptions, Translation
from trinity_compat.translate.sections.trainer import STRATEGIES, idle_of_fsdp
from trinity_compat.translate.start_folder import recomposed_seen_from, seen_from
from trinity_compat.translate.supervised import ACTOR, BUFFER, STRATEGY
from trinity_compat.translate.trinity_reader import NEVER
from trinity_compat.translate.unknown import UNKNOWN, reason_of
from trinity_compat.translate.verl_from_trinity import to_verl
from trinity_compat.verl_config.grammar import OverrideSyntaxError, parse_value
from trinity_compat.verl_config.model import EffectiveConfig, Setting
from trinity_compat.verl_config.pinned import pinned_release
from trinity_compat.verl_config.releases import engine_flavour

CODE = "TC100"
COMPAT = "trainer.trainer_config.trinity_compat"
_FORMAT = f"{BUFFER}.format"
_SCHEDULES = {"cosine": "cosine", "constant": "constant"}
_OPTIMIZERS = {"AdamW": "adamw", "Adam": "adam", "SGD": "sgd"}
_MEGATRONS = ("adam", "sgd")
_MONITORS = ("wandb", "tensorboard", "mlflow", "swanlab")
_MEGATRON = "megatron"
_STRATEGIES = {  # of verl.workers.config
    "FSDPEngineConfig": "fsdp",
    "McoreEngineConfig": _MEGATRON,
    "VeOmniEngineConfig": "veomni",
    "TorchtitanEngineConfig": "torchtitan",
    "AutomodelEngineConfig": "automodel",
}

Row = tuple[str, str, str]


def rows(name: str = "sft") -> Mapping[str, Row]:
    """Return a table: a key, or a section of keys → status, path, reason."""
    return data_json(f"translators/by_hand/{name}.json")


def translate_sft(effective: EffectiveConfig, options: TranslateOptions) -> Translation:
    """Return the Trinity configuration of a supervised launch, and a finding per key.

    Raises UserError for a target that lacks what the launch needs.
    """
    if options.trinity != TRINITY:
        raise UserError(
            f"{effective.launch.module} is translated for trinity-rft {TRINITY} only",
            where=effective.launch.where,
            hint=f"leave out --trinity {TRINITY_OLD}",
        )
    symbols = EnvReferences()
    draft = _Draft(seen_from(effective, options.folder), _settings(effective, symbols, options.folder))
    draft.write()
    config: dict[str, object] = symbols.written(draft.config)
    facts = {
        "updates_per_step": 1,
        "verl_version": effective.version.value,
        "verl_version_why": effective.version.why,
        "target": options.trinity,
        "engines": 0,
        "compat": COMPAT,
    }
    provenance = {path: str(symbols.written(note)) for path, note in draft.provenance.items()}
    return Translation(config, provenance, tuple(draft.findings()), tuple(_cautions(effective)), facts)


def _settings(
    effective: EffectiveConfig, symbols: EnvReferences, folder: str | None
) -> Mapping[str, Setting]:
    """Return the settings, with marks in texts for values that only the environment knows.

    Any other value is its value here, and the variables behind it have their text everywhere.
    """
    real = seen_from(effective, folder).settings
    if (marked := recomposed_seen_from(effective, symbols, None, folder)) is None:
        return real
    values = {key for key, found in marked.settings.items() if not _is_text_of(found, real[key], symbols)}
    needed = {name for key in values for name in symbols.variables(marked.settings[key].value)}
    if not needed <= symbols.frozen:
        symbols.frozen.update(needed)
        return _settings(effective, symbols, folder)
    return {key: real[key] if key in values else found for key, found in marked.settings.items()}


def _is_text_of(found: Setting, real: Setting, symbols: EnvReferences) -> bool:
    """Return True if a value with marks has the real one's type, and selects nothing by its word."""
    if real.key in _DECIDE and symbols.is_known(found.value):
        return False
    return type(found.value) is type(real.value) or not symbols.is_known(found.value)


def _cautions(effective: EffectiveConfig) -> Iterator[Caution]:
    for key, (option, _, word) in _processes(effective).items():
        if torchrun.count(word) is None:
            instead = f"{key}={effective.get(key)}" if key in effective.settings else "nothing of it"
            yield Caution(
                "TW004",
                f"torchrun's --{option} is how many {_COUNTED[key]} veRL takes, and is not known here;"
                f" the YAML says {instead}",
                effective.launch.where,
                f"--set {rows()[key][1]}=N",
            )


def _processes(effective: EffectiveConfig) -> dict[str, tuple[str, str, Word | None]]:
    """Return key → (torchrun's option, its place, its word), for the keys in whose place torchrun's count.

    Source: verl, trainer/sft_trainer.py: a process of torchrun's is a GPU of the trainer, and the keys are
    not read. sft_trainer_ray reads them.
    """
    launch = effective.launch
    if "torchrun" not in launch.wrapper or launch.taken_for.endswith(".sft_trainer_ray"):
        return {}
    found = torchrun.processes(launch.torchrun)
    return {
        key: (option, str(word.where if word else launch.where), word)
        for key, (option, word) in zip(_COUNTED, found.items(), strict=True)
        # Releases before the keys have torchrun's counts alone.
        if (given := effective.settings.get(key)) is None
        or given.where is None
        or given.where.file != "--set"
    }


@dataclass(slots=True)
class _Draft:
    """A configuration in progress. ``settings``: the launch's, with marks."""

    effective: EffectiveConfig
    settings: Mapping[str, Setting]
    config: dict[str, Any] = field(default_factory=dict)
    provenance: dict[str, str] = field(default_factory=dict)
    carried: dict[str, object] = field(default_factory=dict)  # veRL's keys that upstream's trainer drops

    def value(self, key: str, default: object = None) -> Any:
        """Return the value of ``key`` here; ``default`` if there is none or it is null."""
        setting = self.settings.get(key)
        return default if setting is None or setting.value is None else setting.value

    def put(self, path: str, value: object, note: str = "") -> None:
        """Write one value, with a note on its origin."""
        put(self.config, path, value)
        if note:
            self.provenance[path] = note

    @property
    def conversations(self) -> bool:
        """True if rows are lists of messages: always with sft_trainer, by a key with fsdp_sft_trainer."""
        return bool(self.value("data.multiturn.enable", "data.messages_key" in self.settings))

    @property
    def strategy(self) -> str:
        """The training engine by veRL's name: the section's own word, else that of its class."""
        target = str(self.value("engine._target_", "")).rpartition(".")[2]
        return str(self.value("engine.strategy") or _STRATEGIES.get(target, "fsdp"))

    @property
    def megatron(self) -> bool:
        """True if Megatron trains, whose sections have keys of their own."""
        return self.strategy == _MEGATRON

    @property
    def engine(self) -> TrainingEngine:
        """The training engine."""
        return engine_of(self.strategy)

    @property
    def flavour(self) -> str:
        """veRL's configuration whose classes an engine that trinity-rft lacks needs, "" for the others."""
        return engine_flavour(self.strategy)

    def row(self, key: str) -> Row:
        """Return the key's status, path and reason. A section's path is that of its keys."""
        if key not in rows() and key.startswith(_SECTIONS) and not self.engine.is_known:
            return "unsupported", "", f"a setting for {self.strategy}, which is not an engine of veRL's"
        tables = (rows("sft_megatron"), rows()) if self.megatron else (rows(),)
        if self.flavour and key.startswith(_SECTIONS):
            tables = (rows("sft_engines"),)
        for name in (key, *sections_above(key)):
            for table in tables:
                if name in table:
                    status, path, why = table[name]
                    path = path and path.format(self.engine.section) + key[len(name) :]
                    return status, self._kept(path), why
        return "unsupported", "", "trinity-compat does not read it"

    def _kept(self, path: str) -> str:
        """Return where upstream's trainer leaves ``path``: its classes drop keys that they don't have."""
        key = path.removeprefix(_TRAINER_CONFIG)
        if key == path:
            return path
        takes = trainer_config(TRINITY, _MEGATRON if self.megatron else "fsdp")
        dropped = self.flavour or key in takes.ignored or not takes.takes(key)
        return _CARRIED + key if dropped else path

    def write(self) -> None:
        """Write the configuration of the launch."""
        self.put("mode", "train", "nothing is generated")
        for key, (option, place, word) in _processes(self.effective).items():
            if (size := torchrun.count(word)) is not None:
                self.put(rows()[key][1], size, f"torchrun --{option} ({place})")
        for key, setting in self.settings.items():
            status, path, _ = self.row(key)
            if self._size(key) is not None or not path or status not in ("mapped", "passed_through"):
                continue
            if self._is_written(key, setting):
                value = setting.value if path != f"{BUFFER}.path" else _files(setting.value)
                if path.startswith(_CARRIED):
                    self.carried[path.removeprefix(_CARRIED)] = value
                else:
                    self.put(path, value, self._said(key))
        if self.megatron:
            self.put(STRATEGY, _MEGATRON, self._said("engine._target_"))
        elif self.engine.is_known and self.strategy not in STRATEGIES:
            self.put(STRATEGY, _STAND_IN, f"trinity-rft has no strategy {self.strategy!r}")
            self.put(f"{COMPAT}.stands_for", {f"{ACTOR}.strategy": [_STAND_IN, self.strategy]})
        if self.flavour:
            self.put(f"{COMPAT}.flavour", self.flavour, "veRL's configuration of this name")
        self._algorithm()
        self._rows()
        self._places()
        self.put("synchronizer.sync_method", "checkpoint", "no explorer takes the weights")
        save = self.value("trainer.save_freq", -1)
        # The last step is saved in any case; trinity-rft takes this for its sync_interval and refuses 0.
        self.put("trainer.save_interval", save if not isinstance(save, int) or save > 0 else NEVER)
        known = [name for name in _listed(self.value("trainer.logger", [])) if name in _MONITORS]
        self.put("monitor.monitor_type", known[0] if known else "tensorboard")
        told, back = self._verl(), to_verl(self.config)
        self.put(f"{COMPAT}.verl", {key: value for key, value in told.items() if key not in back})
        if pairs := {key: [back[key], told[key]] for key in told if key in back and told[key] != back[key]}:
            self.put(f"{COMPAT}.stands_for", (value_at(self.config, f"{COMPAT}.stands_for") or {}) | pairs)

    def _size(self, key: str) -> int | None:
        """Return torchrun's count in the place of ``key``, if there is one."""
        found = _processes(self.effective).get(key) if key in _COUNTED else None
        return torchrun.count(found[2]) if found else None

    def _is_written(self, key: str, setting: Setting) -> bool:
        """Return True unless the value is null, idle, or a default that upstream has by itself."""
        if setting.value in (None, "none") or key in self._idle():
            return False
        if self.flavour and key.startswith(_SECTIONS):
            # Trinity's defaults for FSDP's optimizer would count for the names that both optimizers have.
            at = self.row(key)[1].removeprefix(_CARRIED)
            default = value_at(pinned_release(self.flavour).resolved, at)
            return key.startswith("optim.") or setting.value != default
        return (
            setting.where is not None
            or self.row(key)[0] == "mapped"
            or key.endswith("micro_batch_size_per_gpu")
        )

    def _idle(self) -> set[str]:
        """Return the keys that concern the other kind of rows."""
        of_columns = ("data.prompt_key", "data.response_key")
        of_messages = ("data.multiturn.messages_key", "data.multiturn.tools_key", "data.multiturn.enable")
        return set(of_columns if self.conversations else of_messages)

    def _said(self, key: str) -> str:
        where = self.settings[key].where
        return f"{key} ({where or self.effective.default_of(key)})"

    def _algorithm(self) -> None:
        self.put("algorithm.algorithm_type", "sft", self.effective.launch.module)
        if (clip := self.value(_CLIP)) is not None:  # upstream fills trainer.grad_clip in from this one
            self.put(f"{_OPTIM}.clip_grad", clip, self._said(_CLIP))
        if self.megatron:
            # Write what Megatron's optimizer names otherwise; the names of its schedules are handed on.
            self.put(f"{_OPTIM}.lr_scheduler_type", self.value(_DECAY, "constant"), self._said(_DECAY))
            self.put(f"{_OPTIM}.optimizer_type", self.value("optim.optimizer", "adam"))
            floor, rate = self.value(_FLOOR, 0.0), self.value("optim.lr", 1e-3)
            ratio = float(f"{floor / rate:.12g}") if rate else 0.0
            self.put(f"{_OPTIM}.min_lr_ratio", ratio, self._said(_FLOOR))
            if ratio * rate != floor:  # what the way back makes of it, by rounding
                self.put(
                    f"{COMPAT}.stands_for", {"actor_rollout_ref.actor.optim.min_lr": [ratio * rate, floor]}
                )
            self.put(f"{_OPTIM}.betas", self._betas(), self._said(_BETAS))
        elif not self.flavour:
            schedule = next(filter(None, map(self.value, _SCHEDULE_KEYS)), "constant")
            self.put(f"{_OPTIM}.lr_scheduler_type", _SCHEDULES.get(str(schedule), "cosine"))
            self.put(f"{_OPTIM}.min_lr_ratio", self.value("optim.min_lr_ratio", 0.0))
            name = str(self.value("optim.optimizer", "AdamW"))
            self.put(f"{_OPTIM}.optimizer_type", _OPTIMIZERS.get(name, "adamw"))
        if rank := self.value("model.lora_rank"):
            adapter = {
                "name": "lora",
                "lora_rank": rank,
                "lora_alpha": self.value("model.lora_alpha", 16),
                "target_modules": ",".join(_listed(self.value("model.target_modules", "all-linear"))),
            }
            self.put("model.lora_configs", [adapter])

    def _betas(self) -> object:
        """Return Adam's numbers as numbers, where quotes that reached Hydra make them a text.

        Megatron's Adam does not read them, so that veRL takes the text (utils/megatron/optimizer.py,
        ``init_megatron_optim_config``); upstream takes numbers only. Muon reads them.
        """
        betas = self.value(_BETAS)
        if not isinstance(betas, str) or self.value("optim.optimizer") == _MUON:
            return betas
        try:
            return parse_value(betas)
        except OverrideSyntaxError:
            return betas

    def _rows(self) -> None:
        self.put(f"{BUFFER}.name", "rows")
        self.put(f"{BUFFER}.storage_type", "file")
        self.put(f"{_FORMAT}.prompt_type", "messages" if self.conversations else "plaintext")
        if self.conversations:
            self.put(f"{_FORMAT}.enable_concatenated_multi_turn", True, "as in veRL: every answer is trained")
        self.put(f"{BUFFER}.data_selector", {"selector_type": "shuffle", "seed": 0}, "veRL's sampler")
        said: dict[str, object] = {
            "sampler": "verl",
            "whole_epochs": True,
            "truncation": self.value("data.truncation", "error"),
        }
        if not self.conversations:
            said["response_then_eos"] = True
            for name in ("prompt_dict_keys", "response_dict_keys"):
                if keys := self.value(f"data.{name}"):
                    said[name] = list(keys)
        if files := self.value("data.val_files"):
            said["val_paths"] = _listed(files)
        self.put(f"{COMPAT}.rows", said, "settings for which Trinity-RFT has no field")

    def _places(self) -> None:
        directory = str(self.value("trainer.default_local_dir", "checkpoints"))
        job = posixpath.join(
            str(self.value("trainer.project_name")), str(self.value("trainer.experiment_name"))
        )
        root = directory.removesuffix(f"/{job}") if directory.endswith(f"/{job}") else directory
        self.put("checkpoint_root_dir", root or "/", self._said("trainer.default_local_dir"))
        self.put("continue_from_checkpoint", self.value("trainer.resume_mode", "auto") != "disable")

    def _verl(self) -> dict[str, object]:
        """Return keys of veRL's PPO trainer that the launch says."""
        directory = str(self.value("trainer.default_local_dir", "checkpoints"))
        loggers = _listed(self.value("trainer.logger", ["console"]))
        told: dict[str, object] = {"trainer.default_local_dir": directory, "trainer.logger": loggers}
        told |= self.carried
        if self.value("data.val_files") and (every := self.value("trainer.test_freq", -1)):
            told["trainer.test_freq"] = every
        return told

    # -- what became of each key ------------------------------------------------------------------

    def findings(self) -> Iterator[Finding]:
        """Return a finding per key."""
        settings, own = self.effective.settings, self.effective.set_keys
        yield from (self._finding(key, settings[key]) for key in own)
        for other in self.effective.others:
            status, why = self._of_other(other)
            yield Finding(CODE, Status(status), other.key, other.value, other.where, reason=why)
        yield from (self._finding(key, setting) for key, setting in settings.items() if key not in set(own))

    def _of_other(self, other: Setting) -> tuple[str, str]:
        """Return the status of a word that is no key, with the reason: a config group, or Hydra's own."""
        if f"{other.key}." not in _SECTIONS:
            return "no_effect", "Hydra's own settings"
        if self.strategy in STRATEGIES:
            return "mapped", f"which file of veRL's the section comes from: {self.strategy} trains"
        return "unsupported_upstream", f"Trinity-RFT has no strategy {self.strategy!r}; trinity-compat has"

    def _finding(self, key: str, setting: Setting) -> Finding:
        status, path, why = self.row(key)
        if key in self.effective.unknown:
            reason = reason_of(key, self.effective)
            return Finding(UNKNOWN, Status.UNKNOWN, key, setting.value, setting.where, reason=reason)
        found, why = self._fate(key, setting, Status(status), why)
        if found is Status.PASSED_THROUGH and path.startswith(_CARRIED) and setting.where is not None:
            found, why = (
                Status.UNSUPPORTED_UPSTREAM,
                "Trinity-RFT's trainer drops it; kept for trinity-compat",
            )
        target = path if path and found in _WITH_TARGET else None
        return Finding(CODE, found, key, setting.value, setting.where, target, reason=why)

    def _fate(self, key: str, setting: Setting, status: Status, why: str) -> tuple[Status, str]:
        """Return the treatment of the key's value."""
        if key in self._idle():
            rows_are = "conversations" if self.conversations else "columns of a question and an answer"
            return Status.NO_EFFECT, f"the rows are {rows_are}"
        if (size := self._size(key)) is not None:
            option = _processes(self.effective)[key][0]
            return Status.NO_EFFECT, f"veRL takes torchrun's --{option}={size}, and so does the run"
        nothing = setting.value in (None, -1, "none", {}, [], False, 0) or setting.where is None
        if status in (Status.UNSUPPORTED, Status.UNSUPPORTED_UPSTREAM) and nothing:
            return Status.NO_EFFECT, "asks for nothing"
        if self.megatron:
            if key == _DECAY and setting.value not in _SCHEDULES:
                return Status.UNSUPPORTED_UPSTREAM, f"Trinity-RFT's scheduler has no {setting.value!r}"
            if key == "optim.optimizer" and setting.value not in _MEGATRONS:
                reason = f"Trinity-RFT has adam and sgd; {setting.value} is passed on unchanged"
                return Status.APPROXIMATED, reason
            return status, why
        if self.flavour and key.startswith(_SECTIONS):
            return status, why
        if any(
            name in f".{key.replace('engine.', 'fsdp_config.', 1)}." for name in idle_of_fsdp(self.strategy)
        ):
            return Status.NO_EFFECT, f"the strategy is {self.strategy}"
        if key in _SCHEDULE_KEYS and setting.value is not None and setting.value not in _SCHEDULES:
            return Status.APPROXIMATED, f"veRL's PPO trainer has no schedule {setting.value!r}: cosine"
        if key == "optim.optimizer" and setting.value not in _OPTIMIZERS:
            return Status.APPROXIMATED, f"no optimizer of that name: {setting.value!r}; adamw"
        if key == _ENGINE_STRATEGY and setting.value not in STRATEGIES:
            if self.engine.is_known:
                return (
                    Status.UNSUPPORTED_UPSTREAM,
                    f"Trinity-RFT has no {setting.value!r}; trinity-compat has",
                )
            return Status.UNSUPPORTED, f"veRL's section takes no strategy {setting.value!r}"
        return status, why


_DECIDE = ("trainer.resume_mode",)
_OPTIM = "algorithm.optimizer"
_STAND_IN = "fsdp2"  # trinity-rft's strategy in place of one that it lacks
_TRAINER_CONFIG, _CARRIED = "trainer.trainer_config.", f"{COMPAT}.verl."
_ENGINE_STRATEGY = "engine.strategy"
_COUNTED = {"trainer.nnodes": "machines", "trainer.n_gpus_per_node": "GPUs"}
_SECTIONS = ("engine.", "optim.")
_BETAS, _MUON, _CLIP = "optim.betas", "muon", "optim.clip_grad"
_DECAY, _FLOOR = "optim.lr_decay_style", "optim.min_lr"  # Megatron's
_SCHEDULE_KEYS = ("optim.warmup_style", "optim.lr_scheduler", "optim.lr_scheduler_type")
_WITH_TARGET = (Status.MAPPED, Status.DERIVED, Status.PASSED_THROUGH)


def _files(value: object) -> object:
    listed = _listed(value)
    return listed[0] if len(listed) == 1 else listed


def _listed(value: object) -> list[str]:
    return [str(each) for each in value] if isinstance(value, list | tuple) else [str(value)]
