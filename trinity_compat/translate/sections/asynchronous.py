"""veRL's asynchronous mains and modes, expressed in the keys of main_ppo as it trains synchronously.

These are one_step_off_policy, fully_async_policy, and the asynchronous modes of main_ppo (trainer.v1). They
train by the same losses, and most of their keys are the same. Their own are: GPUs for the rollout, the lead
of the rollouts over training (`AsyncLead`), and units: samples (groups of rollout.n answers) and versions of
the weights, where main_ppo has train batches and steps. Here a step is what veRL's trainer takes at once.

Sources are files of veRL 0.9.1, those of fully_async_policy in verl/experimental.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from trinity_compat.common.errors import UserError
from trinity_compat.common.releases import VERL
from trinity_compat.launch import entrypoints
from trinity_compat.translate.launch_view import ARR, AsyncLead, KeyRefused, LaunchView, Verdict
from trinity_compat.translate.model import Status
from trinity_compat.translate.sections import Derived, derivation
from trinity_compat.translate.sections.algorithm import BYPASS
from trinity_compat.translate.sections.batch import EPOCHS, SAVE, TEST, TOTAL, training_rows
from trinity_compat.translate.update_steps import BATCH, MINI
from trinity_compat.verl_config import KeyMove
from trinity_compat.verl_config.model import Setting


@dataclass
class MainPpoSettings:
    """The settings of main_ppo that stand for ``origin``. ``own``: prefixes of keys that it doesn't have."""

    origin: LaunchView
    own: tuple[str, ...] = ()
    settings: dict[str, Setting] = field(default_factory=dict)
    reworded: dict[str, str] = field(default_factory=dict)
    moves: list[KeyMove] = field(default_factory=list)
    verdicts: list[Verdict] = field(default_factory=list)

    def put(self, key: str, value: object, *sources: str, join: str = " × ") -> None:
        """Set ``key`` to ``value``, from ``sources``; the first one in the launch gives its place."""
        view = self.origin
        known = [source for source in sources if view.has(source)]
        given = next((source for source in known if view.is_set(source)), key)
        base = view.config.settings.get(given, Setting(key, value))
        self.settings[key] = replace(base, key=key, value=value, interpolation=None)
        self.reworded[key] = join.join(f"{source}={view.value(source)}" for source in known)

    def move(self, old: str, new: str, why: str) -> None:
        """Rename a key to the one that main_ppo has in its place."""
        if self.origin.has(old):
            self.put(new, self.origin.value(old), old)
            self.moves.append(KeyMove(old, (new,), why, self.origin.is_set(old)))

    def every(self, key: str, source: str, times: int, unit: str) -> None:
        """Set the interval ``source``, which counts units of ``times`` steps each, as ``unit`` says."""
        count = self.origin.integer(source, -1)
        if count > 0:
            self.put(key, count * times, source, unit)
        elif source != key:
            self.put(key, -1, source)

    def idle(self, key: str, reason: str) -> None:
        """Record a key of main_ppo's that has no effect in the launch's main."""
        self.verdicts.append(Verdict(key, Status.NO_EFFECT, reason))

    def view(self, async_schedule: AsyncLead | None = None) -> LaunchView:
        """Return the launch in main_ppo's keys."""
        origin = self.origin
        return replace(
            origin,
            config=replace(origin.config, settings=self._laid_over(origin.config.settings)),
            symbolic=self._laid_over(origin.symbolic),
            async_schedule=async_schedule,
            reworded=self.reworded,
            verdicts=tuple(self.verdicts),
        )

    def _laid_over(self, settings: Mapping[str, Setting]) -> dict[str, Setting]:
        kept = {key: setting for key, setting in settings.items() if not key.startswith(self.own)}
        return kept | self.settings


ASYNC, OWN = "async_training", "rollout"  # the two sections that only the asynchronous mains have
REQUIRED, TRIGGER = f"{ASYNC}.require_batches", f"{ASYNC}.trigger_parameter_sync_step"
STALENESS, PARTIAL = f"{ASYNC}.staleness_threshold", f"{ASYNC}.partial_rollout"
ROLLOUT_LOG_PROBS, PROXIMAL = f"{ASYNC}.use_rollout_log_probs", f"{ASYNC}.compute_prox_log_prob"
SAMPLES, OWN_EPOCHS, OWN_TEST = f"{OWN}.total_rollout_steps", f"{OWN}.total_epochs", f"{OWN}.test_freq"
DRAWN = "data.gen_batch_size"
MEMORY = f"{ARR}.rollout.gpu_memory_utilization"
STANDALONE_MEMORY = f"{ARR}.rollout.standalone_gpu_memory_utilization"
V1 = "trainer.v1"
MODE, USE_V1 = f"{V1}.trainer_mode", "trainer.use_v1"
SEPARATE, COLOCATE = "separate_async", "colocate_async"
_OF_SEPARATE = "trainer/ppo/v1/trainer_separate_async.py"
SYNC_STEP = f"{V1}.{SEPARATE}.parameter_sync_step"
_TRANSPORT = f"{ARR}.rollout.checkpoint_engine."  # to GPUs of the rollout's own; main_ppo has none
_SECTIONS = (f"{ASYNC}.", f"{OWN}.", _TRANSPORT)
_LENT, _CUSTOM = f"{SEPARATE}.hybrid_rollout.", "sampler.custom_sampler."
NO_STEP = "veRL trains no step"  # as scripts/judge/start_corpus.py counts it


