"""Advice as a table for a terminal, and as JSON: ``{"version": 1, "modes": […]}``, whose fields stay."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from functools import partial

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from trinity_compat.advise.memory import ModeMemory
from trinity_compat.advise.model import Advice, ModeAdvice, Schedule
from trinity_compat.common.output_text import styled

_WIDTH_OF_A_FILE = 140
_EQUAL = 1.01  # of the shortest step
_NAMED = 4  # settings that need less memory


def as_json(advice: Advice) -> str:
    """Return the advice as JSON."""
    work, speeds, best = advice.work, advice.speeds, fastest(advice)
    data = {
        "version": 1,
        "source": advice.source,
        "gpus": advice.gpus,
        "seed": advice.seed,
        "workload": {
            "train_batch_size": work.groups,
            "n": work.answers,
            "prompt_tokens": round(work.prompt, 1),
            "answer_tokens_mean": round(work.lengths.mean, 1),
            "answer_tokens_p99": round(work.lengths.p99, 1),
            "answer_tokens_limit": work.lengths.limit,
        },
        "speeds": {**asdict(speeds), "engine_tokens_per_s": speeds.full_rate},
        "launch": _mode(advice.launch, advice) if advice.launch else None,
        "modes": [_mode(mode, advice) for mode in advice.modes],
        "fastest": best.name if best else None,
        "splits": [
            {
                "explorer_gpus": split.explorer,
                "trainer_gpus": split.trainer,
                "refused": split.why or None,
                "step_s": {name: round(value, 3) for name, value in split.step_s.items()},
            }
            for split in advice.splits
        ],
        "assumptions": list(advice.assumptions),
    }
    return json.dumps(data, indent=1, ensure_ascii=False)


def _mode(mode: ModeAdvice, advice: Advice) -> dict[str, object]:
    found, schedule = mode.prediction, mode.schedule
    data: dict[str, object] = {
        "name": mode.name,
        "command": command(mode, advice),
        "refused": mode.why or None,
    }
    if found is None or schedule is None:
        return data
    return data | {
        "in_turns": schedule.in_turns,
        "explorer_gpus": schedule.engines * schedule.width,
        "trainer_gpus": schedule.trainer,
        "engines": schedule.engines,
        "gpu_time_used": round(found.used, 4),
        "engines_full": round(found.engines_full, 4),
        "step_s": round(found.step_s, 3),
        "of_stock": of_stock(mode, advice),
        "generation_s": round(found.generation_s, 3),
        "training_s": round(found.training_s, 3),
        "staleness_mean": round(found.staleness, 3),
        "staleness_max": found.staleness_max,
        "memory": _memory_data(mode.memory),
        "lanes": [
            {
                "side": lane.side,
                "step": lane.step,
                "version": lane.version,
                "begin_s": round(lane.begin, 3),
                "end_s": round(lane.end, 3),
                "busy": round(lane.busy, 4),
                "lag": lane.lag,
            }
            for lane in found.lanes
        ],
    }


def _memory_data(found: ModeMemory | None) -> dict[str, object] | None:
    if found is None:
        return None
    return {
        "card_gib": found.card_gib,
        "trainer": {**asdict(found.trainer), "total": found.trainer.total} if found.trainer else None,
        "engine": asdict(found.engine),
        "resident_gib": found.resident,
        "awake_gib": found.awake,
        "savings": [asdict(each) for each in found.savings],
        "problems": list(found.problems),
    }


def of_stock(mode: ModeAdvice, advice: Advice) -> float | None:
    """Return the mode's step time as a share of stock's."""
    stock = advice.stock.prediction
    if mode.prediction is None or stock is None:
        return None
    return round(mode.prediction.step_s / stock.step_s, 3)


def command(mode: ModeAdvice, advice: Advice) -> str | None:
    """Return the command that runs the mode; None where it is not one of `run`."""
    if mode.settings is None:
        return None
    given = shlex.join([advice.source, *advice.options])
    arguments = ["--", shlex.join(advice.arguments)] if advice.arguments else []
    return " ".join(["trinity-compat run", given, *mode.settings, *arguments])


def as_text(advice: Advice) -> str:
    """Return the advice as text; in colour when stdout is a terminal."""
    return styled(partial(_print, advice), width=_WIDTH_OF_A_FILE)


def _print(advice: Advice, console: Console) -> None:
    console.print(_modes(advice))
    for why, names in _grouped((mode.why, mode.name) for mode in advice.modes if mode.why).items():
        console.print(f"[bold]{escape(names)}[/] cannot run here: {escape(why)}", soft_wrap=True)
    if best := fastest(advice):
        console.print(f"\n{escape(_conclusion(best, advice))}", soft_wrap=True)
    console.print()
    console.print(_memory(advice))
    measured = [(mode.memory, mode.name) for mode in advice.modes if mode.memory]
    problems = ((problem, name) for memory, name in measured for problem in memory.problems)
    for problem, names in _grouped(problems).items():
        console.print(f"  {escape(names)}: does not fit, as estimated: {escape(problem)}", soft_wrap=True)
    less = ((text, name) for memory, name in measured for text in _less(memory))
    for text, names in _grouped(less).items():
        console.print(f"  {escape(names)}: {escape(text)}", soft_wrap=True)
    if advice.splits:
        console.print()
        console.print(_splits(advice))
        for split in advice.splits:
            if split.why:
                console.print(f"  {split.explorer} + {split.trainer}: {escape(split.why)}", soft_wrap=True)
    console.print("\nassumed or known:")
    for line in advice.assumptions:
        console.print(f"- {escape(line)}", soft_wrap=True)
    console.print(f"- simulated with seed {advice.seed}; docs/advise.md says how far off it is")


def _grouped(pairs: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Return each text with the modes that it holds for."""
    names: dict[str, list[str]] = {}
    for text, name in pairs:
        names.setdefault(text, []).append(name)
    return {text: "; ".join(found) for text, found in names.items()}


