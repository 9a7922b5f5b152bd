"""Count the public launches that start: under veRL, and decoupled here.

    .venv/bin/python scripts/judge/start_corpus.py tests/facts/public.json.xz --device cuda|cpu
        [--vllm FOLDER] [--sample N] [--only TEXT] [--main MODULE] [--spare TEXT] [--json FILE] [-v]
    .venv/bin/python scripts/judge/start_corpus.py LIST.txt --device cuda|cpu …
    .venv/bin/python scripts/judge/start_corpus.py tests/facts/main.json.xz --device cuda|cpu [--floor NAME] …
    .venv/bin/python scripts/judge/start_corpus.py --clone DIR [--commit C] --device cuda|cpu …

Each launch of veRL's main_ppo is planned for ``--device`` and put through the start check of ``run``, with
stand-ins for the models and nothing said of its data. A launch that is not started is also composed as stock
veRL would run it: what veRL refuses as well is counted apart. ``--vllm``: the unpacked package vllm of the
GPU release (scripts/ci/unpack_vllm.sh), for ``--device cuda`` on a machine without a GPU. ``--sample N``: N
launches by a fixed seed. ``--spare TEXT``: refusals with TEXT in their reason are counted apart (Megatron on
a CPU), and are not part of the share that starts.

LIST.txt names scripts of your own: in each line a folder (where bash would start), a script in it, NAME=value
for variables, and the script's arguments. Of each the first launch counts, with what its script exports. A
main or a key that only the script's own tree of veRL has is refused by stock veRL, too. That says nothing of
our own reason for a refusal: stock is asked about the launch without them, and where it takes it, the refusal
is ours alone, counted apart. So is a default of that tree with which stock veRL ends. tests/facts/unseen.txt
is such a list of public scripts, which scripts/judge/unseen_corpus.py checks out.

``--clone`` takes the scripts of a clone of veRL at a commit (examples, tests/special_e2e, verl/experimental),
beside the trainer's configuration of the installed release; tests/facts/main.json.xz holds the launches of
such a commit as bash made them (scripts/judge/verl_clone.py). There stock's own Hydra and objects are asked
about **every** launch (scripts/judge/stock_verl.py), also about those that start here, and launches with
which veRL itself trains nothing are counted apart. ``--floor NAME`` (tests/facts/floors.json) names the
launches that started before and no longer do, and exits with 1; ``--write-floor NAME`` records those that
start.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import random
import re
import shlex
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import record_facts
import stock_verl
import verl_clone

ROOT = Path(__file__).resolve().parents[2]
STARTS, NOT_UNDER_VERL, REFUSED = "starts", "does not start under veRL either", "refused by us"
NOT_READ, WITHOUT_FORK = "no launch is read", "starts with --allow-fork-keys"
OURS_ALONE = "refused by us, and started by veRL without what is its fork's"
FORKS_DEFAULT = "a default of its fork's does not start under veRL"
SPARED = "refused by us for what is spared"
FALSE_START = "starts here, and does not start under veRL"
FLOORS = ROOT / "tests" / "facts" / "floors.json"
# Nothing is fetched, and vLLM says only what is wrong: whatever a script exports.
QUIET = {"HF_HUB_OFFLINE": "1", "VLLM_LOGGING_LEVEL": "ERROR"}


@dataclass(frozen=True, slots=True)
class Outcome:
    """Outcome of one launch. ``ours``: our reason, where ``why`` is stock's."""

    name: str
    state: str
    why: str = ""
    ours: str = ""


def launches(corpus: Path, main: str) -> list[tuple[str, list[str]]]:
    """(name, argv) of every launch of ``main``."""
    found = []
    for script in record_facts.read(corpus)["scripts"]:
        for number, launch in enumerate(script.get("launches", [])):
            if launch["module"] == main:
                name = f"{script['tag']}:{script['path']}#{number}"
                found.append((name, ["python3", "-m", launch["module"], *launch["args"]]))
    return found


