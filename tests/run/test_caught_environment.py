"""The environment of a caught launch beside the one that its script found: what `${oc.env:X}` reads."""

import pytest

from trinity_compat.run.plan.source import RunOptions
from trinity_compat.run.script.invocation import Invocation
from trinity_compat.run.script.launch_source import source_of
from trinity_compat.run.script.shared_folder import ScriptCall

MAIN = "verl.trainer.main_ppo"
WORDS = (
    *("data.train_files=/a.parquet", "data.val_files=/b.parquet", "algorithm.adv_estimator=grpo"),
    *("actor_rollout_ref.rollout.name=vllm", "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4"),
    "trainer.experiment_name=${oc.env:X_,none}",
)
SCRIPT = "\n".join(("%s", f"python3 -m {MAIN} {' '.join(WORDS[:-1])} '{WORDS[-1]}'", ""))


@pytest.fixture
def name(tmp_path, monkeypatch):
    """The experiment's name, by what the script found, what the caught process has, and Ray's variables."""

    def of(found, caught, before="", ray=None):
        (tmp_path / "run.sh").write_text(SCRIPT % before)
        monkeypatch.delenv("X_", raising=False)
        for key, value in caught.items():
            monkeypatch.setenv(key, value)
        environ = {"PATH": "/bin", **found}
        call = ScriptCall(str(tmp_path / "run.sh"), (), RunOptions(), str(tmp_path), environ)
        source, _ = source_of(Invocation(MAIN, WORDS, env=ray or {}), call)
        return source.config["name"]

    return of


def test_a_variable_that_the_caught_process_lacks_is_its_default(name):
    assert name({"X_": "given"}, {"X_": "given"}) == "given"
    # What reading cannot tell: the script removed it by a command of its own.
    assert name({"X_": "given"}, {}, before="source /etc/clean_environment_") == "none"


def test_one_that_the_script_changed_has_the_caught_value(name):
    assert name({"X_": "given"}, {"X_": "changed"}, before="export X_=$(choose)") == "changed"
    assert name({}, {"X_": "new"}, before="export X_=$(choose)") == "new"


def test_ray_s_runtime_environment_comes_over_the_caught_one(name):
    assert name({}, {"X_": "shell"}, before="export X_=$(choose)", ray={"X_": "job"}) == "job"
