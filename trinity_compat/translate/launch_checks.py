"""Checks of a launch's own values: it cannot start under veRL, or does something else than it says.

An error is something that ends veRL itself: ``translate`` then writes no YAML. A run checks its plan instead,
since a profile or ``--set`` may give a size, and its engines have their own share of the GPUs.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from pathlib import Path

from trinity_compat.common.paths import from_home
from trinity_compat.translate import micro_batch_sizes
from trinity_compat.translate.launch_view import NODES, PER_NODE, LaunchView
from trinity_compat.translate.model import Caution, Severity
from trinity_compat.translate.sections.algorithm import ESTIMATOR
from trinity_compat.translate.sections.gpus import DP, PP, TP, N, own_gpus
from trinity_compat.translate.sections.reward import FUNCTION

# Estimators of the pinned veRL that compare the answers of a group (core_algos.py), by what they make of a
# group of one; a test asks veRL.
OWN_REWARD = (
    *("grpo", "grpo_vectorized", "gdpo", "reinforce_plus_plus_baseline", "rloo", "opo", "gpg"),
    *("optimal_token_baseline", "tir_optimal_token_baseline"),
)
NO_ADVANTAGE = ("rloo_vectorized",)
ENDS = ("grpo_passk",)


def launch_checks(view: LaunchView) -> Iterator[Caution]:
    """Yield a warning or an error for each check that the launch fails."""
    yield from _engines(view)
    yield from _groups(view)
    yield from _sizes(view)
    yield from _reward_file(view)


def _engines(view: LaunchView) -> Iterator[Caution]:
    """Check that the GPUs divide into whole engines.

    Source: ``_build_rollout`` of workers/fsdp_workers.py (0.2 to 0.7), workers/engine_workers.py since.
    """
    gpus, width = math.prod(view.cluster), view.size(TP) * view.size(DP) * view.size(PP)
    if own_gpus(view) or gpus % width == 0:  # on GPUs of their own the engines leave some unused
        return
    sizes = [key for key in (TP, DP, PP) if view.size(key) > 1]
    product = " × ".join(view.written(key) for key in sizes)
    is_set = any(map(view.is_set, sizes))
    default = "" if is_set else f" ({view.default_of(*sizes)})"
    count = " × ".join(view.written(key) for key in (NODES, PER_NODE))
    rest = width // view.size(TP)
    able = [str(size) for size in range(1, view.cluster[1] + 1) if gpus % (size * rest) == 0]
    yield Caution(
        "TW022",
        f"{product}{default}: {gpus} GPUs ({count}) do not divide into engines of {width} GPUs, and veRL's "
        "workers fail",
        next(filter(None, map(view.where, (*sizes, PER_NODE, NODES))), view.launch.where),
        f"{TP} may be {', '.join(able)}" if able else f"{' × '.join(sizes)} should divide {gpus}",
        # In place of a default the YAML has a size that fits.
        Severity.ERROR if is_set else Severity.DECIDE,
    )


def _groups(view: LaunchView) -> Iterator[Caution]:
    name = str(view.value(ESTIMATOR, "gae"))
    if name not in (*OWN_REWARD, *NO_ADVANTAGE, *ENDS) or view.size(N) > 1:
        return
    does = "takes each reward as it is, without a baseline"
    if name in NO_ADVANTAGE:
        does = "gives every answer the advantage 0"
    elif name in ENDS:
        does = "stops at its first step"
    yield Caution(
        "TW023",
        f"{view.written(ESTIMATOR)} compares the answers to a prompt, and {view.written(N)} generates one: "
        f"veRL {does}",
        view.where(N) or view.where(ESTIMATOR) or view.launch.where,
        f"write {view.spelling(N)}=8, or another estimator",
        Severity.ERROR if name in ENDS else Severity.DECIDE,
    )


def _sizes(view: LaunchView) -> Iterator[Caution]:
    """Warn of missing micro-batch sizes; no error, since the YAML has a size that Trinity-RFT starts with."""
    for found in micro_batch_sizes.missing(view.value, view.written):
        message = f"{found.message}, and so does trinity-compat run; the YAML has one for Trinity-RFT"
        yield Caution("TW024", message, view.where(found.key) or view.launch.where, found.hint)


def _is_seen(folder: Path) -> bool:
    """Return True if the folder exists on this machine; the root exists on every one, and doesn't count."""
    return folder.is_dir() and folder != folder.parent


def _reward_file(view: LaunchView) -> Iterator[Caution]:
    """Warn of a missing reward file whose folder exists.

    Not of a path that a variable decides, nor of a file that the script may create.
    """
    key = f"{FUNCTION}.path"
    setting = view.config.settings.get(key)
    if setting is None or setting.word is None or any(part.source for part in setting.word.parts):
        return
    named = str(view.value(key, ""))
    if not named or "://" in named or named.startswith("pkg:"):
        return
    file = Path(os.path.normpath(Path(view.launch.cwd).absolute() / from_home(named)))
    maybe_made = view.launch.made.intersection(map(str, (file, *file.parents)))
    if not file.exists() and _is_seen(file.parent) and not maybe_made:
        yield Caution(
            "TW025",
            f"{view.written(key)}: no such file in {file.parent}",
            view.where(key),
            "correct the path, or give --cwd, the folder in which bash would start",
        )
