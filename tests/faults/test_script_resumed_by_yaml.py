"""A script and the YAML that translate writes of it go on with each other's job."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "examples" / "verl_scripts" / "run_toy_grpo.sh"
pytestmark = [pytest.mark.runtime, pytest.mark.whole, pytest.mark.nightly]

SIDES = ("script", "yaml")


@pytest.fixture
def script(tmp_path):
    """The toy's, with a folder for its checkpoints as veRL's own scripts have it."""
    text = SCRIPT.read_text()
    names = "trainer.project_name=toy"
    folder = f'{names} trainer.default_local_dir="${{CKPTS_DIR:-$PWD/checkpoints/toy/grpo}}"'
    assert names in text
    shutil.copy(SCRIPT.with_name("toy_reward.py"), tmp_path)
    path = tmp_path / "run.sh"
    path.write_text(text.replace(names, folder))
    return path


def translated(script, words):
    """The YAML, for which translate is told the sizes only."""
    sizes = ("--env", "TRAIN_PROMPTS=8", "--env", "MINI_PROMPTS=4")  # as Run has them
    command = [sys.executable, "-m", "trinity_compat", "translate", "run.sh", *sizes, "-o", "x.yaml"]
    subprocess.run([*command, "--", *words], cwd=script.parent, check=True)
    return script.with_name("x.yaml")


@pytest.mark.parametrize(("first", "second"), [SIDES, SIDES[::-1]])
def test_one_goes_on_with_the_job_of_the_other(run, script, first, second):
    def started(side, steps):
        words = (f"trainer.total_training_steps={steps}", "trainer.save_freq=2", "trainer.test_freq=-1")
        words = (*words, "trainer.val_before_train=False")
        if side == "script":
            return run(*words, script=script, name=side).start().finish()
        return run(yaml=translated(script, words), name=side).start().finish()

    one = started(first, 2)
    assert one.code == 0, one.err
    assert one.trained_steps() == 2
    groups = one.sql("select count(*) from task_groups where kind = 'train'")[0][0]
    two = started(second, 4)
    assert two.code == 0, two.err
    assert f"continues {two.job} from step 2" in two.out
    assert "generated again" not in two.out
    assert two.trained_steps() == 4
    assert groups >= 16
    two.nothing_is_left_and_nothing_lost()
