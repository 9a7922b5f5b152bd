"""`trinity-compat sizes`: a launch's sizes, their units, and the rules that they break."""

import io
import json

import pytest

from trinity_compat.translate.explain import all_keys
from trinity_compat.translate.size_rules import units

ACTOR, ROLLOUT = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"
PLAIN = {
    "algorithm.adv_estimator": "grpo",
    "data.train_files": "a.parquet",
    "data.val_files": "b.parquet",
    "data.train_batch_size": 96,
    "data.max_prompt_length": 1000,
    "data.max_response_length": 3000,
    f"{ACTOR}.ppo_mini_batch_size": 48,
    f"{ACTOR}.ppo_micro_batch_size_per_gpu": 6,
    f"{ROLLOUT}.log_prob_micro_batch_size_per_gpu": 12,
    f"{ROLLOUT}.n": 4,
    f"{ROLLOUT}.tensor_model_parallel_size": 4,
    "trainer.nnodes": 2,
    "trainer.n_gpus_per_node": 4,
}


def script(changed, module="verl.trainer.main_ppo"):
    """PLAIN with changes, a key a line; one that is changed to None is left out."""
    words = [f"{key}={value}" for key, value in {**PLAIN, **changed}.items() if value is not None]
    return " \\\n  ".join([f"python3 -m {module}", *words]) + "\n"


@pytest.fixture
def sizes(tmp_path, command):
    """(exit code, the launch as JSON has it, or the error)."""

    def told(changed=None, **options):
        (tmp_path / "run.sh").write_text(script(changed or {}, **options))
        code, out, error = command("sizes", "run.sh", "--format", "json")
        return code, json.loads(out)["launches"][0] if out else error

    return told


def by_unit(launch):
    return {row["unit"]: row["value"] for row in launch["sizes"]}


def test_each_size_follows_from_those_above_it(sizes):
    code, launch = sizes()
    found = by_unit(launch)
    assert code == 0 and launch["broken"] == []
    assert found["answers of a step"] == 96 * 4
    assert found["answers of an update of the actor"] == 48 * 4
    assert found["GPUs"] == found["data-parallel ranks of the actor"] == 8
    assert found["answers of a step on each rank of the actor"] == 48
    assert found["answers of an update on each rank of the actor"] == 24
    assert found["tokens of the longest row"] == 4000
    assert (found["engines"], found["answers of a step on each engine"]) == (2, 192)
    parts = {row["key"]: row["parts"] for row in launch["sizes"] if row["parts"]}
    assert parts == {
        f"{ACTOR}.ppo_mini_batch_size": "2 updates a step",
        f"{ACTOR}.ppo_micro_batch_size_per_gpu": "4 micro-batches an update on each rank",
        f"{ROLLOUT}.log_prob_micro_batch_size_per_gpu": "4 micro-batches a step on each rank",
    }


def test_ranks_that_share_a_row_are_one(sizes):
    _, launch = sizes({f"{ACTOR}.ulysses_sequence_parallel_size": 2})
    found = by_unit(launch)
    assert (found["GPUs that share a row"], found["data-parallel ranks of the actor"]) == (2, 4)
    assert found["answers of an update on each rank of the actor"] == 48


def test_a_critic_and_a_reference_have_sizes_of_their_own(sizes):
    _, launch = sizes(
        {
            "algorithm.adv_estimator": "gae",
            "critic.ppo_mini_batch_size": 24,
            "critic.ppo_micro_batch_size_per_gpu": 3,
            "trainer.use_v1": False,
            "algorithm.use_kl_in_reward": True,
            "actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu": 8,
        }
    )
    parts = {row["key"]: row["parts"] for row in launch["sizes"]}
    assert parts["critic.ppo_max_token_len_per_gpu"] == "a micro-batch has as many answers as fit"
    assert parts["critic.ppo_mini_batch_size"] == "4 updates a step"
    assert (
        parts["actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu"]
        == "6 micro-batches a step on each rank"
    )
    assert by_unit(launch)["answers of an update of the critic"] == 96