def recorded(corpus: dict[str, Any]) -> list[tuple[str, list[str]]]:
    """(script, argv of its first launch, empty without one) of a recorded commit of veRL's."""
    found = []
    for script in corpus["scripts"]:
        argv: list[str] = []
        for launch in script["launches"][:1]:
            argv = [*launch.get("wrapper", ["python3"]), "-m", launch["module"], *launch["args"]]
        found.append((script["path"], argv))
    return found


def cloned(tree: Path) -> list[tuple[str, list[str]]]:
    """(script, (folder, script, what it wants)) of every script of a clone's tree."""
    names = verl_clone.scripts_of(tree)
    return [(name, [str(tree), name, *verl_clone.wanted(name).words]) for name in names]


def scripts(listed: Path) -> list[tuple[str, list[str]]]:
    """(name, (folder, script, variables and arguments)) of every line of a list."""
    lines = [shlex.split(line) for line in listed.read_text().splitlines() if line.strip()]
    return [(f"{Path(folder).name}:{script}", [folder, script, *more]) for folder, script, *more in lines]


def judged(name: str, given: Sequence[str], device: str, folder: Path, *, stock: bool = False) -> Outcome:
    """The outcome of one launch. Changes this process: call it in a fork.

    ``stock``: stock's own Hydra and objects say whether veRL starts it.
    """
    from trinity_compat.common.errors import UserError

    try:
        launch, root = _launch(given)
    except UserError as error:
        return Outcome(name, NOT_READ, error.message)
    os.environ |= _exported(launch) | QUIET
    try:
        why = _refused_here(launch, root, device, folder)
    except UserError as error:
        why = error.message
    if stock:
        return _beside_stock(name, given, launch, root, folder, why)
    if not why:
        own = _own_to_fork(launch, root)
        return Outcome(name, WITHOUT_FORK if own else STARTS, f"without {', '.join(own)}" if own else "")
    try:
        own = _own_to_fork(launch, root)
    except UserError:  # no Hydra composes it
        own = []
    if says := _wanting(given) or _refused_by_verl(launch, root, folder):
        of_its_fork = _breaks_by_default(launch, root, folder)
        given = {_key_of(word.text) for word in launch.arguments}
        moved = _names_a_key_that_moved(says, [key for key in own if key in given])
        state = OURS_ALONE if moved else FORKS_DEFAULT if of_its_fork else NOT_UNDER_VERL
        return Outcome(name, state, says, why)
    if any(each in why for each in own):
        return Outcome(name, NOT_UNDER_VERL, why)  # stock has no such key or main either
    return Outcome(name, OURS_ALONE if own else REFUSED, why)


def _names_a_key_that_moved(why: str, own: Sequence[str]) -> bool:
    """Return whether a reason names a key that the launch gives elsewhere in its section, to its fork.

    Then the reason may follow from leaving the fork's key out: ``distillation.nnodes must be greater than 0``
    of a launch with ``distillation.teacher_model.nnodes``.
    """
    ends = {(key.partition(".")[0], key.rpartition(".")[2]) for key in own}
    named = (re.sub(r"^config\.", "", key) for key in re.findall(r"\w+(?:\.\w+)+", why))
    return any((key.partition(".")[0], key.rpartition(".")[2]) in ends and key not in own for key in named)


def _beside_stock(
    name: str, given: Sequence[str], launch: Any, root: Path | None, folder: Path, why: str
) -> Outcome:
    """The outcome beside stock's own answer; ``why``: our refusal."""
    cwd = root or verl_clone.installed().parent
    words = [word.text for word in launch.arguments]
    says, tree = stock_verl.says(launch.module, words, cwd, folder)
    state, numbers = stock_verl.trains_nothing(tree, launch.module)
    if not why and (own := _own_to_fork(launch, root)):
        why = f"it needs --allow-fork-keys for {', '.join(own)}"
    if says := _wanting(given) or says:
        return Outcome(name, NOT_UNDER_VERL if why else FALSE_START, says)
    if state:
        return Outcome(name, state if why else FALSE_START, numbers)
    return Outcome(name, REFUSED if why else STARTS, why)


