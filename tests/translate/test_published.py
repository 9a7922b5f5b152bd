"""--as-published gives every value of the two worked examples of the published guide."""

from pathlib import Path

import pytest
import yaml

from trinity_compat.launch import read_script
from trinity_compat.translate import TranslateOptions, to_verl, translate_launch

from .helpers import flat

HERE = Path(__file__).parent / "published"


def number(value):
    """YAML 1.1 reads 1e-6 as text; upstream's loader reads a number."""
    try:
        return float(value)
    except (TypeError, ValueError):
        return value


@pytest.mark.parametrize("name", ["ppo", "grpo"])
def test_values_of_the_guide(name):
    launch = read_script(HERE / f"run_{name}.sh").launches[0]
    _, text = translate_launch(launch, TranslateOptions(as_published=True))
    ours = flat(yaml.safe_load(text))
    guide = flat(yaml.safe_load((HERE / f"{name}_example.yaml").read_text()))
    different = {
        path: (value, ours.get(path)) for path, value in guide.items() if ours.get(path) != number(value)
    }
    assert not different


def test_published_counts_come_back_as_verl_steps():
    launch = read_script(HERE / "run_grpo.sh").launches[0]
    _, text = translate_launch(launch, TranslateOptions(as_published=True))
    assert to_verl(yaml.safe_load(text))["trainer.save_freq"] == 20


def test_the_published_gpu_split_is_found_to_be_invalid():
    launch = read_script(HERE / "run_grpo.sh").launches[0]
    translation, _ = translate_launch(launch, TranslateOptions(as_published=True))
    told = [caution.message for caution in translation.warnings if caution.code == "TW004"]
    assert any("cannot run" in message and "2048" in message for message in told)
