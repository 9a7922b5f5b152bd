"""Teachers in the plan: their engines, their GPUs, their process. No GPU is needed to say how."""

import json
import lzma
from pathlib import Path

import pytest
import yaml
from toy_plan import planned

from trinity_compat.common.errors import UserError
from trinity_compat.job.gpus import check_gpus, shares
from trinity_compat.launch import read_argv
from trinity_compat.run.plan.plan_run import make_plan
from trinity_compat.run.plan.run_plan import describe
from trinity_compat.run.plan.source import RunOptions
from trinity_compat.run.supervise.sides import commands_of, standalone_commands
from trinity_compat.translate import TranslateOptions, translate_launch

N, NODES, EACH = "trainer.n_gpus_per_node", "distillation.nnodes", "distillation.n_gpus_per_node"
ONE = "distillation.teacher_models.teacher_model"
TP = f"{ONE}.inference.tensor_model_parallel_size"
ON = ("distillation.enabled=True", f"{NODES}=1", f"{EACH}=4")
SINGLE = (*ON, f"{ONE}.model_path=org/teacher")


def named(name, *settings, replicas=1):
    """Overrides of a teacher for the rows of ``name``."""
    entry = f"+distillation.teacher_models.{name}"
    given = (f"key=data/{name}", f"model_path=org/{name}", f"num_replicas={replicas}", *settings)
    return tuple(f"{entry}.{each}" for each in given)


TWO = (*ON, *named("sort", "inference.name=vllm"), *named("count"))


def gpus(*words, **options):
    """{side: GPUs}, the notes, the section of the plan."""
    made = planned(*words, device="cuda", **options)
    spec = made.spec
    split = shares(spec.verl, device="cuda", mode=spec.mode, explorers=spec.explorers)
    return split, "\n".join(made.notes), spec.verl["distillation"]


@pytest.mark.parametrize(
    ("words", "note"),
    [
        (SINGLE, "4 GPUs of their own for the teachers (the teacher: 2 engine(s) of 2)"),
        ((*SINGLE, f"{TP}=4"), "(the teacher: 1 engine(s) of 4)"),
        ((*SINGLE, f"{TP}=1", f"{ONE}.inference.data_parallel_size=2"), "(the teacher: 4 engine(s) of 1)"),
        (TWO, "(the teacher data/sort: 1 engine(s) of 2 + the teacher data/count: 1 engine(s) of 2)"),
    ],
)
def test_teachers_have_gpus_beside_the_launch_s(words, note):
    without = gpus(f"{N}=8", mode="both")[0]
    split, notes, _ = gpus(f"{N}=8", *words)
    assert split == {**without, "teachers": 4}
    assert note in notes


def test_a_reward_model_s_pool_and_the_teachers_are_counted_apart():
    rm = "reward.reward_model"
    pool = (f"{rm}.enable_resource_pool=True", f"{rm}.nnodes=1", f"{rm}.n_gpus_per_node=2")
    words = (f"{N}=8", f"{rm}.enable=True", f"{rm}.model_path=org/rm", *pool)
    without = gpus(*words)[0]
    assert without["reward model"] == 2
    assert gpus(*words, *SINGLE)[0] == {**without, "teachers": 4}


def test_too_few_gpus_are_named_with_the_teachers_part():
    spec = planned(f"{N}=8", *SINGLE, device="cuda").spec
    check_gpus(spec, "explorer", 12.0)
    with pytest.raises(UserError, match=r"wants 12 GPUs, and Ray has 11: .* \+ 4 for the teachers \(.*2 × 2"):
        check_gpus(spec, "trainer", 11.0)
    alone = planned(f"{N}=8", *SINGLE, device="cuda", mode="train").spec
    check_gpus(alone, "trainer", 4.0)