def _exported(launch: Any) -> dict[str, str]:
    """The variables that the launch's script exports with a known value."""
    return {name: word.text for name, word in launch.env.items() if not word.open}


def _breaks_by_default(launch: Any, root: Path | None, folder: Path) -> bool:
    """Return whether stock veRL starts the launch with its own defaults in place of the fork's."""
    from trinity_compat.common.errors import UserError
    from trinity_compat.verl_config import effective_config

    try:
        fork = effective_config(launch, root=root or folder).fork
    except UserError:  # no Hydra composes it, with whichever defaults
        return False
    return fork is not None and not _refused_by_verl(launch, root, folder, fork_config=False)


def _launch(given: Sequence[str]) -> tuple[Any, Path | None]:
    """The launch of an argument vector, or the first of a script; and where its files are sought."""
    from trinity_compat.common.errors import UserError
    from trinity_compat.launch import read_argv

    if not given:
        raise UserError("bash makes no launch of it")
    if _is_argv(given):
        return read_argv(list(given)).launches[0], None
    reading = _reading(given)
    if not reading.launches:
        raise UserError("; ".join(note.message for note in reading.diagnostics) or "no launch")
    return reading.launches[0], Path(given[0])


def _is_argv(given: Sequence[str]) -> bool:
    return given[0].startswith(("python", "torchrun"))


def _reading(given: Sequence[str]) -> Any:
    """The reading of (folder, script, variables and arguments)."""
    from trinity_compat.launch import read_script

    folder, script = map(Path, given[:2])
    want = verl_clone.of_words(given[2:])
    return read_script(folder / script, cwd=folder, args=list(want.arguments), env=want.variables or None)


def _wanting(given: Sequence[str]) -> str:
    """Message on a variable that the script demands with ``${NAME:?}`` before its launch, or ""."""
    if _is_argv(given):
        return ""
    reading = _reading(given)
    wanted = (note for note in reading.diagnostics if note.code == "TP104")
    return next((note.message for note in wanted if not _is_after(reading.launches, note.where)), "")


def _is_after(launches: Sequence[Any], where: Any) -> bool:
    """Return whether a line of the script comes after the whole command of its first launch."""
    places = [place for one in launches[:1] for place in (one.where, *(word.where for word in one.arguments))]
    lines = [place.line for place in places if place.file == where.file]
    return bool(lines) and where.line > max(lines)


def _refused_here(launch: Any, root: Path | None, device: str, folder: Path) -> str:
    """Why the run would not start, "" where it would. Raises UserError."""
    import yaml

    from trinity_compat.run import checks
    from trinity_compat.run.checks.verl_objects import examine
    from trinity_compat.run.plan import environment, micro_batches, refusals
    from trinity_compat.run.plan.devices import is_elsewhere
    from trinity_compat.run.plan.plan_run import make_plan
    from trinity_compat.run.plan.source import RunOptions
    from trinity_compat.translate import TranslateOptions, translate_launch

    assert checks
    _, text = translate_launch(launch, TranslateOptions(), root=root or ROOT / "translators")
    cwd = root or folder  # where the script's own files lie: agent loops, tools
    config = yaml.safe_load(text)
    made = make_plan(config, RunOptions(job=str(folder / "job"), dry_run=True), cwd=cwd, device=device)
    elsewhere = is_elsewhere(device, dry_run=True)  # as `run --dry-run --device` plans it
    refusals.check_strategy(environment.filled(config, os.environ), made.spec.verl, {})
    refusals.check(made.spec.verl, {}, cwd=cwd, elsewhere=elsewhere)
    micro_batches.check(made.spec.verl, {})
    if stock_verl.UNSEEN.search(str(made.spec.verl["actor_rollout_ref"]["model"].get("path"))):
        return stock_verl.UNSEEN_WHY
    report = examine(made.spec, cwd=cwd, folder=folder / "models", execute=False, native=device == "cpu")
    return "; ".join(f"{found.key}: {found.by}: {found.why}" for found in report.refused)


