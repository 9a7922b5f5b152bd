"""The rows themselves: complete, pointing at fields that exist, explained."""

import pytest

from trinity_compat.common.errors import UserError
from trinity_compat.translate.explain import all_keys, codes, derived, explain
from trinity_compat.translate.rows import load_rows
from trinity_compat.translate.sections import DERIVATIONS
from trinity_compat.trinity.config import schema

from .helpers import flat, translated

ROWS = load_rows()


def test_every_key_of_every_release_has_a_row():
    assert [key for key in all_keys() if ROWS.find(key) is None] == []
    assert len(all_keys()) > 1200


@pytest.mark.parametrize("row", ROWS.all(), ids=lambda row: row.key)
def test_a_mapping_row_is_complete(row):
    assert row.why and row.code in codes()
    assert row.how != "derive" or row.by in DERIVATIONS
    assert row.how not in ("copy", "scale") or row.to
    for target in ("0.6.0", "0.4.1"):
        known = [schema(target).find(path) is not None for path in row.paths(target)]
        assert all(known) or target == "0.4.1"


def test_exact_name_wins_over_rule_and_longer_rule_over_shorter():
    assert ROWS.find("critic.optim.lr_warmup_steps").how == "derive"
    assert ROWS.find("critic.optim.lr").key == "critic.optim.*"
    assert ROWS.find("critic.cliprange_value").key == "critic.*"
    assert ROWS.find("actor_rollout_ref.actor.optim._target_").how == "drop"


def test_user_rules_lie_over_the_shipped_ones(tmp_path):
    rules = tmp_path / "my.yaml"
    rules.write_text("trainer.my_flag: {how: copy, to: trainer.enable_preview, why: our fork}\n")
    row = load_rows(str(rules)).find("trainer.my_flag")
    assert (row.how, row.to, row.code) == ("copy", ("trainer.enable_preview",), "TC002")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a.b: {how: guess}", "my.yaml:1: rule for 'a.b' lacks a valid 'how'"),
        ("# mine\n\na.b:\n  how: copy", "my.yaml:3: rule for 'a.b' lacks its target 'to'"),
        ("- x", "my.yaml: rules are a mapping"),
        ("", "my.yaml: rules are a mapping"),
        ("a.b: ]\n", "my.yaml: cannot read the rules: line 1"),
        ("a.b: 3", "is not a row"),
        ("a.b: {how: derive, by: nope}", "no derivation 'nope'"),
        ("a.b: {how: [copy]}", "has how: ['copy']"),
        ("a.b: {how: drop, status: fine}", "has status: 'fine'"),
        ("a.b: {how: drop, whi: x}", "has a field 'whi' that no row has"),
        ("a.b: {how: copy, to: 3}", "has to: 3"),
        ("a.b: {how: copy, to: buffer.nosuch}", "no trinity-rft has: buffer.nosuch"),
        ("a.b: {how: pass, targets: 3}", "has targets: 3"),
        ("a.b: {how: drop, free: 1}", "free is true or false"),
    ],
)
def test_a_bad_rule_is_named_with_its_line(tmp_path, text, said):
    rules = tmp_path / "my.yaml"
    rules.write_text(text)
    with pytest.raises(UserError) as error:
        load_rows(str(rules))
    assert said in str(error.value)


def test_rules_that_are_no_text_are_named(tmp_path):
    (tmp_path / "my.yaml").write_bytes(b"a\xff: 1")
    with pytest.raises(UserError, match=r"my\.yaml: cannot read the rules"):
        load_rows(str(tmp_path / "my.yaml"))


def test_a_rule_s_own_code_is_explained_as_such(tmp_path):
    (tmp_path / "my.yaml").write_text("trainer.my_flag: {how: drop, code: OUR01, why: our fork}")
    assert "OUR01" in explain("trainer.my_flag", load_rows(str(tmp_path / "my.yaml")))


def test_explain_a_key_a_path_a_code_and_an_old_name():
    assert "synchronizer.sync_interval" in explain("data.train_batch_size", ROWS)
    assert "data.train_batch_size" in explain("synchronizer.sync_interval", ROWS)
    assert "learning rate" in explain("TW003", ROWS)
    assert "reward.reward_manager.name" in explain("reward_model.reward_manager", ROWS)
    assert "now actor_rollout_ref.rollout.val_kwargs.n" in explain("actor_rollout_ref.rollout.n_val", ROWS)


def test_a_code_that_does_not_exist_is_not_called_a_key():
    with pytest.raises(UserError, match="there is no code TC999") as error:
        explain("TC999", ROWS)
    assert "veRL key" not in str(error.value)


def test_the_codes_of_reading_are_explained():
    assert "no backslash" in explain("TP004", ROWS)


