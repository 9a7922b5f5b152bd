"""Start the processes of a run on its Ray, and supervise them until the last one has ended."""

from __future__ import annotations

import os
import tempfile
import uuid
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from trinity_compat.buffer import open_buffer
from trinity_compat.common import python_command
from trinity_compat.common.parent_watch import SUPERVISOR
from trinity_compat.explorer.rewards.reward_model import address as reward_model
from trinity_compat.explorer.teachers import address as teachers
from trinity_compat.job import placement, stop_request
from trinity_compat.job.distillation import is_distilled
from trinity_compat.job.liveness import OWN_CHECKPOINT
from trinity_compat.run.job_dir.checkpoint_links import CheckpointLinks
from trinity_compat.run.job_dir.heartbeats import WAIT_S
from trinity_compat.run.job_dir.job_dir import JobDir
from trinity_compat.run.job_dir.progress import Progress, say
from trinity_compat.run.job_dir.start_record import ENGINE, RAY, WEIGHTS, StartRecorder
from trinity_compat.run.plan import verl_checkout
from trinity_compat.run.plan.run_plan import RunPlan
from trinity_compat.run.supervise.bench import ROLE
from trinity_compat.run.supervise.children import ProcessCommand
from trinity_compat.run.supervise.cluster import Cluster
from trinity_compat.run.supervise.standalone import StandaloneWatch
from trinity_compat.run.supervise.supervisor import RunOutcome, StopSignal, Supervision, supervise
from trinity_compat.run.supervise.user_output import UserOutput

_RUN_IDS = ("WANDB_RUN_ID", "MLFLOW_RUN_ID")
_FILE_LOGGER = "VERL_FILE_LOGGER_PATH"


def commands_of(plan: RunPlan, ray_address: str) -> list[ProcessCommand]:
    """Return the processes of a run, the explorers first: their engine takes longest to start."""
    spec = plan.spec
    explorers = (
        [f"explorer_{index}" for index in range(spec.explorers)] if spec.explorers > 1 else ["explorer"]
    )
    out = []
    if spec.mode != "train":
        for index, name in enumerate(explorers):
            if plan.explorer not in (None, index):
                continue
            out.append(_command(plan, "explorer", name, ("--index", str(index)), ray_address))
    if spec.mode != "explore":
        out.append(_command(plan, "trainer", "trainer", (), ray_address))
    return _with_servers(plan, out, ray_address) if spec.mode != "train" else out


def standalone_commands(plan: RunPlan, ray_address: str) -> list[ProcessCommand]:
    """Return the process of mode bench or serve, an explorer without a trainer, and its servers."""
    mode = plan.spec.mode
    alone = _command(plan, mode, mode, (f"--{mode}",), ray_address)
    return _with_servers(plan, [alone], ray_address)


def _with_servers(plan: RunPlan, commands: list[ProcessCommand], ray_address: str) -> list[ProcessCommand]:
    """Put the processes that serve models in front; the explorers find each by a token."""
    verl = plan.spec.verl
    if is_distilled(verl):
        commands = _with_server(plan, teachers.ROLE, "--teachers", teachers.TOKEN, commands, ray_address)
    if reward_model.is_served(verl):
        role, token = reward_model.ROLE, reward_model.TOKEN
        commands = _with_server(plan, role, "--reward-model", token, commands, ray_address)
    return commands


def _with_server(
    plan: RunPlan, role: str, option: str, token: str, commands: list[ProcessCommand], ray_address: str
) -> list[ProcessCommand]:
    env, number = {token: uuid.uuid4().hex}, plan.explorer
    bench = plan.spec.mode == ROLE
    suffix = ROLE if bench else number  # another command of the job may serve it too
    name = role if suffix is None else f"{role}_{suffix}"
    # Explorers that are commands of their own have servers each.
    parts = 1 if number is None else plan.spec.explorers
    words = (option, name, "--parts", str(parts), *(("--bench",) if bench else ()))
    server = replace(_command(plan, role, name, words, ray_address), serves=True)
    return [replace(each, env={**each.env, **env}) for each in (server, *commands)]


