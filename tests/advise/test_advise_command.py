"""`trinity-compat advise`: modes of real launches side by side."""

import json
import re
import shlex
from types import SimpleNamespace

import pytest
from advise_launch import ARR, advised, by_name, told
from click.testing import CliRunner

from trinity_compat.advise import cards, model_shape, report
from trinity_compat.cli import cli
from trinity_compat.common.errors import UserError
from trinity_compat.job.known_models import stand_in
from trinity_compat.run.checks import start_check
from trinity_compat.run.checks.report import StartReport

MODES = [
    "stock veRL, lockstep",
    "turns on all GPUs",
    *(f"fully_async in turns, staleness {limit}" for limit in (1, 2, 3)),
    "split, offset 0",
    "split, offset 1",
    "veRL's one_step_off_policy",
    *(f"fully_async, staleness {limit}" for limit in (1, 2, 3)),
]


def test_every_mode_has_a_row_beside_stock(script):
    found = advised(script())
    assert found["version"] == 1 and found["gpus"] == 8
    assert [mode["name"] for mode in found["modes"]] == MODES
    assert by_name(found)["stock veRL, lockstep"]["of_stock"] == 1
    for mode in found["modes"]:
        assert mode["refused"] is None
        assert 0 < mode["gpu_time_used"] <= 1 and 0 < mode["engines_full"] <= 1
        assert mode["in_turns"] or mode["explorer_gpus"] + mode["trainer_gpus"] == 8
        assert mode["step_s"] >= mode["training_s"] * 0.99


def test_the_same_question_has_the_same_answer_and_the_seed_is_the_user_s(script):
    name = script()
    assert told(name, "--json") == told(name, "--json", "--seed", "1") != told(name, "--json", "--seed", "2")


@pytest.fixture
def unchecked(monkeypatch):
    """A dry run without the start check, which would import veRL and vLLM: what is asked for is the plan."""
    monkeypatch.setattr(start_check, "check", lambda *_, **__: StartReport())


def test_a_command_of_each_mode_plans_that_mode(script, unchecked):
    found = by_name(advised(script()))
    assert found["stock veRL, lockstep"]["command"] is None
    command = found["fully_async, staleness 2"]["command"]
    # r = 2 updates to a veRL step
    split = "trinity-compat run run.sh --mode both --set synchronizer.sync_style=fully_async"
    assert command.startswith(split)
    assert found["turns on all GPUs"]["command"] == "trinity-compat run run.sh"
    assert "max_staleness=4 --set explorer.rollout_model.engine_num=" in command
    planned = CliRunner().invoke(cli, [*command.split()[1:], "--dry-run", "--device", "cuda"])
    assert "sync      fully_async" in planned.output, planned.exception


def test_a_command_repeats_what_advise_was_given(script, unchecked):
    given = ("--gpus", 16, "--set", "trainer.experiment_name='two words'")
    mode = by_name(advised(script(), *given))["split, offset 1"]
    assert mode["explorer_gpus"] + mode["trainer_gpus"] == 16
    planned = CliRunner().invoke(
        cli, [*shlex.split(mode["command"])[1:], "--dry-run", "--device", "cuda", "--format", "json"]
    )
    (launch,) = json.loads(planned.output)["launches"]
    sides = f"{mode['explorer_gpus']} + {mode['trainer_gpus']} GPUs"
    assert any(sides in line for line in launch["plan"]) and "two words" in launch["yaml"], launch["plan"]


def test_the_fastest_mode_says_that_it_does_not_fit(script):
    assert "by the estimate below it does not fit" in told(script(), "--card-gb", 20)
    fits = told(script(), "--card", "H200")
    assert "by the estimate below" not in fits
    assert json.loads(told(script(), "--card", "H200", "--json"))["fastest"].startswith("fully_async")
    assert re.search(r"fastest here: fully_async.*, which may change what is learned: trinity", fits)


@pytest.mark.parametrize(
    ("times", "named"), [((100, 99.5, 99.1), "0"), ((100, 98, 97.5), "1"), ((100, 98, 96), "2"), ((), None)]
)
def test_of_modes_that_are_equally_fast_the_least_stale_is_named(times, named):
    modes = [
        SimpleNamespace(name=str(number), settings=(), prediction=SimpleNamespace(step_s=step_s))
        for number, step_s in enumerate(times)
    ]
    unable = [SimpleNamespace(name="refused", settings=(), prediction=None)]
    stock = [SimpleNamespace(name="stock", settings=None, prediction=SimpleNamespace(step_s=1))]
    best = report.fastest(SimpleNamespace(modes=(*stock, *unable, *modes)))
    assert (best and best.name) == named


