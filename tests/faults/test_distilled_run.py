"""A distilled run from the command line: its teacher is served, killed, started again, and learned from."""

import os
import signal

import pytest

from trinity_compat.buffer import open_buffer

STEPS = 6
LOSS, TEACHER = "distillation.distillation_loss", "distillation.teacher_models.teacher_model"


def distilled_by(model, *, steps):
    """Overrides of a launch whose only teacher is ``model``."""
    return [
        "distillation.enabled=True",
        "distillation.nnodes=1",
        "distillation.n_gpus_per_node=1",
        f"{TEACHER}.model_path={model}",
        f"{TEACHER}.inference.tensor_model_parallel_size=1",
        f"{LOSS}.loss_mode=k1",
        f"{LOSS}.use_policy_gradient=True",
        f"trainer.total_training_steps={steps}",
    ]


@pytest.mark.runtime
@pytest.mark.nightly
def test_a_killed_teacher_is_started_again_and_every_answer_has_its_numbers(run, toy):
    words = distilled_by(toy / "model", steps=STEPS)
    one = run(*words, options=("--restarts", "1")).start()
    one.wait_for(lambda: one.trained_steps() >= 1)
    (server,) = one.processes("teachers.child")
    os.kill(server.pid, signal.SIGKILL)
    one.finish()
    assert one.code == 0, one.out + one.err
    said = "the teachers ended with exit code 1: the teacher default's server ended with exit code -9"
    assert f"{said}; started again (0 restarts left)" in one.out
    one.nothing_is_left_and_nothing_lost()
    # A float32 beside each int32 of the answer.
    whole = "length(teacher_logprobs) = length(response_ids) and teacher_ids is null"
    ((answers, taught),) = one.sql(f"select count(*), sum({whole}) from experiences")
    assert answers == taught == STEPS * 8 * 8
    buffer = open_buffer(f"sqlite:///{one.job}/buffer/experiences.db")
    losses = [metrics["actor/distillation/loss"] for _, metrics in buffer.read_metrics("trainer")]
    buffer.close()
    # The policy begins as its own teacher: rows of other tokens would have a loss of several.
    assert len(losses) == STEPS and abs(losses[0]) < 0.05
