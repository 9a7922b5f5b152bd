"""Mains of one's own: which are taken for veRL's, by what they are given or by what the user says."""

import pytest

from trinity_compat.common.errors import UserError
from trinity_compat.launch import entrypoints, read_argv, read_text
from trinity_compat.launch.python.hydra_main import hydra_config

PPO, DAPO, ONE_STEP_OFF, FULLY_ASYNC = entrypoints.TRANSLATED
KEY = "actor_rollout_ref.actor.optim.lr=1e-6"


def taken(line, **user_mains):
    launches = read_text(
        f"{line}\n", mains=entrypoints.parse_user_mains(list(user_mains.get("teach", {}).items()))
    ).launches
    return [(launch.module, launch.main) for launch in launches]


@pytest.mark.parametrize(
    ("line", "module", "main"),
    [
        (f"python3 -m agent.trainer.main_ppo {KEY}", "agent.trainer.main_ppo", PPO),
        (f"python3 -m verl.trainer.main_ppo_of_a_fork {KEY}", "verl.trainer.main_ppo_of_a_fork", PPO),
        (f"python3 train.py {KEY}", "train", PPO),
        (f"python3 -m absolute.main +{KEY}", "absolute.main", PPO),
        (f"torchrun --nproc_per_node 2 -m rl.start {KEY}", "rl.start", PPO),
        (f"python3 -m mine.main_dapo {KEY}", "mine.main_dapo", DAPO),
        (f"python3 -m mine.start {KEY} algorithm.filter_groups.enable=True", "mine.start", DAPO),
        (f"python3 -m mine.start {KEY} +algorithm.filter_groups.enable=True", "mine.start", PPO),
        (f"python3 -m verl.trainer.main_ppo {KEY}", PPO, ""),
        (f"python3 -m recipe.dapo.main_dapo {KEY}", DAPO, ""),
        (f"python3 -m recipe.prime.main_prime {KEY}", "recipe.prime.main_prime", ""),
        (f"python3 -m recipe.one_step_off_policy.main_ppo {KEY}", "recipe.one_step_off_policy.main_ppo", ""),
        (
            f"python3 -m mine.one_step_off_policy.main_ppo {KEY}",
            "mine.one_step_off_policy.main_ppo",
            ONE_STEP_OFF,
        ),
        (f"python3 -m a.fully_async_policy.main_ppo {KEY}", "a.fully_async_policy.main_ppo", FULLY_ASYNC),
        (f"python3 -m mine.start {KEY} async_training.require_batches=2", "mine.start", FULLY_ASYNC),
        (f"python3 -m mine.start {KEY} rollout.nnodes=1", "mine.start", ONE_STEP_OFF),
        ("python3 -m agent.trainer.main_ppo optim.lr=1", "agent.trainer.main_ppo", ""),
        ("python3 -m verl.trainer.main config=x.yaml algorithm.adv_estimator=grpo", "verl.trainer.main", ""),
    ],
)
def test_a_main_is_taken_for_verl_s_by_the_keys_that_it_is_given(line, module, main):
    assert taken(line) == [(module, main)]


@pytest.mark.parametrize(
    ("module", "main"),
    [
        ("recipe.one_step_off_policy.main_ppo", ONE_STEP_OFF),
        ("recipe.one_step_off_policy.async_main_ppo", ONE_STEP_OFF),
        ("verl_recipe.one_step_off_policy.main_ppo", ONE_STEP_OFF),
        ("verl.experimental.one_step_off_policy.async_main_ppo", ONE_STEP_OFF),
        ("recipe.fully_async_policy.fully_async_main", FULLY_ASYNC),
        ("verl.recipe.fully_async_policy.fully_async_main", FULLY_ASYNC),
        ("verl.experimental.fully_async_policy.fully_async_main", FULLY_ASYNC),
    ],
)
def test_verl_s_asynchronous_mains_are_known_by_the_name_of_any_release(module, main):
    assert entrypoints.canonical(module) == main
    assert entrypoints.refusal(module) == ""
    assert taken(f"python3 -m {module}") == [(module, "")]


def test_a_package_of_that_name_that_is_not_verl_s_is_no_main_of_verl_s():
    assert entrypoints.canonical("mine.one_step_off_policy.main_ppo") == "mine.one_step_off_policy.main_ppo"
    assert entrypoints.refusal("mine.one_step_off_policy.main_ppo")


@pytest.mark.parametrize("name", ["main_generation", "merge_weights", "eval_math"])
def test_what_takes_verl_s_keys_and_trains_nothing_is_no_launch(name):
    assert taken(f"python3 -m tools.{name} {KEY}") == []


@pytest.mark.parametrize("spelled", ["agent.start", "agent/start.py", "./agent/start.py"])
def test_the_user_names_a_main_by_its_module_or_file(spelled):
    assert taken("python3 agent/start.py --config-name x", teach={spelled: PPO}) == [("agent.start", PPO)]
    assert taken("python3 -m agent.start --config-name x") == []


def test_what_the_user_says_goes_before_what_the_module_is():
    assert taken("python3 -m recipe.prime.main_prime a=1", teach={"recipe.prime.main_prime": PPO}) == [
        ("recipe.prime.main_prime", PPO)
    ]


def test_a_command_line_is_read_with_the_same_mains():
    launch = read_argv(["python3", "-m", "agent.start"], mains={"agent.start": PPO}).launches[0]
    assert launch.taken_for == PPO


def test_only_a_translated_main_can_be_stood_for():
    with pytest.raises(
        UserError, match=r"--main a\.b=verl\.trainer\.main_sft: .* is not a main that is translated"
    ):
        entrypoints.parse_user_mains([("a.b", "verl.trainer.main_sft")])


