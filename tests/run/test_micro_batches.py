"""Micro-batch sizes that veRL 0.9.1 would miss are said with their line, before anything starts."""

import pytest

from trinity_compat.common.errors import UserError
from trinity_compat.common.nested import value_at
from trinity_compat.run.checks import start_check
from trinity_compat.run.checks.report import StartReport
from trinity_compat.run.dry_run import lines
from trinity_compat.run.plan import micro_batches, plan_run
from trinity_compat.run.plan.source import RunOptions
from trinity_compat.run.plan.verl_view import VerlView
from trinity_compat.verl_config import compose_pinned

ACTOR, ROLLOUT, REF = (f"actor_rollout_ref.{part}" for part in ("actor", "rollout", "ref"))
REF_SIZE = f"{REF}.log_prob_micro_batch_size_per_gpu"
GIVEN = {
    "algorithm.adv_estimator": "grpo",
    f"{ACTOR}.ppo_micro_batch_size_per_gpu": 4,
    f"{ROLLOUT}.log_prob_micro_batch_size_per_gpu": 4,
}
ENGINES = "explorer.rollout_model.engine_num"
SEQUENCE = f"{ACTOR}.ulysses_sequence_parallel_size"
SCRIPT = """\
python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo \\
    data.train_batch_size=8 actor_rollout_ref.actor.ppo_mini_batch_size=4 \\
    actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4 \\
    actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=4 \\
    actor_rollout_ref.model.path=org/model actor_rollout_ref.rollout.name=vllm \\
    trainer.total_training_steps=4 \\
    actor_rollout_ref.actor.use_kl_loss=True
"""


@pytest.fixture(autouse=True)
def no_start_check(monkeypatch):
    """What veRL and vLLM say of a plan has tests of its own, test_start_objects.py; here it costs seconds."""
    monkeypatch.setattr(start_check, "check", lambda *_, **__: StartReport())


def check(**changed):
    """``changed``: dotted keys, their dots written as two underscores."""
    given = GIVEN | {key.replace("__", "."): value for key, value in changed.items()}
    micro_batches.check(compose_pinned(given), {})


def dry_run(tmp_path, *sets):
    script = tmp_path / "run.sh"
    script.write_text(SCRIPT)
    return list(lines(str(script), (), RunOptions(sets=sets)))


def test_the_reference_s_size_is_missed_at_the_line_that_asks_for_a_reference(tmp_path):
    with pytest.raises(UserError) as caught:
        dry_run(tmp_path)
    assert str(caught.value) == (
        f"{tmp_path}/run.sh:7: {ACTOR}.use_kl_loss=True needs {REF_SIZE}: veRL 0.9.1 refuses to start"
        f" without it\n  hint: write {REF_SIZE}=4, or {ACTOR}.use_dynamic_bsz=True"
    )
    assert dry_run(tmp_path, f"{REF_SIZE}=2")


def test_the_script_keeps_its_lines_beside_a_set(tmp_path):
    with pytest.raises(UserError, match=r"run\.sh:7: .*use_kl_loss"):
        dry_run(tmp_path, "trainer.save_freq=2")
    with pytest.raises(UserError, match=r"^--set: algorithm\.use_kl_in_reward=True needs"):
        dry_run(tmp_path, f"{ACTOR}.use_kl_loss=False", "algorithm.use_kl_in_reward=True")


@pytest.mark.parametrize(
    "changed",
    [
        {},
        {"actor_rollout_ref__actor__use_dynamic_bsz": True, "algorithm__use_kl_in_reward": True},
        {"algorithm__adv_estimator": "gae", "critic__ppo_micro_batch_size_per_gpu": 2},
        {"algorithm__adv_estimator": "gae", "critic__use_dynamic_bsz": True},
        {"algorithm__adv_estimator": "gae", "critic__enable": False},
    ],
)
def test_sizes_that_verl_takes_pass(changed):
    check(**changed)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"actor_rollout_ref__actor__ppo_micro_batch_size_per_gpu": None}, f"needs {ACTOR}.ppo_micro"),
        (
            {"actor_rollout_ref__rollout__log_prob_micro_batch_size_per_gpu": None},
            f"needs {ROLLOUT}.log",
        ),
        # veRL's own check looks at the actor's switch alone, its reference worker at its own
        (
            {"algorithm__use_kl_in_reward": True, "actor_rollout_ref__ref__log_prob_use_dynamic_bsz": True},
            f"use_kl_in_reward=True needs {REF_SIZE}",
        ),
        (
            {
                "actor_rollout_ref__actor__use_kl_loss": True,
                "actor_rollout_ref__actor__use_dynamic_bsz": True,
                "actor_rollout_ref__ref__log_prob_use_dynamic_bsz": False,
            },
            f"needs {REF_SIZE}",
        ),
        ({"algorithm__adv_estimator": "gae"}, "adv_estimator=gae needs critic.ppo_micro"),
        (
            {"actor_rollout_ref__actor__ppo_micro_batch_size": "many"},
            "ppo_micro_batch_size=many: veRL 0.9.1 takes",
        ),
    ],
)
def test_sizes_that_verl_refuses_are_refused(changed, said):
    with pytest.raises(UserError) as caught:
        check(**changed)
    assert said in caught.value.message and caught.value.hint


