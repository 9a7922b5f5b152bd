"""Keys that only a fork knows: found, told apart from unknown ones, left to the user's rules."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from trinity_compat.cli import cli
from trinity_compat.common.errors import UserError
from trinity_compat.common.nested import put
from trinity_compat.launch import read_script
from trinity_compat.translate import TranslateOptions, translate_launch
from trinity_compat.translate.edited_launch import apply_rules
from trinity_compat.verl_config import effective_config, upgrade
from trinity_compat.verl_config.releases import release_tree

from .helpers import BASICS, launch_of

ACTOR = "actor_rollout_ref.actor"


@pytest.fixture
def script(tmp_path: Path) -> Path:
    """A fork of 0.4.1, and a script that sets a key of the fork's."""
    stock = release_tree("0.4.1").find("ppo_trainer")
    content = json.loads(json.dumps(dict(stock.config)))
    content["actor_rollout_ref"]["actor"] |= {"slip_cost": False, "entropy_coeff": 0.01, "ppo_epochs": 2}
    content["env"] = {"seed": 0, "turns": 9, "hook": None, "path": "???"}
    folder = tmp_path / "verl" / "trainer" / "config"
    folder.mkdir(parents=True)
    text = yaml.safe_dump({"defaults": list(stock.defaults), **content} if stock.defaults else content)
    (folder / "ppo_trainer.yaml").write_text(
        text.replace("slip_cost: false", "slip_cost: false # costs a point")
    )
    path = tmp_path / "run.sh"
    path.write_text(
        "python3 -m verl.trainer.main_ppo data.train_files=/d/a.parquet data.val_files=/d/b.parquet \\\n"
        f"  {ACTOR}.slip_cost=True env.seed=3\n"
    )
    return path


def run(*words: object) -> tuple[int, str, str]:
    """(exit code, stdout, stderr) as the entry point has them."""
    result = CliRunner().invoke(cli, [str(word) for word in words], standalone_mode=False)
    if isinstance(result.exception, UserError):
        return 2, result.stdout, f"{result.stderr}{result.exception}"
    assert result.exception is None, result.exception
    return result.return_value or 0, result.stdout, result.stderr


def audited(script: Path, *words: object) -> dict:
    code, out, err = run("audit", script, "--cwd", script.parent, "--format", "json", *words)
    assert code in (0, 1), err  # 1: a launch cannot be translated
    return json.loads(out)["launches"][0]


def test_a_fork_key_is_a_class_of_its_own_with_its_place_and_comment(script: Path) -> None:
    found = {f["key"]: f for f in audited(script)["findings"] if f["status"] == "fork_key"}
    assert list(found) == [f"{ACTOR}.slip_cost", "env.seed", "env.turns"]
    assert found[f"{ACTOR}.slip_cost"]["code"] == "TC090"
    assert "verl/trainer/config/ppo_trainer.yaml:" in found[f"{ACTOR}.slip_cost"]["reason"]
    assert "“costs a point”" in found[f"{ACTOR}.slip_cost"]["reason"]
    assert found["env.turns"]["source"] == "default of the fork in verl/trainer/config"


def test_the_audit_says_how_far_the_fork_is_from_veRL(script: Path) -> None:
    launch = audited(script)
    assert launch["fork"]["nearest"] == launch["verl_version"]["value"] == "0.4.1"
    own = {f"{ACTOR}.slip_cost", "env.seed", "env.turns", "env.hook", "env.path"}
    assert set(launch["fork"]["fork_keys"]) == own
    assert launch["fork"]["changed"] == {f"{ACTOR}.entropy_coeff": [0.01, 0], f"{ACTOR}.ppo_epochs": [2, 1]}
    warning = next(w for w in launch["warnings"] if w["code"] == "TW019")
    assert "ppo_epochs=2 (not 1)" in warning["message"] and "0.4.1, the nearest release" in warning["message"]


def test_neither_the_audit_nor_the_translation_speaks_of_hydra_or_plus(script: Path) -> None:
    for verb in ("audit", "translate"):
        code, out, err = run(verb, script, "--cwd", script.parent)
        assert code == 0 and "Hydra would refuse" not in out + err and "+env" not in out + err


