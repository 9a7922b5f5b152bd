"""`upgrade` on scripts: what becomes of each word, and that all else stays as it is."""

import subprocess
from pathlib import Path

import pytest

from trinity_compat.launch import read_script
from trinity_compat.rewrite.script import Upgraded, UpgradeOptions, upgrade_script

LAUNCH = "python3 -m verl.trainer.main_ppo"


@pytest.fixture
def upgraded(tmp_path: Path):
    def upgrade(text: str, version: str | None = "0.8.0", **options: object) -> Upgraded:
        script = tmp_path / "run.sh"
        script.write_text(text)
        return upgrade_script(str(script), UpgradeOptions(version=version, **options))

    return upgrade


def after(result: Upgraded) -> str:
    """The new text, which bash takes and which a second upgrade leaves alone."""
    text = result.after.decode()
    assert subprocess.run(["bash", "-n"], input=result.after, capture_output=True).returncode == 0
    script = Path(result.path)
    script.write_text(text)
    assert not upgrade_script(result.path, UpgradeOptions()).changed
    return text


# A launch of 0.8 whose defaults are those of 0.9.1 but for these.
SAME = "algorithm.adv_estimator=grpo actor_rollout_ref.rollout.max_num_seqs=64 trainer.use_v1=False"
GONE = "trainer.use_legacy_worker_impl=auto"
RENAMES = [
    pytest.param(
        f"""\
#!/bin/bash
# reward_model.reward_manager=x stays in a comment
set -x
{LAUNCH} \\
    reward_model.reward_manager=dapo \\
    {SAME} "$@"   # the end
""",
        f"""\
#!/bin/bash
# reward_model.reward_manager=x stays in a comment
set -x
{LAUNCH} \\
    reward.reward_manager.name=dapo \\
    {SAME} "$@"   # the end
""",
        id="a renamed key in the command",
    ),
    pytest.param(
        f"""\
ARGS=(
    # who scores
    "reward_model.reward_manager=dapo"  # its name
    +reward_model.reward_kwargs.a="$A"
)
{LAUNCH} {SAME} "${{ARGS[@]}}"
""",
        f"""\
ARGS=(
    # who scores
    "reward.reward_manager.name=dapo"  # its name
    +reward.reward_kwargs.a="$A"
)
{LAUNCH} {SAME} "${{ARGS[@]}}"
""",
        id="renamed keys in an array, with their quotes, comments and variables",
    ),
    pytest.param(
        f"""\
COMMON="reward_model.reward_manager=dapo
  trainer.total_epochs=3"
{LAUNCH} $COMMON {SAME}
""",
        f"""\
COMMON="reward.reward_manager.name=dapo
  trainer.total_epochs=3"
{LAUNCH} $COMMON {SAME}
""",
        id="a renamed key in a text that is split",
    ),
    pytest.param(
        f"""\
{LAUNCH} {SAME} \\
    reward_model.use_reward_loop=True \\
    trainer.total_epochs=3 \\
    {GONE}
echo done
""",
        f"""\
{LAUNCH} {SAME} \\
    trainer.total_epochs=3
echo done
""",
        id="removed words take their lines, the last one the continuation before it",
    ),
    pytest.param(
        f'ARGS=({GONE})\n{LAUNCH} {SAME} {GONE} trainer.total_epochs=3 "${{ARGS[@]}}"\n',
        f'ARGS=()\n{LAUNCH} {SAME} trainer.total_epochs=3 "${{ARGS[@]}}"\n',
        id="removed words within a line",
    ),
    pytest.param(
        f"if true; then\n  {LAUNCH} {SAME} \\\n    {GONE}; fi\n",
        f"if true; then\n  {LAUNCH} {SAME} \\\n    ; fi\n",
        id="a removed word before the end of a command",
    ),
]


@pytest.mark.parametrize(("text", "meant"), RENAMES)
def test_words_change_at_their_places(upgraded, text: str, meant: str) -> None:
    result = upgraded(text)
    assert result.refused == []
    assert after(result) == meant


