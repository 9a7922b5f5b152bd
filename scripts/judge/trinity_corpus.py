"""Plan published Trinity YAMLs, and compare their meaning with the real trinity-rft.

    .venv/bin/python scripts/judge/trinity_corpus.py tests/facts/trinity_yamls.txt --mirror FOLDER
        [--upstream .venv-upstream-0.6.0/bin/python] [--only TEXT] [--json FILE] [-v]

A line of the list names a repository, a commit and a path; ``FOLDER/owner+name/repo`` is a bare clone of it.
Each file is planned whole for 8 GPUs or those that its cluster says, as ``run FILE --dry-run --device cuda``
plans it, without the checks on veRL's and vLLM's objects. Variables without a default have stand-ins.

``--upstream``: an interpreter with trinity-rft 0.6.0 (scripts/ci/make_upstream_venv.sh). It completes the
files (``check_and_update``) and makes the trainer's configuration (``build_verl_config``); of those that are
planned here, every value that both sides have is compared. What differs for a reason is named in ``NAMED``.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from trinity_compat.common.errors import UserError
from trinity_compat.common.nested import leaves, value_at
from trinity_compat.run import dry_run
from trinity_compat.run.plan import environment, micro_batches, overlay, plan_run, refusals
from trinity_compat.run.plan.micro_batches import has_critic
from trinity_compat.run.plan.run_plan import RunPlan
from trinity_compat.run.plan.source import RunOptions
from trinity_compat.translate.verl_from_trinity import completed_config
from trinity_compat.trinity.config.read_tracking import plain, values_of

ROOT = Path(__file__).resolve().parents[2]
COMPLETE = ROOT / "tests" / "upstream" / "complete.py"
_VARIABLE = re.compile(r"\$\{oc\.env:\s*([A-Za-z_]\w*)\s*\}")
PLANNED = "planned"
# A refusal's words → why it is refused, in the order in which they are looked for.
REASONS = {
    "for what fails there too": r"it ends there with|path is missing",
    "for packages that are missing": r"would have to be installed here",
    "for another release or a plugin": r"has no such|no release of|no (workflow|reward|operator) of",
    "until it is decided": r"steps_as_rows|on_policy_distill",
}
OURS = "by a limit of ours"


@dataclass(frozen=True, slots=True)
class Outcome:
    """Outcome of one file. ``differing``: path → (ours, theirs)."""

    name: str
    state: str
    why: str = ""
    upstream: str = ""
    differing: Mapping[str, tuple[Any, Any]] = field(default_factory=dict)
    compared: bool = False


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("list", type=Path)
    parser.add_argument("--mirror", type=Path, required=True)
    parser.add_argument("--upstream")
    parser.add_argument("--only", default="")
    parser.add_argument("--json", type=Path)
    parser.add_argument("-v", action="store_true", dest="verbose")
    given = parser.parse_args()
    overlay.flash_attn_installed = lambda: True  # the plan is for a machine with flash-attn
    texts = dict(read(given.list, given.mirror, given.only))
    os.environ.update({name: value for text in texts.values() for name, value in stand_ins(text).items()})
    theirs = completed_there(given.upstream, texts) if given.upstream else {}
    found = [judged(name, text, theirs.get(name)) for name, text in texts.items()]
    tell(found, verbose=given.verbose)
    if given.json:
        rows = [{"name": each.name, "state": each.state, "why": each.why} for each in found]
        given.json.write_text(json.dumps(rows, indent=1) + "\n")


def read(listed: Path, mirror: Path, only: str) -> Iterator[tuple[str, str]]:
    """(name, text) of each file that the list names."""
    for line in listed.read_text().splitlines():
        if not line.strip() or line.startswith("#") or only not in line:
            continue
        repository, commit, path = line.split()
        git = mirror / repository.replace("/", "+") / "repo"
        shown = subprocess.run(
            ["git", f"--git-dir={git}", "show", f"{commit}:{path}"],
            capture_output=True,
            text=True,
            check=True,
        )
        yield f"{repository.split('/')[0]} {path.removeprefix('examples/')}@{commit[:7]}", shown.stdout


def stand_ins(text: str) -> dict[str, str]:
    return {name: f"/stand-in/{name.lower()}" for name in _VARIABLE.findall(text)}


def judged(name: str, text: str, theirs: Mapping[str, Any] | None) -> Outcome:
    """``theirs``: a row of tests/upstream/complete.py."""
    upstream = str((theirs or {}).get("error", ""))
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "x.yaml"
        file.write_text(text)
        try:
            made = planned(file)
        except UserError as error:
            why = str(error).replace(f"{file}:", "line ")
            return Outcome(name, reason_of(why), why, upstream)
    if not theirs or upstream or len(made) > 1 or made[0][1].get("stages"):
        return Outcome(name, PLANNED, "", upstream)
    return Outcome(name, PLANNED, "", "", dict(differing(*made[0], theirs)), compared=True)


def planned(file: Path) -> list[tuple[RunPlan, Mapping[str, Any]]]:
    """The plans of a file, one for each of its stages, and what the file says. Raises UserError."""
    found = []
    options = RunOptions(device="cuda", gpus=8)
    for source, rest in dry_run.sources(str(file), (), options):
        made = plan_run.plan_source(source, rest, cwd=file.parent)
        refusals.check(made.spec.verl, source.record, cwd=made.cwd)
        if made.spec.mode not in ("bench", "serve"):
            micro_batches.check(made.spec.verl, source.record)
        found.append((made, source.config))
    return found


# Of completed configurations: fields of upstream's own workers, and of this machine.
_THEIRS = (
    *("checkpoint_root_dir", "checkpoint_job_dir", "ray_namespace", "cluster.*", "log.*", "monitor.*"),
    *("ignore_validator_suggestions", "service.*", "synchronizer.ray_namespace"),
    *("synchronizer.explorer_world_size", "buffer.cache_dir", "buffer.trainer_input.*", "data_processor.*"),
    *("explorer.rollout_model.*", "explorer.auxiliary_models.*", "trainer.trainer_config*"),
    *("buffer.explorer_input.taskset", "buffer.explorer_input.default_*"),
    *(f"buffer.explorer_input.*.{name}" for name in ("name", "batch_size", "is_eval", "total_steps")),
    *(f"buffer.explorer_input.*.{name}" for name in ("total_epochs", "ray_namespace", "repeat_times")),
)
_RATIO = "upstream's loss reads algorithm.*, and never these"
# Values that both sides have and not alike, by their path → why. A trainer's are veRL 0.8's and 0.9.1's.
NAMED: Mapping[str, str] = {
    "buffer.batch_size": "mode train: no explorer, whose batch it is; ours follows from train_batch_size",
    "algorithm.repeat_times": "dpo: 2 rows of a pair, which the reader of rows counts",
    "model.enable_thinking": "explorer.rollout_model's, which the run's prompts follow in both",
    "explorer.eval_interval": "dpo and sft have no explorer; it is a multiple of the sync interval here",
    "veRL: *.profiler.*": "veRL 0.9.1's own defaults of profilers that are off",
    "veRL: model.fused_kernel_options": "veRL 0.9.1's own default; use_fused_kernels is alike",
    "veRL: *.ppo_mini_batch_size": "an expert's rows, which come beside the update's tasks here",
    "veRL: *.optim.total_training_steps": "set at the start here, from the run's own steps",
    "veRL: actor.clip_ratio*": _RATIO,
    "veRL: actor.kl_loss_*": _RATIO,
    "veRL: actor.loss_agg_mode": "here the policy loss's; there KL's and entropy's, which have no weight",
    "veRL: actor.policy_loss.loss_mode": _RATIO,
    "veRL: *.strategy": "set from actor.strategy, critic.strategy (__post_init__), which are alike",
    "veRL: *fsdp*.ulysses_sequence_parallel_size": "set from the section above it, which is alike",
    "veRL: actor.checkpoint.*_contents": "save_hf_checkpoint, which upstream reads elsewhere",
    "veRL: rollout.name": "upstream's trainer has no engine of veRL's",
    "veRL: rollout.val_kwargs.do_sample": "upstream's trainer evaluates nothing",
    "veRL: rollout.log_prob_micro_batch_size_per_gpu": "rows of files have no rollout",
}


def completed_there(interpreter: str, texts: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    """The rows of tests/upstream/complete.py by name. Of a file that leaves its GPUs to the machine none: it
    would ask whatever Ray runs here."""
    whole = {name: text for name, text in texts.items() if "gpu_per_node" in text}
    rows = [json.dumps({"name": name, "yaml": text, "trainer": True}) for name, text in whole.items()]
    env = {**os.environ, "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [interpreter, COMPLETE],
        input="\n".join(rows) + "\n",
        capture_output=True,
        text=True,
        env=env,
        check=True,
    )
    found = [json.loads(line) for line in done.stdout.splitlines()]
    return {row["name"]: row for row in found}


def differing(
    made: RunPlan, source: Mapping[str, Any], theirs: Mapping[str, Any]
) -> Iterator[tuple[str, Any]]:
    """Path → (ours, theirs) of what both sides say and not alike."""
    full = plain(completed_config(environment.filled(source, os.environ)).config)
    for path, value in values_of(full).items():
        there = theirs["config"].get(path, value)
        if not alike(value, there) and not any(fnmatchcase(path, each) for each in _THEIRS):
            yield path, (value, there)
    verl, group = made.spec.verl, value_at(made.spec.verl, "actor_rollout_ref.rollout.n")
    critic = has_critic(verl)
    for key, value in leaves(theirs.get("trainer") or {}):
        if key.endswith("_target_") or (key.startswith("critic.") and not critic):
            continue
        ours = value_at(verl, key if key.startswith("critic.") else f"actor_rollout_ref.{key}")
        if key.endswith(".ppo_mini_batch_size") and not made.spec.rows:
            ours = int(str(ours)) * int(str(group))
        if ours is not None and not alike(ours, value):
            yield f"veRL: {key}", (ours, value)


def alike(ours: object, theirs: object) -> bool:
    """1e-6 may be a text in a YAML."""
    if isinstance(ours, str | int | float) and isinstance(theirs, str | int | float):
        try:
            return float(ours) == float(theirs)
        except ValueError:
            pass
    return ours == theirs or (ours in (None, [], {}, "") and theirs in (None, [], {}, ""))


def tell(found: Sequence[Outcome], *, verbose: bool) -> None:
    for each in found:
        if verbose or each.state != PLANNED:
            print(f"{each.state:28} {each.name}  {' '.join(each.why.split())[:300]}")
            if each.upstream:
                print(f"{'':28}   trinity-rft: {' '.join(each.upstream.split())[:200]}")
    seen: dict[str, list[tuple[str, Any]]] = {}
    for each in found:
        for path, values in each.differing.items():
            seen.setdefault(path, []).append((each.name, values))
    unnamed = 0
    for path, rows in sorted(seen.items()):
        why = next((why for pattern, why in NAMED.items() if fnmatchcase(path, pattern)), "")
        unnamed += 0 if why else len(rows)
        if verbose or not why:
            name, (ours, there) = rows[0]
            print(f"differs in {len(rows)}: {path}: {ours!r}, there {there!r} ({name}): {why or 'NOT NAMED'}")
    print(f"{len(found)} files: {', '.join(f'{n} {state}' for state, n in counted(found))}")
    compared = sum(each.compared for each in found)
    values = sum(len(each.differing) for each in found)
    print(f"{compared} compared with trinity-rft: {values} values differ, {unnamed} of them without a reason")


def counted(found: Sequence[Outcome]) -> list[tuple[str, int]]:
    return Counter(each.state for each in found).most_common()


def reason_of(why: str) -> str:
    for reason, words in REASONS.items():
        if re.search(words, why):
            return f"refused {reason}"
    return f"refused {OURS}"


if __name__ == "__main__":
    main()
