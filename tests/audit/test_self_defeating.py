"""Settings that defeat themselves are named, as the table has them, and agree with `ignored`."""

import itertools
import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from trinity_compat.cli.audit import command
from trinity_compat.common.releases import VERL_RELEASES
from trinity_compat.translate.self_defeating import table
from trinity_compat.verl_config import FLAVOURS
from trinity_compat.verl_config.reads import read_of

ROLLOUT, ACTOR = (f"actor_rollout_ref.{name}" for name in ("rollout", "actor"))
ROWS = [(kind, row) for kind, about in table().items() for row in about["rows"]]
GRPO = ("algorithm.adv_estimator=grpo", f"{ROLLOUT}.n=8")
GAE = ("algorithm.adv_estimator=gae", "critic.ppo_micro_batch_size_per_gpu=4")


BASICS = (
    *("data.train_files=/a.parquet", "data.val_files=/b.parquet", "trainer.n_gpus_per_node=8"),
    *(f"{ROLLOUT}.name=vllm", f"{ACTOR}.use_dynamic_bsz=True"),
)


@pytest.fixture
def said(tmp_path):
    """The notes on a script, whose argument i, counted from 0, stands on line i + 7."""

    def notes(*arguments, release="0.9.1", main="verl.trainer.main_ppo"):
        file = tmp_path / "run.sh"
        file.write_text(" \\\n  ".join((f"python3 -m {main}", *BASICS, *arguments)) + "\n")
        words = [str(file), "--format", "json", *(["--verl-version", release] if release else ())]
        found = CliRunner().invoke(command, words, standalone_mode=False)
        (launch,) = json.loads(found.stdout)["launches"]
        return [each for each in launch["warnings"] if each["code"] == "TW031"]

    return notes


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((*GRPO, f"{ROLLOUT}.val_kwargs.n=4"), f"greedy answers: {ROLLOUT}.val_kwargs.n=4: all answers"),
        ((*GRPO, f"{ROLLOUT}.temperature=0"), f"greedy answers: {ROLLOUT}.temperature=0 makes"),
        (
            (*GRPO, f"{ACTOR}.use_kl_loss=True", "algorithm.use_kl_in_reward=True"),
            f"KL penalty: {ACTOR}.use_kl_loss=True and algorithm.use_kl_in_reward=True penalize",
        ),
        (
            (*GRPO, f"{ACTOR}.use_kl_loss=True", f"{ACTOR}.kl_loss_coef=0"),
            f"KL penalty: {ACTOR}.kl_loss_coef=0: ",
        ),
        (
            (*GRPO, f"{ACTOR}.kl_loss_coef=0.001"),
            f"values of what is switched off: {ACTOR}.kl_loss_coef=0.001 has an effect with use_kl_loss",
        ),
        (
            (*GRPO, f"{ACTOR}.clip_ratio=0.3"),
            f"values of what is switched off: {ACTOR}.clip_ratio=0.3 has an effect where",
        ),
        (
            (*GRPO, "algorithm.lam=0.95"),
            "values of what is switched off: algorithm.lam=0.95 has an effect with gae",
        ),
        (
            (*GAE, "algorithm.norm_adv_by_std_in_grpo=False"),
            "values of what is switched off: algorithm.norm_adv_by_std_in_grpo=False has an effect with grpo",
        ),
        (
            (*GRPO, f"{ACTOR}.policy_loss.kl_cov_ratio=0.1"),
            f"values of what is switched off: {ACTOR}.policy_loss.kl_cov_ratio=0.1 has an effect with"
            " loss_mode=kl_cov",
        ),
        (
            (*GRPO, "actor_rollout_ref.model.lora_alpha=32"),
            "values of what is switched off: actor_rollout_ref.model.lora_alpha=32 has an effect with a LoRA",
        ),
        (
            (*GRPO, "trainer.val_only=True", "trainer.val_before_train=False"),
            "what does not happen: trainer.val_only=True is asked",
        ),
        (
            (*GRPO, "trainer.resume_from_path=/ckpt/global_step_4"),
            "what does not happen: trainer.resume_from_path=/ckpt/global_step_4 is loaded",
        ),
        ((*GRPO, "trainer.critic_warmup=5"), "what does not happen: trainer.critic_warmup=5 leaves out"),
        (
            (*GAE, "trainer.critic_warmup=9", "trainer.total_training_steps=8"),
            "what does not happen: trainer.critic_warmup=9 is longer",
        ),
        (
            (*GRPO, f"{ACTOR}.optim.lr_warmup_steps=50", "trainer.total_training_steps=40"),
            f"what does not happen: {ACTOR}.optim.lr_warmup_steps=50 is longer",
        ),
        (
            (*GRPO, "trainer.save_freq=100", "trainer.total_training_steps=40"),
            "what does not happen: trainer.save_freq=100 lies beyond the end",
        ),
        (
            (
                *(*GRPO, "algorithm.rollout_correction.rollout_is=token"),
                f"{ROLLOUT}.calculate_log_probs=False",
            ),
            "what does not happen: algorithm.rollout_correction.rollout_is=token needs",
        ),
        (
            (*GRPO, f"{ACTOR}.clip_ratio_low=0.3", f"{ACTOR}.clip_ratio_high=0.2"),
            f"clipping: {ACTOR}.clip_ratio_low=0.3 above",
        ),
    ],
)
def test_a_setting_that_defeats_itself_is_a_note_with_its_place(said, words, message):
    (found,) = said(*words)
    assert found["message"].startswith(message) and "(verl/" in found["message"]
    line = int(found["source"].rpartition(":")[2])
    assert found["rank"] == "note" and words[line - len(BASICS) - 2].split("=")[0] in found["message"]