def fastest(advice: Advice) -> ModeAdvice | None:
    """Return the mode of `run` with the shortest step.

    Of those that are `_EQUAL` to it the first, which is the least stale.
    """
    able = [mode for mode in advice.modes if mode.settings is not None]
    times = [(mode, mode.prediction.step_s) for mode in able if mode.prediction]
    bound = _EQUAL * min((step_s for _, step_s in times), default=0.0)
    return next((mode for mode, step_s in times if step_s <= bound), None)


def _conclusion(best: ModeAdvice, advice: Advice) -> str:
    share = of_stock(best, advice) or 1.0
    than_stock = f"{share:.2f} of stock's step" if share < 1 else f"no faster than stock ({share:.2f})"
    age = best.prediction.staleness if best.prediction else 0.0
    stale = f"; at staleness {age:.1f} steps, which may change what is learned" if age else ""
    too_large = "; by the estimate below it does not fit" if best.memory and best.memory.problems else ""
    return f"fastest here: {best.name}, {than_stock}{stale}{too_large}: {command(best, advice)}"


def _modes(advice: Advice) -> Table:
    table = Table(title=f"{escape(advice.source)} on {advice.gpus} GPU(s)", title_justify="left", box=None)
    for name in ("mode", "GPUs"):
        table.add_column(name)
    for name in ("GPU time used", "engines full", "s/step", "of stock", "mean staleness", "max"):
        table.add_column(name, justify="right")
    for mode in advice.modes:
        found, schedule = mode.prediction, mode.schedule
        if found is None or schedule is None:
            table.add_row(escape(mode.name), "–", *["–"] * 6)
            continue
        table.add_row(
            escape(mode.name),
            gpus(schedule),
            f"{found.used:.0%}",
            f"{found.engines_full:.0%}",
            f"{found.step_s:.3g}",
            f"{of_stock(mode, advice):.2f}",
            f"{found.staleness:.2f}",
            str(found.staleness_max),
        )
    return table


def _memory(advice: Advice) -> Table:
    """Return the memory of a GPU of each side."""
    known = [mode for mode in advice.modes if mode.memory]
    card = known[0].memory.card_gib if known and known[0].memory else 0.0
    title = f"GiB of a GPU, of {card:.0f}: the trainer's peak; of an engine what it requests, its KV cache"
    table = Table(title=title, title_justify="left", box=None)
    table.add_column("mode")
    for name in ("trainer", "engine", "weights", "KV cache", "tokens in it", "longest answers"):
        table.add_column(name, justify="right")
    for mode in known:
        found = mode.memory
        assert found is not None
        table.add_row(
            escape(mode.name),
            f"{found.trainer.total:.1f}" if found.trainer else "–",
            f"{found.engine.requested:.1f}",
            f"{found.engine.weights:.1f}",
            f"{found.engine.kv:.1f}",
            f"{found.engine.kv_tokens:,}",
            f"{found.engine.kv_tokens / found.longest:.1f}",
        )
    return table


def _less(memory: ModeMemory) -> Iterator[str]:
    """Yield the settings that need less on each side that does not fit, else beside the trainer's state."""
    over = [side for side, need in memory.needs.items() if need > memory.card_gib]
    for side in over or ["engine" if memory.resident else "trainer"]:
        if found := [str(each) for each in memory.savings if each.side == side][:_NAMED]:
            yield f"less while the {side} works: {', '.join(found)}"


def gpus(schedule: Schedule) -> str:
    """Return the GPUs of a schedule in words."""
    if schedule.in_turns:
        return f"{schedule.gpus} in turns"
    return f"{schedule.engines * schedule.width} + {schedule.trainer}"


def _splits(advice: Advice) -> Table:
    """Return the seconds a step at each split that can run."""
    able = [split for split in advice.splits if split.step_s]
    names = list(able[0].step_s) if able else []
    table = Table(title="s/step by split: GPUs of the explorer + the trainer", title_justify="left", box=None)
    table.add_column("split")
    for name in names:
        table.add_column(escape(name), justify="right")
    for split in able:
        times = [f"{split.step_s[name]:.3g}" for name in names]
        table.add_row(f"{split.explorer} + {split.trainer}", *times)
    return table
