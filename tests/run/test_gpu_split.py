"""The GPUs that a launch names are split between generation and training. No GPU is needed to say how."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from toy_plan import ENV, SCRIPT, planned, source

from trinity_compat.common.errors import UserError
from trinity_compat.common.nested import put
from trinity_compat.compare import breakdown
from trinity_compat.compare.model import Series, Side
from trinity_compat.compare.sources import job
from trinity_compat.job.gpus import check_gpus, engine_count, shares
from trinity_compat.job.placement import engine_nodes
from trinity_compat.launch import read_script
from trinity_compat.run.plan import colocate, gpu_split
from trinity_compat.run.plan.gpu_split import MEMORY, split_gpus
from trinity_compat.run.plan.plan_run import make_plan
from trinity_compat.run.plan.source import RunOptions
from trinity_compat.run.plan.verl_view import VerlView
from trinity_compat.translate import TranslateOptions, translate_launch
from trinity_compat.translate.sections.gpus import GpuBudget
from trinity_compat.verl_config import compose_pinned

ROLLOUT, ACTOR = "actor_rollout_ref.rollout", "actor_rollout_ref.actor"
TP, SP = f"{ROLLOUT}.tensor_model_parallel_size", f"{ACTOR}.ulysses_sequence_parallel_size"
ENGINES = "explorer.rollout_model.engine_num"


def gpus(*words, sets=(), **options):
    """((trainer's nodes, GPUs of one), (rollout's …), tensor parallel size, ulysses size)."""
    verl = planned(*words, sets=sets, device="cuda", **options).spec.verl
    rollout, trainer = verl["actor_rollout_ref"]["rollout"], verl["trainer"]
    return (
        (trainer["nnodes"], trainer["n_gpus_per_node"]),
        (rollout["nnodes"], rollout["n_gpus_per_node"]),
        rollout["tensor_model_parallel_size"],
        verl["actor_rollout_ref"]["actor"]["ulysses_sequence_parallel_size"],
    )


@pytest.mark.parametrize(
    ("words", "sets", "split"),
    [
        (["trainer.n_gpus_per_node=8"], [], ((1, 4), (1, 4), 1, 1)),
        (["trainer.n_gpus_per_node=8", f"{TP}=2"], [], ((1, 4), (1, 4), 2, 1)),
        (["trainer.n_gpus_per_node=8", f"{TP}=8"], [], ((1, 4), (1, 4), 4, 1)),  # 8 would leave none
        (["trainer.n_gpus_per_node=8", f"{SP}=8"], [], ((1, 4), (1, 4), 1, 4)),
        (["trainer.n_gpus_per_node=8", "trainer.nnodes=4"], [], ((2, 8), (1, 16), 1, 1)),
        # Beside a trainer of 2 one machine has 1 left and the other 3: no room for two engines of 2.
        (["trainer.n_gpus_per_node=3", "trainer.nnodes=2", f"{TP}=2"], [], ((1, 2), (1, 4), 1, 1)),
        (["trainer.n_gpus_per_node=8"], [f"{ENGINES}=6"], ((1, 2), (1, 6), 1, 1)),
        (["trainer.n_gpus_per_node=8"], ["trainer.n_gpus_per_node=4"], ((1, 2), (1, 2), 1, 1)),
        (["trainer.n_gpus_per_node=1"], [f"{ENGINES}=2"], ((1, 1), (1, 2), 1, 1)),
        (["trainer.n_gpus_per_node=1"], [], ((1, 1), (0, 1), 1, 1)),
    ],
)
def test_the_launch_s_gpus_are_split(words, sets, split):
    assert gpus(*words, sets=tuple(sets), mode="both") == split


N = "trainer.n_gpus_per_node"
V1 = ("trainer.use_v1=True",)
SERVED = ("reward_model.enable=True", "reward_model.model.path=/m")
TEACHERS = (
    "distillation.enabled=True",
    "distillation.nnodes=1",
    "distillation.n_gpus_per_node=2",
    "distillation.teacher_models.teacher_model.model_path=org/teacher",
)


@pytest.mark.parametrize(
    "words",
    [
        (),
        (f"{TP}=2",),
        (f"{TP}=8",),
        (f"{SP}=8",),
        ("trainer.nnodes=2",),
        ("trainer.use_v1=True",),
        ("actor_rollout_ref.model.lora_rank=8",),
        (f"{ROLLOUT}.data_parallel_size=8", f"{ROLLOUT}.expert_parallel_size=8"),
    ],
)
def test_a_launch_takes_turns_on_all_of_its_gpus_as_in_verl(words):
    made = planned(f"{N}=8", *words, device="cuda")
    verl = made.spec.verl
    assert made.spec.mode == "colocate"
    every = 8 * verl["trainer"]["nnodes"]
    assert shares(verl, device="cuda", mode="colocate", explorers=1) == {"trainer": every}
    rollout = verl["actor_rollout_ref"]["rollout"]
    assert engine_count(rollout, "cuda") * rollout["tensor_model_parallel_size"] == every
    assert f"{every} GPUs" in " ".join(note for note in made.notes if " in turns: " in note)
    # Nothing was lowered for a share.
    assert not [note for note in made.notes if "share of the GPUs holds no more" in note]
    assert planned(f"{N}=8", *words, device="cpu").spec.mode == "both"


FSDP = f"{ACTOR}.fsdp_config"
SEVEN_BILLION = (f"{N}=8", "actor_rollout_ref.model.path=Qwen/Qwen2.5-7B-Instruct", f"{MEMORY}=0.6")


@pytest.mark.parametrize(
    ("words", "card", "options", "forced"),
    [
        ((), None, {}, False),  # 11 GiB of 8 GPUs' parameters and moments, beside 48 of an H100's 80
        ((), 24.0, {}, True),
        ((), 24.0, {"mode": "both"}, False),
        ((), 24.0, {"device": "cpu"}, False),
        ((f"{MEMORY}=0.9",), None, {}, True),
        ((f"{MEMORY}=0.9", "actor_rollout_ref.model.path=/ckpt/step_100"), None, {}, False),  # of which size?
        ((f"{FSDP}.optimizer_offload=True",), 24.0, {}, False),  # 4 of the 12 bytes a parameter
        (("trainer.n_gpus_per_node=1",), None, {}, True),
        # Megatron's weights and gradients are whole on each GPU without tensor parallelism.
        ((f"{ACTOR}.strategy=megatron", "actor_rollout_ref.ref.strategy=megatron"), None, {}, True),
    ],
)
def test_a_launch_s_offload_flags_hold_in_turns_where_the_trainer_has_room(
    monkeypatch, words, card, options, forced
):
    monkeypatch.setattr(colocate, "card_here", lambda: card)
    made = planned(*SEVEN_BILLION, *words, **{"device": "cuda", **options})
    lines = [note for note in made.notes if note.startswith("param_offload, optimizer_offload = True")]
    assert (made.spec.offloads, len(lines)) == (forced, forced)
    if forced:
        assert "of a GPU's 24" in lines[0] if card else "of an H100, which is assumed" in lines[0]


@pytest.mark.parametrize(
    ("words", "options"),
    [
        ((), {"mode": "both"}),
        ((), {"explorers": 2}),
        ((), {"sets": (f"{ENGINES}=4",)}),
        ((), {"sets": ("mode=both",)}),
        ((), {"sets": ("synchronizer.sync_offset=2",)}),
        ((), {"sets": ("synchronizer.sync_style=trainer_driven",)}),
        ((), {"sets": ("synchronizer.sync_style=fully_async", "trinity_compat.partial_rollout=false")}),
        ((), {"sets": ("synchronizer.sync_method=nccl",)}),
        ((f"{ROLLOUT}.nnodes=1", f"{ROLLOUT}.n_gpus_per_node=4"), {}),
        (SERVED, {}),
        (TEACHERS, {}),
        (
            (
                *V1,
                "trainer.v1.trainer_mode=separate_async",
                "trainer.v1.separate_async.parameter_sync_step=2",
            ),
            {},
        ),
        # Stock veRL ends at its first update: 8 ranks do not divide the mini-batch, and 4 do.
        (("data.train_batch_size=4", f"{ACTOR}.ppo_mini_batch_size=1", f"{ROLLOUT}.n=4"), {}),
    ],
)
def test_a_launch_is_split_where_something_asks_for_a_split_or_needs_one(words, options):
    spec = planned(f"{N}=8", *words, device="cuda", **options).spec
    assert spec.mode == "both"
    assert shares(spec.verl, device="cuda", mode="both", explorers=spec.explorers)["explorer"] >= 2


@pytest.mark.parametrize(
    ("words", "sets"),
    [
        ((*V1, "trainer.v1.trainer_mode=colocate_async"), ()),
        ((), ("synchronizer.sync_style=fully_async",)),
        ((), ("synchronizer.sync_style=fully_async", "synchronizer.sync_offset=2")),
    ],
)
def test_answers_that_outlast_a_change_of_weights_take_turns_too(words, sets):
    spec = planned(f"{N}=8", *words, sets=sets, device="cuda").spec
    assert (spec.mode, spec.sync.style, spec.partial_rollout) == ("colocate", "fully_async", True)
    assert shares(spec.verl, device="cuda", mode="colocate", explorers=1) == {"trainer": 8}
    assert planned(f"{N}=8", *words, sets=sets, device="cuda", mode="both").spec.mode == "both"


@pytest.mark.parametrize(
    ("path", "value", "mode"),
    [
        (None, None, "colocate"),
        ("synchronizer.sync_style", "fully_async", "colocate"),
        (ENGINES, 6, "both"),
        ("cluster.gpu_per_node", 4, "colocate"),
        ("mode", "colocate", "colocate"),
        ("synchronizer.sync_offset", 2, "both"),
    ],
)
def test_an_edit_of_the_yaml_s_split_asks_for_it(path, value, mode):
    config = json.loads(json.dumps(source(f"{N}=8")[0].config))
    if path:
        put(config, path, value)
    spec = make_plan(config, RunOptions(), cwd=Path("/work"), device="cuda").spec
    assert spec.mode == mode
    whole = sum(shares(spec.verl, device="cuda", mode=mode, explorers=1).values())
    assert whole == config["cluster"]["gpu_per_node"]


def test_rollout_gpus_of_a_yaml_are_a_split_that_was_asked_for():
    launch = read_script(SCRIPT, env=ENV, args=(f"{N}=8",)).launches[0]
    config = yaml.safe_load(translate_launch(launch, TranslateOptions(rollout_gpus=6))[1])
    spec = make_plan(config, RunOptions(), cwd=Path("/work"), device="cuda").spec
    assert shares(spec.verl, device="cuda", mode=spec.mode, explorers=1) == {"trainer": 2, "explorer": 6}


@pytest.mark.parametrize(
    ("words", "options", "trainer", "rollout"),
    [
        ([f"{N}=8"], {}, 8, 0),
        ([f"{N}=8"], {"mode": "both"}, 4, 4),  # the report used to say 4 + 1
        ([f"{N}=8", f"{TP}=2"], {"mode": "both"}, 4, 4),
        ([f"{N}=8", f"{TP}=8"], {"mode": "both"}, 4, 4),  # halved to 4
        ([f"{N}=8", f"{TP}=2"], {"explorers": 2}, 4, 4),
        ([f"{N}=8"], {"explorers": 4}, 4, 4),
        ([f"{N}=8"], {"sets": (f"{ENGINES}=6",)}, 2, 6),
        ([f"{N}=8", f"{TP}=2"], {"mode": "explore"}, 4, 4),  # the trainer is another command
        ([f"{N}=8", "trainer.nnodes=4", f"{TP}=4"], {"explorers": 2}, 16, 16),
        ([f"{N}=1"], {"mode": "colocate"}, 1, 0),
        ([f"{N}=1"], {"mode": "both"}, 1, 1),
        ([f"{N}=1", f"{TP}=2"], {"mode": "both"}, 1, 2),
        ([f"{N}=1", f"{TP}=2"], {}, 1, 0),
        ([f"{N}=1"], {"mode": "both", "sets": (f"{ENGINES}=4",), "explorers": 2}, 1, 4),
        ([f"{N}=2"], {"device": "cpu"}, 2, 1),  # processes
        ([f"{N}=1"], {"device": "cpu", "sets": (f"{ENGINES}=4",), "explorers": 2}, 1, 4),
    ],
)
def test_plan_ray_and_report_count_the_same_gpus(tmp_path, words, options, trainer, rollout):
    made = planned(*words, **{"device": "cuda", **options})
    check_counted_by_ray(made.spec, trainer + rollout)
    for note in made.notes:
        if "GPUs = " in note:
            assert f"= {rollout} for generation" in note and f"+ {trainer} for training" in note
    told = reported(made.spec, tmp_path)
    assert told["throughput_all"] == pytest.approx(100.0 * trainer / (trainer + rollout))
    beside = f" for the trainer, {rollout} for the rollout" if rollout else ", shared with the rollout"
    assert told["gpus"].split(" ")[0] == str(trainer) and told["gpus"].endswith(beside)


MEGATRON_OF_12 = (
    "model_engine=megatron",
    f"{ACTOR}.megatron.pipeline_model_parallel_size=3",
    f"{ACTOR}.megatron.tensor_model_parallel_size=4",
    "trainer.nnodes=3",
    f"{N}=8",
)


def test_a_trainer_that_fills_no_whole_nodes_has_a_part_of_each():
    """12 GPUs for one model on 3 nodes of 8: 4 of each node, and an engine of 4 beside them."""
    made = planned(*MEGATRON_OF_12, f"{TP}=4", device="cuda", mode="both")
    trainer, rollout = made.spec.verl["trainer"], made.spec.verl["actor_rollout_ref"]["rollout"]
    assert (trainer["nnodes"], trainer["n_gpus_per_node"]) == (3, 4)
    assert (engine_count(rollout, "cuda"), rollout["tensor_model_parallel_size"]) == (3, 4)
    assert any(note.startswith("24 GPUs = 12 for generation (3 engine(s) of 4) + 12") for note in made.notes)
    nodes = {"a": 8.0, "b": 8.0, "c": 8.0}
    assert sorted(engine_nodes(nodes, (3, 4), 3, 4)) == ["a", "b", "c"]


def test_a_trainer_that_is_no_equal_part_of_each_node_either_is_refused():
    twenty = f"{ACTOR}.megatron.pipeline_model_parallel_size=5"
    with pytest.raises(UserError, match="groups of 20") as error:
        planned(*MEGATRON_OF_12, twenty, f"{TP}=4", device="cuda")
    assert "--mode colocate" not in error.value.hint  # 24 GPUs hold none either


def test_one_gpu_holds_no_engine_and_no_sequence_of_two():
    made = planned(f"{N}=1", f"{TP}=2", f"{SP}=2", device="cuda")
    verl, notes = made.spec.verl["actor_rollout_ref"], "\n".join(made.notes)
    assert made.spec.mode == "colocate"
    assert (
        verl["rollout"]["tensor_model_parallel_size"] == verl["actor"]["ulysses_sequence_parallel_size"] == 1
    )
    assert "rollout.tensor_model_parallel_size = 1: the explorer's share" in notes
    assert "actor.ulysses_sequence_parallel_size = 1: the trainer's share" in notes


def check_counted_by_ray(spec, gpus):
    """A Ray with ``gpus`` GPUs holds the whole run, one with a GPU less does not."""
    whole = replace(spec, mode="colocate" if spec.mode == "colocate" else "both")
    check_gpus(whole, "trainer", gpus)
    if spec.device == "cuda" and gpus > 1:
        with pytest.raises(UserError, match=f"the run wants {gpus} GPUs, and Ray has {gpus - 1}:"):
            check_gpus(whole, "trainer", gpus - 1)


def reported(spec, folder):
    """What compare says of the devices of a job that trained 100 tokens a second on each trainer GPU."""
    (folder / "config").mkdir()
    (folder / "monitor" / "tensorboard").mkdir(parents=True)
    spec.save(folder / "config" / "run.json")
    run = job.read(folder)
    run.series["perf/throughput"] = Series()
    run.series["perf/throughput"].add(1, 100.0)
    return breakdown.resources(Side("ours", [run]))


def test_a_yaml_s_run_may_have_gpus_for_its_rollout_alone():
    config = source("trainer.n_gpus_per_node=8")[0].config
    sets = (f"{ROLLOUT}.nnodes=2", f"{ROLLOUT}.n_gpus_per_node=4", f"{TP}=4")
    spec = make_plan(config, RunOptions(sets=sets), cwd=Path("/work"), device="cuda").spec
    assert shares(spec.verl, device="cuda", mode="both", explorers=1) == {"trainer": 8, "explorer": 8}


def test_several_explorers_share_the_engines():
    assert gpus("trainer.n_gpus_per_node=8", explorers=2)[1] == (1, 2)
    for explorers in (3, 5):
        with pytest.raises(UserError, match="the explorers' 4 GPUs hold 4 of 1") as error:
            gpus("trainer.n_gpus_per_node=8", explorers=explorers)
        assert f"--explorers 1 or 2 or 4, or --set {ENGINES}=N, a multiple of {explorers}" in error.value.hint


def test_a_cpu_splits_nothing_and_has_the_engines_that_it_is_told_to():
    words = ("trainer.n_gpus_per_node=8", "trainer.nnodes=2")
    assert planned(*words).spec.verl["actor_rollout_ref"]["rollout"]["nnodes"] == 0
    made = planned(*words, sets=(f"{ENGINES}=4",), explorers=2)
    assert engine_count(made.spec.verl["actor_rollout_ref"]["rollout"], "cpu") == 2
    with pytest.raises(UserError, match="engine_num=1: --explorers 2 needs at least one each"):
        planned(*words, sets=(f"{ENGINES}=1",), explorers=2)
    with pytest.raises(UserError, match=r"cannot share 5 engine\(s\) evenly"):
        planned(*words, sets=(f"{ENGINES}=5",), explorers=2)


def test_gpus_of_the_rollout_s_own_stay():
    verl = compose_pinned({f"{ROLLOUT}.nnodes": 1, f"{ROLLOUT}.n_gpus_per_node": 2})
    laid = VerlView.of(verl)
    shared, _ = split_gpus(laid, {}, mode="both", explorers=1, device="cuda")
    assert shared.tree == verl


OWN = ("trainer.n_gpus_per_node=4", f"{ROLLOUT}.nnodes=1", f"{ROLLOUT}.n_gpus_per_node=2")


@pytest.mark.parametrize(
    ("words", "options", "trainer", "rollout"),
    [
        (OWN, {}, 4, 2),
        ((*OWN, f"{TP}=4"), {}, 4, 2),  # an engine of 4 has no room: halved
        (OWN, {"explorers": 2}, 4, 2),
        (("trainer.n_gpus_per_node=4",), {"sets": OWN[1:]}, 4, 2),  # --set is a word more of the launch's
        (OWN, {"sets": (f"{ENGINES}=4",)}, 2, 4),  # of all six
        (OWN, {"sets": ("trainer.n_gpus_per_node=8",)}, 8, 2),
        (OWN, {"mode": "colocate", "sets": ("synchronizer.sync_method=memory",)}, 4, 0),
        (OWN, {"device": "cpu"}, 4, 1),
    ],
)
def test_gpus_that_a_launch_gives_to_rollout_are_not_the_trainer_s(words, options, trainer, rollout):
    spec = planned(*words, **{"device": "cuda", **options}).spec
    found = shares(spec.verl, device=spec.device, mode=spec.mode, explorers=spec.explorers)
    assert (found["trainer"], found.get("explorer", 0)) == (trainer, rollout)


SHUFFLED = f"{ACTOR}.shuffle=True"  # of several updates in a step


def test_trainer_gpus_must_divide_a_mini_batch_where_no_fillers_are_possible():
    assert planned("trainer.n_gpus_per_node=3", *OWN[1:], device="cuda").spec.mode == "both"
    with pytest.raises(UserError, match="does not divide by 3 trainer ranks") as error:
        planned("trainer.n_gpus_per_node=3", *OWN[1:], SHUFFLED, device="cuda")
    assert "shuffle=True would deal the fillers unevenly" in error.value.message
    assert "N may be 1, 3, 4" in str(error.value)
    words = (
        r"veRL ends at its first update: Got mini_batch_size=\d+ and self.engine.get_data_parallel_size\(\)=3"
    )
    assert re.search(words, error.value.message)


def test_veRL_s_words_are_left_out_where_its_trainer_has_other_ranks():
    beside_a_reward_model = gpu_split._as_in_verl(GpuBudget(1, 8, 1, 1, 64, 1), 2)
    assert beside_a_reward_model.message.endswith("=64 does not divide by 5 trainer ranks")


def test_the_yaml_s_cluster_wins_over_the_launch_s_gpus_once_it_was_edited():
    config = json.loads(json.dumps(source(*OWN)[0].config))
    config["cluster"]["gpu_per_node"] = 10
    spec = make_plan(config, RunOptions(), cwd=Path("/work"), device="cuda").spec
    assert shares(spec.verl, device="cuda", mode="both", explorers=1) == {"trainer": 8, "explorer": 2}


def test_the_split_is_told_and_what_was_lowered_for_it():
    made = planned("trainer.n_gpus_per_node=8", f"{TP}=8", f"{SP}=8", device="cuda", mode="both")
    notes = "\n".join(made.notes)
    assert "8 GPUs = 4 for generation (1 engine(s) of 4) + 4 for training; --set" in notes
    assert "rollout.tensor_model_parallel_size = 4: the explorer's share" in notes
    assert "actor.ulysses_sequence_parallel_size = 4: the trainer's share" in notes


def test_a_split_that_cannot_run_is_refused_with_those_that_can():
    with pytest.raises(UserError, match="leave none for the trainer") as error:
        gpus("trainer.n_gpus_per_node=8", sets=(f"{ENGINES}=8",))
    assert "N may be 1, 2, 3, 4, 5, 6, 7" in error.value.hint


@pytest.mark.parametrize("engines", range(1, 8))
@pytest.mark.parametrize("mode", [None, "train"])
def test_a_split_has_the_sizes_that_it_was_asked_for(engines, mode):
    """3, 5, 6 and 7 ranks do not divide the 64 answers of an update: fillers make up their rows."""
    words = (f"{N}=8", f"{ROLLOUT}.n=4", "data.train_batch_size=32", f"{ACTOR}.ppo_mini_batch_size=16")
    made = planned(*words, sets=(f"{ENGINES}={engines}",), device="cuda", mode=mode)
    found = shares(made.spec.verl, device="cuda", mode="both", explorers=1)
    assert found == {"trainer": 8 - engines, "explorer": engines}
    assert not [note for note in made.notes if "share of the GPUs holds no more" in note]


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ((f"{ACTOR}.ppo_mini_batch_size=16", SHUFFLED), "would deal the fillers unevenly"),
        ((f"{ACTOR}.ppo_mini_batch_size=16", *V1), "v1 trainer hands its workers whole shares"),
        ((f"{ACTOR}.policy_loss.loss_mode=geo_mean",), "a mean over each micro-batch"),
        ((f"{ACTOR}.use_prefix_grouper=True",), "gives each rank whole groups"),
        ((f"{ACTOR}.strategy=veomni", "model_engine=veomni"), "a filler may count in a loss"),
    ],
)
def test_ranks_divide_an_update_where_fillers_would_change_it(words, why):
    given = (f"{N}=8", f"{ROLLOUT}.n=4", "data.train_batch_size=32", *words)
    with pytest.raises(UserError, match=f"does not divide by 6 trainer ranks.*{why}") as error:
        planned(*given, sets=(f"{ENGINES}=2",), device="cuda")
    assert "N may be 4, 6, 7" in error.value.hint


def test_each_rank_has_a_row_that_is_no_filler():
    words = (f"{N}=8", f"{ROLLOUT}.n=4", "data.train_batch_size=32", f"{ACTOR}.ppo_mini_batch_size=1")
    with pytest.raises(UserError, match="by 6 trainer ranks, and some ranks would have no row") as error:
        planned(*words, sets=(f"{ENGINES}=2",), device="cuda")
    assert "N may be 4, 5, 6, 7" in error.value.hint


def test_a_shuffled_step_of_one_update_may_have_fillers():
    words = (f"{ROLLOUT}.n=4", "data.train_batch_size=32", f"{ACTOR}.ppo_mini_batch_size=32", SHUFFLED)
    spec = planned(f"{N}=8", *words, sets=(f"{ENGINES}=2",), device="cuda").spec
    assert spec.verl["trainer"]["n_gpus_per_node"] == 6


def test_a_split_without_a_number_is_one_without_fillers_where_there_is_one():
    """A job that was begun before there were fillers goes on with the same ranks."""
    words = ("data.train_batch_size=32", f"{ACTOR}.ppo_mini_batch_size=32", f"{ROLLOUT}.n=1")
    assert gpus(f"{N}=6", *words, mode="both")[:2] == ((1, 2), (1, 4))


def test_a_megatron_model_that_fills_all_gpus_is_refused():
    given = {
        f"{ACTOR}.strategy": "megatron",
        f"{ACTOR}.megatron.tensor_model_parallel_size": 8,
        f"{ACTOR}.ppo_mini_batch_size": 64,
        "trainer.n_gpus_per_node": 8,
    }
    verl = compose_pinned(given, "ppo_megatron_trainer")
    with pytest.raises(
        UserError, match=r"8 GPUs, 4 of them for the explorer: .* not whole groups of 8"
    ) as error:
        split_gpus(VerlView.of(verl), {}, mode="both", explorers=1, device="cuda")
    assert "more GPUs, smaller parallel sizes" in error.value.hint
    assert error.value.hint.startswith(
        "--mode colocate gives all of them to both sides in turns (not run on 8 "
    )


MEGATRON = (
    "model_engine=megatron",
    "trainer.n_gpus_per_node=8",
    f"{ACTOR}.megatron.tensor_model_parallel_size=4",
    f"{ACTOR}.megatron.pipeline_model_parallel_size=2",
)


AHEAD = ("synchronizer.sync_offset=2",)  # asks for a split, unlike the launch itself


def test_sizes_that_need_every_gpu_take_turns_whatever_asks_for_a_split():
    made = planned(*MEGATRON, f"{TP}=2", device="cuda", sets=AHEAD)
    assert made.spec.mode == "colocate"
    assert shares(made.spec.verl, device="cuda", mode="colocate", explorers=1) == {"trainer": 8}
    turns = [note for note in made.notes if "turns" in note]
    assert "no split of 8 GPUs fits (the trainer's 4 GPUs are not whole groups of 8" in turns[0]
    assert "8 GPUs in turns: 4 engine(s) of 2" in turns[1] and "not run on 8 GPUs yet" in turns[1]


@pytest.mark.parametrize(
    ("words", "options"),
    [
        ((), {"mode": "both"}),
        ((), {"explorers": 2}),
        ((), {"sets": ("synchronizer.sync_method=nccl",)}),
        (("reward_model.enable=True", "reward_model.model.path=/m"), {}),
        # 16 GPUs cannot be divided into groups of 24 either
        (("trainer.nnodes=2", f"{ACTOR}.megatron.context_parallel_size=3"), {}),
    ],
)
def test_where_turns_are_out_of_the_question_such_sizes_are_refused(words, options):
    with pytest.raises(UserError, match=r"whole groups of|for the explorer"):
        planned(*MEGATRON, *words, device="cuda", **options)


def test_beside_a_reward_model_the_way_to_turns_is_named():
    with pytest.raises(UserError) as refused:
        planned(*MEGATRON, "reward_model.enable=True", "reward_model.model.path=/m", device="cuda")
    assert "8 GPUs, 2 of them for the reward model and 4 for the explorer" in refused.value.message
    assert "the reward model has no turn" in refused.value.hint
    assert "reward.custom_reward_function" in refused.value.hint and "--mode" not in refused.value.hint


def test_sizes_that_need_every_gpu_of_several_machines_take_turns_there():
    words = ("trainer.nnodes=2", f"{ACTOR}.megatron.context_parallel_size=2", f"{TP}=4")
    made = planned(*MEGATRON, *words, device="cuda", sets=AHEAD)
    assert made.spec.mode == "colocate"
    assert shares(made.spec.verl, device="cuda", mode="colocate", explorers=1) == {"trainer": 16}
    rollout = made.spec.verl["actor_rollout_ref"]["rollout"]
    assert (engine_count(rollout, "cuda"), rollout["tensor_model_parallel_size"]) == (4, 4)
    turns = [note for note in made.notes if "turns" in note]
    assert "no split of 16 GPUs fits (the trainer's 8 GPUs are not whole groups of 16" in turns[0]
    assert "16 GPUs of 2 machines in turns: 4 engine(s) of 4, then training on all of them" in turns[1]
    assert "not run on 16 GPUs of 2 machines yet" in turns[1]


def test_weights_of_turns_on_several_machines_lie_where_all_of_them_look():
    words = (*MEGATRON, "trainer.nnodes=2", f"{ACTOR}.megatron.context_parallel_size=2")
    made = planned(*words, device="cuda")
    assert made.spec.sync.method == "checkpoint" and made.spec.sync.directory == f"{made.job.root}/weights"
    assert any("every machine must see the job's folder" in note for note in made.notes)
    memory = "synchronizer.sync_method=memory"
    with pytest.raises(UserError, match="on any of 2 machines do not see the memory of one") as error:
        planned(*words, device="cuda", sets=(memory,))
    assert "synchronizer.sync_method=checkpoint" in error.value.hint
    assert planned(*MEGATRON, device="cuda", sets=(memory,)).spec.sync.method == "memory"


def test_on_a_user_s_cluster_one_machine_s_weights_lie_where_any_machine_looks(monkeypatch):
    """Ray may place the run on another machine than the command's."""
    monkeypatch.setattr("trinity_compat.run.plan.colocate.machines_here", lambda: 3)
    made = planned(*MEGATRON, device="cuda")
    assert (made.spec.mode, made.spec.sync.method) == ("colocate", "checkpoint")
    assert any("every machine must see the job's folder" in note for note in made.notes)


