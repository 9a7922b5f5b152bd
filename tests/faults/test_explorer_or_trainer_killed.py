"""What dies is named and, with --restarts, started again by the command itself; else the other side is ended
and the rerun goes on. Of several explorers the others take a dead one's tasks. One job for all of it: a start
takes half a minute."""

import re
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import yaml
from safetensors.torch import load_file

from trinity_compat.run.job_dir.export import to_hf

HOWTO = Path(__file__).parents[2] / "docs" / "howto.md"


AGAIN = "started again (0 restarts left)"


@pytest.mark.runtime
@pytest.mark.whole
@pytest.mark.parametrize("trainer", ["v0", pytest.param("v1", marks=pytest.mark.nightly)])
def test_whatever_dies_in_a_job_it_goes_on_where_it_was(run, toy, monkeypatch, capsys, trainer):
    options = ("--restarts", "1", "--set", f"trinity_compat.trainer={trainer}")
    one = run("trainer.total_training_steps=1000", options=options).start()
    one.wait_for(lambda: (one.job / "latest_checkpointed_iteration.txt").exists())
    an_explorer_and_then_the_next_one_s_engine_are_killed(one)

    step = int((one.job / "latest_checkpointed_iteration.txt").read_text())
    last = step + 16
    more = run(f"trainer.total_training_steps={last}", options=(*options, "--explorers", "2"), name="again")
    again = more.start()
    a_trainer_and_then_one_of_two_explorers_are_killed(again, step)
    every_step_is_whole_and_every_task_was_trained_once(again, last)

    whole = to_hf(again.job, step=step, out=again.cwd / "hf", critic=False)
    assert (whole / "model.safetensors").is_file()
    monkeypatch.chdir(again.cwd)
    the_two_snippets_of_the_how_tos_do_what_they_say(again.job, step, toy, whole, capsys)


@pytest.mark.runtime
@pytest.mark.nightly
@pytest.mark.parametrize("process", ["TransferQueueController", "SimpleStorageUnit"])
def test_a_trainer_whose_transfer_queue_dies_is_started_again_with_an_empty_one(run, process):
    options = ("--restarts", "1", "--set", "trinity_compat.trainer=v1")
    one = run("trainer.total_training_steps=20", options=options).start()
    one.wait_for(lambda: (one.job / "latest_checkpointed_iteration.txt").exists())
    (queue,) = one.processes(f"ray::{process}")
    queue.kill()
    one.finish()
    assert one.code == 0, one.out + one.err
    assert "exit code 1: TransferQueue's" in one.out and AGAIN in one.out
    one.nothing_is_left_and_nothing_lost()
    every_step_is_whole_and_every_task_was_trained_once(one, 20)


@pytest.mark.runtime
@pytest.mark.whole
def test_an_engine_that_dies_is_started_again_and_its_explorer_and_the_other_engine_go_on(run):
    options = ("--restarts", "1", "--set", "explorer.rollout_model.engine_num=2")
    one = run("trainer.total_training_steps=12", options=options).start()
    one.wait_for(lambda: one.trained_steps() >= 3)
    explorer, (first, second) = one.side("explorer"), one.processes("ray::RolloutWorker")
    first.kill()
    one.wait_for(lambda: "started again (0 restarts of an engine left)" in one.out)
    one.wait_for(lambda: one.trained_steps() >= 6)
    assert (one.side("explorer").pid, second.is_running()) == (explorer.pid, True)
    one.finish()
    assert one.code == 0, one.out + one.err
    one.nothing_is_left_and_nothing_lost()
    every_step_is_whole_and_every_task_was_trained_once(one, 12)
    the_answers_are_of_the_version_before_their_step(one)


@pytest.mark.runtime
@pytest.mark.whole
def test_in_turns_a_side_that_dies_and_an_engine_asleep_are_started_again_and_the_turns_go_on(run):
    """As a launch on GPUs runs by default; on a CPU the engines have no sleep."""
    one = run("trainer.total_training_steps=12", options=("--restarts", "2", "--mode", "colocate")).start()

    def in_the_turn_of(side, after):
        turn = f"select 1 from job_state where key = 'device/turn' and value like '%{side}%'"
        return one.trained_steps() >= after and one.sql(turn) and one.side(side)

    def dies_in_its_turn(side, left, *, after):
        one.wait_for(lambda: in_the_turn_of(side, after))
        one.side(side).kill()
        one.wait_for(lambda: f"started again ({left} restarts left)" in one.out)
        assert f"the {side} was killed by SIGKILL" in one.out

    one.wait_for(lambda: in_the_turn_of("trainer", 2))
    one.processes("ray::RolloutWorker")[0].kill()
    one.wait_for(lambda: "started again (1 restarts of an engine left)" in one.out)
    dies_in_its_turn("trainer", 1, after=4)
    dies_in_its_turn("explorer", 0, after=7)
    one.finish()
    assert one.code == 0, one.out + one.err
    one.nothing_is_left_and_nothing_lost()
    every_step_is_whole_and_every_task_was_trained_once(one, 12)
    the_answers_are_of_the_version_before_their_step(one)


