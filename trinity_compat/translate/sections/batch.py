"""Batch sizes and steps, which Trinity counts in mini-batches and veRL in train batches."""

from __future__ import annotations

from collections.abc import Iterator

from trinity_compat.translate.launch_view import ARR, LaunchView, PathValue, Verdict, is_finite
from trinity_compat.translate.micro_batch_sizes import ACTOR, CRITIC, DYNAMIC, REF, ROLLOUT, MicroBatchSize
from trinity_compat.translate.model import Caution, Status, notice
from trinity_compat.translate.parquet import count_rows
from trinity_compat.translate.sections import Derived, VerlSettings, derivation, way_back
from trinity_compat.translate.sections.gpus import ranks_of
from trinity_compat.translate.trinity_reader import NEVER, FieldPair, TrinityReader
from trinity_compat.translate.update_steps import BATCH, MINI

SECTION = "synchronizer"
_FIXED = "veRL's order: every rollout waits for its weights"
_FULLY_ASYNC = "rollouts continue while the trainer trains, and take new weights in the middle of an answer"
# The old trinity-rft's style in which the explorer waits for nothing; it has no fully_async.
_OLD_STYLES = {"fully_async": "dynamic_by_trainer"}


def synchronized(view: LaunchView) -> Iterator[PathValue]:
    """Yield the times at which weights move. Units: Trinity's steps, r for one of veRL's."""
    style = view.async_schedule.style if view.async_schedule else "fixed"
    named = _OLD_STYLES.get(style, style) if view.old_trinity else style
    yield PathValue(
        f"{SECTION}.sync_method", _method(view), note="transport of the weights: nccl, checkpoint or memory"
    )
    yield PathValue(f"{SECTION}.sync_style", named, note=_FIXED if style == "fixed" else _FULLY_ASYNC)
    yield PathValue(f"{SECTION}.sync_interval", updates_per_version(view), *_of_interval(view))
    yield PathValue(f"{SECTION}.sync_offset", *_offset(view))
    if view.published:
        yield PathValue(f"{SECTION}.sync_timeout", 1200, note="as in the published guide")


def updates_per_version(view: LaunchView) -> int:
    """Optimizer updates between two sets of weights."""
    return view.r * (view.async_schedule.interval if view.async_schedule else 1)


def _of_interval(view: LaunchView) -> tuple[tuple[str, ...], str | None, str]:
    """Sources, note and what stands between the sources."""
    if view.async_schedule is None or view.async_schedule.interval == 1:
        return (BATCH, MINI), None, " ÷ "
    note = f"{view.async_schedule.sources[0]}={view.async_schedule.interval} × updates_per_step={view.r}"
    return (BATCH, MINI), note, " ÷ "


def _method(view: LaunchView) -> str:
    if view.value(f"{ARR}.model.lora_rank", 0):
        return "checkpoint"
    return "memory" if view.cluster == (1, 1) else "nccl"


def _offset(view: LaunchView) -> tuple[int, tuple[str, ...], str]:
    ahead = view.options.sync_offset
    if ahead:
        return ahead * view.r, (), f"{ahead} veRL step(s) ahead × updates_per_step={view.r} (--sync-offset)"
    if view.async_schedule is not None and view.async_schedule.style != "fixed":
        return 0, (), f"{view.async_schedule.sources[1]} says how far rollouts run ahead"
    if view.async_schedule is not None:
        note = f"one_step_off: rollouts run one step ahead; × updates_per_step={view.r}"
        return view.async_schedule.offset * view.r, (), note
    if view.published:
        return 1, (), "as in the published examples: the explorer is one mini-batch ahead"
    return 0, (), "on-policy, as veRL"


