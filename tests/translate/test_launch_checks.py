"""What cannot start under veRL, or does not do what it says, is said without torch and veRL."""

import pytest

from trinity_compat.common.errors import UserError
from trinity_compat.launch import read_text
from trinity_compat.translate import TranslateOptions, launch_warnings, translate_launch
from trinity_compat.translate.model import Severity
from trinity_compat.translate.verl_names import ESTIMATORS

from .helpers import script, translated

ROLLOUT, ACTOR, REF = (f"actor_rollout_ref.{name}" for name in ("rollout", "actor", "ref"))
GRPO = ("algorithm.adv_estimator=grpo", f"{ROLLOUT}.n=8")
SIZES = (f"{ROLLOUT}.log_prob_micro_batch_size_per_gpu=4", f"{REF}.log_prob_micro_batch_size_per_gpu=4")


def said(code, *arguments, **options):
    """The cautions of that code, of a GRPO launch with every size."""
    translation, _ = translated(*GRPO, *SIZES, *arguments, **options)
    return [caution for caution in translation.warnings if caution.code == code]


def test_a_tensor_parallel_size_must_divide_the_gpus():
    (found,) = said("TW022", f"{ROLLOUT}.tensor_model_parallel_size=3", "trainer.n_gpus_per_node=8")
    assert found.rank is Severity.ERROR and found.where.line == 9
    assert found.message.startswith(f"{ROLLOUT}.tensor_model_parallel_size=3: 8 GPUs")
    assert found.hint == f"{ROLLOUT}.tensor_model_parallel_size may be 1, 2, 4, 8"


def test_the_default_size_counts_on_one_gpu():
    (found,) = said("TW022", "trainer.n_gpus_per_node=1")
    assert "tensor_model_parallel_size=2 (default of verl 0.9.1)" in found.message and found.where.line == 9
    assert found.rank is Severity.DECIDE


@pytest.mark.parametrize(
    "words",
    [
        ("trainer.n_gpus_per_node=6", f"{ROLLOUT}.tensor_model_parallel_size=3"),
        ("trainer.n_gpus_per_node=4", "trainer.nnodes=2", f"{ROLLOUT}.tensor_model_parallel_size=8"),
        # Of GPUs of its own a rollout leaves some unused.
        (f"{ROLLOUT}.nnodes=1", f"{ROLLOUT}.n_gpus_per_node=4", f"{ROLLOUT}.tensor_model_parallel_size=3"),
    ],
)
def test_whole_engines_are_no_error(words):
    module = "verl.experimental.one_step_off_policy.main_ppo" if f"{ROLLOUT}.nnodes=1" in words else None
    assert not said("TW022", *words, **({"module": module} if module else {}))


def test_a_group_of_one_answer_is_for_the_user_to_decide():
    (found,) = said("TW023", f"{ROLLOUT}.n=1")
    assert found.rank is Severity.DECIDE and found.where.line == 9
    assert "takes each reward as it is" in found.message and f"{ROLLOUT}.n=8" in found.hint


def test_n_that_is_not_given_is_one():
    translation, _ = translated("algorithm.adv_estimator=rloo")
    (found,) = [caution for caution in translation.warnings if caution.code == "TW023"]
    assert found.where.line == 5


@pytest.mark.parametrize("name", ["gae", "reinforce_plus_plus", "remax"])
def test_an_estimator_that_compares_nothing_takes_one_answer(name):
    assert not said("TW023", f"{ROLLOUT}.n=1", f"algorithm.adv_estimator={name}")


def test_pass_at_k_of_one_answer_ends_verl():
    (found,) = said("TW023", f"{ROLLOUT}.n=1", "algorithm.adv_estimator=grpo_passk")
    assert found.rank is Severity.ERROR and "stops at its first step" in found.message


@pytest.mark.verl
def test_estimators_make_of_one_answer_what_the_table_says():
    import numpy as np
    import torch
    from verl.trainer.ppo import core_algos

    rewards = torch.zeros(2, 3)
    rewards[:, -1] = torch.tensor([1.0, 3.0])
    mask = torch.ones(2, 3)
    given = {
        "token_level_rewards": rewards,
        "response_mask": mask,
        "index": np.array(["a", "b"]),
        "config": {},
        "old_log_probs": torch.zeros(2, 3),
        "sum_pi_squared": torch.ones(2, 3),
        "reward_baselines": torch.zeros(2),
    }
    kinds = {}
    for name in ESTIMATORS:  # other tests of this process may have registered more
        compute = core_algos.ADV_ESTIMATOR_REGISTRY[name]
        if name in ("gae", "reinforce_plus_plus", "remax"):
            continue
        own = (
            given
            if name != "gdpo"
            else {key: given[key] for key in ("token_level_rewards", "response_mask", "index")}
        )
        names = compute.__code__.co_varnames[: compute.__code__.co_argcount]
        try:
            advantages, _ = compute(**{key: own[key] for key in names if key in own})
        except ValueError:
            kinds[name] = "ends"
        else:
            # Without a baseline the one with the larger reward has the larger advantage.
            kinds[name] = "own" if advantages[1, 0] > advantages[0, 0] else "none"
            assert kinds[name] == "own" or not advantages.any()
    assert kinds == {
        **dict.fromkeys(launch_warnings.OWN_REWARD, "own"),
        **dict.fromkeys(launch_warnings.NO_ADVANTAGE, "none"),
        **dict.fromkeys(launch_warnings.ENDS, "ends"),
    }


