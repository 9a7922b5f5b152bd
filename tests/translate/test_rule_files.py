"""``--rules``: mains, renamed keys and sections, families of forks, and what they change beyond findings."""

import pytest
from click.testing import CliRunner

from trinity_compat.cli import cli
from trinity_compat.common.errors import UserError
from trinity_compat.launch import read_text
from trinity_compat.translate import TranslateOptions, translate_launch
from trinity_compat.translate.rows import rules_of
from trinity_compat.translate.user_rules import families
from trinity_compat.translate.verl_from_trinity import to_verl

from .helpers import BASICS, MAIN, launch_of

FAMILIES = {
    "verl-agent": {
        "env.rollout.n=8": ("actor_rollout_ref.rollout.n", "mapped"),
        "env.env_name=toy/Maze": ("env.env_name", "unsupported"),
        "+algorithm.gigpo.mode=mean": ("algorithm.gigpo.mode", "unsupported"),
        "actor_rollout_ref.actor.use_invalid_action_penalty=False": (
            "actor_rollout_ref.actor.use_invalid_action_penalty",
            "no_effect",
        ),
        "ray_init.include_dashboard=False": ("ray_init.include_dashboard", "no_effect"),
    },
    "search-r1": {
        "actor_rollout_ref.rollout.n_agent=5": ("actor_rollout_ref.rollout.n", "mapped"),
        "data.shuffle_train_dataloader=False": ("data.shuffle", "mapped"),
        "max_turns=3": ("max_turns", "unsupported"),
        "retriever.topk=3": ("retriever.topk", "unsupported"),
        "algorithm.no_think_rl=false": ("algorithm.no_think_rl", "no_effect"),
    },
    "skywork-or1": {
        "actor_rollout_ref.rollout.n_val=4": ("actor_rollout_ref.rollout.val_kwargs.n", "mapped"),
        "trainer.rejection_sample=True": ("trainer.rejection_sample", "unsupported"),
        "+trainer.stats_path=/tmp/x": ("trainer.stats_path", "no_effect"),
        "actor_rollout_ref.actor.adaptive_entropy.enabled=True": (
            "actor_rollout_ref.actor.adaptive_entropy.enabled",
            "unsupported",
        ),
    },
}


def translated(*arguments, rules, module=MAIN):
    return translate_launch(launch_of([*BASICS, *arguments], module), TranslateOptions(rules=str(rules)))[0]


def written(tmp_path, text):
    (tmp_path / "my.yaml").write_text(text)
    return tmp_path / "my.yaml"


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_a_family_speaks_for_the_keys_of_its_forks(family):
    expected = FAMILIES[family]
    translation = translated(*expected, rules=family)
    found = {finding.key: finding.status.value for finding in translation.findings}
    assert {key: found[key] for key, _ in expected.values()} == dict(expected.values())


def test_every_family_is_tested_and_can_be_read():
    assert sorted(families()) == sorted(FAMILIES)
    assert all(rules_of(name).rows for name in families())


def test_without_a_rule_hydra_refuses_the_key():
    with pytest.raises(UserError, match=r"Hydra would refuse env\.rollout\.n"):
        translate_launch(launch_of([*BASICS, "env.rollout.n=8"]), TranslateOptions())


def test_a_renamed_key_and_section_count_as_verl_s(tmp_path):
    rules = written(
        tmp_path, "trainer.epochs: {as: trainer.total_epochs}\nsections: {policy: actor_rollout_ref}\n"
    )
    config = translated("trainer.epochs=7", "policy.rollout.n=3", rules=rules).config
    assert config["buffer"]["total_epochs"] == 7 and config["algorithm"]["repeat_times"] == 3


def test_a_rule_of_one_s_own_goes_before_that_of_a_family(tmp_path):
    rules = written(tmp_path, "include: verl-agent\nenv.env_name: {how: drop, why: ours}\n")
    translation = translated("env.env_name=x", "env.seed=1", rules=rules)
    found = {finding.key: finding.status.value for finding in translation.findings}
    assert found["env.env_name"] == "no_effect" and found["env.seed"] == "unsupported"


def test_a_rule_does_not_hide_a_key_that_it_says_nothing_of(tmp_path):
    rules = written(tmp_path, "a.b: {how: drop}\n")
    with pytest.raises(UserError, match=r"Hydra would refuse a\.c"):
        translated("a.b=1", "a.c=1", rules=rules)


def test_a_rule_drops_a_key_of_verls_whose_value_would_be_refused(tmp_path):
    with pytest.raises(UserError, match=r"data\.truncation=center"):
        translated("data.truncation=center", rules=written(tmp_path, "data.seed: {how: drop, why: other}\n"))
    rules = written(tmp_path, "data.truncation: {how: drop, why: our prompts are short}\n")
    config = translated("data.truncation=center", rules=rules).config
    assert to_verl(config)["data.truncation"] == "error"