TEXTS = [
    f'CMD="{LAUNCH} \\\n  NEW=dapo \\\n  OLD \\\n  {SAME}"\neval $CMD +a.b=$X\n',
    f'bash -c "{LAUNCH} NEW=dapo OLD {SAME}"\n',
    f'run() {{\n  {LAUNCH} "$@" {SAME}\n}}\nrun NEW=dapo OLD\n',
    f"cat > inner.sh <<EOF\n{LAUNCH} \\\\\n  NEW=dapo \\\\\n  OLD \\\\\n  {SAME}\nEOF\nbash inner.sh\n",
    f"cat > inner.sh <<'EOF'\n{LAUNCH} {SAME} \\\n  NEW=dapo \\\n  OLD\nEOF\nbash inner.sh\n",
    f"ray job submit -- {LAUNCH} NEW=dapo OLD {SAME} 2>&1 | tee log\n",
]


@pytest.mark.parametrize("text", TEXTS)
def test_words_of_code_within_the_script(upgraded, text: str) -> None:
    result = upgraded(text.replace("NEW", "reward_model.reward_manager").replace("OLD", GONE))
    assert result.refused == []
    lines = text.replace("NEW", "reward.reward_manager.name")
    for gone in (" \\\n  OLD", " \\\\\n  OLD", " OLD"):
        lines = lines.replace(gone, "")
    assert after(result) == lines


def test_defaults_in_a_script_that_the_script_writes(upgraded) -> None:
    text = f"cat > in.sh <<EOF\n{LAUNCH} \\\\\n  algorithm.adv_estimator=grpo\nEOF\nbash in.sh\n"
    more = " \\\\\n  actor_rollout_ref.rollout.max_num_seqs=1024 \\\\\n  trainer.use_v1=False"
    assert after(upgraded(text)) == text.replace("=grpo", f"=grpo{more}")


def test_each_change_has_its_place_and_its_reason(upgraded) -> None:
    result = upgraded(f"{LAUNCH} \\\n  reward_model.reward_manager=dapo \\\n  {SAME}\n")
    (change,) = result.changes
    assert str(change) == (
        f"{result.path}:2: reward_model.reward_manager becomes reward.reward_manager.name: "
        "moved below reward in 0.8"
    )


def test_one_key_that_became_two(upgraded) -> None:
    text = f"""{LAUNCH} {SAME} \\\n  actor_rollout_ref.actor.checkpoint.contents='["model"]'\n"""
    assert after(upgraded(text)) == (
        f"""{LAUNCH} {SAME} \\\n  actor_rollout_ref.actor.checkpoint.save_contents='["model"]' \\\n"""
        """  actor_rollout_ref.actor.checkpoint.load_contents='["model"]'\n"""
    )


MODE = "actor_rollout_ref.rollout.mode="


@pytest.mark.parametrize(
    ("before", "word", "meant"),
    [
        ("", "sync", ("", "async")),
        ("", '"sync"', ("", '"async"')),
        ("MODE=sync\n", "$MODE", ("MODE=async\n", "$MODE")),
        ('MODE="sync" # how\n', '"${MODE}"', ('MODE="async" # how\n', '"${MODE}"')),
        ("MODE=${1:-sync}\n", "$MODE", ("MODE=${1:-async}\n", "$MODE")),
        ("MODE=${MODE:-sync}\n", "$MODE", ("MODE=${MODE:-async}\n", "$MODE")),
        ("", "${MODE:-sync}", ("", "${MODE:-async}")),
    ],
)
def test_a_value_changes_where_it_is_set(upgraded, before: str, word: str, meant: tuple[str, str]) -> None:
    result = upgraded(f"{before}{LAUNCH} {SAME} {MODE}{word}\n")
    assert result.refused == []
    assert after(result) == f"{meant[0]}{LAUNCH} {SAME} {MODE}{meant[1]}\n"