N = f"{ARR}.rollout.n"
REPEATS = FieldPair("algorithm.repeat_times", N)
GROUPS = "buffer.batch_size"
TOTAL = "trainer.total_training_steps"
TOTAL_STEPS = ("buffer.total_steps", "trainer.total_steps")
SAVE, TEST, WARMUP = "trainer.save_freq", "trainer.test_freq", "trainer.critic_warmup"
SAVE_INTERVAL, EVAL_INTERVAL = "trainer.save_interval", "explorer.eval_interval"
# The second in the old trinity-rft.
WARMUP_STEPS = ("trainer.critic_warmup", "trainer.trainer_config.trainer.critic_warmup")
KEEP_ACTOR, KEEP_CRITIC = "trainer.max_actor_ckpt_to_keep", "trainer.max_critic_ckpt_to_keep"
KEPT = "trainer.max_checkpoints_to_keep"
FILES, EPOCHS = "data.train_files", "trainer.total_epochs"


@derivation
def batch(view: LaunchView) -> Derived:
    """buffer.batch_size, train_batch_size, repeat_times, and the synchronizer's steps."""
    mini, n = view.mini, view.size(N)
    yield REPEATS.put(n)
    yield PathValue(GROUPS, mini, (MINI, BATCH) if view.updates.why else (MINI,))
    yield PathValue("buffer.train_batch_size", mini * n, (MINI, N), join=" × ")
    yield from synchronized(view)
    if view.updates.why:
        more = "; a fork that multiplies its samples has more steps" if view.forked else ""
        for key in (MINI,) if view.is_set(MINI) else (MINI, BATCH):
            yield Verdict(key, Status.APPROXIMATED, f"{view.updates.why}{more}")
    if view.r > 1:
        yield from _step_cautions(view)


@way_back
def batch_sizes(reading: TrinityReader) -> VerlSettings:
    """Batch sizes, and how long the run is."""
    size = reading.get(GROUPS)
    if size is not None:
        yield MINI, size
        yield BATCH, size * reading.r
    yield from reading.verl_values(REPEATS)
    total = limit_of(reading)
    if total is not None:
        yield TOTAL, total


def limit_of(reading: TrinityReader) -> int | None:
    """Return the veRL steps after which the run ends: Trinity's sides end at the lower of their limits.

    None where the file has no limit, so that its epochs decide. A limit of 0 limits nothing.

    Raises UserError for a count of updates that is not a whole number of veRL steps.
    """
    counts = [count for path in TOTAL_STEPS if (count := reading.steps(path)) is not None]
    return min((count for count in counts if count > 0), default=counts[0] if counts else None)


def _step_cautions(view: LaunchView) -> Iterator[Caution]:
    r, updates = view.r, updates_per_version(view)
    kept = updates * view.mini if view.async_schedule else "train_batch_size"
    yield notice(
        "TW001",
        f"one veRL step is {r} Trinity steps: buffer.batch_size is veRL's ppo_mini_batch_size, and "
        f"synchronizer.sync_interval={updates} keeps {kept} prompts per weight version",
        view.where(BATCH) or view.where(MINI),
    )
    if view.published:
        yield notice(
            "TW002",
            "step counts are written as in the published guide: save_interval, eval_interval, critic_warmup "
            f"and lr_warmup_steps come {r} times as often as under veRL",
            hint="leave out --as-published to have them rescaled",
        )
    else:
        yield notice(
            "TW002",
            f"numbers of steps are multiplied by updates_per_step={r}: Trinity counts optimizer updates",
        )