def as_main_ppo(view: LaunchView) -> tuple[LaunchView, tuple[KeyMove, ...]]:
    """Return ``view`` in main_ppo's keys, and the keys that have another name there.

    The view itself if the launch is main_ppo's synchronous training. Raises UserError for a value that veRL
    refuses too.
    """
    main = entrypoints.canonical(view.launch.taken_for)
    if main == entrypoints.ONE_STEP_OFF:
        ppo = MainPpoSettings(view, _SECTIONS)
        _gpus(ppo)
        return ppo.view(AsyncLead(offset=1)), tuple(ppo.moves)
    if main == entrypoints.FULLY_ASYNC:
        return _fully_async(view)
    mode = view.value(MODE) if view.origin.get(USE_V1) else None
    if mode in (SEPARATE, COLOCATE):
        return _v1(view, str(mode)), ()
    filtered = view.flag("algorithm.filter_groups.enable")
    return (view if filtered or view.value(DRAWN) in (None, view.value(BATCH)) else _drawn(view)), ()


@derivation
def asynchronous(view: LaunchView) -> Derived:
    """Yield verdicts on keys that the launch's main reads otherwise than main_ppo does, or not at all."""
    yield from view.verdicts
    if view.where(USE_V1) is not None and not view.value(USE_V1):
        yield Verdict(USE_V1, Status.NO_EFFECT, "trinity-compat uses v0 unless the launch asks for v1")
    yield from _of_v1(view)
    if view.async_schedule is None:
        yield from _other_mode(view)
    if view.async_schedule is not None and view.async_schedule.interval > 1 and not view.flag(BYPASS.key):
        reason = (
            "trinity-compat recomputes old log-probabilities with the weights at the start of each step; this"
            f" main uses those of its last version, up to {view.async_schedule.interval} steps older"
        )
        yield Verdict(BYPASS.key, Status.APPROXIMATED, reason)
        yield Verdict(PROXIMAL, Status.APPROXIMATED, reason)


def _of_v1(view: LaunchView) -> Derived:
    """Yield verdicts on the settings of v1's trainer that veRL does not read in the launch's mode.

    Source: trainer_base.py and replay_buffer.py of verl/trainer/ppo/v1, beside the file of each mode.
    """
    given = [key for key in view.origin.settings if key.startswith(f"{V1}.") and key != MODE]
    mode = str(view.origin.get(MODE)) if view.origin.get(USE_V1) else ""
    for key in given:
        if reason := _unread_of_v1(view, key.removeprefix(f"{V1}."), mode):
            yield Verdict(key, Status.NO_EFFECT, reason)


def _unread_of_v1(view: LaunchView, name: str, mode: str) -> str:
    """Return why v1's trainer does not read ``name`` in ``mode``, "" where it does; mode "" is v0."""
    section = name.partition(".")[0]
    if not mode:
        return f"{USE_V1} is off"
    if section in (SEPARATE, COLOCATE, "sync") and section != mode:
        return f"{MODE} is not {section}"
    if name.startswith(_LENT) and not view.origin.get(f"{V1}.{_LENT}enable_switch"):
        return f"{V1}.{_LENT}enable_switch is off"
    if name.startswith(_LENT) and view.origin.get(f"{ARR}.hybrid_engine") is False:
        return f"{ARR}.hybrid_engine=False leaves no engine on the trainer's GPUs"
    if name.startswith("sampler.max_off_policy_") and mode == "sync":
        return "mode sync trains on the answers of its own step"
    if name == "sampler.sync_refill_failed_groups" and mode != "sync":
        return f"mode {mode} replaces a prompt whose answers failed in any case"
    own = [view.origin.get(f"{V1}.{_CUSTOM}{part}") for part in ("path", "name")]
    if name.startswith(_CUSTOM) and not all(own):
        return "veRL wants both path and name"
    return ""