# A key with a value that is spelled otherwise today, and one that takes a single value today.
STEPS = "actor_rollout_ref.actor.optim.lr_warmup_steps=$STEPS"
ELSEWHERE = [
    "X=OLD\necho $X\n",
    "export X=OLD\n",
    "X=OLD\nif true; then X=OLD; fi\n",
    "X=a\nX=${X/a/OLD}\n",
]


@pytest.mark.parametrize("before", ELSEWHERE)
def test_a_variable_that_is_used_elsewhere_is_named(upgraded, before: str) -> None:
    before = before.replace("OLD", "null").replace("X", "STEPS")
    text = f"{before}{LAUNCH} {SAME} {STEPS} reward_model.num_workers=2\n"
    result = upgraded(text)
    assert [str(remark.where) for remark in result.refused] == [f"{result.path}:{text.count(chr(10))}"]
    assert "variable STEPS" in result.refused[0].text
    # what can be carried is
    assert result.after.decode() == text.replace("reward_model.num_workers", "reward.num_workers")


@pytest.mark.parametrize("before", ELSEWHERE)
def test_the_only_value_that_is_left_is_written_in_place_of_such_a_variable(upgraded, before: str) -> None:
    text = f"{before.replace('OLD', 'sync')}{LAUNCH} {SAME} {MODE}$X\n"
    result = upgraded(text)
    assert result.refused == []
    assert after(result) == text.replace(f"{MODE}$X", f"{MODE}async")


def test_defaults_that_changed_are_written_behind_the_last_word(upgraded) -> None:
    result = upgraded(f"{LAUNCH} \\\n  algorithm.adv_estimator=grpo \\\n  trainer.nnodes=1 $@\n")
    assert after(result) == (
        f"{LAUNCH} \\\n  algorithm.adv_estimator=grpo \\\n"
        "  trainer.nnodes=1 \\\n  actor_rollout_ref.rollout.max_num_seqs=1024 \\\n  trainer.use_v1=False $@\n"
    )
    assert str(result.changes[0]).endswith(
        ":3: actor_rollout_ref.rollout.max_num_seqs=1024 is added: "
        "the default of veRL 0.8.0 is 1024, that of 0.9.1 256"
    )


def test_a_default_that_follows_from_a_key_repeats_its_words(upgraded) -> None:
    text = f"{LAUNCH} \\\n  actor_rollout_ref.actor.clip_ratio=$CLIP {SAME}\n"
    result = upgraded(text, "0.3.0", env={"CLIP": "0.3"})
    assert "actor_rollout_ref.actor.clip_ratio_low=$CLIP " in after(result)
    assert "actor_rollout_ref.actor.clip_ratio_c=100000000.0 " in after(result)


def test_a_default_that_refers_to_a_key_is_written_as_a_reference(upgraded) -> None:
    text = f"{LAUNCH} \\\n  algorithm.adv_estimator=gae \\\n  actor_rollout_ref.model.path=$M\n"
    result = upgraded(text, "0.3.0")
    assert "  critic.model.tokenizer_path='${actor_rollout_ref.model.path}'" in after(result)


def test_keys_that_say_nothing_today_become_those_that_do(upgraded) -> None:
    text = f"{LAUNCH} {SAME} actor_rollout_ref.actor.grad_clip=0.5\n"
    result = upgraded(text, "0.7.0")
    assert after(result) == f"{LAUNCH} {SAME} actor_rollout_ref.actor.optim.clip_grad=0.5\n"


@pytest.mark.parametrize(
    ("before", "value", "meant"),
    [
        ("", "64", ("", "8")),
        ("SIZE=64\n", "$SIZE", ("SIZE=8\n", "$SIZE")),
        ("SIZE=64\necho $SIZE\n", "${SIZE}", ("SIZE=64\necho $SIZE\n", "$((SIZE / 8))")),
    ],
)
def test_a_micro_batch_over_all_gpus_becomes_that_of_one(upgraded, before, value, meant) -> None:
    gpus = (
        "trainer.n_gpus_per_node=8 trainer.nnodes=2 actor_rollout_ref.actor.ulysses_sequence_parallel_size=2"
    )
    key = "actor_rollout_ref.actor.ppo_micro_batch_size"
    result = upgraded(f"{before}{LAUNCH} {SAME} {gpus} {key}={value}\n")
    assert result.refused == []
    assert after(result) == f"{meant[0]}{LAUNCH} {SAME} {gpus} {key}_per_gpu={meant[1]}\n"