def _refused_by_verl(launch: Any, root: Path | None, folder: Path, *, fork_config: bool = True) -> str:
    """Why stock veRL 0.9.1 does not start the launch, "" where it does.

    Main and keys that only its fork has are left out. Stock's own Hydra is asked about the arguments,
    whatever we read in them; then stock's objects about the launch as we carry it forward, with the defaults
    of the tree that the script starts from. Without ``fork_config`` with those of a release.
    """
    from trinity_compat.common.errors import UserError
    from trinity_compat.launch import entrypoints
    from trinity_compat.run.checks import error_keys
    from trinity_compat.run.plan import micro_batches
    from trinity_compat.run.plan.verl_view import VerlView
    from trinity_compat.translate.pipeline import refuse_errors
    from trinity_compat.verl_config import as_tree, effective_config, upgrade

    try:
        effective = effective_config(launch, root=root or folder, fork_config=fork_config)
        own = _fork_keys(effective)
        if _is_gone(entrypoints.canonical(launch.module)):
            return f"a main that 0.9.1 has no more: {launch.module}"
        words = [word.text for word in launch.arguments if _key_of(word.text) not in own]
        main = entrypoints.PPO if launch.main else launch.module
        starts = not stock_verl.says(main, words, root or folder, folder)[0]
        if starts and (effective.fork is None or not fork_config):
            return ""
        if not starts:
            refuse_errors(effective)
        tree = _without(as_tree(upgrade(effective).config), own)
        if why := stock_verl.to_fill_in(tree):
            return why
        tree = stock_verl.as_main_ppo(tree, launch.module)
        tree = dict(micro_batches.divided(VerlView.of(tree))[0].tree)
        micro_batches.check(tree, {})
        return stock_verl.objects(tree, launch.module, folder)
    except UserError as error:
        return error.message
    except Exception as error:
        return error_keys.words_of(error)


def _key_of(word: str) -> str:
    return word.partition("=")[0].lstrip("+~")


def _without(tree: dict[str, Any], keys: Sequence[str]) -> dict[str, Any]:
    from trinity_compat.common.nested import leaves, nested

    return nested({key: value for key, value in leaves(tree) if key not in keys})


def _is_gone(module: str) -> bool:
    """Return True for a main of veRL's, under its present name, that 0.9.1 lacks (main_ppo_sync of 0.8)."""
    return module.startswith("verl.") and importlib.util.find_spec(module) is None


def _own_to_fork(launch: Any, root: Path | None) -> list[str]:
    """Main and keys of a launch that only the script's own tree of veRL has; ``run`` stops for them."""
    from trinity_compat.verl_config import effective_config

    main = [launch.module] if launch.main else []
    return main + _fork_keys(effective_config(launch, root=root))


def _fork_keys(effective: Any) -> list[str]:
    """The keys that only the script's own tree of veRL knows, of those that the launch sets or that have a
    default there."""
    from trinity_compat.translate import forks
    from trinity_compat.translate.rows import load_rows

    rows = load_rows(None)
    given = dict.fromkeys([*effective.set_keys, *forks.by_default(effective)])
    return [key for key in given if forks.is_fork_key(key, effective, rows)]


def answered(name: str, argv: Sequence[str], device: str, folder: Path, stock: bool) -> str:
    """``judged`` as JSON; a fault of the check itself is a refusal with its traceback."""
    try:
        outcome = judged(name, argv, device, folder, stock=stock)
    except Exception:
        outcome = Outcome(name, REFUSED, f"fault of the check: {traceback.format_exc()}")
    return json.dumps(asdict(outcome))