@pytest.mark.parametrize(
    ("short", "full", "told"),
    [
        ("rollout.n", "actor_rollout_ref.rollout.n", "algorithm.repeat_times"),
        ("actor.optim.lr", "actor_rollout_ref.actor.optim.lr", "algorithm.optimizer.lr"),
        ("model.path", "actor_rollout_ref.model.path", "model.model_path"),
        ("sync_interval", "synchronizer.sync_interval", "data.train_batch_size"),
    ],
)
def test_the_short_names_of_our_comments_are_explained(short, full, told):
    text = explain(short, ROWS)
    assert text.startswith(f"{short} abbreviates {full}\n") and told in text


def test_a_short_name_of_several_paths_names_them():
    with pytest.raises(UserError) as error:
        explain("repeat_times", ROWS)
    assert "algorithm.repeat_times, buffer.explorer_input.eval_tasksets.0.repeat_times" in str(error.value)


def test_a_name_that_shares_no_word_is_not_offered():
    with pytest.raises(UserError) as error:
        explain("xyzlr", ROWS)
    assert error.value.hint is None


@pytest.mark.parametrize(
    ("key", "near"),
    [
        ("actor_rollout_ref.actor.ppo_mini_batchsize", "actor_rollout_ref.actor.ppo_mini_batch_size"),
        ("trainer.totl_epochs", "trainer.total_epochs"),
        ("reward_model.reward_managr", "reward_model.reward_manager"),
    ],
)
def test_a_misspelled_key_is_not_explained_by_its_sections_rule(key, near):
    with pytest.raises(UserError, match=f"no veRL release has such a key; did you mean {near}"):
        explain(key, ROWS)


@pytest.mark.parametrize(
    "key",
    [
        "+ray_kwargs.x",
        "++trainer.my_own=3",
        "actor_rollout_ref.rollout.engine_kwargs.vllm.foo",
        "actor_rollout_ref.actor.optim",
        "trainer.my_section",
    ],
)
def test_a_key_of_ones_own_is_explained_by_its_rule(key, tmp_path):
    (tmp_path / "my.yaml").write_text("trainer.my_section: {how: drop, why: ours, code: OUR01}\n")
    told = explain(key, load_rows(str(tmp_path / "my.yaml")))
    assert "rule:" in told or "OUR01" in told


def test_explain_suggests_the_nearest_key():
    with pytest.raises(UserError) as error:
        explain("dta.train_batch_sise", ROWS)
    assert "data.train_batch_size" in str(error.value)


@pytest.mark.parametrize("target", ["0.6.0", "0.4.1"])
@pytest.mark.parametrize(
    "given",
    [
        [],
        ["actor_rollout_ref.model.lora_rank=8"],
        ["reward_model.enable=True"],
        ["actor_rollout_ref.actor.strategy=megatron", "algorithm.use_kl_in_reward=True"],
    ],
)
def test_every_path_that_a_translation_writes_is_explained(given, target):
    _, config = translated(*given, target=target)
    paths = [path for path in flat(config) if ".trinity_compat." not in path]
    assert [path for path in paths if "why:" not in explain(path, ROWS)] == []
    assert len(paths) > 40


def test_the_paths_that_no_key_stands_for_exist():
    assert [path for path in derived() if schema("0.6.0").find(path) is None] == []
    assert {entry["by"] for entry in derived().values()} <= set(DERIVATIONS)


def test_rules_that_are_aliases_to_aliases_are_refused(tmp_path):
    lines = ["a0: &a0 [0, 0, 0, 0, 0, 0, 0, 0, 0]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 10)]
    (tmp_path / "bomb.yaml").write_text("\n".join(lines))
    with pytest.raises(UserError, match=r"bomb\.yaml: cannot read the rules: line 6: too large"):
        load_rows(str(tmp_path / "bomb.yaml"))


def test_what_verl_has_dropped_keeps_the_reason_of_its_own_row():
    translation, _ = translated("+actor_rollout_ref.rollout.use_fire_sampling=True")
    found = {finding.key: finding for finding in translation.findings}
    fate = found["actor_rollout_ref.rollout.use_fire_sampling"]
    assert (fate.status.value, fate.code) == ("unsupported", "TC045")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        (
            "algorithm.sample_strategy_args.max_staleness",
            "a field of Trinity-RFT's YAML that no key of veRL's",
        ),
        ("explorer.max_timeout", "default: 1800\n  run:     trinity-compat run reads it"),
        ("explorer.dynamic_timeout.enable", "trinity-compat run takes the default only: a limit that"),
        ("cluster", "a section of Trinity-RFT's YAML\n  fields:  ray_address, node_num"),
        ("tw022", "TW022 GPUs do not divide into engines"),
    ],
)
def test_fields_of_the_yaml_that_verl_lacks_are_explained(name, said):
    assert said in explain(name, ROWS)