@pytest.mark.parametrize("gpus", ["trainer.n_gpus_per_node=5", "trainer.n_gpus_per_node=$N"])
def test_a_micro_batch_that_cannot_be_divided_is_named(upgraded, gpus: str) -> None:
    text = f"{LAUNCH} {SAME} {gpus} actor_rollout_ref.actor.ppo_micro_batch_size=64\n"
    result = upgraded(text)
    assert result.after.decode() == text
    assert "write actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu" in result.refused[0].text


def test_engine_arguments_of_older_vllm(upgraded) -> None:
    section = "+actor_rollout_ref.rollout.engine_kwargs.vllm"
    text = (
        f"{LAUNCH} {SAME} {section}.guided_decoding_backend=xgrammar {section}.max_seq_len_to_capture=9"
        f" {section}.disable_log_requests=True {section}.speculative_model=m\n"
    )
    result = upgraded(text)
    assert result.after.decode() == (
        f"{LAUNCH} {SAME} {section}.structured_outputs_config.backend=xgrammar"
        f" {section}.enable_log_requests=False {section}.speculative_model=m\n"
    )
    assert ["speculative_config.model" in remark.text for remark in result.refused] == [True]


def test_operators_are_what_hydra_wants_today(upgraded) -> None:
    text = f"{LAUNCH} {SAME} +data.mine=1 ++data.other=2 +reward_model.reward_manager=dapo ~data.datagen\n"
    meant = f"{LAUNCH} {SAME} +data.mine=1 ++data.other=2 reward.reward_manager.name=dapo\n"
    assert after(upgraded(text)) == meant


def test_what_the_target_ignores_has_a_word(upgraded) -> None:
    result = upgraded(f"{LAUNCH} {SAME} data.truncation=left\n")
    assert not result.changed
    (remark,) = result.kept
    assert str(remark).startswith(
        f"{result.path}:1: data.truncation: veRL 0.9.1 stores it where nothing reads"
    )


def test_a_script_of_today_stays(upgraded) -> None:
    result = upgraded(f"{LAUNCH} data.train_batch_size=8 actor_rollout_ref.rollout.name=vllm\n", None)
    assert not result.changed
    assert result.changes == result.refused == []


def test_a_section_in_one_word_is_named(upgraded) -> None:
    result = upgraded(f"{LAUNCH} {SAME} reward_model='{{reward_manager: dapo}}'\n")
    assert "write its keys one by one" in result.refused[0].text


def test_another_main_is_named_and_stays(upgraded) -> None:
    result = upgraded("python3 -m recipe.dapo.main_dapo reward_model.reward_manager=dapo\n")
    assert not result.changed
    assert "not part of veRL 0.9.1" in result.refused[0].text


def test_a_loop_that_gives_one_word_two_meanings_is_left_alone(upgraded) -> None:
    text = f"for STEPS in null 5; do\n  {LAUNCH} {SAME} {STEPS}\ndone\n"
    result = upgraded(text)
    assert result.after.decode() == text
    assert result.refused


def test_two_launches_share_their_words(upgraded) -> None:
    text = (
        f"ARGS=(reward_model.reward_manager=dapo)\nfor seed in 1 2; do\n"
        f'  {LAUNCH} {SAME} data.seed=$seed "${{ARGS[@]}}"\ndone\n'
    )
    result = upgraded(text)
    assert after(result) == text.replace("reward_model.reward_manager", "reward.reward_manager.name")
    assert len(read_script(result.path).launches) == 2


