"""Upgrades the text of a veRL YAML: each of its keys is planned like an argument of a launch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import yaml

from trinity_compat.common import limits
from trinity_compat.common.errors import Where
from trinity_compat.common.nested import leaves, nested, value_at
from trinity_compat.common.readable_files import named_content
from trinity_compat.common.releases import VERL
from trinity_compat.launch.model import Launch, Word, WordPart
from trinity_compat.rewrite.bash_text import NotEditable
from trinity_compat.rewrite.plan import LaunchPlan, NewWord, Remark, new_launch, plan
from trinity_compat.rewrite.script import Upgraded, UpgradeOptions, shown
from trinity_compat.rewrite.yaml_text import YamlLeaf, YamlText, dumped
from trinity_compat.verl_config import config_from_yaml, effective_config
from trinity_compat.verl_config.config_folders import read_config
from trinity_compat.verl_config.grammar import hydra_text, parse_value
from trinity_compat.verl_config.model import EffectiveConfig
from trinity_compat.verl_config.releases import ENGINE_FLAVOURS, FLAVOURS, MODEL_ENGINE
from trinity_compat.verl_config.upgrade import KeyChange, row_for
from trinity_compat.verl_config.yaml_files import ConfigFile, load_yaml

_OWN = {*FLAVOURS, "_self_"}  # entries of a defaults list that are veRL's own configuration


def upgrade_configuration(path: str, options: UpgradeOptions) -> Upgraded:
    """Upgrade a veRL YAML. Raises UserError for one that does not configure PPO training."""
    config = config_from_yaml(path, options.version, fork_config=options.fork_config)
    before = named_content(path, limits.SCRIPT)
    out = Upgraded(path, before, before, launches=1)
    problem = ""
    if config.fork is not None:
        problem = f"starts from the copy of veRL in {config.fork.folder}; --no-fork-config ignores that"
    elif b"\r" in before:
        problem = "is not changed: its lines end in CR LF; run dos2unix first"
    if problem:
        out.refused.append(Remark(Where(path), "this configuration", problem))
        return out
    out.take_for(Where(path), config.version)
    _Configuration(path, read_config(Path(path)), config, out, of_scripts=options.of_scripts).upgrade()
    return out


class _Configuration:
    def __init__(
        self, path: str, file: ConfigFile, config: EffectiveConfig, out: Upgraded, *, of_scripts: bool
    ) -> None:
        self.path, self.file, self.out = path, file, out
        self.text = YamlText(file.text)
        self.names: list[str] = []  # of the launch's arguments
        self.stale: list[KeyChange] = []  # rows of defaults that a dump repeats, and that are others today
        self.meant = dict(leaves({key: value for key, value in file.config.items() if key != "hydra"}))
        launch = self._launch(config)
        old = effective_config(launch, version=config.version.value, root=Path(launch.cwd))
        named = (next(iter(each)) if isinstance(each, Mapping) else each for each in file.defaults)
        of_verl = all(entry in _OWN for entry in named)
        own = not file.defaults or (of_verl and not of_scripts)
        self.old = old
        self.own = own
        self.plan = plan(old, Path(launch.cwd), add_defaults=own)
        self.launch = launch

    def _launch(self, config: EffectiveConfig) -> Launch:
        """The launch that gives the file's keys as arguments; its other keys are no matter of the plan."""
        engine = ENGINE_FLAVOURS.get(config.flavour)
        words = [f"--config-name={config.flavour}"] if engine is None else [f"{MODEL_ENGINE}={engine}"]
        places = [Where(self.path)]
        self.names.append("")
        set_keys = set(config.set_keys)
        for key, value in self.meant.items():
            row = row_for(key, config.flavour)
            repeated = key not in set_keys and key in self.text.leaves and config.version.value != VERL
            if row is not None and row.take_pinned and repeated:
                self.stale.append(replace(row, old=key))
                continue
            if key in self.text.leaves and key != MODEL_ENGINE and (text := hydra_text(value)) is not None:
                words.append(f"++{key}={text}")
                places.append(Where(self.path, self.text.leaves[key].line))
                self.names.append(key)
        arguments = tuple(Word((WordPart(word),), where) for word, where in zip(words, places, strict=True))
        return Launch("verl.trainer.main_ppo", arguments, Where(self.path), cwd=config.launch.cwd)

    def upgrade(self) -> None:
        """Make the plan's changes, and keep the result only if it holds what is meant."""
        plan = self.plan
        self.out.kept += [_plain(remark) for remark in plan.kept]
        self.out.refused += [_plain(remark) for remark in plan.refused]
        # removals first: a renamed key may take the name of a removed one
        for change in sorted(plan.changes, key=lambda change: bool(change.new)):
            self._change(self.names[change.index], change.new, change.why)
        for row in self.stale:
            self._change(row.old, (), f"a default of its release; {row.why}")
        self._add(plan)
        try:
            after = self.text.result()
            content = load_yaml(after)
        except (NotEditable, ValueError, yaml.YAMLError) as problem:
            self.out.give_up("this configuration", str(problem))
            return
        got = {key: value for key, value in (content or {}).items() if key not in ("defaults", "hydra")}  # type: ignore[attr-defined]
        if dict(leaves(got)) != self.meant and nested(dict(leaves(got))) != nested(self.meant):
            self.out.give_up("this configuration", "it would not hold the keys that are meant")
            return
        self.out.after = after.encode()
        composed = effective_config(new_launch(self.launch, plan), version=VERL, root=Path(self.launch.cwd))
        for note in composed.diagnostics:
            if note.severity == "error":
                self.out.refused.append(Remark(note.where, "this configuration", note.message))
        if self.own and not self.out.refused:
            self.out.refused += plan.remaining(self.old, composed)

    def _change(self, key: str, new: tuple[NewWord, ...], why: str) -> None:
        leaf = self.text.leaves[key]
        where, value = Where(self.path, leaf.line), self.meant[key]
        try:
            self._edit(leaf, value, new)
        except NotEditable as problem:
            became = " and ".join(map(_name, new)) or "nothing"
            self.out.refused.append(Remark(where, key, f"is {became} now ({why}): {problem}"))
            return
        del self.meant[key]
        for word in new:
            self.meant[_name(word)] = value if word.value is None else parse_value(word.value)
        after = " ".join(shown(NewWord(_name(word), word.value)) for word in new)
        before = key if new and all(word.value is None for word in new) else f"{key}={value}"
        self.out.note(where, before, after, why)

    def _edit(self, leaf: YamlLeaf, value: object, new: tuple[NewWord, ...]) -> None:
        names = [_name(word) for word in new]
        section = leaf.key.rpartition(".")[0]
        if len(new) == 1 and names[0].rpartition(".")[0] == section:
            if new[0].value is not None:
                self.text.set_value(leaf, parse_value(new[0].value))
            if names[0] != leaf.key:
                self.text.rename(leaf, names[0].rpartition(".")[2])
            return
        lines = {
            key: self.text.lines_of(leaf, key.rpartition(".")[2])
            if word.value is None
            else f"{key.rpartition('.')[2]}: {dumped(parse_value(word.value))}\n"
            for key, word in zip(names, new, strict=True)
        }
        self.text.remove(leaf, moved=bool(new))
        for key, text in lines.items():
            self.text.insert(key, text)

    def _add(self, plan: LaunchPlan) -> None:
        for added in plan.added:
            key = _name(added.new)
            if added.copied is not None:
                value = value_at(self.file.config, self.names[added.copied])
            else:
                value = parse_value(added.new.value or "")
            try:
                self.text.insert(key, f"{key.rpartition('.')[2]}: {dumped(value)}\n")
            except NotEditable as problem:
                text = f"is needed now ({added.why}): {problem}"
                self.out.refused.append(Remark(Where(self.path), f"{key}={value}", text))
                continue
            self.meant[key] = value
            self.out.note(Where(self.path), "", f"{key}={'null' if value is None else value}", added.why)


def _name(new: NewWord) -> str:
    return new.head.lstrip("+")


def _plain(remark: Remark) -> Remark:
    return Remark(remark.where, remark.spelled.lstrip("+"), remark.text)