def test_a_cpu_has_one_engine_for_each_in_the_policy_s_precision():
    made = planned(*TWO, device="cpu")
    assert shares(made.spec.verl, device="cpu", mode="both", explorers=1)["teachers"] == 2
    assert [line for line in describe(made) if line.startswith("teacher")] == [
        "teacher   org/sort, 1 vLLM engine(s), for data/sort",
        "teacher   org/count, 1 vLLM engine(s), for data/count",
    ]
    inference = made.spec.verl["distillation"]["teacher_models"]["count"]["inference"]
    assert (inference["dtype"], inference["enforce_eager"], inference["name"]) == ("float32", True, "vllm")
    half = planned(*TWO, "+distillation.teacher_models.sort.inference.dtype=bfloat16", device="cpu")
    assert half.spec.verl["distillation"]["teacher_models"]["sort"]["inference"]["dtype"] == "bfloat16"
    single = planned(*SINGLE, device="cpu").spec.verl["distillation"]
    assert (single["nnodes"], single["n_gpus_per_node"]) == (1, 1)


@pytest.mark.verl
@pytest.mark.parametrize("words", [SINGLE, TWO, (*SINGLE, f"{TP}=4")])
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_verl_reads_the_servers_of_the_plan(words, device):
    from trinity_compat.explorer.teachers.arguments import distillation
    from trinity_compat.job.distillation import teacher_entries

    verl = planned(f"{N}=8", *words, device=device).spec.verl
    planned_sizes = sorted((entry.path, entry.servers, entry.width) for entry in teacher_entries(verl))
    read = distillation(verl).teachers
    assert planned_sizes == sorted((each.path, each.servers, each.width) for each in read)


@pytest.mark.verl
def test_sizes_that_verl_refuses_reach_verl_on_a_cpu_too():
    from trinity_compat.explorer.teachers.arguments import distillation

    verl = planned(*TWO, f"{EACH}=3", device="cpu").spec.verl
    with pytest.raises(UserError, match="must match the distillation resource pool size"):
        distillation(verl)


INFERENCE = f"{ONE}.inference"


@pytest.mark.parametrize(
    ("words", "options", "why"),
    [
        (
            [f"{NODES}=0"],
            {},
            "enabled=True with distillation.nnodes=0: config.distillation.nnodes must be greater than 0",
        ),
        ([f"{EACH}=0"], {}, "config.distillation.n_gpus_per_node must be greater than 0"),
        ([f"{ONE}.model_path=null"], {}, f"{ONE}.model_path is not set"),
        ([f"{N}=8"], {"mode": "colocate"}, "in mode colocate .* the teachers have no turn"),
        ([f"{N}=1"], {}, "the teachers have no turn"),
        ([f"{TP}=8", f"{NODES}=2"], {}, f"{TP}=8: an engine is one machine's here"),
        ([f"+{INFERENCE}.quantization=fp8"], {}, f"{INFERENCE}.quantization=fp8 cannot be run decoupled"),
        ([f"+{INFERENCE}.pipeline_model_parallel_size=2"], {}, "veRL's own engines have no pipeline"),
        ([f"+{INFERENCE}.engine_kwargs.vllm.tensor_parallel_size=2"], {}, "the GPUs are allocated before"),
        (
            [f"+{INFERENCE}.engine_kwargs.vllm.max_seqs=3"],
            {},
            f"{INFERENCE}.engine_kwargs.vllm.max_seqs=3: vLLM .* has no argument max_seqs",
        ),
        ([f"{N}=8"], {"explorers": 3, "explorer": 0, "mode": "explore"}, "cannot share 2 engine.s. of"),
    ],
)
def test_what_no_teacher_can_do_is_an_error_with_a_way_out(words, options, why):
    given = words if f"{N}=8" in words or f"{N}=1" in words else [f"{N}=8", *words]
    with pytest.raises(UserError, match=why) as caught:
        planned(*SINGLE, *given, device="cuda", **options)
    assert caught.value.hint


def test_sizes_that_need_every_gpu_at_once_are_not_sent_to_the_mode_without_teachers():
    width = "actor_rollout_ref.actor.megatron.tensor_model_parallel_size=8"
    words = (f"{N}=8", "model_engine=megatron", width)
    with pytest.raises(UserError, match="groups of 8 for one sequence") as caught:
        planned(*words, *SINGLE, device="cuda")
    assert caught.value.hint and "colocate" not in caught.value.hint
    assert planned(*words, device="cuda").spec.mode == "colocate"


def test_what_has_no_effect_is_told():
    made = planned(*SINGLE, f"+{INFERENCE}.mtp.enable=True", f"{INFERENCE}.name=sglang", device="cpu")
    notes = "\n".join(made.notes)
    assert f"{INFERENCE}.mtp.enable=True: without effect" in notes
    assert f"{INFERENCE}.name=sglang: the teacher runs vLLM in its place" in notes
    assert f"{INFERENCE}.mtp" not in "\n".join(planned(*SINGLE, device="cpu").notes)