OLD = """\
python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo \\
    data.train_batch_size=64 actor_rollout_ref.actor.ppo_mini_batch_size=64 \\
    actor_rollout_ref.actor.ppo_micro_batch_size=64 \\
    actor_rollout_ref.rollout.log_prob_micro_batch_size=128 \\
    actor_rollout_ref.model.path=org/model actor_rollout_ref.rollout.name=vllm \\
    trainer.n_gpus_per_node=8 trainer.total_training_steps=4 "$@"
"""


@pytest.mark.parametrize(("words", "actor", "rollout"), [((), 8, 16), ((f"{SEQUENCE}=2",), 16, 32)])
def test_sizes_over_all_gpus_are_divided_as_verl_did_until_0_7(tmp_path, monkeypatch, words, actor, rollout):
    monkeypatch.setattr(plan_run, "detect_device", lambda: "cuda")  # the CPU's profile splits no sequences
    script = tmp_path / "run.sh"
    script.write_text(OLD)
    told = list(lines(str(script), words, RunOptions(sets=("trainer.save_freq=2",))))
    assert any(
        f"64 over all GPUs: veRL 0.9.1 gets {ACTOR}.ppo_micro_batch_size_per_gpu={actor}" in line
        for line in told
    )
    assert any(
        f"=128 over all GPUs: veRL 0.9.1 gets {ROLLOUT}.log_prob_micro_batch_size_per_gpu={rollout}" in line
        for line in told
    )


def test_a_megatron_model_is_one_rank():
    given = {
        f"{ACTOR}.strategy": "megatron",
        f"{ACTOR}.megatron.tensor_model_parallel_size": 2,
        f"{ACTOR}.megatron.pipeline_model_parallel_size": 2,
        f"{ACTOR}.ppo_micro_batch_size": 64,
        "trainer.n_gpus_per_node": 8,
    }
    verl, _ = micro_batches.divided(VerlView.of(compose_pinned(given, "ppo_megatron_trainer")))
    assert value_at(verl.tree, f"{ACTOR}.ppo_micro_batch_size_per_gpu") == 32
    assert value_at(verl.tree, f"{ACTOR}.ppo_micro_batch_size") is None


SHARED = """\
python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo \\
    data.train_batch_size=16 actor_rollout_ref.actor.ppo_mini_batch_size=16 actor_rollout_ref.rollout.n=5 \\
    actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=1 actor_rollout_ref.actor.use_kl_loss=True \\
    actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=40 \\
    actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu=8 \\
    actor_rollout_ref.model.path=org/model actor_rollout_ref.rollout.name=vllm \\
    trainer.n_gpus_per_node=8 trainer.total_training_steps=4 "$@"
"""


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (
            (),
            [
                "rollout.log_prob_micro_batch_size_per_gpu=40: 20",
                "ref.log_prob_micro_batch_size_per_gpu=8: 5",
            ],
        ),
        ((f"{ACTOR}.use_dynamic_bsz=True",), []),
        ((f"{ROLLOUT}.n=8", f"{ROLLOUT}.log_prob_micro_batch_size_per_gpu=32"), []),
    ],
)
def test_sizes_of_log_probabilities_divide_the_answers_of_a_gpu(tmp_path, monkeypatch, words, told):
    """veRL's own run_grpo_lora_with_merge.sh until 0.7; 0.9.1's workers refuse what doesn't divide."""
    monkeypatch.setattr(plan_run, "detect_device", lambda: "cuda")
    script = tmp_path / "run.sh"
    script.write_text(SHARED)
    sets = ("trainer.save_freq=2", f"{ENGINES}=2")
    lines_ = list(lines(str(script), words, RunOptions(sets=sets, mode="both")))
    assert [line for line in lines_ if "of each GPU" in line] == [
        f"actor_rollout_ref.{each}, which divides the 20 answers of each GPU" for each in told
    ]


SPLIT = """\
python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo \\
    data.train_batch_size=10 actor_rollout_ref.actor.ppo_mini_batch_size=10 actor_rollout_ref.rollout.n=4 \\
    actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=2 \\
    actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=2 \\
    actor_rollout_ref.rollout.tensor_model_parallel_size=4 \\
    actor_rollout_ref.model.path=org/model actor_rollout_ref.rollout.name=vllm \\
    trainer.n_gpus_per_node=4 trainer.nnodes=5 trainer.total_training_steps=4
"""


