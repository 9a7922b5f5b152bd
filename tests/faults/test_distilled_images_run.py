"""A distilled run on prompts with images, from the command line: real vLLM, real veRL, on a CPU.

With torchvision and qwen-vl-utils (tests/vision.py).
"""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from vision import python_path

LOSS, TEACHER = "distillation.distillation_loss", "distillation.teacher_models.teacher_model"


@pytest.fixture(scope="module")
def toy(tmp_path_factory):
    """A task with one or two images in each prompt, and a model that sees them well."""
    folder = tmp_path_factory.mktemp("vision") / "toy"
    made = "import pathlib, sys, vision_toy as toy\nfolder = pathlib.Path(sys.argv[1])\n"
    made += "toy.make_vision_toy(folder, images=(1, 2))\ntoy.strengthen(folder / 'model', 'visual')"
    path = os.pathsep.join([python_path(), str(Path(__file__).parents[1])])
    command = [sys.executable, "-c", made, str(folder)]
    subprocess.run(command, env={**os.environ, "PYTHONPATH": path}, check=True, timeout=300)
    return folder


@pytest.mark.runtime
@pytest.mark.nightly
def test_the_policy_s_own_teacher_sees_its_images(run, toy):
    words = [
        "data.max_prompt_length=96",
        "distillation.enabled=True",
        "distillation.nnodes=1",
        "distillation.n_gpus_per_node=1",
        f"{TEACHER}.model_path={toy}/model",
        f"{TEACHER}.inference.tensor_model_parallel_size=1",
        f"{LOSS}.loss_mode=k1",
        f"{LOSS}.use_policy_gradient=True",
        "trainer.total_training_steps=1",
    ]
    one = run(*words, env={"PYTHONPATH": python_path()}).start().finish()
    assert one.code == 0, one.out + one.err
    one.nothing_is_left_and_nothing_lost()
    stored = one.sql("select logprobs, teacher_logprobs from experiences")
    assert len(stored) == 64
    # Without its image a prompt's answer has log-probabilities that are 0.01 and more apart.
    for policy, teacher in stored:
        np.testing.assert_allclose(*(np.frombuffer(each, "<f4") for each in (policy, teacher)), atol=1e-4)
