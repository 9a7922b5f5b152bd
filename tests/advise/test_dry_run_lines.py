"""Three lines of a dry run: the plan's use of its GPUs, the fastest mode, and the assumptions."""

import re

from advise_launch import ARR, LAUNCH

from trinity_compat.run import dry_run
from trinity_compat.run.advice import advise
from trinity_compat.run.plan import devices
from trinity_compat.run.plan.plan_run import make_plan
from trinity_compat.run.plan.source import RunOptions


def asked(tmp_path, *sets, device="cuda", mode=None, **changed):
    """The plan, its source and options, and the script."""
    words = [f"{key}={value}" for key, value in (LAUNCH | changed).items()]
    script = tmp_path / "run.sh"
    script.write_text("python3 -m verl.trainer.main_ppo " + " ".join(words))
    options = RunOptions(sets=sets, dry_run=True, device=device, mode=mode)
    ((source, rest),) = dry_run.sources(str(script), (), options)
    return make_plan(source.config, rest, cwd=tmp_path, device=device), source, rest, str(script)


def lines(tmp_path, *sets, **options):
    plan, source, rest, script = asked(tmp_path, *sets, **options)
    return plan, list(advise.remarks(plan.spec, source, rest, script))


def test_a_plan_that_waits_is_told_what_is_faster(tmp_path):
    _, (uses, _, faster, predicted) = lines(tmp_path, mode="both")
    assert uses.startswith("uses      about 4") and uses.endswith("on 4 + 4 GPUs")  # half, less the handover
    assert "fully_async" in faster and "`--set synchronizer.sync_style=fully_async " in faster
    assert "assumed from data.max_response_length=2048" in predicted


def test_turns_that_have_not_run_on_so_many_gpus_say_so(tmp_path):
    long = {"data.train_batch_size": 1024, f"{ARR}.rollout.n": 8}  # training takes most of a step
    _, (_, _, faster, _) = lines(tmp_path, mode="both", **long)
    assert "`--mode colocate " in faster and faster.endswith("` (not run on 8 GPUs yet: docs/gpu.md)")


def test_a_plan_that_is_the_fastest_is_told_so(tmp_path):
    long = {"data.train_batch_size": 1024, f"{ARR}.rollout.n": 8}
    _, (uses, _, faster, _) = lines(tmp_path, "synchronizer.sync_style=fully_async", **long)
    assert uses.endswith("steps, on 8 GPUs in turns")
    assert "no other mode of `run` on these GPUs" in faster


def test_a_plan_in_lockstep_is_told_of_answers_that_outlast_turns_and_how_stale_they_are(tmp_path):
    long = {"data.train_batch_size": 1024, f"{ARR}.rollout.n": 8}
    _, (uses, _, faster, _) = lines(tmp_path, **long)
    assert uses.endswith(" a step, on 8 GPUs in turns")
    assert re.match(r"faster +fully_async in turns, staleness \d: .*, staleness .* steps: `--set ", faster)


def test_a_plan_ahead_of_its_weights_says_how_stale_it_is(tmp_path):
    _, (uses, *_) = lines(tmp_path, "synchronizer.sync_offset=2")
    assert ", staleness 1.0 steps" in uses


def test_a_plan_for_a_cpu_and_a_style_that_is_not_simulated_have_no_prediction(tmp_path):
    assert not lines(tmp_path, device="cpu", **{f"{ARR}.rollout.tensor_model_parallel_size": 1})[1]
    assert not lines(tmp_path, "synchronizer.sync_style=explorer_driven")[1]


def test_a_model_that_cannot_be_read_does_not_end_a_dry_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{")
    _, (line,) = lines(tmp_path, **{f"{ARR}.model.path": str(tmp_path / "model")})
    assert line.startswith("uses      not predicted: ") and "config.json cannot be read" in line


def of_memory(tmp_path, monkeypatch, card_gib, **changed):
    monkeypatch.setattr(devices, "card_here", lambda: card_gib)
    _, found = lines(tmp_path, **changed)
    return [line for line in found if line.startswith("memory ")]


def test_a_known_card_holds_both_sides_or_the_first_setting_to_change_is_named(tmp_path, monkeypatch):
    trainer, engine = of_memory(tmp_path, monkeypatch, 80.0)
    assert re.match(r"memory +trainer: about \d+ GiB of a GPU; fits; −[\d.]+ GiB: \S+=", trainer)
    assert re.match(r"memory +engine: about \d+ GiB of a GPU; fits", engine)
    trainer, _ = of_memory(tmp_path, monkeypatch, 24.0)
    assert f"; does not fit in 24 GiB; −3.6 GiB: {ARR}.actor.ppo_micro_batch_size_per_gpu=2" in trainer


def test_an_unknown_card_has_no_verdict_and_an_unknown_model_no_line(tmp_path, monkeypatch):
    (trainer,) = of_memory(tmp_path, monkeypatch, None)
    assert "trainer: about" in trainer and "fit" not in trainer
    assert not of_memory(tmp_path, monkeypatch, 80.0, **{f"{ARR}.model.path": "/models/ours"})