def test_arguments_of_vllm_that_verl_sets_itself_are_one_note(said):
    section = f"+{ROLLOUT}.engine_kwargs.vllm"
    words = (f"{section}.enable_expert_parallel=1", f"{section}.max_loras=4", f"{section}.max_num_seqs=8")
    lora = "actor_rollout_ref.model.lora_rank=8"
    (found,) = said(*GRPO, *words, lora)
    assert found["source"].endswith(":9") and "max_num_seqs" not in found["message"]
    assert f"{words[0]} by {ROLLOUT}.expert_parallel_size=1; {words[1]} by {lora} " in found["message"]
    assert not said(*GRPO, *words, f"{ROLLOUT}.name=sglang")


@pytest.mark.parametrize(
    "words",
    [
        (*GRPO, f"{ROLLOUT}.val_kwargs.n=4", f"{ROLLOUT}.val_kwargs.temperature=0.6"),
        (*GRPO, f"{ROLLOUT}.val_kwargs.n=1"),
        ("algorithm.adv_estimator=remax", f"{ROLLOUT}.temperature=0"),
        (*GRPO, f"{ACTOR}.use_kl_loss=True", f"{ACTOR}.kl_loss_coef=0.001"),
        (
            *(*GRPO, f"{ACTOR}.kl_loss_coef=0.0", f"{ACTOR}.use_kl_loss=True"),
            "algorithm.use_kl_in_reward=True",
        ),
        (*GRPO, f"{ACTOR}.kl_loss_coef=0.0", f"{ACTOR}.use_kl_loss=False"),
        (*GRPO, f"{ACTOR}.clip_ratio=0.28", f"{ACTOR}.clip_ratio_high=0.28"),
        (*GRPO, f"{ACTOR}.clip_ratio=0.3", f"{ACTOR}.clip_ratio_low=null", f"{ACTOR}.clip_ratio_high=null"),
        (*GRPO, f"{ACTOR}.clip_ratio_low=0.2", f"{ACTOR}.clip_ratio_high=0.28"),
        (*GAE, "algorithm.lam=0.95", "algorithm.gamma=0.99", "trainer.critic_warmup=5"),
        ("algorithm.adv_estimator=reinforce_plus_plus", "algorithm.gamma=0.99"),
        (*GRPO, "trainer.val_only=True", "trainer.val_before_train=True"),
        (*GRPO, "trainer.resume_from_path=/c/global_step_4", "trainer.resume_mode=resume_path"),
        (*GRPO, "trainer.save_freq=40", "trainer.test_freq=40", "trainer.total_training_steps=40"),
        (*GRPO, "trainer.save_freq=100"),  # the end is the data's
        (*GRPO, "algorithm.rollout_correction.rollout_is=token"),
        GRPO,
        GAE,
    ],
)
def test_a_setting_that_acts_is_not_named(said, words):
    assert not said(*words)


def test_notes_of_one_kind_are_one_line(said):
    (found,) = said(*GRPO, f"{ACTOR}.kl_loss_coef=0.1", "algorithm.kl_ctrl.kl_coef=0.1", "algorithm.lam=0.9")
    assert found["message"].count("; ") == 2 and found["source"].endswith(f":{len(BASICS) + 4}")


def test_a_release_of_other_meaning_is_not_judged(said):
    penalty = (*GRPO, "algorithm.kl_ctrl.kl_coef=0.1")
    assert said(*penalty) and not said(*penalty, release="0.3.0")
    assert said(*penalty, release=None)  # the newest of those that it fits, as of all findings


def test_an_open_value_is_not_judged(said):
    words = (*GRPO, f"{ROLLOUT}.val_kwargs.n=4")
    assert said(*words) and not said(*words, f"{ROLLOUT}.val_kwargs.temperature=$(cat t)")
    assert said(*words, f"{ROLLOUT}.val_kwargs.temperature=${{T:-0}}")
    assert not said(*words, f"{ROLLOUT}.val_kwargs.temperature=$T")
    assert not said(*GRPO, "trainer.resume_from_path=$(ls -d /c/* | tail -1)")  # may be empty
    assert not said(*GRPO, "trainer.resume_from_path='${oc.env:CKPT}'")


def test_another_main_is_not_judged(said):
    words = (*GRPO, f"{ROLLOUT}.val_kwargs.n=4", f"{ROLLOUT}.nnodes=1", f"{ROLLOUT}.n_gpus_per_node=4")
    assert not said(*words, main="verl.experimental.one_step_off_policy.main_ppo")


@pytest.mark.parametrize(("kind", "row"), ROWS, ids=[row["source"] for _, row in ROWS])
def test_a_row_agrees_with_ignored_and_is_well_formed(kind, row):
    for release in VERL_RELEASES[VERL_RELEASES.index(row["since"]) :]:
        for key, flavour in itertools.product(row["set"], FLAVOURS):
            found = read_of(key, release, flavour)
            assert found is None or not (found.ignored or found.label == "READ IF"), (release, key)
    told = f"{kind} {row['says']} {table()[kind]['hint']}"
    assert not re.search(r"no effect|ignore|not read", told)
    named = {key for key, _, _ in row["when"]}
    assert row["set"][0] in named and set(re.findall(r"\{([\w.]+)\}", row["says"]))
    assert all(read_of(key, "0.9.1") for key in row["set"])


@pytest.mark.verl
def test_the_source_of_each_row_stands_in_the_pinned_release():
    import verl

    folder = Path(verl.__file__).parent
    for _, row in ROWS:
        name, number = row["source"].split(":")
        assert (folder / name).read_text().splitlines()[int(number) - 1].strip() == row["line"], row["source"]