def test_an_update_s_size_divides_the_answers_of_the_plan_s_gpus(tmp_path, monkeypatch):
    """Two answers on each of 20 GPUs under stock; five on each of the plan's eight."""
    monkeypatch.setattr(plan_run, "detect_device", lambda: "cuda")
    (tmp_path / "run.sh").write_text(SPLIT)
    told = list(lines(str(tmp_path / "run.sh"), (), RunOptions(mode="both", sets=(f"{ENGINES}=3",))))
    note = f"{ACTOR}.ppo_micro_batch_size_per_gpu=2: 1, which divides the 5 answers of each GPU"
    assert note in told


def test_tokens_hold_a_row_on_fewer_gpus_than_the_launch_had():
    key = f"{ACTOR}.ppo_max_token_len_per_gpu"
    given = GIVEN | {f"{ACTOR}.use_dynamic_bsz": True, key: 600, SEQUENCE: 4}
    given |= {"data.max_prompt_length": 1000, "data.max_response_length": 1000}
    launch = VerlView.of(compose_pinned(given))
    verl, told = micro_batches.with_room(launch.changed({SEQUENCE: 2}), launch)
    assert value_at(verl.tree, key) == 1000 and told[0].startswith(
        f"{key}=600: 1000, which holds a row of 2000"
    )
    assert micro_batches.with_room(launch, launch) == (launch, [])


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (
            {"trainer.use_v1": False, "critic.ppo_max_token_len_per_gpu": 1000},
            "ppo_max_token_len_per_gpu: 1000",
        ),
        ({"trainer.use_v1": False}, ""),
        (
            {"trainer.use_v1": True, "data.max_response_length": 40000},
            "ppo_infer_max_token_len_per_gpu: 32768",
        ),
        ({"trainer.use_v1": True, "critic.ppo_max_token_len_per_gpu": 1000}, ""),
    ],
)
def test_a_critic_without_room_for_a_row_is_warned_of_by_its_trainer(given, told):
    lengths = {"data.max_prompt_length": 1000, "data.max_response_length": 1000}
    critic = {"algorithm.adv_estimator": "gae", "critic.use_dynamic_bsz": False}
    launch = VerlView.of(compose_pinned(GIVEN | critic | lengths | given))
    _, found = micro_batches.with_room(launch, launch)
    assert [told in line and line.startswith("warning: critic.") for line in found] == [True] * bool(told)


def test_a_critic_that_loses_gpus_for_a_row_gets_room_in_the_key_of_its_trainer():
    given = {"algorithm.adv_estimator": "gae", "trainer.use_v1": True, "data.max_response_length": 40000}
    critic = "critic.fsdp.ulysses_sequence_parallel_size"
    launch = VerlView.of(compose_pinned(GIVEN | given | {"data.max_prompt_length": 1000, critic: 2}))
    verl, _ = micro_batches.with_room(launch.changed({critic: 1}), launch)
    assert value_at(verl.tree, "critic.ppo_infer_max_token_len_per_gpu") == 41000


@pytest.mark.parametrize(
    ("batch", "mini", "given", "even"),
    [
        (32, 8, {}, 8),
        (32, 24, {}, 32),
        (32, 64, {"critic.use_dynamic_bsz": True}, 32),  # one update, as of the actor
        (32, 64, {"algorithm.adv_estimator": "grpo"}, 64),  # no critic is trained
        (32, 24, {"trainer.use_v1": True}, 24),  # which fills updates up
    ],
)
def test_updates_of_the_critic_divide_a_step_where_nothing_fills_them_up(batch, mini, given, even):
    key = "critic.ppo_mini_batch_size"
    sizes = {"data.train_batch_size": batch, key: mini}
    launch = {"algorithm.adv_estimator": "gae", "trainer.use_v1": False, **sizes, **given}
    verl, notes = micro_batches.whole_updates(VerlView.of(compose_pinned(GIVEN | launch)))
    assert value_at(verl.tree, key) == even
    said = f"{key}={mini}: {even}, which divides data.train_batch_size={batch} (1 update(s) a step)"
    assert notes == ([] if even == mini else [said])


def test_a_step_that_no_near_update_of_the_critic_divides_is_refused(tmp_path):
    critic = ("algorithm.adv_estimator=gae", "critic.use_dynamic_bsz=True", f"{REF_SIZE}=1")
    sizes = ("data.train_batch_size=127", f"{ACTOR}.ppo_mini_batch_size=127", "critic.ppo_mini_batch_size=32")
    with pytest.raises(UserError, match=r"127 is not divisible by critic\.ppo_mini_batch_size=32") as told:
        dry_run(tmp_path, *critic, *sizes)
    assert told.value.hint == "critic.ppo_mini_batch_size may be 1, 127"
