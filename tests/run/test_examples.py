"""The small files of examples/trinity: each of the six algorithms that the guide names trains, and learns."""

import shutil
import statistics
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from toys import made_toy

from trinity_compat.buffer import open_buffer

EXAMPLES = Path(__file__).parents[2] / "examples" / "trinity"
# What shows that a run has learned, and whether it rises.
LEARNED = {
    "grpo": ("critic/score/mean", True),
    "ppo": ("critic/score/mean", True),
    "opmd": ("critic/score/mean", True),
    "mix": ("critic/score/mean", True),
    "sft": ("train/loss", False),
    "dpo": ("actor/accuracy_mean", True),
}

pytestmark = [pytest.mark.runtime, pytest.mark.nightly]


@pytest.fixture(scope="module")
def toy(tmp_path_factory):
    """With a policy of the demo's, which is right every third time."""
    return made_toy(tmp_path_factory.mktemp("examples") / "toy")


@pytest.mark.parametrize("name", [path.stem for path in sorted(EXAMPLES.glob("*.yaml"))])
def test_an_example_learns(name, toy, tmp_path):
    shutil.copytree(toy, tmp_path / "toy")
    (tmp_path / "examples").symlink_to(EXAMPLES.parent)  # as in the repository's root
    command = [sys.executable, "-m", "trinity_compat", "run", f"examples/trinity/{name}.yaml"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    said = yaml.safe_load((EXAMPLES / f"{name}.yaml").read_text())
    job = tmp_path / "checkpoints" / said["project"] / said["name"]
    metric, rises = LEARNED[name]
    values = of_steps(job, metric)
    before, after = statistics.mean(values[:5]), statistics.mean(values[-5:])
    assert after > before + 0.05 if rises else after < before - 0.05, values


def of_steps(job, metric):
    buffer = open_buffer(f"sqlite:///{job}/buffer/experiences.db")
    logged = dict(buffer.read_metrics("trainer"))
    buffer.close()
    return [logged[step][metric] for step in sorted(logged) if metric in logged[step]]