def test_words_of_another_file_are_named(upgraded, tmp_path: Path) -> None:
    (tmp_path / "common.sh").write_text("ARGS=(reward_model.reward_manager=dapo)\n")
    result = upgraded(f'. ./common.sh\n{LAUNCH} {SAME} "${{ARGS[@]}}"\n', cwd=tmp_path)
    assert not result.changed
    assert str(result.refused[0].where).endswith("common.sh:1")


def test_a_script_with_windows_line_ends_is_named(upgraded) -> None:
    result = upgraded(f"{LAUNCH} {SAME} reward_model.reward_manager=dapo\r\n")
    assert not result.changed
    assert "dos2unix" in result.refused[0].text


def test_nothing_of_a_script_is_run(upgraded, tmp_path: Path) -> None:
    upgraded(f"touch {tmp_path}/ran\nX=$(touch {tmp_path}/ran)\n{LAUNCH} {SAME} data.seed=$X\n")
    assert not (tmp_path / "ran").exists()


def test_a_difference_that_is_left_is_named(upgraded) -> None:
    result = upgraded(f"STEPS=null\necho $STEPS\n{LAUNCH} {SAME} {STEPS}\n")
    assert [remark.spelled for remark in result.refused] == [STEPS.partition("=")[0]]
    # a launch without words to put the defaults behind
    result = upgraded(f"{LAUNCH}\n")
    assert "trainer.use_v1=False" in {remark.spelled for remark in result.refused}


def test_a_variable_of_two_words_that_want_the_same(upgraded) -> None:
    words = " ".join(
        f"{model}.optim.lr_warmup_steps=$STEPS" for model in ("actor_rollout_ref.actor", "critic")
    )
    text = f"STEPS=null\n{LAUNCH} {SAME} {words}\n"
    result = upgraded(text)
    assert result.refused == []
    assert after(result) == text.replace("STEPS=null", "STEPS=-1")


def test_a_key_that_is_given_twice(upgraded) -> None:
    text = f"{LAUNCH} {SAME} reward_model.num_workers=1 reward_model.num_workers=2\n"
    assert after(upgraded(text)) == text.replace("reward_model.", "reward.")


def test_keys_that_no_launch_takes_get_their_new_names(upgraded) -> None:
    word, new = "reward_model.reward_manager", "reward.reward_manager.name"
    text = f"MORE=(\n  {word}=naive # {word}=x\n)\n"
    text += f'if [ "$1" = 1 ]; then\n  A={word}=dapo\nelse\n  A={word}=naive\n'
    result = upgraded(f"{text}fi\n{LAUNCH} {SAME} $A\n")
    meant = text.replace(f"{word}=", f"{new}=").replace(f"# {new}", f"# {word}")
    assert result.after.decode() == f"{meant}fi\n{LAUNCH} {SAME} $A\n"
    assert result.refused == []
    assert [change.where.line for change in result.changes if "no launch takes it" in change.why] == [2, 5]
    Path(result.path).write_bytes(result.after)
    assert not upgrade_script(result.path, UpgradeOptions()).changed


CHECKPOINT = "actor_rollout_ref.actor.checkpoint"
MORE = {
    "reward_model.micro_batch_size_per_gpu=4": "",
    "reward_model.micro_batch_size_per_gpu=$SIZE": "",
    "+reward_model.reward_manager=dapo": "reward.reward_manager.name=dapo",
    "++reward_model.reward_manager=dapo": "++reward.reward_manager.name=dapo",
    "reward_model.reward_manager=null": "",
    "actor_rollout_ref.rollout.mode=sync": "actor_rollout_ref.rollout.mode=async",
    "actor_rollout_ref.rollout.mode='sync'": "actor_rollout_ref.rollout.mode='async'",
    "trainer.remove_previous_ckpt_in_save=True": (
        "trainer.max_actor_ckpt_to_keep=1 trainer.max_critic_ckpt_to_keep=1"
    ),
    f"{CHECKPOINT}.contents=$WHAT": f"{CHECKPOINT}.save_contents=$WHAT {CHECKPOINT}.load_contents=$WHAT",
}


