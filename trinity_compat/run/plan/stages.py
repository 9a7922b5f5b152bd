"""The stages of a YAML as separate runs, in order; each has its job in the run's folder."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from trinity_compat.common.errors import UserError
from trinity_compat.common.nested import copied, put
from trinity_compat.common.redaction import shown
from trinity_compat.run.plan import environment, error_locations, paths
from trinity_compat.run.plan.source import RunOptions, Source
from trinity_compat.trinity.config.emit import dump
from trinity_compat.trinity.config.stages import Stage, stages_of

_MODEL = "model.model_path"
_SETS_MODEL = (f"{_MODEL}=", "actor_rollout_ref.model.path=")
_OF_ONE = re.compile(r"stages\.\d+\.")
_TRAINING = ("both", "train", "colocate")


@dataclass(frozen=True, slots=True)
class StageRun:
    """One stage as a run, with its own source and options. ``of``: the number of stages."""

    stage: Stage
    source: Source
    options: RunOptions
    of: int

    @property
    def is_last(self) -> bool:
        """Return whether no stage follows."""
        return self.stage.number == self.of - 1

    def on(self, model: str) -> StageRun:
        """Return the stage with ``model``, the result of the stage before it."""
        config = copied(self.stage.config)
        put(config, _MODEL, model)
        sets = tuple(text for text in self.options.sets if not text.startswith(_SETS_MODEL))
        stage = replace(self.stage, config=config)
        return replace(
            self,
            stage=stage,
            source=_source(self.source, stage, self.of),
            options=replace(self.options, sets=sets),
        )


def root_of(source: Source, options: RunOptions, cwd: Path) -> Path:
    """Return the folder of the whole run."""
    return paths.job_root(environment.filled(source.config, os.environ), options, cwd)


def parts(source: Source, options: RunOptions, cwd: Path) -> list[StageRun]:
    """Return the stages in order, [] for a file without stages. Raises UserError with the line."""
    with error_locations.relocate_errors(source, options.sets):
        # Interpolate first: a stage may refer to fields of the whole file.
        stages = stages_of(environment.filled(source.config, os.environ))
        if not stages:
            return []
        _refuse(options, stages)
        root = root_of(source, options, cwd)
        found = []
        for stage in stages:
            own = replace(options, job=str(root / stage.name), sets=_sets_of(options.sets, stage))
            found.append(StageRun(stage, _source(source, stage, len(stages)), own, len(stages)))
        return found


def _sets_of(sets: Sequence[str], stage: Stage) -> tuple[str, ...]:
    """Return the sets of every stage, and ``stages.N.PATH=VALUE`` of this one."""
    own = f"stages.{stage.number}."
    return tuple(text.removeprefix(own) for text in sets if text.startswith(own) or not _OF_ONE.match(text))


def _refuse(options: RunOptions, stages: Sequence[Stage]) -> None:
    """Raise UserError for an option about one stage, and for a stage that leaves no model to the next."""
    one = "a run in stages is one command"
    if options.mode:
        is_standalone = options.mode in ("bench", "serve")
        raise UserError(
            f"--mode {options.mode}: {one}",
            hint=f"give it a file of the stage's own, named {stages[-1].config['name']}"
            if is_standalone
            else "write mode in the stage that it is for",
        )
    if options.explorer is not None:
        raise UserError(f"--explorer {options.explorer}: {one}, with all explorers in it")
    if options.database:
        raise UserError(
            "--database names one database, and each stage has one of its own",
            hint="write buffer.trainer_input.experience_buffer.path in each stage",
        )
    known = tuple(f"stages.{stage.number}." for stage in stages)
    for text in options.sets:
        if text.startswith("stages.") and not text.startswith(known):
            raise UserError(f"--set {text}: the file has the stages 0 to {len(stages) - 1}")
    for stage in stages:
        mode = stage.config.get("mode", "both")
        if mode not in _TRAINING:
            raise UserError(
                f"stages.{stage.number}.mode={mode}: a stage trains, and leaves its model to the next",
                hint=f"write {', '.join(_TRAINING)}, or run {mode} apart",
            )


def _source(whole: Source, stage: Stage, of: int) -> Source:
    """Return the stage as a source; its YAML contains all that the stage inherits."""
    heading = f"stage     {stage.number + 1} of {of}: {stage.name}"
    text = dump(stage.config, header=[f"{heading}, of {whole.record['yaml']}"])
    return replace(
        whole,
        config=stage.config,
        yaml_text="".join(map(shown, text.splitlines(keepends=True))),
        record={**whole.record, "stage": stage.name},
        notes=(heading,),
        stage=stage,
    )
