"""Lines of a script that disagree on its machines and GPUs: its launch hangs, ends, or leaves GPUs idle."""

from __future__ import annotations

import math
from collections.abc import Iterator

from trinity_compat.common.errors import Where
from trinity_compat.launch.model import MachineLine, RayStart
from trinity_compat.translate.launch_view import NODES, PER_NODE, LaunchView
from trinity_compat.translate.model import Caution, Severity
from trinity_compat.translate.sections.gpus import own_gpus
from trinity_compat.translate.sections.reward import pool_gpus


def machine_cautions(view: LaunchView, *, checks_visible: bool) -> Iterator[Caution]:
    """Yield one warning of each kind. ``checks_visible``: `size_rules` compares the visible GPUs."""
    machines = view.launch.machines
    for line in machines.unsplit:
        yield _caution(
            f"{line.written}: the quotes make one word of the list of hosts: the others are not reached",
            line.where,
            f"write it without quotes: {line.written.strip(chr(34))}",
        )
    if _joins_another(view):
        return
    nodes, per_node = (_asked(view, key) for key in (NODES, PER_NODE))
    counts = [line.count for line in (nodes, per_node, machines.nodes, machines.gpus) if line]
    if machines.packs and len(counts) == 4 and math.prod(counts[:2]) == math.prod(counts[2:]):
        return
    if nodes:
        yield from _nodes(view, nodes)
    if view.value("trainer.device", "cuda") == "cuda":
        yield from _of_ray(view)
        if per_node:
            yield from _gpus(view, per_node, checks_visible=checks_visible and view.size(NODES) == 1)


def _caution(message: str, where: Where, hint: str) -> Caution:
    return Caution("TW032", message, where, hint, Severity.DECIDE)


def _place(line: MachineLine) -> str:
    return f"{line.written} ({line.where})"


def _joins_another(view: LaunchView) -> bool:
    """Return True where the machines may be those of a cluster that the script does not start."""
    launch, starts = view.launch, view.launch.machines.starts
    if any(start.head for start in starts):
        return False
    given = "RAY_ADDRESS" in launch.env or view.value("ray_kwargs.ray_init.address")
    return bool(starts or given or "ray job submit" in launch.wrapper)


def _asked(view: LaunchView, key: str) -> MachineLine | None:
    """Return the launch's own number; None where it depends on the environment, or is not known."""
    setting = view.config.settings.get(key)
    if setting is not None and setting.word is not None and any(part.source for part in setting.word.parts):
        return None
    default = "" if view.is_set(key) else f" ({view.default_of(key)})"
    return MachineLine(view.size(key), f"{view.written(key)}{default}", view.where(key) or view.launch.where)


def _may_leave_some(view: LaunchView) -> bool:
    """Return True where something else than the trainer may use the rest."""
    return view.launch.machines.shared or bool(own_gpus(view) or pool_gpus(view))


def _nodes(view: LaunchView, asked: MachineLine) -> Iterator[Caution]:
    machines, spelling = view.launch.machines, view.spelling(NODES)
    given = machines.nodes
    fewer = given is not None and asked.count < given.count and not _may_leave_some(view)
    if given is not None and (asked.count > given.count or fewer):
        yield _caution(
            f"{asked.written}, and the job has {given.count} machine(s), {_place(given)}: "
            + ("the others stay idle" if fewer else "veRL waits for the others, or ends"),
            asked.where,
            f"write {spelling}={given.count}, or ask the scheduler for {asked.count}",
        )
    if machines.alone and asked.count > 1:
        yield _caution(
            f"{asked.written}, and the script starts Ray on one machine only, `ray start --head`"
            f" ({machines.starts[0].where}): veRL waits for the others, or ends",
            asked.where,
            "before the launch, `ray start --address=HEAD:6379` on each of the others",
        )


def _of_ray(view: LaunchView) -> Iterator[Caution]:
    """Check the GPUs that Ray is told of, against those that it can have."""
    of_job = view.launch.machines.gpus
    for start in view.launch.machines.starts:
        for less, more in ((start.visible, start.gpus), (of_job, start.visible), (of_job, start.gpus)):
            if less and more and more.count > less.count:
                yield _caution(
                    f"{more.written}, and {_place(less)} leaves {less.count} GPU(s) there: Ray"
                    " refuses to start, or counts GPUs that it does not have",
                    more.where,
                    f"name the same number of GPUs in both lines, {less.count} or {more.count}",
                )
                return


def _gpus(view: LaunchView, asked: MachineLine, *, checks_visible: bool) -> Iterator[Caution]:
    given = _most_of_a_machine(view)
    if given is None or asked.count == given.count:
        return
    fewer = asked.count < given.count
    visible = [start.visible for start in view.launch.machines.starts]
    if _may_leave_some(view) if fewer else (checks_visible and given in visible):
        return
    yield _caution(
        f"{asked.written}, and a machine has {given.count} GPU(s), {_place(given)}: "
        + ("the others stay idle" if fewer else "veRL waits for the others, or ends"),
        asked.where,
        f"write {view.spelling(PER_NODE)}={given.count}, or {asked.count} in the other line",
    )


def _most_of_a_machine(view: LaunchView) -> MachineLine | None:
    machines = view.launch.machines

    def of(start: RayStart) -> MachineLine | None:
        return None if start.open else start.gpus or start.visible or machines.gpus

    if not machines.starts:
        return machines.gpus
    found = [line for line in map(of, machines.starts) if line is not None]
    if not machines.whole or len(found) < len(machines.starts):
        return None
    return max(found, key=lambda line: line.count)