def _other_mode(view: LaunchView) -> Derived:
    """Yield the verdict on a mode of v1's trainer that isn't veRL's (verl/trainer/ppo/v1/trainer_base.py)."""
    mode = view.value(MODE)
    if mode in (None, "sync"):
        return
    if not view.origin.get(USE_V1):
        yield Verdict(MODE, Status.NO_EFFECT, f"{USE_V1} is off")
    else:
        reason = f"veRL has no mode '{mode}' unless code of yours registers it: trained as sync"
        yield Verdict(MODE, Status.UNSUPPORTED, reason)


def _drawn(view: LaunchView) -> LaunchView:
    """Translate ``data.gen_batch_size`` where no group is filtered.

    Until 0.8 the trainer's loader is cut by it, and a step trains all that it has drawn
    (trainer/ppo/ray_trainer.py, recipe/dapo/dapo_ray_trainer.py); the trainers of v1 only fetch so many
    prompts at a time (trainer/ppo/v1/trainer_base.py).
    """
    ppo = MainPpoSettings(view, (DRAWN,))
    if view.origin.get(USE_V1):
        ppo.idle(DRAWN, f"without algorithm.filter_groups a step takes {BATCH}={view.value(BATCH)} prompts")
        return ppo.view()
    ppo.put(BATCH, view.size(DRAWN), DRAWN)
    without = "without algorithm.filter_groups veRL trains all that it draws"
    ppo.idle(BATCH, f"{without}: {ppo.reworded[BATCH]} prompts a step")
    ppo.verdicts.append(Verdict(DRAWN, Status.DERIVED, f"{without}: it is the train batch"))
    return ppo.view()


def _fully_async(view: LaunchView) -> tuple[LaunchView, tuple[KeyMove, ...]]:
    ppo = MainPpoSettings(view, (*_SECTIONS, DRAWN))
    ahead = AsyncLead(
        "fully_async",
        interval=view.size(TRIGGER),
        staleness=_at_least_0(view, STALENESS, 1),
        partial=view.flag(PARTIAL, True),
        sources=(TRIGGER, STALENESS, PARTIAL),
    )
    _gpus(ppo)
    _batch(ppo)
    # Both count versions: _fit_save_checkpoint and _fit_validate in fully_async_trainer.py. Until 0.7
    # rollout.test_freq was read (recipe/fully_async_policy/fully_async_rollouter.py).
    test = OWN_TEST if view.has(OWN_TEST) else TEST
    for key, source in ((SAVE, SAVE), (TEST, test)):
        ppo.every(key, source, ahead.interval, TRIGGER)
    if test != TEST:
        ppo.idle(TEST, f"until 0.7, fully_async read {OWN_TEST} instead of this key")
    _length(ppo)
    _old_log_probs(ppo)
    if view.value(STANDALONE_MEMORY) is not None:
        ppo.put(MEMORY, view.number(STANDALONE_MEMORY), STANDALONE_MEMORY)
    return ppo.view(ahead), tuple(ppo.moves)


def _gpus(ppo: MainPpoSettings) -> None:
    """Translate the rollout's own GPUs.

    Source: ``main`` in one_step_off_policy/main_ppo.py and fully_async_policy/fully_async_main.py.
    """
    for name in ("nnodes", "n_gpus_per_node"):
        ppo.move(f"{OWN}.{name}", f"{ARR}.rollout.{name}", "the main itself writes it there")


def _batch(ppo: MainPpoSettings) -> None:
    """Translate the batch that the trainer takes at once: ``required_samples`` in fully_async_trainer.py.

    train_batch_size has to be 0 there, and samples are generated one by one.
    """
    view = ppo.origin
    mini = view.integer(MINI)
    if mini < 1:
        raise view.refused(MINI, f"{view.written(MINI)} should be 1 or more")
    ppo.put(BATCH, view.size(REQUIRED) * mini, REQUIRED, MINI)
    ppo.idle(BATCH, f"fully_async wants 0: a step takes {ppo.reworded[BATCH]} samples")
    ppo.idle(DRAWN, "fully_async wants 1: samples are generated one by one")