@pytest.mark.parametrize("mode", ["serve", "bench"])
def test_modes_that_train_nothing_have_no_teachers(mode):
    made = planned(*SINGLE, device="cpu", mode=mode)
    assert made.spec.verl["distillation"]["enabled"] is False
    assert [each.name for each in standalone_commands(made, "ray")] == [mode]


def names(commands):
    return [(each.name, each.serves) for each in commands]


def test_the_servers_are_a_process_of_their_own_that_the_explorers_know_by_a_token():
    commands = commands_of(planned(*SINGLE, device="cpu"), "ray")
    assert names(commands) == [("teachers", True), ("explorer", False), ("trainer", False)]
    assert commands[0].argv[-4:] == ["--teachers", "teachers", "--parts", "1"]
    assert len({each.env["TRINITY_COMPAT_TEACHERS"] for each in commands}) == 1
    again = commands_of(planned(*SINGLE, device="cpu"), "ray")
    assert again[0].env["TRINITY_COMPAT_TEACHERS"] != commands[0].env["TRINITY_COMPAT_TEACHERS"]


def test_a_reward_model_and_teachers_are_both_started():
    rm = ("reward.reward_model.enable=True", "reward.reward_model.model_path=org/rm")
    commands = commands_of(planned(*SINGLE, *rm, device="cpu"), "ray")
    assert [name for name, serves in names(commands) if serves] == ["reward_model", "teachers"]
    tokens = ("TRINITY_COMPAT_TEACHERS", "TRINITY_COMPAT_REWARD_MODEL")
    (explorer,) = [each for each in commands if each.name == "explorer"]
    assert all(name in explorer.env for name in tokens)


def test_each_command_with_explorers_serves_them_and_a_trainer_alone_does_not():
    one = planned(*SINGLE, device="cpu", mode="explore", explorers=2, explorer=1)
    assert names(commands_of(one, "ray")) == [("teachers_1", True), ("explorer_1", False)]
    assert names(commands_of(planned(*SINGLE, device="cpu", mode="train"), "ray")) == [("trainer", False)]


EXAMPLES = {
    "run_qwen3_0.6b_opd_veomni.sh": 7 + 1,
    "run_qwen3_5_4b_fsdp.sh": 8 + 8,
    "run_qwen3_8b_fsdp.sh": 8 + 4,
    "run_qwen3_8b_megatron.sh": 8 + 4,
    "run_qwen3_8b_mopd_fsdp.sh": 8 + 4,
    "run_qwen3_8b_mopd_veomni.sh": 8 + 4,
    "run_qwen3_vl_8b_fsdp.sh": 8 + 4,
}
REFUSED = "run_v1_separate_async_opd.sh"  # by stock 0.9.1 too: it sets megatron.grad_offload
MAIN = Path(__file__).parents[1] / "facts" / "main.json.xz"


def distilled_launches():
    """{script: its launch} of veRL's main."""
    scripts = json.loads(lzma.decompress(MAIN.read_bytes()))["scripts"]
    launches = (
        (Path(script["path"]).name, launch) for script in scripts for launch in script["launches"][:1]
    )
    return {
        name: (launch["module"], launch["args"])
        for name, launch in launches
        if "distillation.enabled=True" in launch["args"]
    }


def test_verl_s_examples_have_as_many_gpus_as_under_verl(tmp_path):
    launches = distilled_launches()
    assert launches.keys() == {*EXAMPLES, REFUSED}
    del launches[REFUSED]
    found = {}
    for name, (module, words) in launches.items():
        (launch,) = read_argv(["python3", "-m", module, *words]).launches
        _, text = translate_launch(launch, TranslateOptions())
        options = RunOptions(job=str(tmp_path / "job"), dry_run=True)
        spec = make_plan(yaml.safe_load(text), options, cwd=tmp_path, device="cuda").spec
        assert spec.mode == "both"
        found[name] = sum(shares(spec.verl, device="cuda", mode="both", explorers=spec.explorers).values())
    assert found == EXAMPLES