def test_splits_that_cannot_run_say_why(script):
    whole = ("--set", f"{ARR}.actor.policy_loss.loss_mode=geo_mean")  # its loss takes no fillers
    splits = {split["explorer_gpus"]: split for split in advised(script(), *whole)["splits"]}
    # 32 prompts x 4 answers over six trainer ranks
    said = "buffer.train_batch_size=128 does not divide by 6 trainer ranks"
    assert splits[2]["refused"].startswith(said)
    assert splits[4]["refused"] is None and splits[4]["step_s"]
    assert f"2 + 6: {said}" in told(script(), *whole)
    filled = {split["explorer_gpus"]: split for split in advised(script())["splits"]}
    assert filled[2]["refused"] is None and filled[2]["step_s"]


def test_one_gpu_has_no_split(script):
    found = by_name(advised(script(), "--gpus", 1, "--set", f"{ARR}.rollout.tensor_model_parallel_size=1"))
    assert found["turns on all GPUs"]["refused"] is None
    assert found["split, offset 1"]["refused"] == "one GPU cannot be split"
    (line,) = re.findall("(?m)^split, .*$", told(script(), "--gpus", 1))
    beside = [mode for mode in MODES[2:] if "in turns" not in mode]
    assert line == f"{'; '.join(beside)} cannot run here: one GPU cannot be split"


def test_gpus_are_laid_out_in_nodes_of_eight(script):
    assert advised(script(), "--gpus", 16)["gpus"] == 16
    assert "write a multiple of 8" in told(script(), "--gpus", 12, code=2)


def test_lengths_and_speeds_are_those_that_are_given(script):
    found = advised(
        *(script(), "--answer-length", "300,1500", "--prompt-length", 100),
        *("--tokens-per-s", 5000, "--train-tokens-per-s", 2000, "--card", "a100", "--model-size", "3B"),
    )
    assert found["workload"]["answer_tokens_mean"] == 300
    assert found["workload"]["answer_tokens_p99"] == 1500
    assert found["workload"]["prompt_tokens"] == 100
    assert found["speeds"]["engine_tokens_per_s"] == pytest.approx(5000)
    assert found["speeds"]["training"] == 2000
    assert any("by --model-size" in line for line in found["assumptions"])
    # 64 prompts x 4 answers of 400 tokens in the mean on eight GPUs
    stock = by_name(found)["stock veRL, lockstep"]
    assert stock["training_s"] == pytest.approx(256 * 400 / (2000 * 8), rel=0.1)


def test_what_is_assumed_is_printed(script):
    text = told(script())
    assert "assumed from data.max_response_length=2048; --answer-length MEAN,P99" in text
    assert "Qwen2.5-7B's sizes, by its name" in text
    assert "40% of the H100's arithmetic; --train-tokens-per-s gives it, or --job DIR" in text


TEACHER = {
    "distillation.enabled": True,
    "distillation.n_gpus_per_node": 4,
    "distillation.nnodes": 1,
    "distillation.teacher_models.teacher_model.model_path": "Qwen/Qwen3-32B",
}


def test_gpus_of_a_teacher_are_beside_those_of_both_sides(script):
    assert "GPU(s) of served models" not in told(script())
    launch = script(**TEACHER)
    assert "4 GPU(s) of served models are beside these and not counted" in told(launch)
    split = by_name(advised(launch, "--gpus", "8"))["split, offset 1"]
    assert split["explorer_gpus"] + split["trainer_gpus"] == 8


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--answer-length", "300"), "write MEAN,P99 in tokens"),
        (("--answer-length", "300,9000"), "cuts answers at 2048 tokens"),
        (("--answer-length", "nan,nan"), "the mean must be above 0"),
        (("--model-size", "seven"), "write it as 7B"),
        (("--card", "H1000"), "did you mean 'H100'"),
        (("--job", "nowhere"), "does not exist"),
    ],
)
def test_wrong_input_says_what_to_write(script, words, said):
    assert said in told(script(), *words, code=2)


@pytest.mark.parametrize("option", ["--prompt-length", "--tokens-per-s", "--train-tokens-per-s", "--card-gb"])
@pytest.mark.parametrize("number", ["nan", "inf"])
def test_a_number_that_is_not_finite_is_refused(script, option, number):
    assert f"{number} is not a finite number" in told(script(), option, number, code=2)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("data.max_response_length", 0),
        (f"{ARR}.actor.ppo_epochs", "many"),
        (f"{ARR}.rollout.max_num_seqs", -1),
    ],
)
def test_a_size_that_is_no_size_is_bad_input(script, key, value):
    assert f"{key}={value!r}"[:20] in told(script(**{key: value}), code=2)