def test_fork_keys_are_told_apart_though_the_launch_cannot_be_translated(script: Path) -> None:
    sizes = "data.train_batch_size=7 actor_rollout_ref.actor.ppo_mini_batch_size=3 env.seed=3"
    script.write_text(script.read_text().replace("env.seed=3", sizes))
    launch = audited(script)
    found = {f["key"]: (f["status"], f["source"]) for f in launch["findings"]}
    assert launch["refused"] and found["env.seed"] == ("fork_key", f"{script}:2")
    assert found["data.train_batch_size"][0] == "unsupported"
    assert [warning["code"] for warning in launch["warnings"]] == ["TW019"]


def test_a_fork_stays_one_however_many_arguments_are_left_out(script: Path) -> None:
    bad = "data.max_prompt_length=long data.max_response_length=longer trainer.total_epochs=many env.seed=3"
    script.write_text(script.read_text().replace("env.seed=3", bad))
    launch = audited(script)
    found = {f["key"]: f["status"] for f in launch["findings"]}
    assert launch["refused"] and found[f"{ACTOR}.slip_cost"] == found["env.seed"] == "fork_key"
    assert "TW019" in [warning["code"] for warning in launch["warnings"]]


def test_the_upgrade_starts_from_the_fork_s_values(script: Path) -> None:
    launch = read_script(script, cwd=script.parent).launches[0]
    config = upgrade(effective_config(launch)).config
    assert config.get(f"{ACTOR}.entropy_coeff") == 0.01
    _, out, _ = run("translate", script, "--cwd", script.parent)
    assert "entropy_coef: 0.01" in out and "turns:" not in out


@pytest.mark.parametrize("option", [["--no-fork-config"], ["--verl-version", "0.4.1"]])
def test_a_release_that_is_asked_for_is_composed_instead(script: Path, option: list[str]) -> None:
    launch = audited(script, *option)
    assert "fork" not in launch and launch["counts"].get("fork_key") is None
    assert "slip_cost" in launch["refused"]
    assert run("translate", script, "--cwd", script.parent, *option)[0] == 2


def test_a_rule_of_the_user_s_speaks_for_a_fork_key(script: Path, tmp_path: Path) -> None:
    rules = tmp_path / "rules.yaml"
    rules.write_text(
        f"{ACTOR}.slip_cost: {{how: drop, why: ours only}}\n"
        "env.*: {how: drop, why: ours only}\nenv.turns: {how: copy, to: buffer.total_epochs}\n"
    )
    launch = audited(script, "--rules", rules)
    assert "fork_key" not in launch["counts"]
    found = {f["key"]: (f["status"], f["target_value"]) for f in launch["findings"]}
    assert found["env.turns"] == ("mapped", 9) and found["env.seed"] == ("no_effect", None)


def test_the_fork_s_own_defaults_are_named_as_such_in_the_yaml(script: Path) -> None:
    _, out, _ = run("translate", script, "--cwd", script.parent)
    line = next(line for line in out.splitlines() if "entropy_coef:" in line)
    assert "default of the fork in verl/trainer/config" in line
    assert "n_gpus_per_node=8 (default of verl 0.4.1)" in out


def test_a_fork_key_set_to_null_switches_nothing_on(script: Path) -> None:
    script.write_text(script.read_text().replace("env.seed=3", "env.seed=null env.turns=null"))
    found = {f["key"]: (f["status"], f["code"]) for f in audited(script)["findings"]}
    assert found["env.seed"] == found["env.turns"] == ("no_effect", "TC090")


def test_a_fork_key_that_nothing_could_take_is_not_handed_to_veRL(script: Path) -> None:
    """veRL 0.9.1 makes a dataclass of the actor's section, which refuses a key that it doesn't have."""
    _, out, _ = run("translate", script, "--cwd", script.parent)
    assert "env.seed: 3" in out and "slip_cost" not in out