@pytest.mark.parametrize(
    ("words", "mode", "width", "engines"),
    [
        (("trainer.nnodes=4", f"{TP}=16"), "both", 8, 2),
        (("trainer.nnodes=4", f"{TP}=32"), "colocate", 8, 4),
        (("trainer.nnodes=4", f"{TP}=12"), "colocate", 1, 32),  # 6 and 3 don't fill a machine
    ],
)
def test_an_engine_is_one_machine_s_and_what_that_means_is_told(words, mode, width, engines):
    made = planned("trainer.n_gpus_per_node=8", *words, device="cuda", mode=mode)
    rollout = made.spec.verl["actor_rollout_ref"]["rollout"]
    assert (rollout["tensor_model_parallel_size"], engine_count(rollout, "cuda")) == (width, engines)
    given = int(words[1].partition("=")[2])
    (line,) = [note for note in made.notes if "rollout.tensor_model_parallel_size = " in note]
    assert f"a GPU holds {given // width} times as much of the model as with {given}" in line


def test_expert_parallelism_over_machines_becomes_one_per_machine_with_a_note():
    words = (
        f"{TP}=32",
        f"{ROLLOUT}.expert_parallel_size=32",
        "trainer.nnodes=4",
        "trainer.n_gpus_per_node=8",
    )
    made = planned(*words, device="cuda")
    assert made.spec.verl["actor_rollout_ref"]["rollout"]["expert_parallel_size"] == 8
    (line,) = [note for note in made.notes if "times as much of the model" in note]
    assert "holds 4 times as much of the model as with 32" in line


