"""The advice for words that Hydra refuses fits their cause."""

import pytest

from trinity_compat.common.suggestions import did_you_mean
from trinity_compat.launch import read_text
from trinity_compat.verl_config import effective_config

LR = "actor_rollout_ref.actor.optim.lr"


def told(words):
    launch = read_text(f"python3 -m verl.trainer.main_ppo data.train_batch_size=8 {words}\n").launches[0]
    found = effective_config(launch, version="0.9.1").diagnostics
    return [note.message for note in found if note.severity == "error"]


@pytest.mark.parametrize(
    "words, advice",
    [
        (f"{LR}=1e\N{MINUS SIGN}6", f"U+2212, which is not a minus sign: write {LR}=1e-6"),
        (f"{LR}=1e\N{EN DASH}6", f"U+2013, which is not a minus sign: write {LR}=1e-6"),
        (f"{LR}=1e-6,", f"remove the comma at its end: write {LR}=1e-6"),
        (f"{LR} = 1e-6", f"has a blank before '=': write {LR}=1e-6, with no blank"),
        (f"{LR}= 1e-6", f"'1e-6' has a blank before it: write {LR}=1e-6, with no blank"),
        (f"{LR} =1e-6", f"has a blank before '=': write {LR}=1e-6"),
        (
            '"data.train_files=[$A,$B]"',
            "$A and $B are not set, so that an element is empty: give --env A=… --env B=…",
        ),
        ('"data.train_files=[/a,$B]"', "$B is not set, so that an element is empty: give --env B=…"),
        ('"data.train_files=[/a,]"', "an element of the list is empty: a comma too many"),
        ("\N{EM DASH}config-name=x", "U+2014, which is not a minus sign: write --config-name=x"),
        ("\N{EN DASH}config-name=x", "U+2013, which is not a minus sign: write --config-name=x"),
        ("data.train_files=['/a', '/b']", "the list continues in the next word"),
        ("trainer.default_local_dir=/cktrainer.save_freq=10", "a blank is missing before trainer.save_freq="),
        ("trainer.project_name=x+my.key=10", "a blank is missing before +my.key="),
        ("trainer.nnodes=1~trainer.y", "a blank is missing before ~trainer.y"),
        ("trainer.nnodes=1#", "a blank is missing before #"),
        ("~trainer.default_hdfs_dir", "is null, and Hydra cannot delete a key that is null"),
        ("actor_rollout_ref.actor.optim.learning_rate=1e-6", f"did you mean {LR}?"),
        ("optim.learning_rate=1e-6", f"did you mean {LR}?"),
        ("trainer.num_train_epochs=3", "did you mean trainer.total_epochs?"),
        ("data.nothing_like_it=3", "a fork's key is read in the fork's checkout"),
        ("actor_rollout_ref.rollout.n_agent=3", "a fork's key is read in"),  # rollout.agent is a section
        ("data.nothing_like_it=3", "no release of veRL has it, so the script may be for a fork"),
        ("fork.agent.max_steps=3", "by a rule of your own (`trinity-compat rules init`)"),
        ("reward_model.reward_kwargs='{n: 64}'", "to add it, write +reward_model.reward_kwargs={n: 64}"),
    ],
)
def test_the_cause_is_named_and_no_quotes_are_advised(words, advice):
    found = told(words)
    assert len(found) == 1
    assert advice in found[0]
    assert "quote the value" not in found[0]
    assert "did you mean ~" not in found[0]


def test_a_blank_is_told_at_the_line_of_its_key_and_not_of_the_variable_behind_it():
    text = f"RATE=1e-6\n\npython3 -m verl.trainer.main_ppo data.train_batch_size=8 \\\n  {LR}= $RATE\n"
    launch = read_text(text).launches[0]
    (note,) = (each for each in effective_config(launch, version="0.9.1").diagnostics if each.code == "TP204")
    assert note.where.line == 4 and "has a blank before it" in note.message


@pytest.mark.parametrize(
    "key, meant",
    [
        ("actor_rollout_ref.rollout.n_vote", None),
        ("reward_model.reward_kwargs", None),
        ("model.lora_rank", "actor_rollout_ref.model.lora_rank"),
        ("actor_rollout_ref.rollout.top_pp", "actor_rollout_ref.rollout.top_p"),
    ],
)
def test_no_suggestion_changes_a_meaning(key, meant):
    known = ["actor_rollout_ref.rollout.top_p", "reward_model.reward_manager", "critic.model.lora_rank"]
    assert did_you_mean(key, ["actor_rollout_ref.model.lora_rank", *known]) == meant


def test_a_key_that_the_rollout_cannot_take_is_not_to_be_added():
    (found,) = told("actor_rollout_ref.rollout.n_vote=64")
    assert "rules init" in found
    assert "write +" not in found