def test_the_critic_s_tokens_are_those_of_the_trainer(sizes):
    critic = {"algorithm.adv_estimator": "gae", "critic.ppo_max_token_len_per_gpu": 5000}
    for v1, key, tokens in (
        (True, "critic.ppo_infer_max_token_len_per_gpu", 32768),
        (False, "critic.ppo_max_token_len_per_gpu", 5000),
    ):
        _, launch = sizes({**critic, "trainer.use_v1": v1})
        assert [row["value"] for row in launch["sizes"] if row["key"] == key] == [tokens]


def test_dynamic_batches_are_limits_of_tokens(sizes):
    code, launch = sizes({f"{ACTOR}.use_dynamic_bsz": True, f"{ACTOR}.ppo_max_token_len_per_gpu": 3999})
    row = next(row for row in launch["sizes"] if row["key"] == f"{ACTOR}.ppo_max_token_len_per_gpu")
    assert (row["value"], row["parts"]) == (3999, "a micro-batch has as many answers as fit")
    assert code == 1 and "less than the 4000 tokens" in launch["broken"][0]["message"]


def test_sizes_that_do_not_divide_are_named_with_their_line(sizes):
    code, launch = sizes({f"{ACTOR}.ppo_micro_batch_size_per_gpu": 5})
    parts = {row["key"]: row["parts"] for row in launch["sizes"]}
    assert parts[f"{ACTOR}.ppo_micro_batch_size_per_gpu"] == "does not divide 24"
    (broken,) = launch["broken"]
    assert (code, broken["code"], broken["rank"]) == (1, "TW029", "error")
    line = list(PLAIN).index(f"{ACTOR}.ppo_micro_batch_size_per_gpu") + 2
    assert broken["source"] == f"run.sh:{line}" and "6" in broken["hint"]


def test_a_size_that_is_not_known_leaves_what_follows_from_it_open(sizes):
    _, launch = sizes({"trainer.nnodes": "$SLURM_JOB_NUM_NODES"})
    found = by_unit(launch)
    assert found["machines"] is found["GPUs"] is found["engines"] is None
    assert found["answers of a step"] == 96 * 4


@pytest.mark.parametrize("value", ["$(nvidia-smi -L | wc -l)", "$NUM_GPUS"])
def test_a_size_that_is_not_known_is_named_as_the_script_has_it(sizes, value):
    _, launch = sizes({"trainer.n_gpus_per_node": f'"{value}"'})
    made = {row["made"] for row in launch["sizes"]}
    assert {f"trainer.n_gpus_per_node={value}", f"trainer.nnodes=2 × trainer.n_gpus_per_node={value}"} <= made


def test_engines_with_gpus_of_their_own_are_not_counted_on_the_trainer_s(sizes):
    _, launch = sizes(module="verl.experimental.one_step_off_policy.main_ppo")
    assert "engines" not in by_unit(launch)


def test_a_supervised_launch_has_no_such_sizes(tmp_path, command):
    (tmp_path / "run.sh").write_text("python3 -m verl.trainer.sft_trainer data.train_files=a.parquet\n")
    code, _, error = command("sizes", "run.sh")
    assert code == 2 and "run.sh:1: verl.trainer.sft_trainer trains on texts" in error


def test_a_script_on_stdin_is_read(monkeypatch, command):
    stdin = io.TextIOWrapper(io.BytesIO(script({}).encode()))
    monkeypatch.setattr("sys.stdin", stdin)
    code, out, _ = command("sizes", "-")
    assert code == 0 and "data.train_batch_size=96 (<stdin>:5)" in out


def test_the_text_has_each_size_with_its_place(tmp_path, command):
    (tmp_path / "run.sh").write_text(script({}))
    _, out, _ = command("sizes", "run.sh")
    lines = [" ".join(line.split()) for line in out.splitlines()]
    assert "96 prompts of a step, over all GPUs data.train_batch_size=96 (run.sh:5)" in lines
    longest = "data.max_prompt_length=1000 + data.max_response_length=3000"
    assert f"4,000 tokens of the longest row {longest}" in lines


def test_every_unit_is_of_a_key_that_a_release_has():
    assert set(units()) <= set(all_keys())


def test_explain_says_the_unit(command):
    _, out, _ = command("explain", "actor.ppo_mini_batch_size")
    assert "unit:    prompts of an update, over all GPUs" in out