@pytest.fixture
def method(tmp_path: Path) -> Path:
    """A script in a copy of 0.4.1 with the release's own configuration, whose trainer reads keys that the
    script adds."""
    stock = release_tree("0.4.1").find("ppo_trainer")
    content = {"defaults": list(stock.defaults), **stock.config} if stock.defaults else dict(stock.config)
    folder = tmp_path / "verl" / "trainer" / "config"
    folder.mkdir(parents=True)
    (folder / "ppo_trainer.yaml").write_text(yaml.safe_dump(json.loads(json.dumps(content))))
    (tmp_path / "verl" / "trainer" / "ray_trainer.py").write_text(
        "if self.config.data.dynamic_filtering:\n    pass\n"
        "mode = self.config.data.get('flavor')\nother.spice\n"
    )
    path = tmp_path / "run.sh"
    path.write_text(
        "python3 -m verl.trainer.main_ppo data.train_files=/d/a.parquet data.val_files=/d/b.parquet \\\n"
        "  actor_rollout_ref.rollout.name=vllm actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4 \\\n"
        "  +data.dynamic_filtering=True +data.flavor=sweet +data.spice=hot +data.never_read_anywhere=1\n"
    )
    return path


def test_a_key_that_only_the_forks_code_reads_is_a_fork_key(method: Path) -> None:
    statuses = {f["key"]: (f["status"], f["reason"]) for f in audited(method)["findings"]}
    status, reason = statuses["data.dynamic_filtering"]
    assert status == "fork_key"
    assert "found at verl/trainer/ray_trainer.py:1 (“if self.config.data.dynamic_filtering:”)" in reason
    assert statuses["data.flavor"][0] == "fork_key"
    # A short name is read only where its section is named too.
    assert statuses["data.spice"][0] == statuses["data.never_read_anywhere"][0] == "unknown"


def test_run_asks_about_a_key_that_only_the_forks_code_reads(method: Path) -> None:
    code, _, err = run("run", method, "--dry-run")
    assert code == 2 and "data.dynamic_filtering=True: only the fork knows it" in err


def with_default(method: Path, key: str, default: object) -> Path:
    """The script of ``method``, whose copy of veRL has that default."""
    file = method.parent / "verl" / "trainer" / "config" / "ppo_trainer.yaml"
    content = yaml.safe_load(file.read_text())
    put(content, key, default)
    file.write_text(yaml.safe_dump(content))
    method.write_text(method.read_text().split("+data")[0].rstrip(" \\\n") + "\n")
    return method


KINDS = [
    (f"{ACTOR}.policy_loss", "vanilla", "a text where veRL 0.9.1 has a section"),
    ("actor_rollout_ref.rollout.n", "many", "a text where veRL 0.9.1 has a number"),
    ("trainer.save_freq", [10], "a list where veRL 0.9.1 has a number"),
    (f"{ACTOR}.use_kl_loss", "maybe", "a text where veRL 0.9.1 has true or false"),
    ("algorithm.adv_estimator.name", "gae", "a section where veRL 0.9.1 has a text"),
    ("actor_rollout_ref.rollout.engine_kwargs", "vllm", "a text where veRL 0.9.1 has a section"),
]


@pytest.mark.parametrize(("key", "default", "kinds"), KINDS, ids=[key for key, *_ in KINDS])
def test_a_fork_s_default_of_another_kind_is_asked_about_by_its_name(method, key, default, kinds) -> None:
    script = with_default(method, key, default)
    found = {f["key"]: f for f in audited(script)["findings"]}[key]
    assert (found["status"], found["code"]) == ("fork_key", "TC090")
    assert (
        f"the fork's default is {kinds}, defined at verl/trainer/config/ppo_trainer.yaml:" in found["reason"]
    )
    code, _, err = run("run", script, "--dry-run", "--device", "cuda")
    assert code == 2 and f"{key}={json.dumps(default) if default == [10] else default}: the fork's" in err
    launch = read_script(script, cwd=script.parent).launches[0]
    told = upgrade(effective_config(launch)).config.settings
    own = upgrade(effective_config(launch, version="0.4.1")).config.settings
    assert {k: s.value for k, s in told.items()} == {k: s.value for k, s in own.items()}


