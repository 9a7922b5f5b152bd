"""--minimal leaves out lines that say nothing, and none that says something."""

import pytest
import yaml
from minimal_launches import LAUNCHES

from trinity_compat.common.nested import value_at
from trinity_compat.run.plan.plan_run import make_plan
from trinity_compat.run.plan.source import RunOptions
from trinity_compat.translate import TranslateOptions, translate_launch
from trinity_compat.trinity.config.complete import completed

from .helpers import launch_of, script


def both(*arguments, **options):
    """(translation, YAML) in full, and the same of --minimal."""
    launch = launch_of(arguments)
    full, short = (
        translate_launch(launch, TranslateOptions(minimal=short, **options)) for short in (False, True)
    )
    return full, short


@pytest.mark.parametrize("name", LAUNCHES)
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_run_is_planned_the_same(name, device, tmp_path):
    (_, full), (_, short) = both(*LAUNCHES[name])
    plans = [
        make_plan(yaml.safe_load(text), RunOptions(job=str(tmp_path)), cwd=tmp_path, device=device)
        for text in (full, short)
    ]
    assert plans[0].spec == plans[1].spec
    assert (plans[0].notes, plans[0].ray, plans[0].env) == (plans[1].notes, plans[1].ray, plans[1].env)


@pytest.mark.parametrize("name", LAUNCHES)
@pytest.mark.parametrize("target", ["0.6.0", "0.4.1"])
def test_what_is_left_out_is_what_trinity_rft_puts_there(name, target):
    (full, _), (short, _) = both(*LAUNCHES[name], target=target)
    whole = completed(short.config, target).config
    gone = [path for path in full.provenance if path not in short.provenance]
    assert gone
    for path in gone:
        if not path.startswith("algorithm."):  # functions and their arguments: tests/upstream asks
            assert value_at(whole, path) == value_at(full.config, path), path


@pytest.mark.parametrize("name", LAUNCHES)
def test_what_the_launch_says_is_said(name):
    (full, _), (short, _) = both(*LAUNCHES[name])
    said = [path for path in full.given if not path.endswith("tasksets")]
    assert len(said) > 5
    for path in said:
        assert value_at(short.config, path) == value_at(full.config, path), path
        assert short.provenance.get(path) == full.provenance.get(path), path


def test_a_plain_grpo_launch_is_short():
    (_, full), (_, short) = both(*LAUNCHES["grpo"])
    defaults = [text.count("(default of verl") for text in (full, short)]
    assert defaults[1] < 25 < 55 < defaults[0]
    assert len(short.splitlines()) < 120 < 160 < len(full.splitlines())


def test_a_line_of_set_stays():
    _, (short, text) = both(*LAUNCHES["grpo"], assignments={"trainer.balance_batch": "true"})
    assert yaml.safe_load(text)["trainer"]["balance_batch"] is True
    assert short.provenance["trainer.balance_batch"] == "--set trainer.balance_batch"


def test_a_variable_of_the_script_s_surroundings_stays_one():
    launch = script(
        "python3 -m verl.trainer.main_ppo data.train_files=/a data.val_files=/b"
        " actor_rollout_ref.model.path=$MODEL algorithm.adv_estimator=grpo"
    )
    texts = [translate_launch(launch, TranslateOptions(minimal=short))[1] for short in (False, True)]
    assert all("${oc.env:MODEL" in text for text in texts)
    assert len(texts[1].splitlines()) < len(texts[0].splitlines()) - 30
