"""Warnings that concern a launch as a whole, not one of its keys, and checks of its own values.

An error is something that ends veRL itself: ``translate`` then writes no YAML. A run checks its plan instead,
since a profile or ``--set`` may give a size, and its engines have their own share of the GPUs.
"""

from __future__ import annotations

import functools
import itertools
import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from trinity_compat.common.paths import from_home
from trinity_compat.common.readable_files import content
from trinity_compat.common.releases import VERL, VERL_RELEASES
from trinity_compat.common.resources import data_path
from trinity_compat.common.suggestions import nearest
from trinity_compat.job.known_models import stand_in
from trinity_compat.launch import entrypoints
from trinity_compat.launch.model import UnknownPiece, visible_devices
from trinity_compat.translate import forks, micro_batch_sizes, size_rules, stock_verl
from trinity_compat.translate.defaults import trainer_config
from trinity_compat.translate.launch_view import ARR, NODES, PER_NODE, LaunchView, unknown_sources
from trinity_compat.translate.machine_warnings import machine_cautions
from trinity_compat.translate.model import Caution, Severity, notice
from trinity_compat.translate.sections.algorithm import ESTIMATOR
from trinity_compat.translate.sections.gpus import DP, PP, TP, N, own_gpus
from trinity_compat.translate.sections.reward import FUNCTION
from trinity_compat.translate.size_rules import SizesOfLaunch, UnknownHeads
from trinity_compat.verl_config import FLAVOURS
from trinity_compat.verl_config.config_folders import is_changed


def launch_cautions(view: LaunchView) -> Iterator[Caution]:
    """Yield the warnings of a launch that no single derivation can give."""
    launch = view.launch
    if launch.main:
        why = "--main or a rule says so" if launch.module in view.options.mains else "its keys are veRL's"
        # A name in one of veRL's packages may be misspelt.
        near = (
            nearest(launch.module, entrypoints.TRANSLATED, cutoff=0.95)
            if launch.module.startswith("verl.")
            else []
        )
        yield Caution(
            "TW020",
            f"{launch.module} is not one of veRL's mains; it is translated as {launch.main}: {why}. The YAML"
            " does not have what its trainer does differently",
            launch.where,
            hint=f"did you mean {near[0]}?" if near else None,
        )
    yield from _ignored(view)
    yield from _open(view)
    yield from _release_caution(view)
    yield from forks.caution(view.origin)
    lost = list(stock_verl.lost_keys(view.origin))
    if lost:
        shown = ", ".join(lost[:4]) + (f" and {len(lost) - 4} more" if len(lost) > 4 else "")
        yield notice(
            "TW021",
            f"stock veRL {VERL} ignores the reward keys of releases before 0.8 and would train with another"
            f" reward; here they are read as {shown}",
            view.launch.where,
            "for a baseline on stock veRL: trinity-compat profile NAME --as-overrides --for SCRIPT",
        )
    yield from _engines(view)
    yield from _groups(view)
    yield from size_cautions(view)
    yield from machine_cautions(view, checks_visible=_visible_gpus(view) is not None)
    yield from _reward_file(view)


def _ignored(view: LaunchView) -> Iterator[Caution]:
    """Warn of keys that upstream would overwrite under trainer_config."""
    takes = trainer_config(view.options.trinity, "megatron" if view.megatron else "fsdp")
    keys = [key for key in view.config.set_keys if _dead(key, takes.ignored)]
    if keys:
        shown = ", ".join(keys[:6]) + (f" and {len(keys) - 6} more" if len(keys) > 6 else "")
        yield notice(
            "TW005",
            f"Trinity-RFT accepts these under trainer.trainer_config and ignores them: {shown}; "
            "they are written where it reads them, or kept for trinity-compat",
            view.where(keys[0]),
        )


_DEAD = ("clip_ratio", "entropy_coeff", "kl_loss_type", "kl_loss_coef", "policy_loss")


def _dead(key: str, ignored: frozenset[str]) -> bool:
    if not ignored:
        return False
    if key in ignored or key.startswith("critic.model."):
        return True
    prefix = "actor_rollout_ref.actor."
    return key.startswith(prefix) and key[len(prefix) :].startswith(_DEAD)