def spared(outcome: Outcome, text: str) -> Outcome:
    """The outcome, with a state of its own where it is a refusal whose reason names ``text``."""
    return replace(outcome, state=SPARED) if outcome.state == REFUSED and text in outcome.why else outcome


def outcomes(
    chosen: Sequence[tuple[str, list[str]]], device: str, *, stock: bool = False
) -> Iterator[Outcome]:
    """One after the other, each in a fork of a process that has imported everything."""
    from forked_checks import forked, warm

    from trinity_compat.run.checks import verl_objects  # noqa: F401
    from trinity_compat.translate import translate_launch  # noqa: F401

    with tempfile.TemporaryDirectory() as name:
        warm(Path(name) / "models")
        for launch, argv in chosen:
            text = forked(partial(answered, launch, argv, device, Path(name), stock))
            yield Outcome(**json.loads(text)) if text else Outcome(launch, REFUSED, "the check died")


def table(found: Sequence[Outcome]) -> Iterator[str]:
    """Counts, then the reasons, most frequent first."""
    states = Counter(outcome.state for outcome in found)
    could = states[STARTS] + states[REFUSED]
    share = f"{states[STARTS] / could:.0%}" if could else "-"
    starting = f"of these {states[STARTS]} start here ({share})"
    yield f"{len(found)} launches; {could} can start under veRL; {starting}"
    apart = (FALSE_START, stock_verl.NO_STEP, stock_verl.ENDS_AT_UPDATE)
    refused = (SPARED, OURS_ALONE, REFUSED)
    for state in (NOT_READ, WITHOUT_FORK, NOT_UNDER_VERL, FORKS_DEFAULT, *apart, *refused):
        reasons = Counter(_short(outcome.why) for outcome in found if outcome.state == state)
        yield f"{state}: {states[state]}"
        for why, count in reasons.most_common():
            yield f"  {count:4}  {why}"


def _short(why: str) -> str:
    """A reason without its numbers, so that like counts with like."""
    return re.sub(r"\d+", "N", " ".join(why.split()))[:200]


def _first(folder: Path) -> str:
    """PYTHONPATH with ``folder`` in front, for the processes that vLLM starts."""
    return os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])


def fallen(found: Sequence[Outcome], floor: Sequence[str]) -> list[Outcome]:
    """The launches of a floor that no longer start, those that are gone among them."""
    now = {outcome.name: outcome for outcome in found}
    lost = (now.get(name, Outcome(name, NOT_READ, "no such script")) for name in floor)
    return [outcome for outcome in lost if outcome.state != STARTS]


def floor_of(name: str) -> list[str]:
    """The launches that have started: a row of floors.json. Raises KeyError for a name without one."""
    starts: list[str] = json.loads(FLOORS.read_text())[name]["starts"]
    return starts


def write_floor(name: str, found: Sequence[Outcome]) -> None:
    """Record the launches that start as the floor of ``name``."""
    floors = json.loads(FLOORS.read_text()) if FLOORS.exists() else {}
    states = Counter(outcome.state for outcome in found)
    starts = sorted(outcome.name for outcome in found if outcome.state == STARTS)
    floors[name] = {"stock": states[STARTS] + states[REFUSED], "ours": states[STARTS], "starts": starts}
    FLOORS.write_text(json.dumps(floors, indent=1) + "\n")


def chosen_from(options: argparse.Namespace, tree: Path) -> tuple[list[tuple[str, list[str]]], bool, str]:
    """(launches, whether stock is asked about each, a commit's words). A clone's files go to ``tree``."""
    if options.clone:
        commit, date = verl_clone.commit_of(options.clone, options.commit)
        verl_clone.write_tree(options.clone, commit, tree)
        return cloned(tree), True, f"veRL {commit[:8]} of {date}"
    if options.corpus.suffix == ".txt":
        return scripts(options.corpus), False, ""
    corpus = record_facts.read(options.corpus)
    if "commit" in corpus:
        return recorded(corpus), True, f"veRL {corpus['commit'][:8]} of {corpus['date']}, recorded"
    return launches(options.corpus, options.main), False, ""


