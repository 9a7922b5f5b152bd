"""Findings: one per effective key, with what became of it, its target and the reason."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from trinity_compat.common.errors import Where
from trinity_compat.translate import forks, stock_verl
from trinity_compat.translate.apply import Draft
from trinity_compat.translate.defaults import pinned_defaults, same, trainer_config
from trinity_compat.translate.launch_view import LaunchView
from trinity_compat.translate.model import Finding, Status
from trinity_compat.translate.rows import MappingRow, MappingTable, means_nothing
from trinity_compat.translate.run_refusals import Refusal, refusals
from trinity_compat.translate.unknown import UNKNOWN, USER_RULE, is_unknown, reason_of
from trinity_compat.trinity.config import schema
from trinity_compat.verl_config import DropKey, UpgradeResult
from trinity_compat.verl_config.model import Setting
from trinity_compat.verl_config.upgrade import is_well_known

_TC = "trainer.trainer_config."


@dataclass(frozen=True)
class FindingBuilder:
    """Builds the findings of one translation."""

    view: LaunchView
    rows: MappingTable
    draft: Draft
    successors: Mapping[str, tuple[tuple[str, ...], str]]  # old key → new keys, why
    gone: Mapping[str, DropKey]  # by the old key

    def effective_keys(self) -> list[str]:
        """The launch's own keys, those that its fork sets, and the defaults that matter in Trinity.

        Defaults are those of the launch's release that change something in Trinity.
        """
        own = list(dict.fromkeys((*self.view.origin.set_keys, *forks.by_default(self.view.origin))))
        given = set(own)
        return own + [
            key for key in self.view.origin.settings if key not in given and self._differs_from_trinity(key)
        ]

    def findings(self) -> tuple[Finding, ...]:
        """Return one finding per effective key, in order, then one per argument that sets no key."""
        keys = self.effective_keys()
        found = tuple(self._finding(key) for key in keys)
        # The promise of the audit: no key is lost, none is told twice.
        if [finding.key for finding in found] != keys:
            raise AssertionError("findings and effective keys differ")
        return (*found, *map(self._finding_of_other, self.view.origin.others))

    def _finding(self, key: str) -> Finding:
        setting = self.view.origin.settings.get(key)
        value = self._shown(key, setting)
        where = setting.where if setting else None
        status, reason, code, target = self._fate(key)
        if told := stock_verl.remark(self.view.origin, key):
            reason = f"{reason}; {told}"
        at = None if target is None else self.view.symbols.written(self.draft.at(target))
        return Finding(code, status, key, value, where, target, at, reason)

    def _shown(self, key: str, setting: Setting | None) -> object:
        """Return the value to show; an unset variable in it stays as its name, as in the YAML."""
        marked = self.view.symbolic.get(key)
        if marked is not None and not self.view.symbols.is_known(marked.value):
            return self.view.symbols.in_effect(marked.value)
        if setting is not None:
            return setting.value
        return {k: s.value for k, s in self.view.origin.settings.items() if k.startswith(key + ".")}

    def _fate(self, key: str) -> tuple[Status, str, str, str | None]:
        """Return (status, reason, code, target) of one key of the launch."""
        if forks.is_fork_key(key, self.view.origin, self.rows):
            return *forks.fate(key, self.view.origin), forks.CODE, self._carried_at(key)
        known = key in self.successors or is_well_known(key)
        if not known and is_unknown(key, self.view.origin.unknown, self.rows):
            return Status.UNKNOWN, reason_of(key, self.view.origin), UNKNOWN, self._carried_at(key)
        if key in self.gone:
            row = self._own_row(key)
            if row is None:
                status = Status.UNSUPPORTED if self.gone[key].lost else Status.NO_EFFECT
                return status, f"veRL itself has dropped it: {self.gone[key].why}", "TC084", None
            if row.how == "keep":  # a user's rule; the run's configuration has no place for the key
                return (
                    Status.UNSUPPORTED,
                    f"{row.why}; it cannot be kept: {self.gone[key].why}",
                    row.code,
                    None,
                )
        new, why = self.successors.get(key, ((key,), ""))
        status, reason, code, target = self._fate_today(new[0])
        if why and new[0] != key:
            reason = f"now {new[0]} ({why}): {reason}"
        return status, reason, code, target

    def _own_row(self, key: str) -> MappingRow | None:
        row = self.rows.exact.get(key)
        if row is not None and row.how in ("drop", "unsupported"):
            return row
        found = self.rows.find(key)
        return found if found is not None and found.code == USER_RULE else None

    def _fate_today(self, key: str) -> tuple[Status, str, str, str | None]:
        status, reason, code, target = self._fate_upstream(key)
        # A run refuses the value of the key, or of the section above it.
        found = (one for one in self.refusals if key == one.key or (one.below and key.startswith(one.below)))
        why = next((refusal.why for refusal in found), None)
        if why is None or status in (Status.NO_EFFECT, Status.UNSUPPORTED, Status.UNKNOWN):
            return status, reason, code, target
        if status is Status.UNSUPPORTED_UPSTREAM:
            told = f"Trinity-RFT has no field for it, and trinity-compat refuses it: {why}"
            return Status.UNSUPPORTED, told, code, target
        return status, f"{reason}; trinity-compat refuses it: {why}", code, target

    @cached_property
    def refusals(self) -> tuple[Refusal, ...]:
        """The refusals of a run of this launch."""
        return tuple(found for found in refusals(self.view.value) if self.view.is_set(found.key))

    def _fate_upstream(self, key: str) -> tuple[Status, str, str, str | None]:
        row = self.rows.find(key)
        if row is None:
            return Status.UNKNOWN, "no row says what becomes of it", UNKNOWN, self._carried_at(key)
        target = self._target(row, key)
        verdict = self.draft.verdicts.get(key)
        if verdict is not None:
            at = verdict.target or (None if verdict.status is Status.NO_EFFECT else target)
            return verdict.status, verdict.reason, verdict.code or row.code, at
        passes = row.passes(self.view.options.trinity)
        if row.how in ("keep", "unsupported") and not passes and self._like_upstream(row, key):
            return Status.NO_EFFECT, f"Trinity-RFT has this value in any case: {row.why}", row.code, None
        if passes and target is None:
            value = self.view.value(key)
            if value is None or value == {}:
                return Status.NO_EFFECT, "null: veRL's default", row.code, None
            if key.startswith("critic.") and not self.view.critic:
                return Status.NO_EFFECT, "there is no critic", "TC022", None
            return Status.PASSED_THROUGH, f"the same as Trinity-RFT's own value: {row.why}", row.code, None
        if row.how == "drop" and not passes:
            target = None
        return row.outcome(self.view.options.trinity), row.why, row.code, target

    def _like_upstream(self, row: MappingRow, key: str) -> bool:
        # What main_ppo of today's veRL doesn't have stands in the launch's own configuration only.
        value = self.view.value(key) if self.view.has(key) else self.view.origin.get(key)
        if row.has_same:
            return same(row.same, value)
        return same(pinned_defaults(self.view.config.flavour).get(key), value) or value in (
            None,
            {},
            [],
            False,
        )

    def _target(self, row: MappingRow, key: str) -> str | None:
        """Return the path of the key's value: its row's first written path, else any path that it wrote."""
        for path in row.paths(self.view.options.trinity):
            if self.draft.at(path) is not None:
                return path
        written = self.draft.paths.get(key, ())
        ours = [path for path in written if ".trinity_compat." not in path]
        return ours[0] if ours else (written[0] if written else None)

    def _carried_at(self, key: str) -> str | None:
        return next(iter(self.draft.paths.get(key, ())), None)

    def _differs_from_trinity(self, key: str) -> bool:
        """Return True if a default of the launch's release differs from Trinity's default."""
        if key.endswith("_target_") or key in self.gone or means_nothing(key):
            return False
        new = self.successors.get(key, ((key,), ""))[0][0]
        row = self.rows.find(new)
        passes = row is not None and row.passes(self.view.options.trinity)
        if row is None or (row.how == "drop" and not passes):
            return False
        verdict = self.draft.verdicts.get(new)
        if verdict is not None and verdict.status is Status.NO_EFFECT:
            return False
        if new != key and (new in self.view.origin.settings or self.view.origin.get(key) is None):
            return False  # its successor speaks for it
        if row.how == "keep":
            return (
                row.has_same and not same(row.same, self.view.value(new)) and self.view.value(new) is not None
            )
        if passes:
            paths = [path for path in self.draft.paths.get(new, ()) if ".trinity_compat." not in path]
        else:
            paths = [path for path in row.paths(self.view.options.trinity) if self.draft.at(path) is not None]
        return any(map(self._changes, paths))

    def _changes(self, path: str) -> bool:
        value = self.draft.at(path)
        if path.startswith(_TC):
            takes = trainer_config(self.view.options.trinity, "megatron" if self.view.megatron else "fsdp")
            return value != takes.default(path.removeprefix(_TC))
        field = schema(self.view.options.trinity).find(path)
        return field is None or not same(field.default, value)

    def _finding_of_other(self, said: Setting) -> Finding:
        status, code, reason = _fate_of_other(said.key) if said.value != {} else _IDLE
        if verdict := self.draft.verdicts.get(said.key):
            status, code, reason = verdict.status, verdict.code or code, verdict.reason
        return Finding(code, status, said.key, said.value, said.where, reason=reason)


_IDLE = Status.NO_EFFECT, "TC089", "an empty dictionary, which leaves its section unchanged"


def _fate_of_other(key: str) -> tuple[Status, str, str]:
    if key.startswith("~"):
        return Status.APPROXIMATED, "TC087", f"deleted by the launch; the default of {key[1:]} is used"
    if key.startswith("--config") or key == "hydra.searchpath":
        return Status.NO_EFFECT, "TC086", "names the configuration; its keys have findings of their own"
    if key.startswith("--"):
        return Status.NO_EFFECT, "TC086", "a flag of Hydra's command line, not part of the configuration"
    if key.startswith(("hydra.", "hydra/")) or key == "hydra":
        return Status.NO_EFFECT, "TC086", "Hydra's own settings (output folders, job names)"
    return Status.MAPPED, "TC088", "chooses a file of veRL's configuration; its values are taken"


def judge(view: LaunchView, rows: MappingTable, draft: Draft, upgraded: UpgradeResult) -> FindingBuilder:
    """Return the builder of the findings of a translation."""
    successors = {move.old: (move.new, move.why) for move in upgraded.moves if move.old}
    return FindingBuilder(view, rows, draft, successors, {drop.key: drop for drop in upgraded.dropped})


def place_of(finding: Finding, version: str) -> str:
    """Format an origin: ``run.sh:12``, or ``default of verl 0.5.0``."""
    where: Where | None = finding.where
    return str(where) if where else f"default of verl {version}"
