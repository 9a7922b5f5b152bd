"""The plan of the toy's script, as `run` would make it."""

import os
from dataclasses import replace
from pathlib import Path

from trinity_compat.launch import read_script
from trinity_compat.run.plan.plan_run import make_plan
from trinity_compat.run.plan.source import RunOptions
from trinity_compat.run.script.invocation import Invocation
from trinity_compat.run.script.launch_source import source_of
from trinity_compat.run.script.shared_folder import ScriptCall

SCRIPT = Path(__file__).parents[1] / "examples" / "verl_scripts" / "run_toy_grpo.sh"
ENV = {"TOY_DIR": "/toy", "PATH": os.environ["PATH"], "HOME": "/root"}


def source(*arguments, sets=()):
    """The launch that a run of the toy script captures, and the run's options."""
    call = ScriptCall(str(SCRIPT), arguments, RunOptions(sets=sets), str(Path.cwd()), ENV)
    launch = read_script(SCRIPT, env=ENV, args=arguments).launches[0]
    found = Invocation(launch.module, tuple(word.text for word in launch.arguments))
    return source_of(found, call)


def planned(*arguments, sets=(), device="cpu", **options):
    made, rest = source(*arguments, sets=sets)
    return make_plan(made.config, replace(rest, **options), cwd=Path("/work"), device=device)


def planned_where_it_acts(row, *sets):
    """The plan with ``sets`` in which a setting of ours acts: in turns the handover, else fully_async."""
    if row.name == "handover":
        return planned(sets=sets, mode="colocate")
    return planned(sets=("synchronizer.sync_style=fully_async", *sets))
