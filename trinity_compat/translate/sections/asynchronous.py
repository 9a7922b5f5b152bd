"""veRL's own asynchronous mains, one_step_off_policy and fully_async_policy, said in main_ppo's words.

They train by main_ppo's losses, and most of their keys are main_ppo's. What is theirs: GPUs of the rollout's
own, how far rollouts run ahead of training (`Ahead`), and under fully_async units: samples (groups of
rollout.n answers) and versions of the weights, where main_ppo has train batches and steps. Here a step is
what veRL's trainer takes at once: require_batches mini-batches.

Sources are files of veRL 0.9.1's verl/experimental.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from trinity_compat import mains
from trinity_compat.translate.launch_view import ARR, Ahead, LaunchView, Verdict
from trinity_compat.translate.model import Status
from trinity_compat.translate.registry import Said, derivation
from trinity_compat.translate.sections.algorithm import BYPASS
from trinity_compat.translate.sections.batch import SAVE, TEST, TOTAL, training_rows
from trinity_compat.translate.steps import BATCH, MINI
from trinity_compat.verl_config import Move
from trinity_compat.verl_config.model import Setting

ASYNC, OWN = "async_training", "rollout"  # the two sections that only these mains have
REQUIRED, TRIGGER = f"{ASYNC}.require_batches", f"{ASYNC}.trigger_parameter_sync_step"
STALENESS, PARTIAL = f"{ASYNC}.staleness_threshold", f"{ASYNC}.partial_rollout"
ROLLOUT_LOG_PROBS, PROXIMAL = f"{ASYNC}.use_rollout_log_probs", f"{ASYNC}.compute_prox_log_prob"
SAMPLES, OWN_EPOCHS, OWN_TEST = f"{OWN}.total_rollout_steps", f"{OWN}.total_epochs", f"{OWN}.test_freq"
EPOCHS = "trainer.total_epochs"
DRAWN = "data.gen_batch_size"
MEMORY = f"{ARR}.rollout.gpu_memory_utilization"
STANDALONE_MEMORY = f"{ARR}.rollout.standalone_gpu_memory_utilization"
_UNIFIED = "the main itself writes it there"


def in_main_ppo_s_words(view: LaunchView) -> tuple[LaunchView, tuple[Move, ...]]:
    """``view`` as main_ppo would be told it, and the keys that have another name there; of main_ppo and
    main_dapo the view itself. Raises UserError for a value that veRL's main refuses too."""
    main = mains.canonical(view.launch.taken_for)
    if main == mains.ONE_STEP_OFF:
        said = _Words(view)
        said.gpus()
        return said.view(Ahead(offset=1)), tuple(said.moves)
    if main == mains.FULLY_ASYNC:
        return _fully_async(view)
    return view, ()


def _fully_async(view: LaunchView) -> tuple[LaunchView, tuple[Move, ...]]:
    said = _Words(view)
    trigger = view.size(TRIGGER)
    said.gpus()
    said.batch()
    said.intervals(trigger)
    said.length()
    said.old_log_probs()
    if view.value(STANDALONE_MEMORY) is not None:
        said.put(MEMORY, view.number(STANDALONE_MEMORY), STANDALONE_MEMORY)
    ahead = Ahead(
        "fully_async",
        interval=trigger,
        staleness=_part(view, STALENESS),
        partial=view.flag(PARTIAL, True),
    )
    return said.view(ahead), tuple(said.moves)


@derivation
def asynchronous(view: LaunchView) -> Said:
    """Keys of main_ppo's that fully_async reads otherwise, or not at all."""
    if view.ahead is None or view.ahead.style == "fixed":
        return
    takes = f"fully_async wants 0: a step takes {view.reworded[BATCH]} samples"
    yield Verdict(BATCH, Status.NO_EFFECT, takes)
    yield Verdict(DRAWN, Status.NO_EFFECT, "fully_async wants 1: samples are generated one by one")
    yield Verdict(TOTAL, Status.NO_EFFECT, f"fully_async overwrites it: {SAMPLES} says how long it trains")
    if view.origin.get(OWN_TEST) is not None:
        yield Verdict(TEST, Status.NO_EFFECT, f"until 0.7 fully_async read {OWN_TEST} in its place")
    if OWN_EPOCHS in view.origin.settings and view.reworded.get(EPOCHS):
        yield Verdict(EPOCHS, Status.DERIVED, f"until 0.7 {OWN_EPOCHS} ends the run too; the smaller counts")
    if view.ahead.interval > 1 and not view.flag(BYPASS.key):
        reason = (
            "the trainer recomputes old log-probabilities with the weights at the start of each step, "
            f"fully_async with those of its last version, up to {view.ahead.interval} steps ago"
        )
        yield Verdict(BYPASS.key, Status.APPROXIMATED, reason)
        yield Verdict(PROXIMAL, Status.APPROXIMATED, reason)


def _part(view: LaunchView, key: str) -> float:
    """A number, 0 or more, as the main demands it; its default is 1 where the configuration lacks the key."""
    part = view.number(key, 1)
    if part < 0:
        raise view.refused(key, f"{view.written(key)} should be 0 or more")
    return part


