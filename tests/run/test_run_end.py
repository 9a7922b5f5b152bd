"""The last words of a run, and what a side that is started again goes on from; no process of a run starts."""

import contextlib
from pathlib import Path
from types import SimpleNamespace

import pytest

from trinity_compat.job import disk_full
from trinity_compat.job.checkpoints import NewestCheckpoint
from trinity_compat.job.liveness import OWN_CHECKPOINT
from trinity_compat.run import acquire_job, run
from trinity_compat.run.job_dir import resume_point
from trinity_compat.run.supervise import cluster as clusters
from trinity_compat.run.supervise import sides
from trinity_compat.run.supervise.supervisor import RunOutcome


def made(root):
    job = SimpleNamespace(root=Path(root), spec_path=Path(__file__))
    return SimpleNamespace(job=job, spec="the spec")


@pytest.fixture
def disk(monkeypatch):
    """The folder that is full, "" for none."""
    full = SimpleNamespace(folder="")
    monkeypatch.setattr(disk_full, "full_folder", lambda spec: full.folder)
    monkeypatch.setattr(disk_full, "told", lambda folder: f"{disk_full.TOLD} in {folder}")
    return full


FAILED = RunOutcome(1, "the trainer died")
CONTINUES, STARTS_OVER = (
    "the same command continues from step 4",
    "no checkpoint yet: the same command starts over",
)


@pytest.mark.parametrize(
    ("outcome", "step", "again", "folder", "message"),
    [
        (RunOutcome(0), 4, "", "", "done"),
        (RunOutcome(143), 4, "", "", f"stopped; {CONTINUES}"),
        (RunOutcome(143), None, "", "", f"stopped; {STARTS_OVER}"),
        (RunOutcome(130), 4, "it serves again", "", "stopped; it serves again"),
        (FAILED, 4, "", "", f"error: the trainer died\n  log: /job/log\n  hint: {CONTINUES}"),
        (FAILED, None, "", "", f"error: the trainer died\n  log: /job/log\n  hint: {STARTS_OVER}"),
        (RunOutcome(3, "it died", "/log"), 4, "", "", f"error: it died\n  log: /log\n  hint: {CONTINUES}"),
        (
            FAILED, 4, "", "/job",
            "error: the trainer died; no space left in /job\n  log: /job/log\n"
            f"  hint: free some space, then {CONTINUES}",
        ),
        (
            RunOutcome(1, "no space left in /weights"), 4, "", "/job",
            "error: no space left in /weights\n  log: /job/log\n"
            f"  hint: free some space, then {CONTINUES}",
        ),
    ],
)  # fmt: skip
def test_a_run_ends_with_its_reason_and_what_goes_on(
    capsys, monkeypatch, disk, outcome, step, again, folder, message
):
    disk.folder = folder
    monkeypatch.setattr(resume_point, "of", lambda root, spec: NewestCheckpoint(step))
    end = run.report_end(made("/job"), outcome, resume_hint=again)
    assert (end.code, end.job, end.message) == (outcome.code, "/job", message)
    said = capsys.readouterr()
    # what a signal ended is said by the caller
    assert said.out == ("done\n" if not outcome.code else "")
    assert said.err == (f"{message}\n" if outcome.failure else "")


def test_a_run_does_not_say_that_it_continues_from_a_damaged_checkpoint(tmp_path, monkeypatch, capsys, disk):
    damaged = NewestCheckpoint(4, "global_step_4 is missing", "write this")
    monkeypatch.setattr(resume_point, "of", lambda root, spec: damaged)
    message = run.report_end(made("/job"), RunOutcome(143)).message
    assert message == "stopped; global_step_4 is missing: write this"


def test_a_trainer_that_is_started_again_goes_on_from_what_this_run_has_trained():
    job = SimpleNamespace(checkpoint_mark=(3, 1.0))
    environment = sides.resume_environment(job)
    assert environment() == {}  # nothing was saved meanwhile: the launch's own resume mode holds
    job.checkpoint_mark = (4, 2.0)
    assert environment() == {OWN_CHECKPOINT: "1"}