def test_a_null_where_veRL_has_a_section_says_nothing(method: Path) -> None:
    script = with_default(method, f"{ACTOR}.policy_loss", None)
    assert not [f for f in audited(script)["findings"] if f["status"] == "fork_key"]
    launch = read_script(script, cwd=script.parent).launches[0]
    assert upgrade(effective_config(launch)).config.get(f"{ACTOR}.policy_loss.loss_mode") == "vanilla"


def test_a_value_of_the_launch_stands_in_the_place_of_such_a_default(method: Path) -> None:
    script = with_default(method, "actor_rollout_ref.rollout.n", "many")
    script.write_text(script.read_text().rstrip() + " actor_rollout_ref.rollout.n=4\n")
    found = {f["key"]: f["status"] for f in audited(script)["findings"]}
    assert found["actor_rollout_ref.rollout.n"] == "mapped"


def test_a_rule_of_the_user_s_speaks_for_a_default_with_default(method: Path, tmp_path: Path) -> None:
    script = with_default(method, f"{ACTOR}.policy_loss", "vanilla")
    rules = tmp_path / "rules.yaml"
    rules.write_text(f"{ACTOR}.policy_loss: {{how: drop, why: the same loss}}\n")
    launch = audited(script, "--rules", rules)
    assert "fork_key" not in launch["counts"]


@pytest.mark.parametrize(
    ("defaults", "asked"),
    [
        ({"trainer.profile_continuous_steps": False}, []),
        ({"trainer.profile_continuous_steps": True}, ["trainer.profile_continuous_steps"]),
        ({f"{ACTOR}.tis_imp_ratio_cap": 2.0}, []),  # carried
        ({"distillation": {"enabled": False, "teacher_model": {"inference": {"temperature": 1.6}}}}, []),
        ({"c2c": {"enable": False, "path": "org/m", "loss": {"coef": 0.5}}}, []),
        ({"c2c": {"enable": True, "path": "org/m"}}, ["c2c.enable", "c2c.path"]),
        ({f"{ACTOR}.kd": {"enabled": False, "top": {"k": 4}}}, []),
        ({f"{ACTOR}.kd": {"use": False, "k": 4}}, [f"{ACTOR}.kd.k", f"{ACTOR}.kd.use"]),
        ({"data.shuffle_train_dataloader": False}, ["data.shuffle_train_dataloader"]),
    ],
)
def test_what_veRL_had_between_two_releases_and_is_off_is_not_asked_about(method, defaults, asked) -> None:
    for key, default in defaults.items():
        script = with_default(method, key, default)
    found = [f["key"] for f in audited(script)["findings"] if f["status"] == "fork_key"]
    assert sorted(found) == asked


def test_what_the_launch_switches_on_or_sets_itself_is_asked_about(method: Path) -> None:
    script = with_default(method, "c2c", {"enable": False, "path": "org/m", "coef": 0.5})
    text = script.read_text().rstrip()
    for words, asked in (
        (" c2c.coef=1", ["c2c.coef"]),
        (" c2c.enable=True", ["c2c.coef", "c2c.enable", "c2c.path"]),
    ):
        script.write_text(f"{text}{words}\n")
        found = [f["key"] for f in audited(script)["findings"] if f["status"] == "fork_key"]
        assert sorted(found) == asked


TEACHER = {
    "n_gpus_per_node": 8,
    "nnodes": 0,
    "model_path": None,
    "_target_": "verl.workers.config.DistillationTeacherModelConfig",
    "inference": {"tensor_model_parallel_size": 2, "gpu_memory_utilization": 0.5},
}