def test_the_rules_name_mains(tmp_path):
    rules = written(tmp_path, "mains: {agent/start.py: verl.trainer.main_ppo}\n")
    script = tmp_path / "run.sh"
    words = " ".join(word for word in BASICS if not word.startswith("actor_rollout_ref"))
    script.write_text(f"python3 -m agent.start {words} trainer.total_epochs=3\n")
    runner = CliRunner()
    assert (
        "agent.start, taken for verl.trainer.main_ppo"
        in runner.invoke(cli, ["parse", str(script), "--rules", str(rules)]).output
    )
    done = runner.invoke(cli, ["translate", str(script), "--rules", str(rules)], catch_exceptions=False)
    assert "total_epochs: 3" in done.stdout and "TW020" in done.stderr


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("mains: {a.b: verl.trainer.sft}", "my.yaml:1: mains names verl.trainer.sft, which isn't translated"),
        ("a.b: {how: drop}\nmains: [x]", "my.yaml:2: mains is not a mapping of names to names"),
        ("sections: {a: 3}", "my.yaml:1: sections is not a mapping of names to names"),
        ("include: {a: b}", "my.yaml:1: include is not a list of names"),
        ("include: nosuch", "nosuch: cannot read the rules: No such file"),
        ("include: my.yaml", "my.yaml:1: the rules include each other"),
        ("a.b: {as: c.d, how: drop}", "my.yaml:1: rule for 'a.b' has 'as' and 'how'"),
        ("description: 3", "my.yaml:1: description is not a text"),
    ],
)
def test_a_bad_table_is_named_with_its_line(tmp_path, text, said):
    with pytest.raises(UserError) as error:
        rules_of(str(written(tmp_path, text)))
    assert said in str(error.value)


def test_a_name_that_is_neither_a_file_nor_a_family_lists_the_families():
    with pytest.raises(UserError) as error:
        rules_of("nosuch")
    assert "verl-agent" in str(error.value)


def init(tmp_path, text, *options):
    (tmp_path / "run.sh").write_text(text)
    return (
        CliRunner()
        .invoke(cli, ["rules", "init", str(tmp_path / "run.sh"), *options], catch_exceptions=False)
        .output
    )


SCRIPT = "python3 -m agent.train {} env.rollout.n=8 data.shufle=True trainer.total_epochs=3\n".format(
    " ".join(BASICS)
)


def test_init_writes_every_key_and_main_that_needs_a_decision(tmp_path):
    text = init(tmp_path, SCRIPT)
    assert "# mains: {agent.train: verl.trainer.main_ppo}" in text
    assert "# include: [verl-agent]" in text
    assert f"# {tmp_path}/run.sh:1: env.rollout.n=8" in text and "# env.rollout.n: {how: drop" in text
    assert "# data.shufle: {as: data.shuffle}" in text
    assert "trainer.total_epochs" not in text


def test_what_init_writes_is_a_file_of_rules_that_changes_nothing(tmp_path):
    rules = written(tmp_path, init(tmp_path, SCRIPT))
    said = rules_of(str(rules))
    assert (said.rows, said.renamed, said.mains) == ({}, {}, {})


def test_the_choices_that_init_offers_can_be_uncommented(tmp_path):
    lines = init(tmp_path, SCRIPT).splitlines()
    chosen = [line[2:] for line in lines if line.startswith(("# include:", "# data.shufle: {as"))]
    launch = read_text(SCRIPT).launches[0]
    translation, _ = translate_launch(
        launch, TranslateOptions(rules=str(written(tmp_path, "\n".join(chosen))))
    )
    assert translation.config["algorithm"]["repeat_times"] == 8


def test_init_lists_a_section_that_hydra_refuses_though_its_keys_have_a_place(tmp_path):
    key = "reward_model.reward_kwargs"
    words = " ".join([*BASICS, f"{key}='{{n_votes: 64}}'", "trainer.use_v1=False"])  # a key of 0.9 alone
    text = init(tmp_path, f"python3 -m {MAIN} {words}\n")
    assert f"run.sh:1: {key}={{'n_votes': 64}}" in text
    (rule,) = (line[2:] for line in text.splitlines() if line.startswith(f"# {key}: "))
    launch = read_text((tmp_path / "run.sh").read_text()).launches[0]
    with pytest.raises(UserError, match=f"Hydra would refuse {key}"):
        translate_launch(launch, TranslateOptions())
    made, _ = translate_launch(launch, TranslateOptions(rules=str(written(tmp_path, rule))))
    assert to_verl(made.config)["reward.reward_kwargs.n_votes"] == 64


def test_init_of_a_launch_without_such_keys_says_so(tmp_path):
    assert "has its place already" in init(tmp_path, f"python3 -m {MAIN} {' '.join(BASICS)}\n")


def test_the_metrics_of_rules_are_pairs_of_compare(tmp_path):
    for name, metric in (("a", "critic/rewards/mean"), ("b", "env/success")):
        rows = "".join(f"{step},{step / 10}\n" for step in range(1, 6))
        (tmp_path / f"{name}.csv").write_text(f"step,{metric}\n{rows}")
    sides = [str(tmp_path / "a.csv"), str(tmp_path / "b.csv"), "--format", "json"]
    rules = written(tmp_path, "metrics: {env/success: critic/rewards/mean}\n")
    with pytest.raises(UserError, match="no metric in common"):
        CliRunner().invoke(cli, ["compare", *sides], catch_exceptions=False)
    done = CliRunner().invoke(cli, ["compare", *sides, "--rules", str(rules)], catch_exceptions=False)
    assert "critic/rewards/mean" in done.output


def test_a_key_that_verl_s_own_class_rejects_is_not_said_to_be_kept(tmp_path):
    """The run's configuration is built from veRL's dataclasses: one more field would end the start."""
    key = "actor_rollout_ref.rollout.min_p"
    rules = written(tmp_path, f"{key}: {{how: keep, why: mine}}\n")
    launch = launch_of([*BASICS, f"+{key}=0.1"], MAIN)
    translation, text = translate_launch(launch, TranslateOptions(rules=str(rules)))
    (finding,) = [found for found in translation.findings if found.key == key]
    assert (finding.status.value, finding.code) == ("unsupported", "TC002")
    assert "which has no such field" in finding.reason and "min_p" not in text