@pytest.mark.parametrize("mode", ["both", "train", "explore", "bench", "serve"])
@pytest.mark.parametrize("inside", [True, False])
def test_weights_outside_the_job_go_with_their_run(tmp_path, mode, inside):
    job = tmp_path / "job"
    folder = (job if inside else tmp_path / "shm") / "weights"
    folder.mkdir(parents=True)
    sync = SimpleNamespace(directory=str(folder))
    acquire_job._remove_weights(
        SimpleNamespace(job=SimpleNamespace(root=job), spec=SimpleNamespace(mode=mode, sync=sync))
    )
    kept = mode == "explore" or (inside and mode in ("both", "train"))
    assert folder.exists() == kept
    acquire_job._remove_weights(
        SimpleNamespace(job=SimpleNamespace(root=job), spec=SimpleNamespace(mode=mode, sync=sync))
    )


@pytest.mark.parametrize("ends_s", [0.0, 3.0, None])
def test_a_start_waits_for_an_earlier_start_s_processes_and_names_those_that_stay(
    monkeypatch, capsys, ends_s
):
    clock = SimpleNamespace(now=0.0)

    def sleep(seconds):
        clock.now += seconds

    monkeypatch.setattr(acquire_job, "time", SimpleNamespace(monotonic=lambda: clock.now, sleep=sleep))
    alive = [7, 8]
    monkeypatch.setattr(
        acquire_job, "survivors", lambda root: alive if ends_s is None or clock.now < ends_s else []
    )
    job = SimpleNamespace(root="/job")
    if ends_s is None:
        with pytest.raises(acquire_job.RunError, match="still use /job: pids 7 8") as error:
            acquire_job.await_earlier_processes(job)
        assert "kill -9 7 8" in error.value.hint and clock.now > acquire_job._GRACE_S
    else:
        acquire_job.await_earlier_processes(job)
        assert ends_s <= clock.now < ends_s + 1
    assert ("waits for the end of an earlier start's processes (7, 8)" in capsys.readouterr().out) == (
        ends_s != 0.0
    )


@pytest.mark.parametrize(("device", "gpus"), [("cpu", 0), ("cuda", None)])
def test_a_run_has_a_ray_of_its_own_and_leaves_nothing_behind(monkeypatch, device, gpus):
    done, cluster = [], clusters.Cluster("127.0.0.1:1")

    @contextlib.contextmanager
    def local_ray(settings, **how):
        done.append((settings, how))
        yield cluster

    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(clusters, "local_ray", local_ray)
    monkeypatch.setattr(clusters, "cpus_for", lambda spec: 5)
    monkeypatch.setattr(clusters, "sweep", lambda: done.append("swept"))
    spec = SimpleNamespace(device=device, stall_timeout_s=600.0)
    plan = SimpleNamespace(spec=spec, ray={"a": 1}, job=SimpleNamespace(umask=0o77))
    assert clusters.with_ray(
        plan, clusters.StopSignal(), lambda one: RunOutcome(0, one.address)
    ) == RunOutcome(0, "127.0.0.1:1")
    assert cluster.watchdog.limit_s == clusters.SIDE_SILENT_S  # of Ray's own processes, when they are stopped
    assert done == [({"a": 1}, {"gpus": gpus, "cpus": 5, "umask": 0o77}), "swept"]

    def refuse(cluster):
        raise clusters.RunError("Ray did not start")

    assert clusters.with_ray(plan, clusters.StopSignal(), refuse) == RunOutcome(1, "Ray did not start")
    assert clusters.with_ray(plan, clusters.StopSignal(15), refuse) == RunOutcome(143)
    assert done[-1] == "swept"


def test_a_ray_of_the_user_s_is_used_and_left_alone(monkeypatch, capsys):
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    monkeypatch.setattr(clusters, "sweep", lambda: pytest.fail("swept"))
    assert (
        clusters.with_ray(None, clusters.StopSignal(), lambda cluster: RunOutcome(0, cluster.address)).failure
        == "10.0.0.1:6379"
    )
    assert "using the Ray cluster at RAY_ADDRESS=10.0.0.1:6379" in capsys.readouterr().out
