"""Read the settings of ``job/settings.py`` from a configuration; refuse those that a run cannot combine."""

from __future__ import annotations

from trinity_compat.common.errors import UserError
from trinity_compat.common.nested import Tree, value_at
from trinity_compat.common.plain_numbers import is_whole
from trinity_compat.job.run_spec import ScoringSpec, SyncSpec
from trinity_compat.job.settings import SETTINGS, RunSetting, SettingValue
from trinity_compat.run.plan import pipelines
from trinity_compat.synchronizer.policy import expected_lag, explorer_interval, trainer_interval
from trinity_compat.translate import verl_from_trinity
from trinity_compat.translate.trinity_reader import TrinityReader
from trinity_compat.trinity.pipelines import SECTION as PIPELINE

REWARD_MODEL_TIMEOUT_S = 1800.0  # an answer waits for those before it in the reward model's queue
_UNSET = object()


def spec_fields(config: Tree, verl: Tree, sync: SyncSpec) -> dict[str, SettingValue]:
    """RunSpec's fields that hold our settings. Raises UserError, naming the setting."""
    fields = {
        row.field: setting_of(config, name)
        for name, row in SETTINGS.items()
        if row.field and "." not in row.field
    }
    rate = setting_of(config, "over_sample_rate")
    filters = [path for path in ("algorithm.filter_groups.enable", PIPELINE) if value_at(verl, path)]
    if rate and (sync.style == "fixed" or filters):
        named = "algorithm.filter_groups" if filters[:1] != [PIPELINE] else pipelines.OPERATORS
        why = "under sync_style fixed" if sync.style == "fixed" else f"with {named}"
        spelled, value = _written(config, SETTINGS["over_sample_rate"])
        raise UserError(
            f"{spelled}: {value}: {why} a step trains all of its own groups, so none can be made later",
            hint=f"leave it out, or write synchronizer.sync_style: fully_async and no {named.split('.')[-1]}",
        )
    if fields["staleness_threshold"] is not None and sync.style == "fixed":
        raise UserError(
            f"{SETTINGS['staleness_threshold'].key}: under sync_style fixed the interval and the offset say"
            " how far the explorer is ahead",
            hint="leave it out, or write synchronizer.sync_style: fully_async",
        )
    return {**fields, "scoring": scoring_of(config, verl)}


def check_values(config: Tree) -> None:
    """Raise UserError for the first setting of the file whose value is not valid, also if nothing uses it."""
    for name in SETTINGS:
        setting_of(config, name)


def setting_of(config: Tree, name: str, *, default: object = _UNSET) -> SettingValue:
    """The value of one setting: the file's, its fallback's, else ``default`` or the table's default.

    Raises UserError.
    """
    setting = SETTINGS[name]
    spelled, value = _written(config, setting)
    if value is not _UNSET:
        return setting.checked(value, spelled)
    return setting.default if default is _UNSET else default


def _written(config: Tree, setting: RunSetting) -> tuple[str, object]:
    """The name under which the file sets it, and the value, ``_UNSET`` for neither."""
    own = verl_from_trinity.compat_of(config).get(setting.name, _UNSET)
    if own is not _UNSET and (own is not None or setting.no_limit):
        return setting.key, own
    if setting.fallback and not verl_from_trinity.from_launch(config):
        fallback = TrinityReader(config).get(setting.fallback)
        if fallback is not None:
            return setting.fallback, fallback
    return setting.key, _UNSET


def scoring_of(config: Tree, verl: Tree) -> ScoringSpec:
    """The limits of scoring; without a setting as in veRL: an error ends the run, except under ``prime``.

    Raises UserError.
    """
    function = value_at(verl, "reward.custom_reward_function.path")
    by_model = bool(value_at(verl, "reward.reward_model.enable") and not function)
    is_prime = value_at(verl, "reward.reward_manager.name") == "prime"
    timeout = {"default": REWARD_MODEL_TIMEOUT_S} if by_model else {}
    on_failure = setting_of(config, "reward_failure")
    return ScoringSpec(
        timeout_s=setting_of(config, "reward_timeout", **timeout),
        on_error=on_failure or ("zero" if is_prime else "raise"),
        on_hang=on_failure or ("raise" if by_model else "zero"),
        memory_gb=setting_of(config, "reward_memory"),
    )


def retries(config: Tree) -> int:
    """The number of further attempts at a task whose rollout failed. Raises UserError."""
    path = "explorer.max_retry_times"
    times = None if verl_from_trinity.from_launch(config) else TrinityReader(config).get(path)
    if times is None:
        return 2
    if not is_whole(times, least=0):
        raise UserError(f"{path} is {times!r}: write a number of times, 0 or more")
    return times


def max_staleness(config: Tree, sync: SyncSpec, r: int) -> int | None:
    """Return the limit in veRL steps, or None if there is none.

    Raises UserError for a limit that the sync style always exceeds.
    """
    limit = verl_from_trinity.max_staleness_of(config)
    lag = least_staleness(sync)
    if limit is not None and lag > limit:
        raise UserError(
            f"algorithm.sample_strategy_args.max_staleness allows {limit} veRL steps; under sync_style"
            f" {sync.style} its intervals and offset make it {lag}",
            hint=f"write at least {lag * r} (optimizer updates), or a smaller sync_interval or sync_offset",
        )
    return limit


def least_staleness(sync: SyncSpec) -> int:
    """The staleness in veRL steps that the sync style causes, however fast both sides are.

    Under ``fixed`` its rule decides, under ``explorer_driven`` it is 0, else the trainer's interval.
    """
    if sync.style == "explorer_driven":
        return 0
    if sync.style != "fixed":
        return trainer_interval(sync) - 1
    # The rule repeats with both intervals; this range includes its maximum.
    steps = range(1, 2 * (sync.offset + sync.interval + explorer_interval(sync)) + 2)
    return max(expected_lag(sync, step) or 0 for step in steps)
