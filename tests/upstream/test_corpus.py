"""Translations of veRL's own launches are accepted by the real trinity-rft.

A sample here; scripts/judge/accept_corpus.py does all of them.
"""

from pathlib import Path

import pytest
from facts import public_scripts
from published_forms import FORMS

from trinity_compat.common.errors import UserError
from trinity_compat.launch import read_argv, read_script, read_text
from trinity_compat.translate import TranslateOptions, is_translated, translate_launch
from trinity_compat.translate.form import made_from
from trinity_compat.trinity.config import TARGETS

from .conftest import ROOT

pytestmark = pytest.mark.upstream

# What we say of a launch that cannot run there; 0.4.1 finds out about a split only when it trains.
HOPELESS = {
    "0.4.1": "trinity-rft 0.4.1 cannot run on one GPU",
    "0.6.0": "this GPU split cannot run in Trinity-RFT",
}
EVERY = 12  # of the corpus: some thirty launches


def texts(launches, target):
    """(the YAML of every launch that is translated, the names of those that we say cannot run)."""
    found, hopeless = {}, set()
    for name, launch in launches:
        try:
            told, text = translate_launch(launch, TranslateOptions(target=target), root=Path(__file__).parent)
        except UserError:
            continue
        found[name] = text
        if any(caution.message.startswith(HOPELESS[target]) for caution in told.warnings):
            hopeless.add(name)
    return found, hopeless


def seeds():
    """Launches of our own."""
    scripts = [
        *(ROOT / "tests" / "fuzz" / "seeds").glob("*.sh"),
        ROOT / "examples/verl_scripts/run_toy_grpo.sh",
    ]
    for script in scripts:
        for number, launch in enumerate(read_script(script, env={"HOME": "/home/u", "USER": "u"}).launches):
            if is_translated(launch.module):
                yield f"{script.name}#{number}", launch


def published():
    argvs = [
        (f"{script['path']}#{number}", ["python3", "-m", launch["module"], *launch["args"]])
        for script in public_scripts()
        for number, launch in enumerate(script.get("launches", []))
        if launch["module"] == "verl.trainer.main_ppo"
    ]
    for name, argv in argvs[::EVERY]:
        yield name, read_argv(argv).launches[0]


@pytest.mark.parametrize("target", TARGETS)
def test_our_own_launches(accept, target):
    made, hopeless = texts(seeds(), target)
    assert len(made) == (5 if target == "0.6.0" else 4)  # 0.4.1 takes no supervised launch
    refused = {name: verdict for name, verdict in accept(made, target).items() if verdict[0]}
    assert {name: verdict for name, verdict in refused.items() if name not in hopeless} == {}
    assert hopeless <= set(refused)


UNSET = r"""
python3 -m verl.trainer.main_ppo data.train_files=$HOME/a.parquet data.val_files=$HOME/b.parquet \
  actor_rollout_ref.rollout.name=vllm actor_rollout_ref.model.path=$NOBODY/models/x \
  actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4 \
  actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=4 \
  trainer.experiment_name=run$NOBODY trainer.default_local_dir="$nobody/x"
"""


@pytest.mark.parametrize("target", TARGETS)
def test_a_launch_with_variables_that_nobody_sets(accept, target):
    made, _ = texts([("unset", read_text(UNSET).launches[0])], target)
    assert "${oc.env:NOBODY,''}" in made["unset"]
    assert accept(made, target) == {"unset": (None, None)}


def test_what_the_form_makes(accept):
    forms = {"new": {}, "critic": {"algorithm": "gae", "kl": "reward"}, "guide": FORMS["grpo"]}
    made = {name: made_from(form).yaml for name, form in forms.items()}
    assert accept(made, TARGETS[0]) == dict.fromkeys(forms, (None, None))


@pytest.mark.parametrize("target", TARGETS)
def test_a_sample_of_the_public_launches(accept, target):
    made, hopeless = texts(published(), target)
    assert len(made) >= 20
    refused = {name: verdict for name, verdict in accept(made, target).items() if verdict[0]}
    assert {name: verdict for name, verdict in refused.items() if name not in hopeless} == {}
    assert hopeless <= set(refused)
