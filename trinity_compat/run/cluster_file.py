"""A file for a scheduler that starts Ray on a launch's machines, and the run on the first of them.

The files are templates in ``cluster_templates``: ``@NAME@`` stands for a value. Lines from ``#@if NAME`` to
``#@end`` stay where it has one, with ``!`` where it is empty.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from trinity_compat.common.errors import UserError
from trinity_compat.job.settings import SETTINGS
from trinity_compat.launch.bash import slurm
from trinity_compat.verl_config.model import EffectiveConfig

TEMPLATES = {"slurm": "slurm.sbatch", "rayjob": "rayjob.yaml", "skypilot": "skypilot.yaml"}
_SIZES = {"trainer.nnodes": "--nodes", "trainer.n_gpus_per_node": "--gpus-per-node"}
_IF = re.compile(r"#@if (!?)(\w+)")
_PLACE = re.compile(r"@([A-Z_]+)@")
_GPUS = {"gres", "gpus", "gpus-per-node", "gpus-per-task"}
_TIME_S = 300  # from SIGTERM until the machines are taken away, as the templates have it
_GRACE_S = _TIME_S - 30  # of these for the step and its checkpoint; the rest for the processes' end
_CPUS = {"exclusive", "cpus-per-task", "ntasks", "ntasks-per-node", "cpus-per-gpu"}


@dataclass(frozen=True, slots=True)
class ClusterRequest:
    """The words of the user about the cluster; "" and None are those that he left out.

    ``nodes`` and ``gpus`` of one are at least the launch's own. ``shared``: the folder that all machines see,
    by default that of the script. ``volume``: what is mounted there.
    """

    scheduler: str
    script: str
    arguments: tuple[str, ...] = ()
    nodes: int | None = None
    gpus: int | None = None
    image: str = ""
    shared: str = ""
    volume: str = ""
    gpu_type: str = ""


def cluster_file(config: EffectiveConfig, text: str, request: ClusterRequest, job: str = "") -> str:
    """Return the scheduler's file for a launch of the script ``text``.

    ``job`` is the folder that each start of it is to continue, "" for that which the script names.

    Raises UserError where the number of machines or of their GPUs is not known or too small, and for an
    option that the scheduler's file has no place for.
    """
    launch = config.launch
    template = (Path(__file__).parent / "cluster_templates" / TEMPLATES[request.scheduler]).read_text()
    for option, place in (("volume", "@VOLUME@"), ("gpu-type", "@GPU_TYPE@")):
        if getattr(request, option.replace("-", "_")) and place not in template:
            raise UserError(
                f"--{option} has no effect on a file for {request.scheduler}", hint="leave it out"
            )
    nodes = _size(config, "trainer.nnodes", request.nodes)
    gpus = _size(config, "trainer.n_gpus_per_node", request.gpus)
    name = re.sub(r"[^a-z0-9]+", "-", str(config.get("trainer.experiment_name") or "run").lower()).strip("-")
    is_slurm = request.scheduler == "slurm"
    own_ray = bool(launch.start and launch.start.travels) or bool(launch.machines.starts)
    if own_ray and (request.image or not is_slurm):
        raise UserError(
            "the script starts Ray on its machines itself, which the file would do, too",
            where=launch.machines.starts[0].where if launch.machines.starts else launch.where,
            hint="put the launch (python3 -m …) into a script of its own, and name that one",
        )
    shared = request.shared or ("" if is_slurm else "/shared")
    own, said = slurm.directives(text) if is_slurm else ([], set[str]())
    has_time = request.scheduler == "rayjob" or (is_slurm and "signal" not in said)
    values = {
        "SCRIPT": request.script,
        "NAME": name[:40].strip("-") or "run",
        "NODES": str(nodes),
        "GPUS": str(gpus),
        "WORKERS": str(nodes - 1) if nodes > 1 else "",
        "RAY": "" if own_ray else "1",
        "IMAGE": request.image or ("trinity-compat" if request.scheduler == "rayjob" else ""),
        "WITHIN": _within(request.image, shared),
        "SHARED": shared,
        "VOLUME": request.volume or "shared",
        "GPU_TYPE": request.gpu_type or "H100",
        "COMMAND": _command(request, f"{shared}/{name}" if shared else job, _GRACE_S if has_time else None),
    }
    values["DIRECTIVES"] = "\n".join([*own, *_missing(said, values)])
    return filled(template, values)


def filled(template: str, values: Mapping[str, str]) -> str:
    """Return the template with its values."""
    lines, keeps = [], True
    for line in template.splitlines():
        if condition := _IF.fullmatch(line):
            keeps = bool(values[condition[2]]) != bool(condition[1])
        elif line == "#@end":
            keeps = True
        elif keeps:
            lines.append(_PLACE.sub(lambda place: values[place[1]], line))
    return "\n".join(lines) + "\n"


def _size(config: EffectiveConfig, key: str, given: int | None) -> int:
    setting = config.settings.get(key)
    value = setting.value if setting else None
    where = (setting.where if setting else None) or config.launch.where
    is_open = bool(setting and setting.word and setting.word.open)
    value = value if isinstance(value, int) and not is_open else None
    if given is not None:
        if value is not None and given < value:
            raise UserError(
                f"{_SIZES[key]} {given} is less than the launch trains on: {key}={value}",
                where=where,
                hint=f"write {key}={given} after --, or leave {_SIZES[key]} out",
            )
        return given
    if value is None:
        raise UserError(
            f"{key} of the launch is not known before the script runs",
            where=where,
            hint=f"say it with {_SIZES[key]} N, or a variable's value with --env NAME=VALUE",
        )
    return value


def _command(request: ClusterRequest, job: str, grace_s: int | None) -> str:
    grace = ["--set", f"{SETTINGS['termination_grace'].key}={grace_s}"] if grace_s is not None else []
    words = ["trinity-compat", "run", *(["--job", job] if job else []), *grace, request.script]
    return shlex.join([*words, *(["--", *request.arguments] if request.arguments else [])])


def _within(image: str, shared: str) -> str:
    """Return the words that put a step into an image: Apptainer's for a file, else those of srun's Pyxis."""
    if not image:
        return ""
    more, given = shlex.quote(shared) if shared else "", shlex.quote(image)
    if image.endswith((".sif", ".img")):
        binds = f'--bind "$PWD"{f" --bind {more}" if more else ""}'
        return f'apptainer exec --nv {binds} --pwd "$PWD" {given}'
    mounts = f'"$PWD:$PWD"{f",{more}:{more}" if more else ""}'
    return f'--container-image={given} --container-mounts={mounts} --container-workdir="$PWD"'


def _missing(said: set[str], values: Mapping[str, str]) -> Iterator[str]:
    """Yield the #SBATCH lines that a job needs beside the options ``said`` of the script's own."""
    if "job-name" not in said:
        yield f"#SBATCH --job-name={values['NAME']}"
    if not {"nodes", "ntasks"} & said:
        yield f"#SBATCH --nodes={values['NODES']}"
    if not {"ntasks", "ntasks-per-node"} & said:
        yield "#SBATCH --ntasks-per-node=1"
    if not _GPUS & said:
        yield f"#SBATCH --gpus-per-node={values['GPUS']}"
    if not _CPUS & said:
        yield "#SBATCH --exclusive"
    if not {"requeue", "no-requeue"} & said:
        yield "#SBATCH --requeue"
    if "signal" not in said:
        yield f"#SBATCH --signal=B:TERM@{_TIME_S}"
    if "open-mode" not in said:
        yield "#SBATCH --open-mode=append"
