"""A distilled run on prompts with images, from the command line: real vLLM, real veRL, on a CPU.

With torchvision and qwen-vl-utils (tests/vision.py).
"""

import numpy as np
import pytest
from test_distilled_run import distilled_by
from vision import make_toy, python_path


@pytest.fixture(scope="module")
def toy(tmp_path_factory):
    """A task with one or two images in each prompt, and a model that sees them well."""
    code = "import vision_toy as toy; toy.make_vision_toy(folder, images=(1, 2))\n"
    code += "toy.strengthen(folder / 'model', 'visual')"
    return make_toy(tmp_path_factory.mktemp("vision") / "toy", code)


@pytest.mark.runtime
@pytest.mark.nightly
def test_the_policy_s_own_teacher_sees_its_images(run, toy):
    words = [*distilled_by(toy / "model", steps=1), "data.max_prompt_length=96"]
    one = run(*words, env={"PYTHONPATH": python_path()}).start().finish()
    assert one.code == 0, one.out + one.err
    one.nothing_is_left_and_nothing_lost()
    stored = one.sql("select logprobs, teacher_logprobs from experiences")
    assert len(stored) == 64
    # Without its image a prompt's answer has log-probabilities that are 0.01 and more apart.
    for policy, teacher in stored:
        np.testing.assert_allclose(*(np.frombuffer(each, "<f4") for each in (policy, teacher)), atol=1e-4)
