"""A reward model in the plan: its engine, its GPUs, its process. No GPU is needed to say how."""

import pytest
from toy_plan import planned

from trinity_compat.common.errors import UserError
from trinity_compat.job.gpus import shares
from trinity_compat.run.plan.run_plan import describe
from trinity_compat.run.supervise.sides import commands_of, standalone_commands

MODEL = "reward.reward_model"
N, TP = "trainer.n_gpus_per_node", f"{MODEL}.rollout.tensor_model_parallel_size"
FUNCTION = "reward.custom_reward_function.path"
ON = (f"{MODEL}.enable=True", f"{MODEL}.model_path=org/rm", f"{MODEL}.rollout.name=vllm")
POOL = (f"{MODEL}.enable_resource_pool=True", f"{MODEL}.nnodes=2", f"{MODEL}.n_gpus_per_node=8")


def gpus(*words, **options):
    """{side: GPUs}, reward engine's size, notes."""
    made = planned(*ON, *words, device="cuda", **options)
    spec = made.spec
    rollout = spec.verl["reward"]["reward_model"]["rollout"]
    split = shares(spec.verl, device="cuda", mode=spec.mode, explorers=spec.explorers)
    return split, rollout["tensor_model_parallel_size"], "\n".join(made.notes)


@pytest.mark.parametrize(
    ("words", "split", "width"),
    [
        ([f"{N}=8", f"{TP}=1"], (2, 4, 2), 1),
        ([f"{N}=8"], (2, 4, 2), 2),  # veRL's default size
        ([f"{N}=8", f"{TP}=4"], (2, 2, 4), 4),
        ([f"{N}=4"], (1, 1, 2), 2),
        ([f"{N}=3"], (1, 1, 1), 1),  # one engine of two would leave one side none
    ],
)
def test_a_reward_model_without_a_pool_gets_a_share(words, split, width):
    found, size, notes = gpus(*words)
    assert (found["trainer"], found["explorer"], found["reward model"]) == split
    assert size == width
    engines = split[2] // width
    assert f"+ {split[2]} for the reward model ({engines} engine(s) of {width})" in notes


def test_a_pool_of_its_own_comes_beside_the_launch_s_gpus():
    found, _, notes = gpus(f"{N}=8", f"{TP}=4", *POOL)
    assert found == {"trainer": 4, "explorer": 4, "reward model": 16}
    assert "16 GPUs of its own for the reward model (4 engine(s) of 4)" in notes
    sets = ("explorer.rollout_model.engine_num=6",)
    assert gpus(f"{N}=8", f"{TP}=4", *POOL, sets=sets)[0]["explorer"] == 6


@pytest.mark.parametrize(
    ("words", "options", "why"),
    [
        ([f"{N}=2"], {}, "2 GPU.s. hold no trainer, explorer and reward model"),
        ([f"{N}=8"], {"mode": "colocate"}, "the reward model has no turn"),
        ([f"{N}=1"], {}, "the reward model has no turn"),
        ([f"{N}=8", *POOL], {"mode": "colocate"}, "the reward model has no turn"),
        ([f"{N}=8", f"{MODEL}.model_path=null"], {}, "model_path is not set"),
    ],
)
def test_no_room_is_said_with_a_way_out(words, options, why):
    with pytest.raises(UserError, match=why) as caught:
        gpus(*words, **options)
    assert caught.value.hint


def test_explorers_in_commands_of_their_own_share_the_engines_evenly():
    words = (f"{N}=8", f"{TP}=2")
    with pytest.raises(UserError, match="cannot share 1 engine"):
        gpus(*words, explorers=2, explorer=0, mode="explore")
    assert gpus(*words, explorers=2)[0]["reward model"] == 2


def test_a_cpu_serves_it_with_one_engine():
    made = planned(*ON, f"{FUNCTION}=null", device="cpu")
    assert shares(made.spec.verl, device="cpu", mode="both", explorers=1)["reward model"] == 1
    assert "reward    org/rm, 1 vLLM engine(s), its score is the reward" in describe(made)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("sglang", "the reward model runs vLLM in its place"),
        ("???", "the launch names no engine"),
        ("vllm", None),
    ],
)
def test_its_engine_is_vllm_and_another_s_name_is_told(name, said):
    made = planned(*ON[:2], f"{MODEL}.rollout.name={name}", device="cpu")
    assert made.spec.verl["reward"]["reward_model"]["rollout"]["name"] == "vllm"
    told = [line for line in made.notes if f"{MODEL}.rollout.name" in line]
    assert said in told[0] if said else not told


def test_the_worker_of_an_older_release_becomes_a_server():
    old = ["reward_model.enable=True", "reward_model.model.path=org/rm"]
    made = planned(*old, f"{N}=8", device="cuda")
    assert made.spec.verl["reward"]["reward_model"]["model_path"] == "org/rm"
    assert made.spec.verl["reward"]["reward_model"]["rollout"]["name"] == "vllm"


def names(commands):
    return [(each.name, each.serves) for each in commands]


def test_the_server_is_a_process_of_its_own_that_the_explorers_know_by_a_token():
    commands = commands_of(planned(*ON, device="cpu"), "ray")
    assert names(commands) == [("reward_model", True), ("explorer", False), ("trainer", False)]
    assert len({each.env["TRINITY_COMPAT_REWARD_MODEL"] for each in commands}) == 1
    again = commands_of(planned(*ON, device="cpu"), "ray")
    assert again[0].env["TRINITY_COMPAT_REWARD_MODEL"] != commands[0].env["TRINITY_COMPAT_REWARD_MODEL"]
    assert names(commands_of(planned(device="cpu"), "ray")) == [("explorer", False), ("trainer", False)]


def test_each_command_with_explorers_serves_it_and_a_trainer_alone_does_not():
    one = planned(*ON, device="cpu", mode="explore", explorers=2, explorer=1)
    assert names(commands_of(one, "ray")) == [("reward_model_1", True), ("explorer_1", False)]
    assert names(commands_of(planned(*ON, device="cpu", mode="train"), "ray")) == [("trainer", False)]
    bench = planned(*ON, device="cpu", mode="bench")
    assert names(standalone_commands(bench, "ray")) == [("reward_model_bench", True), ("bench", False)]
