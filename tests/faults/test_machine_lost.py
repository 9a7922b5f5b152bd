"""Machines that vanish under a run, and a run that is told to leave its machine: none is a failure, nothing
is lost, and no step that a checkpoint could hold is trained twice."""

import os
import signal

import pytest
from simulated_cluster import simulated_cluster

# A sitecustomize: engines ask Ray for a resource of this name, and are placed by that alone.
PLACES = """
import sys
from importlib.machinery import PathFinder

class WithPlaces:
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        if name != "trinity_compat.explorer.rollout.worker_group":
            return None
        spec = PathFinder.find_spec(name, path, target)
        execute = spec.loader.exec_module

        def exec_module(module):
            execute(module)
            module.RolloutWorkers._gpus = lambda *_: {"num_gpus": 0, "resources": {"engine": 1}}

        spec.loader.exec_module = exec_module
        return spec

sys.meta_path.insert(0, WithPlaces)
"""


class Machines:
    """A simulated cluster: a head that does no work, and machines that can be killed."""

    def __init__(self):
        quiet = {"object_store_memory": 100_000_000, "num_gpus": 0, "include_dashboard": False}
        self._cluster = simulated_cluster(**quiet, num_cpus=0)
        self._quiet = quiet
        self.address, self.close = self._cluster.address, self._cluster.shutdown

    def add(self, *, cpus=0, engines=0):
        return self._cluster.add_node(
            num_cpus=cpus, resources={"engine": engines} if engines else {}, **self._quiet
        )

    def kill(self, machine):
        """Kill its raylet, with which all its processes end."""
        os.kill(machine.all_processes["raylet"][0].process.pid, signal.SIGKILL)


@pytest.fixture
def machines():
    made = Machines()
    yield made
    made.close()


def every_step_is_trained_once(one, steps):
    found = one.sql(
        "select trainer_step, count(distinct group_id), count(*) from ledger group by 1 order by 1"
    )
    assert found == [(step, 8, 64) for step in range(1, steps + 1)]
    tasks = one.sql("select task_no from task_groups where kind = 'train' and state = 'trained' order by 1")
    assert tasks == [(number,) for number in range(8 * steps)]
    assert one.sql("select count(*) - count(distinct experience_id) from ledger") == [(0,)]


@pytest.mark.runtime
@pytest.mark.whole
def test_engines_and_then_the_trainer_go_on_elsewhere_when_their_machines_vanish(run, machines, tmp_path):
    """Without --restarts: it is none of the run's own faults."""
    first, training = machines.add(engines=1), machines.add(cpus=16)
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(PLACES)
    paths = os.pathsep.join(filter(None, [str(tmp_path / "site"), os.environ.get("PYTHONPATH")]))
    env = {"RAY_ADDRESS": machines.address, "PYTHONPATH": paths}
    one = run("trainer.total_training_steps=24", env=env).start()
    one.wait_for(lambda: one.trained_steps() >= 2)
    trainer, explorer = one.side("trainer"), one.side("explorer")
    machines.kill(first)
    machines.add(cpus=16, engines=1)
    one.wait_for(lambda: "started again elsewhere" in one.out)
    begun = one.trained_steps()
    one.wait_for(lambda: one.trained_steps() >= begun + 3)
    assert (one.side("trainer").pid, one.side("explorer").pid) == (trainer.pid, explorer.pid)

    machines.kill(training)
    one.wait_for(lambda: "the trainer ended with exit code 4: Ray has lost the machine" in one.out)
    one.finish()
    assert one.code == 0, one.out + one.err
    assert one.side("explorer") is None and one.errors == []
    assert "restarts left" not in one.out
    one.nothing_is_left_and_nothing_lost()
    every_step_is_trained_once(one, 24)


@pytest.mark.runtime
@pytest.mark.whole
def test_sigterm_writes_a_checkpoint_of_the_last_step_from_which_the_same_command_continues(run):
    one = run("trainer.total_training_steps=1000", "trainer.save_freq=1000").start()
    one.wait_for(lambda: one.trained_steps() >= 3)
    one.process.terminate()
    one.ends()
    assert one.code == 143 and one.errors == []
    assert "SIGTERM: ends after the step in training" in one.out
    trained = one.trained_steps()
    assert (one.job / "latest_checkpointed_iteration.txt").read_text() == str(trained)
    assert f"the same command continues from step {trained}" in one.out
    assert one.sql("select role, state from participants where state = 'failed'") == []
    one.nothing_is_left_and_nothing_lost()

    again = run(f"trainer.total_training_steps={trained + 2}", name="again").start().finish()
    assert again.code == 0, again.out + again.err
    every_step_is_trained_once(again, trained + 2)
    assert again.sql("select count(distinct history_id) from ledger") == [(2,)]
    again.nothing_is_left_and_nothing_lost()
