"""A run with a plugin of each kind from a distribution, and its resume without that distribution."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

EXAMPLE = Path(__file__).parents[2] / "examples" / "plugin_package"


@pytest.fixture
def site(tmp_path):
    """The folder into which pip has installed the example."""
    options = (
        "-q",
        "--no-deps",
        "--no-index",
        "--no-build-isolation",
        "--target",
        tmp_path / "site",
        EXAMPLE,
    )
    subprocess.run([sys.executable, "-m", "pip", "install", *options], check=True)
    return tmp_path / "site"


@pytest.fixture
def warm_toy(tmp_path):
    """A toy that writes digits, so that answers differ in the reward."""
    from toys import made_toy

    from trinity_compat.run.toy import ToySpec

    return made_toy(tmp_path / "warm", ToySpec(train_rows=256, val_rows=8, warm_steps=20))


def written(tmp_path, toy, steps):
    """The example's YAML for a few updates of the toy."""
    config = yaml.safe_load((EXAMPLE / "run.yaml").read_text())
    rows = [{"question": "sort 4312", "answer": "1234"}, {"question": "sort 9876", "answer": "6789"}] * 16
    (tmp_path / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    config["name"], config["continue_from_checkpoint"] = "grpo", True  # the job's folder in this test's runs
    config["model"]["model_path"] = str(toy / "model")
    config["buffer"] |= {"batch_size": 4, "total_steps": steps}
    config["buffer"]["explorer_input"]["tasksets"][0]["path"] = str(tmp_path / "train.jsonl")
    config["trainer"]["save_interval"] = 2
    (tmp_path / "x.yaml").write_text(yaml.safe_dump(config))
    return tmp_path / "x.yaml"


@pytest.mark.runtime
@pytest.mark.whole
def test_a_run_uses_a_plugin_of_each_kind_and_its_resume_names_a_missing_one(run, tmp_path, warm_toy, site):
    one = run(yaml=written(tmp_path, warm_toy, 4), env={"PYTHONPATH": str(site)}).start().finish()
    assert one.code == 0, one.out + one.err
    assert one.alive() == []
    assert one.trained_steps() == 4
    (figures,) = (one.job / "monitor").glob("*_trainer.jsonl")
    trained = [json.loads(line) for line in figures.read_text().splitlines()]
    assert [line["step"] for line in trained] == [1, 2, 3, 4]
    # veRL's own loss has one more figure.
    assert all("actor/pg_clipfrac" in line for line in trained)
    assert not any("actor/pg_clipfrac_lower" in line for line in trained)
    # Twice the difference of halved quarters: any other advantage has other fractions.
    advantages = [line[f"critic/advantages/{end}"] for line in trained for end in ("min", "max")]
    assert any(advantages) and all(float(each * 4).is_integer() for each in advantages)
    made = [path for path in (one.job / "monitor").glob("*.jsonl") if path != figures]
    steps = [json.loads(line) for path in made for line in path.read_text().splitlines()]
    assert any("experience_pipeline/scaled" in line for line in steps)
    (spec,) = (one.job / "config").glob("run.json")
    kinds = {each["kind"] for each in json.loads(spec.read_text())["plugins"]}
    assert kinds == {"workflow", "reward", "operator", "advantage", "policy_loss", "logger"}

    again = run(yaml=written(tmp_path, warm_toy, 8), name="again").start().ends()
    assert again.code == 2, again.out + again.err
    assert "trinity-compat-example-plugins 1.0, which is not installed here any more" in again.err
