"""Processes that are stopped (SIGSTOP) under a whole job: they are named with their pid, shown and killed.
The run ends and goes on with the same command, or with --restarts by itself."""

import os
import re
import signal

import pytest

pytestmark = [pytest.mark.runtime, pytest.mark.whole, pytest.mark.nightly, pytest.mark.timeout(1800)]

ENGINE, WORKER = "ray::RolloutWorker", "ray::WorkerDict"
LIMIT_S = 30
STEPS = 12
SHORT = f"trinity_compat.stall_timeout={LIMIT_S}"


def stop(one, words):
    """Stop a process of the run once it trains; its pid."""
    one.wait_for(lambda: one.trained_steps() >= 3)
    process = one.processes(words)[0]
    os.kill(process.pid, signal.SIGSTOP)
    return process.pid


def log(one, side):
    return (one.job / "log" / f"{side}.log").read_text()


def goes_on_to_its_end(run, *words, options=()):
    again = run(f"trainer.total_training_steps={STEPS}", *words, options=options, name="again")
    again.start().finish()
    assert again.code == 0, again.err
    assert "continues" in again.out
    assert again.trained_steps() == STEPS
    again.nothing_is_left_and_nothing_lost()


def test_an_engine_under_fixed_ends_the_run_which_goes_on_with_the_same_command(run):
    one = run(f"trainer.total_training_steps={STEPS}", options=("--set", SHORT)).start()
    pid = stop(one, ENGINE)
    one.finish()
    assert one.code == 1
    (error,) = one.errors
    assert re.search(rf"no progress for \d+ s: .*\(engine 0, pid {pid}, stopped\)", error), error
    assert f"Process {pid}" in log(one, "explorer"), "py-spy's stacks"
    one.nothing_is_left_and_nothing_lost()
    goes_on_to_its_end(run, options=("--set", SHORT))


def test_an_engine_of_a_streaming_style_is_started_again(run):
    options = ("--set", SHORT, "--set", "synchronizer.sync_style=fully_async", "--restarts", "1")
    one = run(f"trainer.total_training_steps={STEPS}", options=options).start()
    pid = stop(one, ENGINE)
    one.finish()
    assert one.code == 0, one.err
    assert re.search(
        rf"no progress for \d+ s: .*\(engine 0, pid {pid}, stopped\).*started again \(0 restarts left\)",
        one.out,
        re.DOTALL,
    )
    assert one.trained_steps() == STEPS
    one.nothing_is_left_and_nothing_lost()


def test_an_engine_inside_a_weight_load_is_named_with_it(run):
    point = {"TRINITY_COMPAT_STOP_AT": "inside load:3"}
    one = run(f"trainer.total_training_steps={STEPS}", options=("--set", SHORT), env=point).start().finish()
    assert one.code == 1
    (error,) = one.errors
    assert re.search(
        r"no progress for \d+ s: loading version \d+ of the weights \(engine 0, pid \d+, stopped\)", error
    ), error
    one.nothing_is_left_and_nothing_lost()


def test_a_training_process_has_six_times_as_long_and_is_started_again(run):
    options = ("--set", "trinity_compat.stall_timeout=20", "--restarts", "1")
    one = run(f"trainer.total_training_steps={STEPS}", options=options).start()
    pid = stop(one, WORKER)
    one.finish()
    assert one.code == 0, one.err
    assert re.search(
        rf"no progress for 12\d s: running step \d+, \w+ in the training processes"
        rf" \(training process 0, pid {pid}, stopped\)",
        one.out,
    )
    assert f"Process {pid}" in log(one, "trainer")
    assert one.trained_steps() == STEPS
    one.nothing_is_left_and_nothing_lost()


@pytest.mark.parametrize("role", ["explorer", "trainer"])
def test_a_side_as_a_whole_is_named_by_the_supervisor(run, role):
    one = run(f"trainer.total_training_steps={STEPS}", options=("--restarts", "1")).start()
    pid = stop(one, f"-m trinity_compat.{role} ")
    one.finish()
    assert one.code == 0, one.err
    assert re.search(rf"the {role} \(pid {pid}\) has been silent for \d+ s.*started again", one.out)
    assert one.trained_steps() == STEPS
    one.nothing_is_left_and_nothing_lost()