def test_a_launch_of_absurd_size_is_answered_or_refused(script):
    huge = script(**{"data.train_batch_size": 10**9, f"{ARR}.actor.ppo_mini_batch_size": 10**9})
    assert "fully_async" in told(huge)
    assert "advise is for 4096 at most" in told(script(**{"trainer.nnodes": 1000}), code=2)


def test_a_launch_without_answers_has_no_mode_to_choose(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TOY_DIR", "/toy")
    script = __file__.rpartition("/tests/")[0] + "/examples/verl_scripts/run_toy_sft.sh"
    assert "no mode to choose" in told(script, code=2)


def test_a_model_s_own_configuration_gives_its_sizes(script, tmp_path):
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text(
        json.dumps(
            {
                "hidden_size": 64,
                "num_hidden_layers": 2,
                "vocab_size": 1000,
                "num_attention_heads": 4,
                "num_key_value_heads": 2,
                "intermediate_size": 128,
                "tie_word_embeddings": True,
            }
        )
    )
    shape = model_shape.of_config(json.loads((tmp_path / "model" / "config.json").read_text()))
    # embeddings + 2 x (attention + feed-forward); 2 x 2 heads x 16 values x 2 layers
    assert shape.weights == 64_000 + 2 * (64 * 16 * 12 + 3 * 64 * 128)
    assert shape.kv_values == 128
    text = told(script(**{f"{ARR}__model__path": tmp_path / "model"}))
    assert "billion parameters, by " in text and "config.json" in text


@pytest.mark.parametrize("content", ["[]", "{", "[" * 100_000, '{"hidden_size": "x"}', '{"hidden_size": -1}'])
def test_a_broken_configuration_of_a_model_is_bad_input(script, tmp_path, content):
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text(content)
    assert "config.json" in told(script(**{f"{ARR}__model__path": tmp_path / "model"}), code=2)


@pytest.mark.parametrize(
    ("name", "billions"),
    [("Qwen/Qwen2.5-7B-Instruct", 7.6), ("Qwen2.5-0.5B", 0.49), ("Qwen/Qwen3-30B-A3B", 30.5)],
)
def test_published_models_have_their_published_sizes(name, billions):
    shape = model_shape.of_config(stand_in(name).config)
    assert shape.weights / 1e9 == pytest.approx(billions, rel=0.05)
    if "A3B" in name:
        assert shape.active / 1e9 == pytest.approx(3.3, rel=0.15)


def test_a_card_is_found_by_the_spellings_of_its_name():
    assert cards.named("a100").name == cards.named("A100-80GB").name == "A100"
    assert cards.named("RTX 4090").name == "RTX4090"


def test_a_mode_that_may_not_fit_is_advised_under_that_condition(script):
    small, large = (told(script(), "--model-size", "7B", "--card-gb", size) for size in (4, 10_000))
    assert "by the estimate below it does not fit: trinity-compat run" in small
    assert "does not fit, as estimated: a trainer GPU needs" in small
    assert "does not fit" not in large


def test_a_script_with_several_launches_is_told_how_to_name_one(tmp_path):
    line = "python3 -m verl.trainer.main_ppo data.train_batch_size=8\n"
    (tmp_path / "run.sh").write_text(line * 2)
    done = CliRunner().invoke(cli, ["advise", str(tmp_path / "run.sh")])
    assert isinstance(done.exception, UserError) and f"translate {tmp_path / 'run.sh'} --launch 1" in str(
        done.exception
    )


def test_the_launch_as_it_is_written_has_figures_of_its_own(script):
    ahead = ("--set", "synchronizer.sync_offset=2", "--set", "explorer.rollout_model.engine_num=1")
    mode = advised(script(), *ahead)["launch"]
    assert (mode["explorer_gpus"], mode["trainer_gpus"], mode["staleness_mean"]) == (2, 6, 1)
    assert mode["step_s"] > 0 and mode["memory"]["card_gib"] > 0
    turns = advised(script())
    assert turns["launch"]["in_turns"] and turns["launch"]["step_s"] == turns["modes"][1]["step_s"]
    slow = ("--set", "synchronizer.sync_interval=4")
    assert advised(script(), *slow)["launch"] is None
