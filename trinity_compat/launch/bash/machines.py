"""Machines and GPUs in a script's lines: a scheduler's directives, ``ray start``, lists of hosts.

What is not known, or may be meant for several clusters, is left out.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise

from trinity_compat.common.errors import Where
from trinity_compat.launch.bash.state import Shell
from trinity_compat.launch.bash.traced_text import Prefix, Value, text_of
from trinity_compat.launch.bash.tree import Node
from trinity_compat.launch.launchers import name_of
from trinity_compat.launch.model import MachineLine, Machines, RayStart, UnknownPiece, visible_devices

_VISIBLE = "CUDA_VISIBLE_DEVICES"
STARTS = re.compile(r"\bray\s+start\b")
_SCHEDULERS = re.compile(r"(?m)^#(SBATCH|PBS|BSUB|COBALT|FLUX|PJM)\b")
_SEVERAL_JOBS = re.compile(r"(?m)^#SBATCH[ \t]+((het|pack)job\b|--array\b|-a\b)")  # of one Ray, perhaps
_CHUNKS = re.compile(r"-l\s*((?:select|nodes)=(\d+)([^\s,]*))")
_GPUS_OF_CHUNK = re.compile(r":n?gpus=(\d+)")
# By these a script may start Ray on other machines in lines that are not read, or wait for machines.
_OTHER_CODE = re.compile(r"\.(sh|slurm|sbatch|pbs)\b|symmetric-run|\bray\s+up\b|\bpbsdsh\b")
_WAITS = re.compile(
    r"\b(ssh|srun|pdsh|clush|pssh|mpirun|mpiexec|kubectl|ansible|sleep|read|until|while|ray\s+(status|list))\b"
    r"|ray\.nodes|RANK"
)
_MORE = r"(\|\s*(tr|sort|uniq|xargs)\b[^|;&]*)*\)"
_HOSTS = re.compile(
    rf"\$\(\s*(scontrol\s+show\s+hostnames?\b|(cat|sort|uniq)\b[^|;&]*PBS_NODEFILE)[^|;&]*{_MORE}"
)
_LONGEST = 400  # characters of an expression that is compared with it
_REACHES = re.compile(r"\b(ssh|srun|pdsh|ray\s+start)\b")


def note_ray(sh: Shell, fields: list[Value], prefix: Prefix) -> None:
    """Record a ``ray start``, behind a launcher too; after a ``ray stop`` those before it no longer count."""
    words = [text_of(field) for field in fields]
    verb = next((after for name, after in pairwise(words) if name_of(name) == "ray"), "")
    if verb == "stop":
        sh.log.stopped = len(sh.log.ray)
    if verb != "start":
        return
    gpus, is_open = None, False
    for index, word in enumerate(words):
        name, equals, value = word.partition("=")
        at = index if equals else index + 1
        if name == "--num-gpus":
            value = value if equals else "".join(words[at : at + 1])
            is_open = not (value.isdigit() and _is_known(fields[at]))
            gpus = None if is_open else MachineLine(int(value), f"ray start --num-gpus {value}", sh.where)
    variable = sh.variables.get(_VISIBLE)
    exported = variable.value if variable is not None and variable.exported else None
    devices, visible = prefix.get(_VISIBLE, exported), None
    if devices is not None and not _is_known(devices):
        is_open = True
    elif devices is not None:
        where = devices[0].where if devices else sh.where
        visible = MachineLine(visible_devices(text_of(devices)), f"{_VISIBLE}={text_of(devices)}", where)
    sh.log.ray.append(RayStart(sh.where, "--head" in words, gpus, visible, is_open))


def _is_known(value: Value) -> bool:
    return all(bit.source is None for bit in value)


def note_loop(sh: Shell, loop: Node, word: Node, values: list[Value]) -> None:
    """Record a loop over a quoted list of hosts, which is one round."""
    if (quoted := _quoted(word)) is None or quoted.get("Index") or len(values) != 1:
        return
    if _is_list_of_hosts(values[0]) or (
        len(text_of(values[0]).split()) > 1 and _REACHES.search(sh.unit.text(loop))
    ):
        sh.log.unsplit.append(MachineLine(1, sh.unit.text(word), sh.unit.where(word)))


def note_array(sh: Shell, name: str, array: Node) -> None:
    """Record an array with a quoted list of hosts as its one element, of which others are used later."""
    elements = array.get("Elems") or []
    word = elements[0].get("Value") if len(elements) == 1 else None
    values = [each for each in Shell.as_array(sh.variables[name]).values() if _is_list_of_hosts(each)]
    if word is None or _quoted(word) is None or not values:
        return
    of = re.escape(name)
    others = rf"\$\{{{of}\[(?![@*0]\])|\$\{{\#{of}\[[@*]\]|\"\$\{{{of}\[@\]"
    if re.search(others, sh.log.source[1]):
        sh.log.unsplit.append(MachineLine(1, sh.unit.text(word), sh.unit.where(word)))


def _quoted(word: Node) -> Node | None:
    """Return the expansion that a word in double quotes consists of."""
    parts = word.get("Parts") or []
    inner = parts[0].get("Parts") or [] if len(parts) == 1 and parts[0].get("Type") == "DblQuoted" else []
    return inner[0] if len(inner) == 1 and inner[0].get("Type") in ("ParamExp", "CmdSubst") else None


def _is_list_of_hosts(value: Value) -> bool:
    sources = [bit.source for bit in value]
    return (
        len(sources) == 1
        and isinstance(sources[0], UnknownPiece)
        and len(sources[0].expression) < _LONGEST
        and bool(_HOSTS.fullmatch(sources[0].expression))
    )


def of_launch(sh: Shell) -> Machines:
    """Return what the script has said before the launch that starts now."""
    # what the options of #SBATCH or srun say, where the environment does not say otherwise
    found: dict[str, MachineLine] = {}
    for each in sh.log.scheduled:
        variable, setting = sh.variables.get(each.name), each.setting
        is_it = variable is not None and variable.value is each.value
        if is_it and setting.value.isdigit() and setting.option.startswith("-"):
            found[each.name] = MachineLine(int(setting.value), setting.option, setting.where)
    nodes, gpus = found.get("SLURM_NNODES"), found.get("SLURM_GPUS_ON_NODE")
    text = _of_text(*sh.log.source)
    packs = False
    if nodes is None and gpus is None:
        nodes, gpus, packs = text.nodes, text.gpus, text.packs
    if text.several:
        nodes = gpus = None
    starts = tuple(sh.log.ray[sh.log.stopped :])
    places = {start.where for start in sh.log.ray}
    alone = bool(starts) and len(places) == 1 == text.mentions and starts[0].head
    return Machines(
        nodes,
        gpus,
        packs,
        starts,
        whole=text.starts == len(places),
        alone=alone and not text.starts_elsewhere and (nodes is not None or not text.waits),
        unsplit=tuple(dict.fromkeys(sh.log.unsplit)),
    )


@dataclass(frozen=True, slots=True)
class _Text:
    """A whole script. ``mentions`` counts each ``ray start``, ``starts`` those outside of comments."""

    mentions: int
    starts: int
    starts_elsewhere: bool
    waits: bool
    several: bool
    nodes: MachineLine | None
    gpus: MachineLine | None
    packs: bool


@lru_cache(maxsize=2)
def _of_text(name: str, text: str) -> _Text:
    lines = text.splitlines()
    code = "\n".join(line for line in lines if not line.lstrip().startswith("#"))
    return _Text(
        len(STARTS.findall(text)),
        len(STARTS.findall(code)),
        bool(_OTHER_CODE.search(code)),
        bool(_WAITS.search(code)),
        len(set(_SCHEDULERS.findall(text))) > 1 or bool(_SEVERAL_JOBS.search(text)),
        *_of_pbs(name, lines),
    )


def _of_pbs(name: str, lines: list[str]) -> tuple[MachineLine | None, MachineLine | None, bool]:
    """Return the chunks, the GPUs of one, and True where chunks may share a machine."""
    directives = {number: line for number, line in enumerate(lines, start=1) if line.startswith("#PBS")}
    found = [(number, each) for number, line in directives.items() for each in _CHUNKS.finditer(line)]
    if len(found) != 1 or "+" in found[0][1][3]:
        return None, None, False
    number, chunks = found[0]
    scattered = any("scatter" in line for line in directives.values())
    gpus = _GPUS_OF_CHUNK.search(chunks[3])
    packs = chunks[1].startswith("select") and not scattered
    if packs and gpus and int(gpus[1]) == 1 < int(chunks[2]):
        return None, None, False
    nodes = MachineLine(int(chunks[2]), f"-l {chunks[1]}", Where(name, number))
    return nodes, replace(nodes, count=int(gpus[1])) if gpus else None, packs
