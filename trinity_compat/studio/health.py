"""A run in words: what it trains, and whether that goes well."""

from __future__ import annotations

import contextlib
import os
import pwd
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal

from trinity_compat.common.errors import UserError
from trinity_compat.common.nested import value_at
from trinity_compat.common.redaction import shown
from trinity_compat.job.gpus import shares
from trinity_compat.job.run_spec import RunSpec
from trinity_compat.run.job_dir.alerts import Alert
from trinity_compat.run.job_dir.snapshot import age
from trinity_compat.run.job_dir.start_record import RecordedStart

_LONGEST = 60  # characters of a fact
_MODES = {"both": "sides apart", "colocate": "sides in turns"}
Verdict = tuple[Literal["good", "bad", "plain"], str]


def facts(spec: RunSpec, root: Path) -> list[tuple[str, str]]:
    """Return (name, text) of what a run is, without what is not known."""
    found = [(name, shown(" ".join(text.split())[:_LONGEST])) for name, text in _facts(spec, root)]
    return [(name, text) for name, text in found if text]


def _facts(spec: RunSpec, root: Path) -> Iterator[tuple[str, str]]:
    def value(key: str) -> object:
        return value_at(spec.verl, key)

    loss = value("actor_rollout_ref.actor.policy_loss.loss_mode")
    words = [value("algorithm.adv_estimator"), None if loss == "vanilla" else loss]
    yield "algorithm", ("supervised" if spec.rows else ", ".join(str(word) for word in words if word))
    yield "model", _end_of(value("actor_rollout_ref.model.path"))
    files = value("data.train_files")
    names = [str(each) for each in (files if isinstance(files, list | tuple) else [files]) if each]
    more = f" and {len(names) - 1} more" if len(names) > 1 else ""
    yield "data", _end_of(names[0]) + more if names else ""
    with contextlib.suppress(TypeError, ValueError, AttributeError, KeyError, UserError):
        of_sides = shares(spec.verl, device=spec.device, mode=spec.mode, explorers=spec.explorers)
        unit = "processes" if spec.device == "cpu" else "GPUs"
        yield unit, " + ".join(f"{count} {side}" for side, count in of_sides.items() if count) + f" {unit}"
    yield "mode", f"{spec.mode}{f' ({_MODES[spec.mode]})' if spec.mode in _MODES else ''}"
    with contextlib.suppress(OSError, KeyError):
        yield "owner", pwd.getpwuid(os.stat(root, follow_symlinks=False).st_uid).pw_name  # noqa: PTH116


def _end_of(path: object) -> str:
    return "/".join(Path(str(path or "")).parts[-2:]).replace("//", "/")


def elapsed(starts: Sequence[RecordedStart]) -> str:
    """Return the time from the first of ``starts`` to the last end, or to now, in words; '' without any."""
    if not starts:
        return ""
    ends = [start.end.at if start.end else time.time() for start in starts]
    return age(max(0.0, max(ends) - min(start.began for start in starts)))


def verdict(state: str, step: int, alerts: Sequence[Alert], failure: str) -> Verdict:
    """Return a verdict on a run in one sentence."""
    if failure:
        return "bad", f"{'Failed' if state == 'failed' else 'Lost'} after step {step}: {failure}"
    if alerts:
        since = min((alert.since for alert in alerts if alert.since is not None), default=None)
        count = "One thing is" if len(alerts) == 1 else f"{len(alerts)} things are"
        return "bad", f"{count} wrong{'' if since is None else f', since step {since}'}"
    if state in ("running", "stopping"):
        return ("good", f"Healthy after step {step}") if step else ("plain", "No step has finished yet")
    if state == "done":
        return "good", f"Done: all {step} steps are trained"
    return "plain", f"Stopped after step {step}" if state == "stopped" else ""