def _open(view: LaunchView) -> Iterator[Caution]:
    words = [*view.launch.arguments, *view.launch.env.values()]
    for word in words:
        for part in word.parts:
            if isinstance(part.source, UnknownPiece):
                where = part.source.where
                is_shell = not where.file.endswith((".py", ".ipynb"))  # run takes shell scripts alone
                yield Caution(
                    "TW013",
                    f"{part.source.expression} is kept as written: its value is known only at run time",
                    where,
                    "edit the YAML"
                    + (", or use trinity-compat run, where bash computes it" if is_shell else ""),
                )


_SHOWN = 4  # keys beside the first ones: two lines of a terminal in all
_OFF = 1.0e8  # a bound that never acts: how "there was no dual clip" is carried forward
_NO_LOW_AND_HIGH = "0.3.0"  # the last release where clip_ratio was both bounds and KL was in the reward
_ACTOR = f"{ARR}.actor"
_KL = "algorithm.use_kl_in_reward"
_BOUNDS = (f"{_ACTOR}.clip_ratio_low", f"{_ACTOR}.clip_ratio_high")


def _release_caution(view: LaunchView) -> Iterator[Caution]:
    """Name the defaults of this launch that differ between the releases that its keys fit equally well."""
    able = view.origin.version.candidates
    if len(able) < 2:
        return
    spans: dict[str, list[str]] = {}  # values by release → the keys that have them
    for key in dict.fromkeys((*_BOUNDS, *_changed(view.config.flavour))):
        values = _by_release(view, key, able)
        if any(value != other for value, other in itertools.pairwise(values.values())):
            spans.setdefault(_spelled(values), []).append(key.removeprefix(f"{ARR}."))
    if not spans:
        return
    (span, first), *others = spans.items()
    names = [name for _, keys in others for name in keys]
    listed = ", ".join([f"{', '.join(first)} ({span})", *names[:_SHOWN]])
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    yield notice(
        "TW018",
        f"the keys fit veRL {_named(able)}, and {view.origin.version.value} is taken; defaults differ: "
        f"{listed}{more}",
        view.launch.where,
        f"--verl-version {able[0]} if the script is for that release",
    )


@functools.cache
def _changed(flavour: str) -> Mapping[str, list[object]]:
    """Return the defaults that changed between releases, stored so that nothing is composed a second time."""
    text = data_path("translators/generated/verl/changed_defaults.json").read_text(encoding="utf-8")
    tables: Mapping[str, Mapping[str, list[object]]] = json.loads(text)
    return tables.get(flavour, tables[FLAVOURS[0]])


def _by_release(view: LaunchView, key: str, able: tuple[str, ...]) -> dict[str, object]:
    """Return the default of ``key`` per release; empty if the launch doesn't rely on it."""
    if view.is_set(key) or (key.startswith("critic.") and not view.critic):
        return {}
    values = _changed(view.config.flavour).get(key) or [view.value(key)] * len(VERL_RELEASES)
    return {version: _implied(view, key, version, values[VERL_RELEASES.index(version)]) for version in able}


def _implied(view: LaunchView, key: str, version: str, default: object) -> object:
    """Return the default that an early release derived from another key, which the launch may set."""
    if VERL_RELEASES.index(version) > VERL_RELEASES.index(_NO_LOW_AND_HIGH):
        return default
    if key == _KL:
        in_loss = view.value(f"{_ACTOR}.use_kl_loss", False)
        return not in_loss and view.value("algorithm.kl_ctrl.kl_coef", 0) != 0
    return view.value(f"{_ACTOR}.clip_ratio", default) if key in _BOUNDS else default


def _spelled(values: Mapping[str, object]) -> str:
    """Format values by release, the oldest first: ``0.001 until 0.3.0, 0 since 0.4.1``."""
    spans: list[str] = []
    for value, group in itertools.groupby(values.items(), key=lambda item: item[1]):
        versions = [version for version, _ in group]
        span = f"since {versions[0]}" if spans else f"until {versions[-1]}"
        shown = "must be given" if value == "???" else "off" if value == _OFF else json.dumps(value)
        spans.append(f"{shown} {span}")
    return ", ".join(spans)


def _named(able: Sequence[str]) -> str:
    """Format releases, the oldest first: ``0.2.0 to 0.9.1`` where none between them is left out."""
    first = VERL_RELEASES.index(able[0])
    if len(able) > 2 and tuple(able) == VERL_RELEASES[first : first + len(able)]:
        return f"{able[0]} to {able[-1]}"
    return ", ".join(able)