@pytest.mark.parametrize(("word", "meant"), MORE.items())
def test_a_key_that_no_launch_takes_changes_like_any_other(upgraded, word: str, meant: str) -> None:
    text = f'ARGS=()\nif [ "$1" = 1 ]; then\n  ARGS+=({{}})\nfi\n{LAUNCH} {SAME} ${{{{ARGS[@]}}}}\n'
    result = upgraded(text.format(word))
    assert result.refused == []
    assert after(result) == text.format(meant)
    assert {change.where.line for change in result.changes} == {3}


@pytest.mark.parametrize(
    "word",
    [
        "algorithm.rollout_correction.use_policy_gradient=True",  # another key follows from it
        "trainer.remove_previous_ckpt_in_save=$KEEP",  # its value decides
    ],
)
def test_a_key_that_no_launch_takes_and_that_depends_on_the_launch_is_named(upgraded, word: str) -> None:
    text = f'if [ "$1" = 1 ]; then\n  A={word}\nfi\n{LAUNCH} {SAME} $A\n'
    result = upgraded(text)
    assert result.after.decode() == text
    ((line, spelled),) = [(remark.where.line, remark.spelled) for remark in result.refused]
    assert line == 2 and word.startswith(spelled)


OPTIM = "actor_rollout_ref.actor.optim"


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        # veRL copies a given warmup_style over lr_scheduler_type
        ("{0}.warmup_style=constant {0}.lr_scheduler_type=cosine", "{0}.lr_scheduler_type=constant"),
        ("{0}.lr_scheduler_type=cosine {0}.warmup_style=constant", "{0}.lr_scheduler_type=constant"),
        ("{0}.lr_scheduler_type=cosine {0}.warmup_style=cosine", "{0}.lr_scheduler_type=cosine"),
        ("{0}.lr_scheduler_type=cosine {0}.warmup_style=null", "{0}.lr_scheduler_type=cosine"),
        ("reward_model.num_workers=2 reward.num_workers=2", "reward.num_workers=2"),
    ],
)
def test_two_keys_that_are_one_today_become_one_word(upgraded, words: str, meant: str) -> None:
    result = upgraded(f"{LAUNCH} {SAME} {words.format(OPTIM)} trainer.nnodes=1\n")
    if "null" in words:  # the release of today has that key as null, too
        meant += " {0}.warmup_style=null"
    assert result.refused == []
    assert after(result) == f"{LAUNCH} {SAME} {meant.format(OPTIM)} trainer.nnodes=1\n"


def test_a_key_of_a_config_file_of_the_script_takes_no_plus(upgraded, tmp_path: Path) -> None:
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "mine.yaml").write_text(
        "defaults: [ppo_trainer, _self_]\nmine: {a: 1}\nhydra: {searchpath: [pkg://verl.trainer.config]}\n"
    )
    files = f"--config-path={tmp_path}/conf --config-name=mine"
    text = f"{LAUNCH} {files} {SAME} mine.a=2 +mine.b=3 reward_model.num_workers=2\n"
    result = upgraded(text, cwd=tmp_path)
    assert result.refused == []
    assert result.after.decode() == text.replace("reward_model", "reward")


def test_a_misspelt_key_stays_and_is_named(upgraded) -> None:
    text = f"{LAUNCH} {SAME} actor_rollout_ref.rollout.multi_turn.max_turns=50\n"
    result = upgraded(text)
    assert result.after.decode() == text
    (remark,) = result.refused
    assert "did you mean actor_rollout_ref.rollout.multi_turn.max_user_turns?" in remark.text


def test_keys_beside_a_launch_that_is_not_upgraded_stay(upgraded) -> None:
    other = "python3 -m recipe.dapo.main_dapo trainer.nnodes=1"
    text = f'if [ "$1" = 1 ]; then\n  A=reward_model.reward_manager=dapo\nfi\n{other} $A\n'
    result = upgraded(text)
    assert not result.changed
    assert [remark.where.line for remark in result.refused] == [4]
