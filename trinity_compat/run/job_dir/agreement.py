"""Two commands of one job: what the sides of a split run have to have in common.

Sides with a file of their own each (``RunSpec.own_cluster``) say different things of what only one of them
uses. What an answer depends on is the same in both files: the fingerprint holds all of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from trinity_compat.common.errors import RunError
from trinity_compat.common.nested import Tree, section_at
from trinity_compat.job.fingerprint import differences
from trinity_compat.job.run_spec import RunSpec
from trinity_compat.run.job_dir.job_dir import JobDir


def check(job: JobDir, ours: RunSpec) -> RunSpec:
    """The spec of the run in ``job``.

    Raises RunError where it was started with other settings than ``ours``.
    """
    theirs = job.load_spec()
    if others := ", ".join(differing(theirs, ours)):
        raise RunError(
            f"the run in {job.root} was started with other settings: {others}",
            hint=f"see {job.root}/config/run.json; start both sides with the same script and options",
        )
    if ours.mode == "explore" and theirs.explorers != ours.explorers:
        raise RunError(
            f"the run in {job.root} was started with --explorers {theirs.explorers}",
            hint="give every command of the run the same --explorers",
        )
    return theirs


def differing(theirs: RunSpec, ours: RunSpec) -> Iterator[str]:
    """Yield the differences of two specs that both sides must share, in the words of the user.

    Where versions lie, and the path that Python searches, belong to a machine.
    """
    they, we = theirs.as_saved()[0], ours.as_saved()[0]  # another secret is no other run
    files_of_their_own = theirs.own_cluster and ours.own_cluster
    if not files_of_their_own and they["verl"] != we["verl"]:
        yield "the veRL configuration"
    if theirs.updates_per_step != ours.updates_per_step:
        yield "the optimizer updates of a step"
    if theirs.database_url != ours.database_url:
        yield "the database"
    if replace(theirs.sync, directory="") != replace(ours.sync, directory=""):
        yield "synchronizer.*"
    if theirs.max_staleness != ours.max_staleness:
        yield "algorithm.sample_strategy_args.max_staleness"
    if theirs.replay != ours.replay:
        yield "the replay buffer"
    if _without_path(they) != _without_path(we):
        yield "explorer.env_vars"
    if theirs.fingerprint and ours.fingerprint:  # of files too, which may lie elsewhere on another machine
        yield from differences(theirs.fingerprint.parts, ours.fingerprint)


def _without_path(saved: Tree) -> dict[str, object]:
    return {name: value for name, value in section_at(saved, "env").items() if name != "PYTHONPATH"}
