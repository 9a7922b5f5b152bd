"""A plan held against stock veRL's turns: its line, the ratio of a split, and what does not fit."""

from dataclasses import replace

import pytest
from advise_launch import ARR, LAUNCH
from click.testing import CliRunner
from test_dry_run_lines import asked

from trinity_compat.cli import cli
from trinity_compat.common.errors import UserError
from trinity_compat.run import run
from trinity_compat.run.advice import against_stock
from trinity_compat.run.advice.against_stock import compare_with_stock
from trinity_compat.run.advice.facts import Question
from trinity_compat.run.plan import devices
from trinity_compat.run.plan.source import RunOptions

ENGINES = "explorer.rollout_model.engine_num"
# Training takes most of a step of the first; few answers are as fast on one engine in the second.
TRAINS = {"data.train_batch_size": 1024, f"{ARR}.rollout.n": 8}
FEW = {"data.train_batch_size": 16, f"{ARR}.actor.ppo_mini_batch_size": 16, f"{ARR}.rollout.n": 6}
UNDIVIDED = {"data.train_batch_size": 66, f"{ARR}.actor.ppo_mini_batch_size": 66, f"{ARR}.rollout.n": 1}
REWARD = {"reward_model.enable": True, "reward_model.model.path": "/m"}
SLOWER = "times the step of stock veRL's turns"


@pytest.fixture(autouse=True)
def no_card(monkeypatch):
    monkeypatch.setattr(devices, "card_here", lambda: None)


def planned(tmp_path, *sets, mode=None, device="cuda", explorers=1, dry_run=True, **changed):
    _, source, rest, _ = asked(tmp_path, **changed)
    options = RunOptions(
        sets=sets, mode=mode, device=device, explorers=explorers, dry_run=dry_run, gpus=rest.gpus
    )
    return against_stock.plan_and_compare(source, options, cwd=tmp_path), source, options


def line(*args, **options):
    """The line of a start; "" without one."""
    made, *_ = planned(*args, **options)
    found = [note for note in made.notes if SLOWER in note]
    return "".join(found)


def share(tmp_path, **options):
    made, source, options = planned(tmp_path, **options)
    found = compare_with_stock(made.spec, source, options, Question())
    return found and found.share


def test_what_runs_by_default_takes_as_long_as_stock_and_says_nothing(tmp_path):
    assert 1 <= share(tmp_path, **TRAINS) < 1.05
    assert not line(tmp_path, **TRAINS)
    assert share(tmp_path, device="cpu", **{f"{ARR}.rollout.tensor_model_parallel_size": 1}) is None


@pytest.mark.parametrize(
    ("sets", "options", "changed", "ways"),
    [
        ((f"{ENGINES}=2",), {}, {}, ("by `--mode colocate` (not run on 8", "sync_offset=")),
        ((f"{ENGINES}=4",), {}, {"trainer.nnodes": 2}, ("(not run on 16 GPUs yet", "sync_offset=")),
        # A reward model has no turn, and neither have several explorers; such a plan can only overlap.
        ((), {}, REWARD, ("sync_offset=",)),
        ((), {"mode": "both", "explorers": 2}, {}, ("sync_offset=",)),
        # Eight ranks do not divide its mini-batch: the turns have fillers, and are not what stock does.
        ((), {}, UNDIVIDED, ("by `--mode colocate` (not run on 8", "sync_offset=")),
        # It overlaps already.
        (
            ("synchronizer.sync_offset=32", f"{ENGINES}=3"),
            {},
            {},
            ("by `--mode colocate --set synchronizer.sync_offset=0`",),
        ),
    ],
)
def test_a_slower_split_says_how_much_slower_and_what_to_write(tmp_path, sets, options, changed, ways):
    told = line(tmp_path, *sets, **options, **(TRAINS | changed))
    assert float(told.partition("about ")[2].partition(" ")[0]) > 1.03
    assert all(way in told for way in ways)
    assert told.count("; ") == len(ways)  # no other ones
    assert ("colocate" in told) == any("not run" in way or "colocate" in way for way in ways)


def test_turns_of_a_tiny_step_whose_state_has_to_move_say_so(tmp_path):
    tiny = {"data.train_batch_size": 8, f"{ARR}.actor.ppo_mini_batch_size": 8, f"{ARR}.rollout.n": 1}
    tiny |= {"data.max_response_length": 64, f"{ARR}.rollout.gpu_memory_utilization": 0.9}
    assert "between turns the trainer's state moves to host memory and back" in line(tmp_path, **tiny)
    flags = {f"{ARR}.actor.fsdp_config.{part}_offload": True for part in ("param", "optimizer")}
    assert not line(tmp_path, **tiny, **flags)  # stock moves it too


