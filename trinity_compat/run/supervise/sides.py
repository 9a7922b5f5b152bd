"""Start the processes of a run on its Ray, and supervise them until the last one has ended."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing

from trinity_compat.buffer import open_buffer
from trinity_compat.job.restarts import OWN_CHECKPOINT
from trinity_compat.run.job_dir.checkpoint_links import CheckpointLinks
from trinity_compat.run.job_dir.job_dir import JobDir
from trinity_compat.run.job_dir.progress import Progress, say
from trinity_compat.run.plan.run_plan import RunPlan
from trinity_compat.run.supervise.cluster import Cluster
from trinity_compat.run.supervise.commands import commands_of, standalone_commands
from trinity_compat.run.supervise.standalone import StandaloneWatch
from trinity_compat.run.supervise.supervisor import RunOutcome, StopSignal, Supervision, supervise
from trinity_compat.run.supervise.user_output import UserOutput


def supervise_sides(
    plan: RunPlan, links: CheckpointLinks, stop: StopSignal, cluster: Cluster, *, restarts: int
) -> RunOutcome:
    """Run explorers and trainer, or one of the two."""
    commands = commands_of(plan, cluster.address)
    with (
        Progress(plan.spec, lambda: open_buffer(plan.spec.database_url)) as progress,
        closing(UserOutput([command.log for command in commands], progress.aside)) as user_output,
    ):

        def poll() -> None:
            links.update()
            user_output.update()

        return supervise(
            commands,
            Supervision(
                progress,
                stop,
                also_dead=cluster.dead,
                each_poll=poll,
                say=progress.aside,
                restarts=restarts,
                again=resume_environment(plan.job),
                all_needed=plan.spec.sync.method == "nccl",
                stall_s=plan.spec.stall_timeout_s,
            ),
        )


def supervise_standalone(
    plan: RunPlan, watch: StandaloneWatch, stop: StopSignal, cluster: Cluster
) -> RunOutcome:
    """Run an explorer without a trainer (mode bench or serve)."""
    commands = standalone_commands(plan, cluster.address)
    with closing(UserOutput([command.log for command in commands], say)) as user_output:
        return supervise(
            commands,
            Supervision(
                watch,
                stop,
                also_dead=cluster.dead,
                each_poll=user_output.update,
                say=say,
                stall_s=plan.spec.stall_timeout_s,
            ),
        )


def resume_environment(job: JobDir) -> Callable[[], dict[str, str]]:
    """The environment of a restarted trainer, which resumes from this run's checkpoint, if there is one.

    The launch's ``resume_mode`` and ``resume_path`` are for the first start.
    """
    before = job.checkpoint_mark
    return lambda: {OWN_CHECKPOINT: "1"} if job.checkpoint_mark != before else {}