# Estimators of the pinned veRL that compare the answers of a group (core_algos.py), by what they make of a
# group of one; a test asks veRL.
OWN_REWARD = (
    *("grpo", "grpo_vectorized", "gdpo", "reinforce_plus_plus_baseline", "rloo", "opo", "gpg"),
    *("optimal_token_baseline", "tir_optimal_token_baseline"),
)
NO_ADVANTAGE = ("rloo_vectorized",)
ENDS = ("grpo_passk",)


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


def _refused_sizes(view: LaunchView) -> Iterator[Caution]:
    """Check the launch by veRL's own rules. The trainer of a recipe, or of a fork, may have others.

    Sizes that older releases take are no error where the launch may be for one of these.
    """
    if view.launch.taken_for != entrypoints.PPO:
        return
    own_trainer = view.forked or view.launch.main
    unknown: dict[str, list[str]] = {}
    for found in size_rules.broken(launch_sizes(view), view.origin.version.value):
        if isinstance(found, UnknownHeads):
            unknown.setdefault(found.key, []).append(found.size)
            continue
        older = found.until in view.origin.version.candidates
        rank = Severity.DECIDE if own_trainer or older else Severity.ERROR
        where = next(filter(None, map(view.where, found.keys)), view.launch.where)
        yield Caution("TW029", found.message, where, found.hint, rank)
    for model, keys in unknown.items():
        yield notice(
            "TW030",
            f"{' and '.join(map(view.written, keys))} could not be checked against the attention heads of"
            f" {view.written(model)}, which are not known here",
            next(filter(None, map(view.where, keys)), view.launch.where),
            "give --cwd or --also-read for a folder with its config.json",
        )


def size_cautions(view: LaunchView) -> Iterator[Caution]:
    """Warn of sizes that veRL misses or refuses."""
    # Not an error of the translation: the YAML has a micro-batch size where the launch has none.
    for found in micro_batch_sizes.missing(view.value, view.written) if view.launch.knows_all_keys else ():
        message = f"{found.message}, and so does trinity-compat run; the YAML has one for Trinity-RFT"
        yield Caution("TW024", message, view.where(found.key) or view.launch.where, found.hint)
    yield from _refused_sizes(view)


def launch_sizes(view: LaunchView) -> SizesOfLaunch:
    """Return the sizes of the launch under stock veRL, of its model too where config.json may be read."""

    def value(key: str) -> object:
        # where nothing is said, a run here has v0's trainer, and stock veRL that of its release
        return view.origin.get(key) if key in size_rules.OF_STOCK else view.value(key)

    return SizesOfLaunch(
        value, view.is_set, view.written, functools.partial(_model, view), _visible_gpus(view)
    )


_LARGEST_CONFIG = 2**20


def _model(view: LaunchView, key: str) -> tuple[str, Mapping[str, object]] | None:
    """Return the name and config.json of the model of ``key``.

    The file of its folder, where that may be read, else what is published under its name; None without both.
    """
    path = str(view.value(key, ""))
    folder = Path(view.launch.cwd).absolute() / from_home(path)
    try:
        text = content(folder / "config.json", view.launch.roots or (view.launch.cwd,), _LARGEST_CONFIG)
        found = json.loads(text)
    except OSError:
        known = stand_in(path)
        unsure = any(unknown_sources(view.config.settings.get(key)))
        return (known.name, known.config) if known.is_named_in(path) and not unsure else None
    except (ValueError, RecursionError):
        return None
    return ("the model", found) if isinstance(found, Mapping) else None


def _visible_gpus(view: LaunchView) -> int | None:
    """Return how many GPUs CUDA_VISIBLE_DEVICES of the script names; None where it is not known.

    Nor is it where veRL joins a Ray that runs, whose machines have the GPUs.
    """
    env = view.launch.env
    word = env.get("CUDA_VISIBLE_DEVICES")
    if word is None or word.open or any(source.default is None for source in word.env_refs):
        return None
    if "RAY_ADDRESS" in env or view.value("ray_kwargs.ray_init.address"):
        return None
    if view.value("trainer.device", "cuda") != "cuda":
        return None
    return visible_devices(word.text)


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
    maybe_made = view.launch.created.intersection(map(str, (file, *file.parents)))
    is_known = not maybe_made and not is_changed(file, view.launch.unread)
    is_root = file.parent == file.parent.parent  # which exists on every machine
    if not file.exists() and file.parent.is_dir() and not is_root and is_known:
        yield Caution(
            "TW025",
            f"{view.written(key)}: no such file in {file.parent}",
            view.where(key),
            "correct the path, or give --cwd, the folder in which bash would start",
        )