@derivation
def intervals(view: LaunchView) -> Derived:
    """Write save and test intervals, critic warm-up, and the number of checkpoints to keep."""
    save, test, warmup = view.integer(SAVE, -1), view.integer(TEST, -1), view.integer(WARMUP, 0)
    yield PathValue(SAVE_INTERVAL, max(save, 0) * view.step, (SAVE,), _times(view, SAVE, save))
    # The way back divides by r, and has to find NEVER again.
    never = NEVER * view.step
    interval, note = (
        (test * view.step, _times(view, TEST, test)) if test > 0 else (never, f"never: {TEST}={test}")
    )
    yield PathValue(EVAL_INTERVAL, interval, (TEST,), note)
    path = WARMUP_STEPS[view.old_trinity]
    yield PathValue(path, warmup * view.step, (WARMUP,), _times(view, WARMUP, warmup))
    actor, critic = view.value(KEEP_ACTOR), view.value(KEEP_CRITIC)
    if actor:
        yield PathValue(KEPT, view.integer(KEEP_ACTOR), (KEEP_ACTOR,))
    if critic != actor:
        yield Verdict(
            KEEP_CRITIC,
            Status.UNSUPPORTED_UPSTREAM,
            "Trinity keeps as many of the critic's checkpoints as of the actor's",
        )
    if test > 0 or view.flag("trainer.val_before_train", True):
        yield notice(
            "TW006",
            "Trinity evaluates before it takes new weights: its evaluation at a step measures the weights "
            "of the sync before, veRL's those just trained; trinity-compat follows veRL",
            view.where(TEST),
        )


@way_back
def counted_in_steps(reading: TrinityReader) -> VerlSettings:
    """Everything that happens every so many steps."""
    save = reading.steps(SAVE_INTERVAL)
    if save is not None:
        # Off is 0 in Trinity and -1 in veRL.
        yield SAVE, save or -1
    test = reading.steps(EVAL_INTERVAL)
    never = test is None or test >= NEVER or not reading.get("buffer.explorer_input.eval_tasksets")
    yield TEST, -1 if never else test
    for path in WARMUP_STEPS:
        warmup = reading.steps(path)
        if warmup is not None:
            yield WARMUP, warmup
    kept = reading.get(KEPT)
    if kept:
        yield KEEP_ACTOR, kept
        yield KEEP_CRITIC, kept


def _times(view: LaunchView, key: str, value: int) -> str | None:
    if value <= 0 or view.step == 1:
        return None
    return f"{view.note_text(key, value)} × updates_per_step={view.step}"


@derivation
def total_steps(view: LaunchView) -> Derived:
    """Write the length of the run: given, or from the number of rows of the training files."""
    if view.value(TOTAL) is not None:
        steps = view.size(TOTAL, least=0)
        note = f"{view.note_text(TOTAL, steps)} × updates_per_step={view.step}" if view.step > 1 else None
        yield PathValue(TOTAL_STEPS[0], steps * view.step, (TOTAL,), note)
        over = _ends_before(view, steps)
        if over is None:
            yield PathValue(TOTAL_STEPS[1], steps * view.step, (TOTAL,), note)
            return
        found, real = over
        yield PathValue(TOTAL_STEPS[1], real * view.step, (FILES, BATCH, EPOCHS), _counted(view, found))
        yield Caution(
            "TW014",
            f"veRL ends with its epochs, after {real} steps ({_counted(view, found)}), not after {steps}",
            view.where(TOTAL),
            f"raise {EPOCHS} for all of them",
        )
        return
    # A variable that nobody sets is the YAML's, too, as long as nothing has to be counted by it.
    if is_finite(view.value(EPOCHS)):
        view.size(EPOCHS, least=0)
    if view.published:
        return
    rows = training_rows(view)
    if rows is None:
        yield _unknown_length(view)
        return
    # veRL's loader drops the last batch where it is not full.
    per_epoch = rows // view.integer(BATCH)
    epochs = view.size(EPOCHS, least=0)
    steps = per_epoch * epochs
    if epochs == 0:
        return
    if steps == 0:
        yield Caution("TW014", f"the {rows} training rows do not fill one batch of {view.integer(BATCH)}")
        return
    yield PathValue(TOTAL_STEPS[1], steps * view.r, (FILES, BATCH, EPOCHS), _counted(view, rows))
    if view.flag("data.filter_overlong_prompts"):
        yield Caution(
            "TW014",
            f"trainer.total_steps counts all {rows} rows; what filter_overlong_prompts drops makes it less",
            view.where("data.filter_overlong_prompts"),
        )


def _counted(view: LaunchView, rows: int) -> str:
    return f"⌊{rows} rows ÷ {BATCH}⌋ × total_epochs × updates_per_step={view.r}"


