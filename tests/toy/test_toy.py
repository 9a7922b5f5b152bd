"""The toy: the same from the same seed, honest, and its script an ordinary veRL script."""

import importlib.util
import os
import subprocess
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from safetensors.torch import load_file

from trinity_compat.cli import cli
from trinity_compat.run.toy import ToySpec, answer, make_toy, task_rows

ROOT = Path(__file__).parents[2]
SCRIPTS = ROOT / "examples" / "verl_scripts"
SMALL = ToySpec(train_rows=50, val_rows=10, warm_steps=2, warm_batch=4)


@pytest.fixture(scope="module")
def toy(tmp_path_factory):
    return make_toy(tmp_path_factory.mktemp("toy"), SMALL)


def weights(directory):
    return load_file(directory / "model" / "model.safetensors")


def test_the_same_seed_makes_the_same_toy(toy, tmp_path):
    again = make_toy(tmp_path, SMALL)
    assert all((weights(again)[name] == tensor).all() for name, tensor in weights(toy).items())
    for split in ("train", "val"):
        path = f"data/{split}.parquet"
        assert pq.read_table(again / path).equals(pq.read_table(toy / path))


def test_another_seed_makes_another(toy, tmp_path):
    other = make_toy(tmp_path, ToySpec(seed=1, train_rows=50, val_rows=10, warm_steps=2, warm_batch=4))
    assert pq.read_table(other / "data/train.parquet") != pq.read_table(toy / "data/train.parquet")


def test_a_second_call_does_nothing_and_a_broken_off_one_is_made_again(toy):
    model = toy / "model" / "model.safetensors"
    before = model.stat().st_mtime_ns
    make_toy(toy, SMALL)
    assert model.stat().st_mtime_ns == before
    (toy / "toy.json").unlink()
    make_toy(toy, SMALL)
    assert model.stat().st_mtime_ns != before


def test_the_command_says_that_the_warm_start_goes_on(tmp_path, monkeypatch):
    monkeypatch.setattr("trinity_compat.run.toy.ToySpec", lambda seed: SMALL)
    first = CliRunner().invoke(cli, ["toy", str(tmp_path)])
    assert f"warm start of the toy's model: {SMALL.warm_steps} steps" in first.stderr
    assert first.stdout.count("\n") == 1
    assert CliRunner().invoke(cli, ["toy", str(tmp_path)]).stderr == ""


def test_no_question_stands_in_both_splits_and_truths_are_sorted():
    train, val = task_rows(ToySpec())
    questions = [row["prompt"][0]["content"] for row in train + val]
    assert len(set(questions)) == len(questions)
    assert all(
        row["reward_model"]["ground_truth"] == answer(row["prompt"][0]["content"][5:]) for row in train
    )


def test_the_tokenizer_keeps_blanks_and_newlines(toy):
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(toy / "model")
    assert tokenizer.decode(tokenizer.encode("a b\n c")) == "a b\n c"
    assert len(tokenizer) < 264, "the model has rows that the tokenizer lacks, as real ones do"


@pytest.mark.parametrize(("text", "reward"), [("1234", 1.0), (" 1234\n", 1.0), ("1243", 0.0), ("", 0.0)])
def test_the_reward_is_exact_match(text, reward):
    spec = importlib.util.spec_from_file_location("toy_reward", SCRIPTS / "toy_reward.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.compute_score("toy/sort", text, "1234") == reward


def launched(script, tmp_path, *arguments):
    """The words that the script hands to python3, run by real bash with a python3 that prints them."""
    python = tmp_path / "python3"
    python.write_text('#!/bin/sh\nprintf "%s\\n" "$@" > "$ARGV"\n')
    python.chmod(0o755)
    environment = {
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "ARGV": str(tmp_path / "argv"),
        "TOY_DIR": "/toy",
    }
    subprocess.run(["bash", SCRIPTS / script, *arguments], env=environment, check=True, capture_output=True)
    return (tmp_path / "argv").read_text().splitlines()


@pytest.mark.parametrize("script", ["run_toy_grpo.sh", "run_toy_ppo.sh"])
def test_the_script_is_a_plain_verl_launch(script, tmp_path):
    words = launched(script, tmp_path, "trainer.total_training_steps=3")
    assert words[:2] == ["-m", "verl.trainer.main_ppo"]
    assert words[-1] == "trainer.total_training_steps=3"
    values = dict(word.split("=", 1) for word in words[2:])
    batch, mini = (
        int(values["data.train_batch_size"]),
        int(values["actor_rollout_ref.actor.ppo_mini_batch_size"]),
    )
    assert batch // mini > 1
    assert values["actor_rollout_ref.rollout.n"] == "8"
    assert not any("cpu" in word for word in words)


def test_a_kept_toy_is_the_one_that_its_recipe_makes_and_no_other_recipe_s(toy, tmp_path, monkeypatch):
    import toys

    monkeypatch.setattr(toys, "KEPT", tmp_path / "kept")
    for name in ("first", "second"):
        copy = toys.made_toy(tmp_path / name, SMALL)
        assert (copy / "model" / "model.safetensors").read_bytes() == (
            toy / "model" / "model.safetensors"
        ).read_bytes()
    monkeypatch.setattr(toys, "make_toy", None)
    assert toys.made_toy(tmp_path / "third", SMALL) == tmp_path / "third"
    assert toys.key(SMALL) != toys.key(ToySpec(seed=9))
