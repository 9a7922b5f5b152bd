"""`report` on two whole runs: one was killed twice, the other had a wrong adapter in an engine."""

import json
import subprocess
from functools import partial

import pytest

# In one of a run's engines the second adapter is changed behind vLLM's back, where its layers read it.
PLANT = """
import importlib.abc, importlib.util, os, sys

NAME = "trinity_compat.plugins.vllm_weights"


class Plant(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name != NAME:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        load = spec.loader.exec_module
        spec.loader.exec_module = lambda module: (load(module), plant(module.WeightReceiver))
        return spec


def plant(receiver):
    update, loads = receiver._update_adapter, []

    def planted(self, feed):
        update(self, feed)
        loads.append(None)
        if len(loads) != 2:
            return
        try:
            os.close(os.open(os.environ["PLANTED"], os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return
        layers = self.model_runner.lora_manager._adapter_manager.modules
        next(iter(layers.values())).lora_b_stacked[0][0, 0, 0, 0] += 1

    receiver._update_adapter = planted


sys.meta_path.insert(0, Plant())
"""


def has_trained(one, steps):
    return one.trained_steps() >= steps


def reported(one):
    words = [*one.command[:3], "report", str(one.job), "--json"]
    done = subprocess.run(words, cwd=one.cwd, env=one.env, capture_output=True, text=True, check=False)
    return done.returncode, json.loads(done.stdout)


@pytest.mark.runtime
@pytest.mark.whole
def test_a_run_that_was_killed_twice_lost_nothing_and_trained_nothing_twice(run):
    arguments = "trainer.total_training_steps=12"
    for number, steps in enumerate((3, 7)):
        one = run(arguments, name=f"killed{number}").start()
        one.wait_for(partial(has_trained, one, steps))
        one.process.kill()
        one.process.wait()
        one.wait_until_all_have_ended()
    last = run(arguments, name="last").start().finish()
    assert last.code == 0, last.out + last.err
    code, found = reported(last)
    assert (code, found["broken"]) == (0, [])
    covered = found["coverage"]
    assert (covered["lost"], covered["twice"], covered["prompts_trained"]) == (0, 0, 96)
    assert [each["step"] for each in covered["steps"]] == list(range(1, 13))
    assert len(found["restarts"]["restarts"]) == 2
    assert found["ran"]["releases"].keys() >= {"verl", "vllm", "torch"}
    versions = found["weights"]["versions"]
    assert [each["received"] for each in versions[8:12]] == [[each["digest"]] for each in versions[8:12]]
    assert all(len(each["held"]) == 1 and not each["differ"] for each in versions[8:12])
    assert found["drift"]["by_lag"][0]["lag"] == 0 and found["drift"]["by_lag"][0]["kl"] < 0.1


@pytest.mark.runtime
@pytest.mark.whole
def test_a_wrong_adapter_in_one_of_two_engines_ends_the_run(run, tmp_path):
    (tmp_path / "planted").mkdir()
    (tmp_path / "planted" / "sitecustomize.py").write_text(PLANT)
    env = {"PYTHONPATH": str(tmp_path / "planted"), "PLANTED": str(tmp_path / "done")}
    lora = ("actor_rollout_ref.model.lora_rank=4", "actor_rollout_ref.model.lora_alpha=8")
    options = ("--set", "explorer.rollout_model.engine_num=2")
    one = run("trainer.total_training_steps=12", *lora, options=options, env=env).start().finish()
    assert (tmp_path / "done").exists()
    assert one.code == 1, one.out + one.err
    assert "is held otherwise than at explorer 0 engine" in one.err
    assert one.trained_steps() < 6
    code, found = reported(one)
    assert (code, found["broken"]) == (1, ["weights"])
    (wrong,) = (each for each in found["weights"]["versions"] if each["differ"])
    assert len(wrong["held"]) == 2 and wrong["received"] == [wrong["digest"]]