def test_a_split_gets_the_ratio_with_the_shortest_step(tmp_path):
    made, source, options = planned(tmp_path, mode="both", **FEW)
    found = compare_with_stock(made.spec, source, options, Question())
    others = [
        found.facts.simulated(replace(found.own, engines=engines, trainer=8 - 2 * engines), 1, steps=4)
        for engines in (1, 2, 3)
    ]
    assert found.own.engines == 1 and others[0].step_s == min(each.step_s for each in others)
    assert any(f"{ENGINES}=1: of all splits this one has the shortest" in note for note in made.notes)
    # The sides' own commands have the same split.
    one, *_ = planned(tmp_path, mode="train", **FEW)
    assert one.spec.verl["trainer"] == made.spec.verl["trainer"]


def test_a_number_of_engines_that_the_user_names_stays(tmp_path):
    made, *_ = planned(tmp_path, f"{ENGINES}=3", **FEW)
    assert made.spec.verl["trainer"]["n_gpus_per_node"] == 2
    assert not any("of all splits" in note for note in made.notes)


LARGE = {f"{ARR}.model.path": "Qwen/Qwen2.5-14B-Instruct", f"{ARR}.model.enable_gradient_checkpointing": True}


def test_a_split_that_does_not_fit_where_stock_does_is_refused(tmp_path):
    script = tmp_path / "run.sh"
    words = [f"{key}={value}" for key, value in (LAUNCH | LARGE).items()]
    script.write_text("python3 -m verl.trainer.main_ppo " + " ".join(words))
    asked_for = ["--set", f"{ENGINES}=3"]
    done = CliRunner().invoke(cli, ["run", "--dry-run", "--device", "cuda", *asked_for, str(script)])
    error = done.exception
    assert isinstance(error, UserError)  # exit code 2
    assert "6 + 2 GPUs do not fit a card of 80 GiB, as estimated (a trainer GPU needs" in error.message
    assert SLOWER in error.message
    assert error.hint.startswith("write --mode colocate")


@pytest.mark.parametrize(
    ("sets", "changed"),
    [
        # Stock does not fit either.
        ((f"{ENGINES}=3",), {f"{ARR}.model.path": "Qwen/Qwen2.5-72B-Instruct"}),
        # What is not estimated, or a model that the name says nothing of.
        ((f"{ENGINES}=3",), {f"{ARR}.model.path": "/models/ours"}),
        ((f"{ENGINES}=3",), {f"{ARR}.actor.fsdp_config.model_dtype": "bf16"}),
        ((f"{ENGINES}=3",), {f"{ARR}.actor.fsdp_config.fsdp_size": 1}),
        # The launch's own: there are no turns in which its reward model runs.
        ((), {"reward_model.enable": True, "reward_model.model.path": "/m", "trainer.n_gpus_per_node": 4}),
    ],
)
def test_what_is_not_known_to_be_too_large_is_not_refused(tmp_path, sets, changed):
    assert planned(tmp_path, *sets, **(LARGE | changed))[0].spec.mode == "both"


def test_of_the_splits_of_a_large_model_one_that_fits_is_taken(tmp_path):
    rows = {f"{ARR}.actor.ppo_micro_batch_size_per_gpu": 8, f"{ARR}.rollout.n": 6}
    made, *_ = planned(tmp_path, mode="both", **LARGE, **rows)  # 4 + 4 would need 88 GiB of 80
    assert made.spec.verl["trainer"]["n_gpus_per_node"] == 6


def test_a_start_asks_its_own_cards(tmp_path, monkeypatch):
    def start(card):
        monkeypatch.setattr(devices, "card_here", lambda: card)
        return planned(tmp_path, f"{ENGINES}=3", dry_run=False, **LARGE)[0]

    start(140.0)
    start(None)  # a cluster's cards are not known: the line alone
    with pytest.raises(UserError, match="do not fit a card of 79 GiB"):
        start(79.2)


def test_the_start_of_a_run_and_of_stages_go_through_it(tmp_path, monkeypatch):
    monkeypatch.setattr(devices, "card_here", lambda: 79.2)
    _, source, _, _ = asked(tmp_path, **LARGE)
    with pytest.raises(UserError, match="do not fit a card"):
        run.run_source(source, RunOptions(sets=(f"{ENGINES}=3",), device="cuda"))