def test_the_one_teacher_between_two_releases_is_carried_to_its_place(method: Path) -> None:
    one = {"enabled": False, "num_workers": 8, "teacher_model": TEACHER}
    script = with_default(method, "distillation", one)
    given = (
        "enabled=True teacher_model.nnodes=1 teacher_model.n_gpus_per_node=4 teacher_model.model_path=org/t"
    )
    words = " ".join(f"distillation.{word}" for word in given.split())
    words += " distillation.teacher_model.inference.tensor_model_parallel_size=1"
    script.write_text(f"{script.read_text().rstrip()} {words}\n")
    launch = read_script(script, cwd=script.parent).launches[0]
    config = upgrade(effective_config(launch)).config
    teacher = "distillation.teacher_models.teacher_model"
    assert [config.get(f"distillation.{name}") for name in ("nnodes", "n_gpus_per_node")] == [1, 4]
    assert config.get(f"{teacher}.model_path") == "org/t"
    assert config.get(f"{teacher}.inference.tensor_model_parallel_size") == 1
    assert config.get(f"{teacher}.inference.gpu_memory_utilization") == 0.5
    assert not [f for f in audited(script)["findings"] if f["status"] == "fork_key"]


IS = "algorithm.rollout_correction.rollout_is"
OLD_IS = "algorithm.rollout_is"
CAP = "actor_rollout_ref.actor.tis_imp_ratio_cap"


@pytest.mark.parametrize(
    ("words", "level", "threshold"),
    [
        (["algorithm.rollout_is=True", "algorithm.rollout_is_threshold=3.0"], "token", 3.0),
        (
            [f"+algorithm.rollout_is{rest}" for rest in ("=True", "_threshold=3.0", "_level=sequence")],
            "sequence",
            3.0,
        ),
        (["algorithm.rollout_is=False", "algorithm.rollout_is_threshold=3.0"], None, 3.0),  # metrics alone
        (["algorithm.rollout_is=True"], None, 2.0),  # without a threshold 0.6.0 computed none
        (["algorithm.rollout_is=True", f"{OLD_IS}_threshold=3.0", f"{OLD_IS}_mode=mask"], None, 3.0),
        ([f"{CAP}=2"], "token", 2),
        ([f"+{CAP}=-1"], None, 2.0),
    ],
)
def test_weights_that_older_revisions_had_under_other_keys_are_carried(words, level, threshold):
    config = effective_config(apply_rules(launch_of([*BASICS, *words]), None))
    assert not [note for note in config.diagnostics if note.severity == "error"]
    found = upgrade(config).config
    assert (found.get(IS), found.get(f"{IS}_threshold")) == (level, threshold)


@pytest.mark.parametrize(
    ("word", "lost"),
    [
        ("algorithm.rollout_is_mode=mask", True),
        ("algorithm.rollout_is_mode=truncate", False),
        ("algorithm.rollout_is_level=geometric", True),
        ("algorithm.rollout_is_level=token", False),
        ("algorithm.rollout_is_veto_threshold=1e-4", True),
        ("algorithm.rollout_is_veto_threshold=null", False),
        ("distillation.teacher_model.enable_resource_pool=False", True),
        ("distillation.teacher_model.enable_resource_pool=True", False),
    ],
)
def test_a_dropped_key_that_did_something_is_lost(word, lost):
    key = word.partition("=")[0]
    translation, _ = translate_launch(launch_of([*BASICS, word]), TranslateOptions())
    (finding,) = (each for each in translation.findings if each.key == key)
    assert finding.status == ("unsupported" if lost else "no_effect")


OF_FORKS = [
    ({"mode": "mask"}, {"mode"}),
    ({"level": "geometric", "veto_threshold": 1e-4}, {"level", "veto_threshold"}),
    ({"mode": "truncate", "level": "sequence", "veto_threshold": None}, set()),
    ({"mode": "mask", "threshold": None}, set()),
    ({"mode": "mask", "": False}, set()),
]


@pytest.mark.parametrize(("defaults", "lost"), OF_FORKS)
def test_a_fork_s_default_that_did_something_is_lost_and_said(
    method: Path, defaults: dict, lost: set
) -> None:
    for name, value in {"": True, "threshold": 3.0, **defaults}.items():
        with_default(method, f"{OLD_IS}_{name}".rstrip("_"), value)
    found = [f for f in audited(method)["findings"] if f["status"] == "unsupported"]
    assert {f["key"] for f in found if f["key"].startswith(OLD_IS)} == {f"{OLD_IS}_{name}" for name in lost}