def _ends_before(view: LaunchView, steps: int) -> tuple[int, int] | None:
    """Return the training rows and the steps of all epochs, if these are fewer than ``steps``.

    veRL's loop goes through its epochs and no further (0.9.1, ray_trainer.py: fit). None if they are not
    fewer, or not known.
    """
    if view.published or view.async_schedule or not is_finite(view.value(EPOCHS)):
        return None
    rows = training_rows(view)
    if not rows:
        return None
    # v0 counts an epoch's steps by its loader, v1 by the train batch (0.9.1, trainer_base.py).
    drawn = None if view.value("trainer.use_v1") else view.value("data.gen_batch_size")
    loaded = int(drawn) if is_finite(drawn) and drawn else view.integer(BATCH)
    real = rows // loaded * view.size(EPOCHS, least=0)
    return (rows, real) if 0 < real < steps else None


def _unknown_length(view: LaunchView) -> Caution:
    ratio = view.value(f"{ARR}.actor.optim.lr_warmup_steps_ratio", 0)
    critic = view.value("critic.optim.lr_warmup_steps_ratio", 0) if view.has("critic.optim.lr") else 0
    if ratio or critic:
        return Caution(
            "TW003",
            "lr_warmup_steps_ratio without a known number of steps: Trinity-RFT takes the run as "
            "endless, so the learning rate stays near 0",
            view.where(f"{ARR}.actor.optim.lr_warmup_steps_ratio"),
            "translate where the parquet files are, or give trainer.total_training_steps",
        )
    return notice("TW014", "the number of steps is not known: the training files cannot be read here")


def training_rows(view: LaunchView) -> int | None:
    """Return the rows of all training files; None if one of them cannot be read here."""
    total = 0
    for file in view.symbols.plain(view.texts(FILES)):
        rows = count_rows(file, view.launch.cwd)
        if rows is None:
            return None
        total += rows
    limit = view.integer("data.train_max_samples", -1)
    return min(total, limit) if limit > 0 else total


TC = "trainer.trainer_config"


@derivation
def micro_batches(view: LaunchView) -> Derived:
    """The actor's, the old log-probabilities', the reference's and the critic's."""
    dynamic = view.flag(DYNAMIC)
    for size in map(MicroBatchSize, (ACTOR, ROLLOUT, REF, *([CRITIC] if view.critic else []))):
        if view.value(size.per_gpu) is not None:
            yield PathValue(f"{TC}.{size.per_gpu}", view.integer(size.per_gpu), (size.per_gpu,))
        elif dynamic:
            yield Verdict(size.all_gpus, Status.NO_EFFECT, "use_dynamic_bsz is on", "TC032")
        elif not view.old_trinity or view.value(size.all_gpus) is not None:
            yield from _derived(view, size)


def _derived(view: LaunchView, size: MicroBatchSize) -> Iterator[PathValue | Verdict]:
    for key in (size.all_gpus, f"{ACTOR}_per_gpu", ACTOR):
        value = view.value(key)
        if value is None:
            continue
        ranks = 1 if key.endswith("_per_gpu") else ranks_of(view, size.role)
        share = f" ÷ {ranks} ranks of the launch" if ranks > 1 else ""
        note = f"{key.removeprefix(ARR + '.')}={value}{share}: Trinity-RFT demands it without dynamic batches"
        yield PathValue(f"{TC}.{size.per_gpu}", max(1, view.integer(key) // ranks), (size.all_gpus,), note)
        return
    yield PathValue(f"{TC}.{size.per_gpu}", 1, (size.all_gpus,), "not given: one sequence at a time")
    reason = "the launch gives no micro-batch size, and veRL refuses to start without one; the YAML has 1"
    if not view.launch.knows_all_keys:
        reason = "not known here, since an argument of the launch is not; the YAML has 1"
    yield Verdict(size.per_gpu, Status.APPROXIMATED, reason)