@dataclass
class _Words:
    """The settings in the making: what main_ppo is told instead, and of which keys that was made."""

    origin: LaunchView
    settings: dict[str, Setting] = field(default_factory=dict)
    reworded: dict[str, str] = field(default_factory=dict)
    moves: list[Move] = field(default_factory=list)

    def put(self, key: str, value: object, *sources: str, join: str = " × ") -> None:
        """``key`` has ``value``, made of ``sources``: it has the place of the first that the launch gives."""
        view = self.origin
        known = [source for source in sources if view.has(source)]
        given = next((source for source in known if view.is_set(source)), key)
        base = view.config.settings.get(given, Setting(key, value))
        self.settings[key] = replace(base, key=key, value=value, interpolation=None)
        self.reworded[key] = join.join(f"{source}={view.value(source)}" for source in known)

    def move(self, old: str, new: str, why: str) -> None:
        """A key that main_ppo has under another name."""
        if self.origin.has(old):
            self.put(new, self.origin.value(old), old)
            self.moves.append(Move(old, (new,), why, self.origin.is_set(old)))

    def gpus(self) -> None:
        """Source: ``main`` in one_step_off_policy/main_ppo.py and fully_async_policy/fully_async_main.py."""
        for name in ("nnodes", "n_gpus_per_node"):
            self.move(f"{OWN}.{name}", f"{ARR}.rollout.{name}", _UNIFIED)

    def batch(self) -> None:
        """What the trainer takes at once: ``required_samples`` in fully_async_policy/fully_async_trainer.py.
        train_batch_size has to be 0 there, and samples are generated one by one."""
        view = self.origin
        mini = view.integer(MINI)
        if mini < 1:
            raise view.refused(MINI, f"{view.written(MINI)} should be 1 or more")
        self.put(BATCH, view.size(REQUIRED) * mini, REQUIRED, MINI)

    def intervals(self, trigger: int) -> None:
        """Both count versions, one every ``trigger`` steps: ``_fit_save_checkpoint`` and ``_fit_validate`` in
        fully_async_policy/fully_async_trainer.py. Until 0.7 ``rollout.test_freq`` was the one that was read
        (recipe/fully_async_policy/fully_async_rollouter.py)."""
        test = OWN_TEST if self.origin.has(OWN_TEST) else TEST
        for key, source in ((SAVE, SAVE), (TEST, test)):
            every = self.origin.integer(source, -1)
            if every > 0:
                self.put(key, every * trigger, source, TRIGGER)
            elif source != key:
                self.put(key, -1, source)

    def length(self) -> None:
        """``total_rollout_steps`` counts samples, and the epochs end the run too: ``FullyAsyncRollouter`` in
        fully_async_policy/fully_async_rollouter.py. total_training_steps is overwritten."""
        view = self.origin
        if view.has(OWN_EPOCHS):
            epochs = min(view.integer(OWN_EPOCHS, 1), view.integer(EPOCHS, 1))
            self.put(EPOCHS, epochs, OWN_EPOCHS, EPOCHS, join=" and ")
        if view.value(SAMPLES) is None:
            self.put(TOTAL, None)
            return
        now = self.view(None)
        batch, samples, rows = now.integer(BATCH), view.integer(SAMPLES), training_rows(now)
        if rows is not None:
            samples = min(samples, rows * now.integer(EPOCHS, 1))
        if samples < batch:
            message = f"{view.written(SAMPLES)}: {samples} samples do not fill one batch of {batch}"
            raise view.refused(SAMPLES, message, f"a step takes {self.reworded[BATCH]}")
        self.put(TOTAL, samples // batch, SAMPLES)
        self.reworded[TOTAL] = f"{samples} samples ({self.reworded[TOTAL]}) ÷ {batch} of a step"

    def old_log_probs(self) -> None:
        """Until 0.7 two keys said whether the rollout's log-probabilities are the old ones
        (recipe/fully_async_policy/ray_trainer.py), which rollout_correction.bypass_mode says since."""
        view = self.origin
        if view.has(ROLLOUT_LOG_PROBS):
            bypass = view.flag(ROLLOUT_LOG_PROBS) and not view.flag(PROXIMAL)
            self.put(BYPASS.key, bypass, ROLLOUT_LOG_PROBS, PROXIMAL, join=" and ")

    def view(self, ahead: Ahead | None) -> LaunchView:
        """The launch with these settings, less the keys that main_ppo doesn't have."""
        origin = self.origin
        config = replace(origin.config, settings=self._laid_over(origin.config.settings))
        symbolic = self._laid_over(origin.symbolic)
        return replace(origin, config=config, symbolic=symbolic, ahead=ahead, reworded=self.reworded)

    def _laid_over(self, settings: Mapping[str, Setting]) -> dict[str, Setting]:
        gone = (DRAWN,) if BATCH in self.settings else ()
        kept = {
            key: setting
            for key, setting in settings.items()
            if not key.startswith((f"{ASYNC}.", f"{OWN}.")) and key not in gone
        }
        return kept | self.settings