def _command(plan: RunPlan, role: str, name: str, extra: tuple[str, ...], ray_address: str) -> ProcessCommand:
    job = plan.job
    env = {
        **os.environ,
        # SQLite, for one, asks for the rights on a folder and not whether a file can be made there.
        "TMPDIR": tempfile.gettempdir(),
        **plan.env,
        **plan.spec.as_saved()[1],
        # After the terminal's variables: the YAML's win.
        **({} if role == "trainer" else plan.spec.env),
        "RAY_ADDRESS": ray_address,
        **({placement.USERS_RAY: "1"} if "RAY_ADDRESS" in os.environ else {}),
        # Every line counts in the search for what ended a worker.
        "RAY_DEDUP_LOGS": "0",
        "TENSORBOARD_DIR": str(job.tensorboard(role if name == f"{role}_0" else name)),
        SUPERVISOR: str(os.getpid()),
        python_command.USER_FOLDER: str(plan.run_cwd),
        # A killed side loses no output.
        "PYTHONUNBUFFERED": "1",
    }
    side = "trainer" if role == "trainer" else "explorer"
    if plan.spec.own_cluster:
        extra = (*extra, f"--{plan.spec.mode}")
    if role != "trainer":
        # The run ids and the log file are the trainer's: two writers would mix steps.
        for run in _RUN_IDS:
            env.pop(run, None)
        if path := env.get(_FILE_LOGGER):
            env[_FILE_LOGGER] = str(Path(path).with_stem(f"{Path(path).stem}_{name}"))
    python_command.share_cores(env)
    argv = python_command.of_module(f"trinity_compat.{side}", str(job.root), *extra)
    return ProcessCommand(
        role,
        name,
        argv,
        verl_checkout.python_path(env),
        job.log(f"{plan.log_folder}/{name}".lstrip("/")),
        cwd=str(plan.run_cwd),
        umask=job.umask,
    )


def supervise_sides(
    plan: RunPlan,
    links: CheckpointLinks,
    stop: StopSignal,
    cluster: Cluster,
    start: StartRecorder,
    *,
    restarts: int,
) -> RunOutcome:
    """Run explorers and trainer, or one of the two."""
    start.next(RAY, ENGINE, WEIGHTS)
    commands = commands_of(plan, cluster.address)
    with (
        Progress(plan.spec, lambda: open_buffer(plan.spec.database_url, retry_s=WAIT_S)) as progress,
        closing(UserOutput([command.log for command in commands], progress.aside)) as user_output,
    ):

        def poll() -> None:
            links.update()
            user_output.update()
            start.look(progress.last)

        return supervise(
            commands,
            Supervision(
                progress,
                stop,
                also_dead=cluster.dead,
                no_job=moved_job(plan.job),
                asked=lambda: stop_request.read(plan.job.root) is not None,
                checkpoint=lambda: stop_request.ask(plan.job.root),
                checkpoint_s=plan.spec.termination_grace_s,
                before_end=lambda: stop_request.note_end(plan.job.root),
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
                no_job=moved_job(plan.job),
                each_poll=user_output.update,
                say=say,
                stall_s=plan.spec.stall_timeout_s,
            ),
        )


def moved_job(job: JobDir) -> Callable[[], str | None]:
    """Return a function that says that the job's folder was renamed or deleted, None while it is in place."""
    began = job.root.stat()

    def look() -> str | None:
        try:
            if os.path.samestat(job.root.stat(), began):
                return None
        except (FileNotFoundError, NotADirectoryError):
            pass
        except OSError:  # the disk's fault, which the sides report
            return None
        return f"the job's folder {job.root} was renamed or deleted while the run used it"

    return look


def resume_environment(job: JobDir) -> Callable[[], dict[str, str]]:
    """Return the environment of a restarted trainer, which resumes from this run's checkpoint, if any.

    The launch's ``resume_mode`` and ``resume_path`` are for the first start.
    """
    before = job.checkpoint_mark
    return lambda: {OWN_CHECKPOINT: "1"} if job.checkpoint_mark != before else {}
