"""Environment variables that SLURM sets for a job, read from its ``#SBATCH`` lines.

See sbatch(1), "OUTPUT ENVIRONMENT VARIABLES".
"""

from __future__ import annotations

import itertools
import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from trinity_compat.common.errors import Where

_DIRECTIVE = "#SBATCH"
_SHORT = {
    "-N": "nodes", "-n": "ntasks", "-c": "cpus-per-task", "-G": "gpus", "-J": "job-name", "-p": "partition",
}  # fmt: skip
_READ = {*_SHORT.values(), "gpus-per-node", "gpus-per-task", "ntasks-per-node", "gres"}
_COUNT = re.compile(r"(?:[\w.-]+:)*(\d+)$")  # of GPUs: 8, a100:8


@dataclass(frozen=True, slots=True)
class SlurmVariable:
    """A variable of the job, and the option that it comes from, as it is written."""

    value: str
    option: str
    where: Where


_Options = dict[str, tuple[str, str, Where]]  # option: its value, as it is written, where


def of_script(text: str, name: str) -> dict[str, SlurmVariable]:
    """The variables of a script that sbatch is given; none for one without directives."""
    return _variables(_options_of(_directives(text, name)))


def directives(text: str) -> tuple[list[str], set[str]]:
    """The lines with a script's options, and the options, those that are read by their long names."""
    head = itertools.takewhile(lambda line: not line.strip() or line.strip()[0] == "#", text.splitlines())
    lines = [line for line in head if line.startswith(_DIRECTIVE)]
    return lines, {option for option, _, _ in _directives(text, "")}


def of_command(words: Sequence[str], text: str, name: str, where: Where) -> dict[str, SlurmVariable]:
    """The same for ``sbatch OPTIONS script``: what stands on the command line comes first."""
    given = _options_of((word, " ".join(rest), where) for word, rest in _pairs(words))
    return _variables(_options_of(_directives(text, name)) | given)


def _directives(text: str, name: str) -> Iterator[tuple[str, str, Where]]:
    """(option, value, place) of each, up to the first command, where sbatch stops looking."""
    for number, line in enumerate(text.splitlines(), start=1):
        stripped = line.strip()
        if stripped and not stripped.startswith("#"):
            return
        if not line.startswith(_DIRECTIVE):
            continue
        try:
            words = shlex.split(line.removeprefix(_DIRECTIVE), comments=True)
        except ValueError:
            continue
        for option, value in _pairs(words):
            yield option, " ".join(value), Where(name, number)


def _pairs(words: Sequence[str]) -> Iterator[tuple[str, Sequence[str]]]:
    """``--nodes=4``, ``--nodes 4``, ``-N4``, ``-N 4``."""
    for i, word in enumerate(words):
        following = words[i + 1 : i + 2] if words[i + 1 : i + 2] and not words[i + 1].startswith("-") else ()
        if word.startswith("--"):
            option, equals, value = word[2:].partition("=")
            yield option, (value,) if equals else following
        elif word.startswith("-") and word[:2] in _SHORT:
            yield _SHORT[word[:2]], (word[2:].removeprefix("="),) if word[2:] else following


def _options_of(found: Iterator[tuple[str, str, Where]]) -> _Options:
    return {
        option: (value, f"--{option}={value}", where)
        for option, value, where in found
        if option in _READ and value
    }


# Variables that hold an option as it is given; those of _COUNTS only where it is a number.
_COUNTS = {
    "SLURM_NTASKS": "ntasks", "SLURM_NPROCS": "ntasks", "SLURM_NTASKS_PER_NODE": "ntasks-per-node",
    "SLURM_CPUS_PER_TASK": "cpus-per-task",
}  # fmt: skip
_GIVEN = {
    "SLURM_GPUS_PER_NODE": "gpus-per-node", "SLURM_GPUS": "gpus", "SLURM_JOB_NAME": "job-name",
    "SLURM_JOB_PARTITION": "partition",
}  # fmt: skip


def _variables(options: _Options) -> dict[str, SlurmVariable]:
    nodes = _nodes(options)
    settings: dict[str, SlurmVariable | None] = {"SLURM_NNODES": nodes, "SLURM_JOB_NUM_NODES": nodes}
    for name, option in _COUNTS.items():
        if option in options and options[option][0].isdigit():
            settings[name] = SlurmVariable(*options[option])
    settings["SLURM_GPUS_ON_NODE"] = _gpus(options, nodes)
    settings |= {
        name: SlurmVariable(*options[option]) for name, option in _GIVEN.items() if option in options
    }
    return {name: setting for name, setting in settings.items() if setting is not None}


def _nodes(options: _Options) -> SlurmVariable | None:
    """Return the number of nodes; None for ``2-4``, and where SLURM derives it from tasks or GPUs."""
    if "nodes" in options:
        value, option, where = options["nodes"]
        low, _, high = value.partition("-")
        return SlurmVariable(low, option, where) if low.isdigit() and high in ("", low) else None
    if not options or {"ntasks", "gpus"} & options.keys():
        return None
    return SlurmVariable("1", "no --nodes", next(iter(options.values()))[2])


def _gpus(options: _Options, nodes: SlurmVariable | None) -> SlurmVariable | None:
    """Return the number of GPUs of a node."""
    for name in ("gpus-per-node", "gres"):
        for part in options.get(name, ("",))[0].split(","):
            found = _COUNT.search(part.removeprefix("gres/")) if name != "gres" or "gpu" in part else None
            if found or (name == "gres" and part == "gpu"):
                return SlurmVariable(found[1] if found else "1", *options[name][1:])
    if "gpus" in options and nodes is not None and (found := _COUNT.search(options["gpus"][0])):
        share, left = divmod(int(found[1]), max(int(nodes.value), 1))
        return None if left else SlurmVariable(str(share), *options["gpus"][1:])
    if {"gpus-per-task", "ntasks-per-node"} <= options.keys():
        each, tasks = (_COUNT.search(options[name][0]) for name in ("gpus-per-task", "ntasks-per-node"))
        if each and tasks:
            return SlurmVariable(str(int(each[1]) * int(tasks[1])), *options["gpus-per-task"][1:])
    return None