def test_the_refusal_of_another_main_names_the_option():
    with pytest.raises(UserError) as error:
        entrypoints.refuse("skyrl.train.main_base")
    assert "--main skyrl.train.main_base=verl.trainer.main_ppo" in str(error.value)


@pytest.fixture
def tree(tmp_path):
    files = {
        "train.py": '@hydra.main(config_path="config", config_name="base")\ndef main(config): ...\n',
        "pkg/go.py": '@hydra.main(config_path="../config", config_name="base")\ndef main(config): ...\n',
        "tool.py": '@hydra.main(config_path="config", config_name="tool")\ndef main(config): ...\n',
        "by_package.py": '@hydra.main(config_path="pkg://pkg.conf", config_name="own")\ndef main(c): ...\n',
        "plain.py": "print('hydra')\n",
        "main_generation.py": '@hydra.main(config_path="config", config_name="base")\ndef main(c): ...\n',
        "pkg/evaluate.py": '@hydra.main(config_path="../config", config_name="base")\ndef main(c): ...\n',
        "config/base.yaml": "defaults:\n  - ppo_trainer\n  - _self_\n",
        "config/_2_game.yaml": "defaults:\n  - base\n",
        "config/own.yaml": "actor_rollout_ref:\n  rollout: {n: 2}\n",
        "pkg/conf/own.yaml": "actor_rollout_ref:\n  rollout: {n: 2}\n",
        "config/tool.yaml": "defaults:\n  - tool\nmodel: x\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(f"import hydra\n{text}" if name.endswith(".py") else text)
    return tmp_path


@pytest.mark.parametrize(
    ("line", "module"),
    [
        ("python train.py --config-name _2_game", "train"),
        ("python train.py", "train"),
        ("python -m pkg.go --config-name=own trainer.x=1", "pkg.go"),
        ("python tool.py --config-name base", "tool"),
        ("python by_package.py", "by_package"),
        ("python tool.py", ""),
        ("python plain.py", ""),
        ("python main_generation.py", ""),
        ("python -m pkg.evaluate trainer.x=1", ""),
        ("python missing.py", ""),
        ("python -c pass", ""),
    ],
)
def test_a_hydra_main_counts_where_its_configuration_has_verl_s_sections(tree, line, module):
    launches = read_text(f"{line}\n", cwd=tree).launches
    assert [(one.module, one.main) for one in launches] == ([(module, PPO)] if module else [])


@pytest.mark.parametrize(
    ("text", "file"),
    [
        ("python /n/a/train.py", "train.py"),
        ("python /n/a/pkg/go.py", "pkg/go.py"),
        ("cd /n/a\npython pkg/go.py", "pkg/go.py"),
        ("cd config\npython /n/a/pkg/go.py", "pkg/go.py"),
        ("cd /n/a\npython -m pkg.go", ""),
        ("cd /n/a\npython by_package.py", "by_package.py"),
    ],
)
def test_a_main_by_its_path_on_the_cluster_is_found_by_its_end(tree, text, file):
    reading = read_text(text, cwd=tree)
    assert [(one.main, one.file) for one in reading.launches] == [(PPO, str(tree / file) if file else "")]
    said = [note.message for note in reading.diagnostics if note.message.startswith("/n/a/")]
    assert said == [f"/n/a/{file}: {file}, the end of that path below --cwd, is read in its place"] * bool(
        file
    )


@pytest.mark.parametrize(
    ("call", "way"),
    [
        (f"python3 /n/a/main_dapo.py {KEY}", "name the folder that holds it with --cwd"),
        (f"python3 x/main_dapo.py --config-name=y {KEY}", "name the folder that holds it with --cwd"),
        (f"python3 {{}}/main_dapo.py {KEY}", "--also-read {} reads it"),
        (f"python3 /n/a/main_dapo.py --config-path=x -cn y {KEY}", ""),
        (f"python3 /n/a/verl/trainer/main_ppo.py {KEY}", ""),
    ],
)
def test_a_main_of_the_users_that_is_not_here_says_what_to_type(tmp_path, call, way):
    other, here = tmp_path / "other", tmp_path / "here"
    other.mkdir()
    here.mkdir()
    (other / "main_dapo.py").write_text("")
    told = [note.message for note in read_text(call.format(other), cwd=here).diagnostics]
    assert [message.rpartition("is used instead: ")[2] for message in told] == [way.format(other)] * bool(way)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ('@hydra.main(config_path="a", config_name="b")', ("a", "b")),
        ('from hydra import main\n@main(config_path="a", config_name="b.yaml")', ("a", "b")),
        ('if 1:\n    @hydra.main(\n        config_path="a",\n        config_name="b",\n    )', ("a", "b")),
        ('type X = int\n@hydra.main(config_path="a", config_name="b")  # ours', ("a", "b")),
        ('@hydra.main(config_path="a")', None),
        ('@main(config_path=HERE, config_name="b")\n@main(config_path="c", config_name="d")', ("c", "d")),
        ('@hydra.main(config_path="a", config_name=', None),
        ('# @hydra.main(config_path="a", config_name="b")', None),
    ],
)  # fmt: skip
def test_hydra_s_decorator_is_found_as_it_is_written(text, found):
    assert hydra_config(f"{text}\ndef go(config): ...\n") == found


def test_the_main_of_easyr1_is_not_offered_as_one_of_verl():
    with pytest.raises(UserError, match="it is EasyR1's") as refused:
        entrypoints.refuse("verl.trainer.main")
    assert "--main" not in str(refused.value.hint)
