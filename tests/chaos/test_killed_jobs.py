"""The kill matrix in short (benchmarks/chaos is the long one): a job killed twice and started again."""

import random
import sqlite3
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[2] / "benchmarks" / "chaos"))
from job import Job, Strike
from toys import made_toy

from trinity_compat.run.toy import ToySpec

pytestmark = pytest.mark.chaos

BATCH, STEPS = 8, 5
WORDS = (
    f"trainer.total_training_steps={STEPS}",
    "trainer.save_freq=2",
    "trainer.test_freq=-1",
    "trainer.val_before_train=False",
    "trainer.max_actor_ckpt_to_keep=2",
)


@pytest.fixture(scope="module")
def toy(tmp_path_factory):
    return made_toy(tmp_path_factory.mktemp("toy"), ToySpec(train_rows=64, val_rows=8, warm_steps=1))


@pytest.fixture(scope="module", params=["v0", "v1"])
def killed(toy, tmp_path_factory, request):
    """The job, and what became of it."""
    folder = tmp_path_factory.mktemp("killed")
    job = Job(folder, toy, WORDS, STEPS, random.Random(0), batch=BATCH, trainer=request.param)
    strikes = [
        Strike("self", "inside ledger", 3),  # step 3 is entered and not committed
        Strike("job", "inside checkpoint"),  # step 4: the model is written, the marker is not
    ]
    try:
        return job, job.run(strikes)
    finally:
        job.end()


def test_kills_lose_nothing_and_train_nothing_twice(killed):
    job, report = killed
    assert [(kill["step"], kill["checkpoint"]) for kill in report.kills] == [(2, 2), (4, 2)]
    assert report.left == 0
    assert report.found.clean, report.found
    assert not (job.root / "global_step_2" / "actor").exists()  # two are kept: 4 and 5


@pytest.mark.parametrize("trainer", ["v0", "v1"])
def test_a_dead_trainer_is_started_again_by_the_command(toy, tmp_path, trainer):
    """It resumes from the checkpoint of its own run; what the explorer made meanwhile is trained."""
    job = Job(tmp_path, toy, WORDS, STEPS, random.Random(0), batch=BATCH, trainer=trainer)
    try:
        report = job.run([Strike("self", "inside ledger", 4, again=True)])
    finally:
        job.end()
    assert [(kill["step"], kill["checkpoint"], kill["code"]) for kill in report.kills] == [(3, 2, 0)]
    assert report.left == 0
    assert report.found.clean, report.found
    said = (tmp_path / "output.log").read_text()
    assert "the trainer was killed by SIGKILL (often: out of memory); started again (0 restarts left)" in said
    assert "history 2 continues from step 2" in (job.root / "log" / "trainer.log").read_text()


def test_another_job_goes_on_at_the_checkpoint_s_task(killed, toy, tmp_path):
    """resume_path, a fresh database: the explorer has no position of its own. v0 goes on from either's."""
    checkpoint = killed[0].root / "global_step_4"
    words = (*WORDS, "trainer.resume_mode=resume_path", f"trainer.resume_from_path={checkpoint}")
    job = Job(tmp_path, toy, words, STEPS, random.Random(0), batch=BATCH)
    try:
        job.start("")
        job.wait_for_end()
        assert job.process.returncode == 0, (tmp_path / "output.log").read_text()[-3000:]
    finally:
        job.end()
    rows = sqlite3.connect(job.root / "buffer" / "experiences.db").execute(
        "SELECT DISTINCT trainer_step, task_no FROM ledger JOIN task_groups ON id = group_id ORDER BY 2"
    )
    assert rows.fetchall() == [(5, task) for task in range(4 * BATCH, 5 * BATCH)]