def test_an_engine_whose_ranks_take_every_gpu_is_halved_for_the_trainer():
    ranks = (f"{ROLLOUT}.data_parallel_size=8", f"{ROLLOUT}.expert_parallel_size=8")
    made = planned(*ranks, "trainer.n_gpus_per_node=8", device="cuda", mode="both")
    rollout = made.spec.verl["actor_rollout_ref"]["rollout"]
    sizes = ("tensor_model_parallel_size", "expert_parallel_size", "data_parallel_size")
    assert [rollout[size] for size in sizes] == [4, 4, 1]
    assert made.spec.verl["trainer"]["n_gpus_per_node"] == 4
    assert any("tensor_model_parallel_size = 4: the explorer's share" in note for note in made.notes)


def test_a_share_of_every_gpu_that_set_asks_for_is_refused():
    words = (f"{ROLLOUT}.data_parallel_size=8", f"{ROLLOUT}.expert_parallel_size=8")
    with pytest.raises(UserError, match="8 of 8 GPUs for rollout leave none for the trainer"):
        planned(
            *words, "trainer.n_gpus_per_node=8", device="cuda", sets=("explorer.rollout_model.engine_num=1",)
        )


def test_sizes_that_fit_a_share_are_split_where_that_is_asked_for():
    made = planned("trainer.n_gpus_per_node=8", f"{TP}=8", device="cuda", sets=AHEAD)
    assert made.spec.mode == "both"