def _length(ppo: MainPpoSettings) -> None:
    """Translate ``total_rollout_steps``, which counts samples; the epochs end the run too.

    Source: ``FullyAsyncRollouter`` in fully_async_rollouter.py. total_training_steps is overwritten.
    """
    view = ppo.origin
    ppo.idle(TOTAL, f"fully_async overwrites it: {SAMPLES} says how long it trains")
    if view.has(OWN_EPOCHS):
        epochs = min(view.integer(OWN_EPOCHS, 1), view.integer(EPOCHS, 1))
        ppo.put(EPOCHS, epochs, OWN_EPOCHS, EPOCHS, join=" and ")
        reason = f"until 0.7 {OWN_EPOCHS} ends the run too, whichever is smaller"
        ppo.verdicts.append(Verdict(EPOCHS, Status.DERIVED, reason))
    if view.value(SAMPLES) is None:
        ppo.put(TOTAL, None)
        return
    now = ppo.view()
    batch, samples, rows = now.integer(BATCH), view.integer(SAMPLES), training_rows(now)
    if rows is not None:
        samples = min(samples, rows * now.integer(EPOCHS, 1))
    if samples < batch:
        raise _too_few(ppo, samples, batch)
    ppo.put(TOTAL, samples // batch, SAMPLES)
    ppo.reworded[TOTAL] = f"{samples} samples ({ppo.reworded[TOTAL]}) ÷ {batch} of a step"


def _too_few(ppo: MainPpoSettings, samples: int, batch: int) -> KeyRefused:
    """Return the refusal of a run that ends before its first step.

    Source: ``set_max_required_samples`` in fully_async_rollouter.py, which then counts no step either.
    """
    view, trigger = ppo.origin, ppo.origin.size(TRIGGER)
    message = (
        f"{view.written(SAMPLES)}: {samples} samples do not fill one batch of {batch}; {NO_STEP}: "
        f"total_train_steps = int({samples} / ({batch} * {trigger})) = 0"
    )
    hint = f"a step takes {ppo.reworded[BATCH]}"
    if not view.is_set(SAMPLES):
        hint += "; the launch does not set the key: where the script has it, its command ends above (TP004)"
    where = view.where(SAMPLES) or view.launch.where
    return KeyRefused(view.spelling(SAMPLES), message, where=where, hint=hint)


def _old_log_probs(ppo: MainPpoSettings) -> None:
    """Translate the two keys that until 0.7 made the rollout's log-probabilities the old ones.

    Source: recipe/fully_async_policy/ray_trainer.py. rollout_correction.bypass_mode replaces them since.
    """
    view = ppo.origin
    if view.has(ROLLOUT_LOG_PROBS):
        bypass = view.flag(ROLLOUT_LOG_PROBS) and not view.flag(PROXIMAL)
        ppo.put(BYPASS.key, bypass, ROLLOUT_LOG_PROBS, PROXIMAL, join=" and ")


def _v1(view: LaunchView, mode: str) -> LaunchView:
    """Translate main_ppo's own asynchronous modes, since 0.9 (verl/trainer/ppo/v1).

    A step begins as many prompts as it trains, and ``num_warmup_batches`` were begun before the first
    (``_add_async_warmup_batches`` in trainer_base.py); answers go on over a change of weights. Under
    separate_async a train batch is trained, and its learning rate scheduled, in parts: parameter_sync_step.
    """
    own = (MODE, f"{V1}.{mode}.num_warmup_batches", *((SYNC_STEP, _TRANSPORT) if mode == SEPARATE else ()))
    ppo = MainPpoSettings(view, own)
    if view.value(DRAWN) is not None and not view.flag("algorithm.filter_groups.enable"):
        # _init_dataloader in trainer_base.py sets it to 1 in every mode but sync.
        ppo = MainPpoSettings(view, (*own, DRAWN))
        ppo.idle(DRAWN, f"{MODE}={mode} fetches one prompt at a time, whatever it says")
    warmup = f"{V1}.{mode}.num_warmup_batches"
    ahead = AsyncLead(
        "fully_async", staleness=_at_least_0(view, warmup, 1), partial=True, sources=("", warmup, MODE)
    )
    if mode == COLOCATE:
        return ppo.view(replace(ahead, in_turns=True))
    batch, parts = view.integer(BATCH), view.size(SYNC_STEP)
    if batch < 1 or batch % parts:
        raise view.refused(BATCH, f"{view.written(BATCH)} is not divisible by {SYNC_STEP}={parts}")
    if (mini := view.integer(MINI)) != batch // parts:
        raise UserError(
            f"{view.written(BATCH)} should be {SYNC_STEP}={parts} × {view.written(MINI)} = {parts * mini}"
            f" under {MODE}={SEPARATE}, or veRL refuses to start (verl {VERL}, {_OF_SEPARATE}:59)",
            where=view.where(BATCH) or view.where(MINI) or view.launch.where,
            hint=f"write {MINI}={batch // parts}, or {BATCH}={parts * mini}",
        )
    ppo.put(BATCH, batch // parts, BATCH, SYNC_STEP, join=" ÷ ")
    for key in (SAVE, TEST, TOTAL):
        ppo.every(key, key, parts, SYNC_STEP)
    return ppo.view(replace(ahead, interval=parts, sources=(SYNC_STEP, warmup, MODE)))


def _at_least_0(view: LaunchView, key: str, default: float) -> float:
    number = view.number(key, default)
    if number < 0:
        raise view.refused(key, f"{view.written(key)} should be 0 or more")
    return number