@pytest.mark.parametrize(
    ("words", "missing", "line"),
    [
        (
            (f"{ACTOR}.use_kl_loss=True", f"{REF}.log_prob_micro_batch_size_per_gpu=null"),
            f"{REF}.log_prob",
            9,
        ),
        (("algorithm.adv_estimator=gae",), "critic.ppo", 9),
        ((f"{ROLLOUT}.log_prob_micro_batch_size_per_gpu=null",), f"{ROLLOUT}.log_prob", 1),
    ],
)
def test_a_size_that_verl_demands_is_named_with_what_asks_for_it(words, missing, line):
    (found,) = said("TW024", *words)
    assert f"needs {missing}_micro_batch_size_per_gpu: veRL 0.9.1 refuses to start" in found.message
    assert found.rank is Severity.DECIDE and found.where.line == line and found.hint.startswith("write ")


@pytest.mark.parametrize(
    "words",
    [
        (),
        (f"{REF}.log_prob_micro_batch_size_per_gpu=null",),  # no KL term: nobody needs it
        (f"{ROLLOUT}.log_prob_micro_batch_size_per_gpu=null", f"{ROLLOUT}.log_prob_micro_batch_size=64"),
        (f"{ROLLOUT}.log_prob_micro_batch_size_per_gpu=null", f"{ACTOR}.use_dynamic_bsz=True"),
    ],
)
def test_micro_batch_sizes_that_verl_does_not_need_have_no_caution(words):
    assert not said("TW024", *words)


LAUNCH = """
python3 -m verl.trainer.main_ppo data.train_files=/d/a.parquet data.val_files=/d/b.parquet \\
  custom_reward_function.path={path}
"""


def of_script(text, folder):
    translation, _ = translate_launch(script(text, cwd=str(folder)), TranslateOptions())
    return [caution.message for caution in translation.warnings if caution.code == "TW025"]


def test_a_reward_file_that_is_not_in_the_script_s_folder_is_named(tmp_path):
    assert of_script(LAUNCH.format(path="score.py"), tmp_path) == [
        f"custom_reward_function.path=score.py: no such file in {tmp_path}"
    ]
    (tmp_path / "score.py").touch()
    assert not of_script(LAUNCH.format(path="score.py"), tmp_path)


@pytest.mark.parametrize(
    "text",
    [
        "cat > score.py <<EOF\nx = $X\nEOF\n" + LAUNCH.format(path="score.py"),
        "git clone https://host/rewards .\n" + LAUNCH.format(path="score.py"),
        "cd $(mktemp -d)\n" + LAUNCH.format(path="score.py"),
        LAUNCH.format(path="$SCORE/score.py"),
        LAUNCH.format(path="${SCORE:-score.py}"),
        LAUNCH.format(path="elsewhere/score.py"),
        LAUNCH.format(path="/score.py"),
        LAUNCH.format(path="pkg:mine.score"),
        LAUNCH.format(path="hdfs://host/score.py"),
        LAUNCH.format(path="null"),
    ],
)
def test_a_reward_file_that_may_be_there_is_not_said_to_be_missing(text, tmp_path):
    (tmp_path / "other.py").touch()
    assert not of_script(text, tmp_path)


def test_a_variable_of_the_script_s_own_is_known(tmp_path):
    text = "SCORE=rewards\n" + LAUNCH.format(path="$SCORE/score.py")
    (tmp_path / "rewards").mkdir()
    assert len(of_script(text, tmp_path)) == 1


@pytest.fixture
def command(tmp_path, command):
    (tmp_path / "run.sh").write_text(
        "python3 -m verl.trainer.main_ppo data.train_files=/a data.val_files=/b \\\n"
        f"  {ROLLOUT}.tensor_model_parallel_size=3 algorithm.adv_estimator=grpo_passk\n"
    )
    return command


def test_an_error_ends_translate_with_every_cause_and_no_yaml(command):
    code, out, err = command("translate", "run.sh")
    assert (code, out) == (2, "")
    assert f"run.sh:2: {ROLLOUT}.tensor_model_parallel_size=3: 8 GPUs" in err
    assert "run.sh:2: algorithm.adv_estimator=grpo_passk compares" in err


@pytest.mark.parametrize("form", ["text", "json", "md", "html", "sarif"])
def test_an_error_fails_the_audit_in_every_format(command, form):
    code, out, _ = command("audit", "run.sh", "--format", form)
    assert code == 1 and "TW022" in out


def test_a_quiet_audit_says_it(command):
    code, _, err = command("audit", "run.sh", "-q")
    assert code == 1 and f"run.sh:2: TW022 {ROLLOUT}.tensor_model_parallel_size=3" in err


@pytest.mark.parametrize(
    ("module", "words", "hint"),
    [
        (
            "verl.trainer.main_ppo",
            f"{ROLLOUT}.chat_scheduler=a.b",
            "chat_scheduler: veRL's first multi-turn",
        ),
        ("rllm.train_agent", f"{ROLLOUT}.nothing=1", "rllm.train_agent is not a main of veRL's"),
    ],
)
def test_what_is_known_of_a_refused_key_and_main_is_said(module, words, hint, tmp_path):
    (launch,) = read_text(f"python3 -m {module} {ROLLOUT}.n=4 {words}\n", cwd=tmp_path).launches
    with pytest.raises(UserError) as error:
        translate_launch(launch, TranslateOptions(verl_version="0.9.1"))
    assert hint in error.value.hint