def main() -> int:
    cli = argparse.ArgumentParser()
    cli.add_argument("corpus", type=Path, nargs="?")
    cli.add_argument("--clone", type=Path, metavar="DIR", help="a clone of veRL, in place of the corpus")
    cli.add_argument("--commit", default="HEAD", metavar="C", help="the clone's commit")
    cli.add_argument("--floor", metavar="NAME", help="exit 1 where a launch of floors.json no longer starts")
    cli.add_argument("--write-floor", metavar="NAME", help="record the launches that start")
    cli.add_argument("--device", choices=["cuda", "cpu"], required=True)
    cli.add_argument("--vllm", type=Path)
    cli.add_argument("--sample", type=int)
    cli.add_argument("--only", default="", metavar="TEXT", help="launches whose name holds it")
    cli.add_argument("--main", default="verl.trainer.main_ppo")
    cli.add_argument("--spare", metavar="TEXT", help="count refusals apart whose reason holds it")
    cli.add_argument("--json", type=Path, metavar="FILE", help="write every outcome there")
    cli.add_argument("--at-least", type=float, default=0.0, metavar="SHARE", help="exit 1 below it")
    cli.add_argument("-v", "--verbose", action="store_true")
    options = cli.parse_args()
    if not (options.corpus or options.clone):
        cli.error("name a corpus, or --clone DIR")
    prepare(options.device, options.vllm)
    with tempfile.TemporaryDirectory() as folder:
        return counted(options, Path(folder))


def prepare(device: str, vllm: Path | None) -> None:
    """Set up this process for ``outcomes``, before verl or vllm is imported."""
    os.environ |= QUIET
    if device == "cuda":
        os.environ |= {"VERL_ENGINE_DEVICE": "cuda", "VERL_ENGINE_VENDOR": "nvidia"}
    if vllm:
        sys.path.insert(0, str(vllm))
        # vLLM looks at a model's class in a process of its own and keeps what it saw; releases overwrite it.
        os.environ |= {"VLLM_CACHE_ROOT": f"{vllm}/.cache", "PYTHONPATH": _first(vllm)}


def counted(options: argparse.Namespace, tree: Path) -> int:
    """Count what the command line asks for; the exit code."""
    every, stock, words = chosen_from(options, tree)
    chosen = [each for each in every if options.only in each[0]]
    if options.sample:
        chosen = random.Random(0).sample(chosen, min(options.sample, len(chosen)))
    begun, found = time.monotonic(), []
    for outcome in outcomes(chosen, options.device, stock=stock):
        if options.spare:
            outcome = spared(outcome, options.spare)
        found.append(outcome)
        if options.verbose:
            ours = f" (here: {' '.join(outcome.ours.split())})" if outcome.ours else ""
            print(f"{outcome.state:8} {outcome.name}  {' '.join(outcome.why.split())}{ours}", flush=True)
    print("\n".join(table(found)))
    print(f"{time.monotonic() - begun:.0f} s{words and f'; {words}'}")
    if options.json:
        options.json.write_text(json.dumps([asdict(outcome) for outcome in found], indent=1) + "\n")
    if options.write_floor:
        write_floor(options.write_floor, found)
    lost = fallen(found, floor_of(options.floor)) if options.floor else []
    for outcome in lost:
        print(f"fell: {outcome.name}: {outcome.state}: {' '.join(outcome.why.split())}")
    could = [outcome for outcome in found if outcome.state in (STARTS, REFUSED)]
    enough = sum(outcome.state == STARTS for outcome in could) >= options.at_least * len(could)
    return int(bool(lost) or not enough)


if __name__ == "__main__":
    sys.exit(main())