def an_explorer_and_then_the_next_one_s_engine_are_killed(one):
    one.side("explorer").kill()
    begun = one.trained_steps()
    # The dead one had made a step ahead at most: these are its successor's.
    one.wait_for(lambda: AGAIN in one.out and one.trained_steps() >= begun + 4)
    assert "the explorer was killed by SIGKILL" in one.out
    engines = one.processes("ray::RolloutWorker")  # Ray names an actor's process after its class
    assert engines
    for engine in engines:
        engine.kill()
    one.ends()
    assert one.code == 1
    assert len(one.errors) == 1 and "the explorer ended" in one.errors[0]
    one.nothing_is_left_and_nothing_lost()


def a_trainer_and_then_one_of_two_explorers_are_killed(again, step):
    # Steps after the checkpoint may be there of the run before, until the trainer resumes.
    again.wait_for(lambda: again.sql("select 1 from ledger where history_id > 1"))
    again.side("trainer").kill()
    again.wait_for(lambda: AGAIN in again.out and again.trained_steps() > step + 4)
    (second,) = again.processes(f"{again.job} --index 1")
    second.kill()
    again.finish()
    assert again.code == 0, again.err
    assert f"from step {step}" in again.out
    assert "the trainer was killed by SIGKILL" in again.out
    assert "the explorer_1 was killed by SIGKILL" in again.out
    assert "the other explorers take its tasks" in again.out
    again.nothing_is_left_and_nothing_lost()


def every_step_is_whole_and_every_task_was_trained_once(one, last):
    steps = one.sql(
        "select trainer_step, count(distinct group_id), count(*) from ledger group by 1 order by 1"
    )
    assert steps == [(step, 8, 64) for step in range(1, last + 1)]
    tasks = one.sql("select task_no from task_groups where kind = 'train' and state = 'trained' order by 1")
    assert tasks == [(number,) for number in range(8 * last)]
    assert one.sql("select count(*) from ledger") == one.sql(
        "select count(distinct experience_id) from ledger"
    )


def the_answers_are_of_the_version_before_their_step(one):
    """Also those of engines that were started again."""
    lag = "l.trainer_step - e.max_model_version"
    trained = "ledger l join experiences e on e.id = l.experience_id"
    assert one.sql(f"select distinct {lag} from {trained}") == [(1,)]


def the_two_snippets_of_the_how_tos_do_what_they_say(job, step, toy, whole, capsys):
    """docs/howto.md: Trinity's own text, its imports apart."""
    experiences, checkpoint = re.findall(r"```python\n(.*?)```", HOWTO.read_text(), re.DOTALL)
    path = yaml.safe_load((job / "config" / "trinity.yaml").read_text())["buffer"]["trainer_input"]
    names = {"buffer": SimpleNamespace(trainer_input=SimpleNamespace(experience_buffer=SimpleNamespace()))}
    names["buffer"].trainer_input.experience_buffer.path = path["experience_buffer"]["path"]
    exec(experiences, names)
    assert capsys.readouterr().out.count("exp.prompt_text='<|im_start|>") == 4
    assert all(len(exp.response_ids) == len(exp.logprobs) > 0 for exp in names["exp_list"])

    names = {"model_path": toy / "model", "checkpoint_root_dir": job.parent.parent}
    names |= {"project": job.parent.name, "name": job.name}
    exec(checkpoint.replace("global_step_780", f"global_step_{step}"), names)
    loaded, start = names["model"].state_dict(), load_file(toy / "model" / "model.safetensors")
    for name, value in load_file(whole / "model.safetensors").items():
        assert torch.equal(loaded[name].bfloat16(), value)
    assert any(not torch.equal(loaded[name], value) for name, value in start.items())
