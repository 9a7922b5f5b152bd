"""A script or a YAML as the beginner's form: its fields, what is kept beside them, what is named as lost."""

import pytest
from published_forms import FORMS

from trinity_compat.common.errors import RunError, UserError
from trinity_compat.common.nested import value_at
from trinity_compat.translate.form import FIELDS, defaults, made_from
from trinity_compat.translate.form.answers import form_of_text, loaded
from trinity_compat.translate.form.inverse import form_of

ARR = "actor_rollout_ref"
LAUNCH = """python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo data.train_files=$HOME/t.parquet
 data.val_files=/d/v.parquet actor_rollout_ref.rollout.n=4 actor_rollout_ref.model.path=m
 actor_rollout_ref.actor.use_dynamic_bsz=True trainer.n_gpus_per_node=8""".replace("\n", " ")


def form(text):
    return form_of(loaded(text).config)


def further(found):
    return found.texts["settings"].splitlines()


CHANGES = [
    {},
    {"algorithm": "gae", "group_size": "1"},
    {"reward": "function", "reward_source": "/r/my.py:score"},
    {"reward": "model", "reward_source": "$HOME/rm"},
    {"kl": "reward", "kl_coef": "0.01"},
    {"kl": "none", "tokens_per_gpu": "", "micro_batch": "4"},
    {"gpus": "16", "tensor_parallel": "2", "engine_memory": "0.75"},
    {"gpus": "3", "batch_size": "240", "save_every": "0", "test_every": "7", "test_first": ""},
    {"train_files": "/a b.parquet\n$HOME/${NAME}x/b.parquet", "model": "${BASE}_m", "logger": "none"},
    {"mini_batch": "64", "learning_rate": "0.003", "offload_reference": "on"},
    {"settings": "actor_rollout_ref.actor.entropy_coeff=0.01"},
    {"workflow": "tool_agent", "tools": "/t/tools.yaml"},
]
SIDES = [
    {"sharing": "split", "rollout_gpus": "4", "sync_offset": "1"},
    {
        "sharing": "split",
        "rollout_gpus": "2",
        "tensor_parallel": "2",
        "gpus": "4",
        "mini_batch": "64",
        "sync_offset": "2",
    },
    {
        "sharing": "split",
        "rollout_gpus": "4",
        "sync_style": "fully_async",
        "max_staleness": "2",
        "mini_batch": "64",
    },
    {"sync_style": "fully_async", "max_staleness": "0", "sync_method": "checkpoint"},
    {"sharing": "split", "rollout_gpus": "4", "sync_interval": "3", "sync_method": "memory"},
]


@pytest.mark.parametrize("changes", SIDES)
def test_how_both_sides_share_is_read_from_the_yaml(changes):
    texts = {**defaults(), **changes}
    made = made_from(texts)
    assert made.works, made.remarks
    found = form(made.yaml)
    assert found.texts == texts and found.lost == ()


@pytest.mark.parametrize("changes", [*CHANGES, *FORMS.values()])
@pytest.mark.parametrize("kind", ["script", "yaml"])
def test_the_files_of_a_form_give_the_form_again(kind, changes):
    texts = {**defaults(), **changes}
    made = made_from(texts)
    assert made.works, made.remarks
    found = form(getattr(made, kind))
    again = {**found.texts, "settings": texts["settings"]}
    assert again == texts | {
        "mini_batch": "" if texts["mini_batch"] == texts["batch_size"] else texts["mini_batch"]
    }
    assert found.lost == () and made_from(found.texts).config == made.config
    # A key that follows another one may be said as well.
    assert set(further(found)) >= set(texts["settings"].splitlines())
    assert bool(further(found)) == bool(texts["settings"])


def test_a_setting_without_a_field_is_kept_and_its_effect_too():
    given = f"{LAUNCH} {ARR}.actor.entropy_coeff=0.5 +data.foo=[1,two] algorithm.adv_estimator=grpo_passk"
    found = form(given)
    assert {
        f"{ARR}.actor.entropy_coeff=0.5",
        "+data.foo=[1,two]",
        "algorithm.adv_estimator=grpo_passk",
    } <= set(further(found))
    assert found.lost == () and found.texts["algorithm"] == FIELDS["algorithm"].default
    made = made_from(found.texts)
    config = loaded(given).config
    for path in ("algorithm.repeat_times", "algorithm.entropy_loss_fn_args.entropy_coef"):
        assert value_at(made.config, path) == value_at(config, path) is not None


def test_verl_s_defaults_of_what_a_script_leaves_out_are_the_form_s():
    found = form(LAUNCH)
    assert (found.texts["epochs"], found.texts["answer_length"], found.texts["batch_size"]) == (
        "30",
        "512",
        "1024",
    )
    assert found.texts["kl"] == "none" and found.texts["save_every"] == "0"
    # A field has its own default where the form sets a key that the script leaves alone.
    assert further(found) == ["data.filter_overlong_prompts=False"]


def test_a_value_that_no_field_and_no_setting_holds_is_named():
    found = form(f"{LAUNCH} data.val_files=${{D:-/d}}/v.parquet")
    path = "buffer.explorer_input.eval_tasksets[0].path"
    assert found.lost == ((path, "${oc.env:D,/d}/v.parquet", "/d/v.parquet"),)
    assert found.texts["val_files"] == "/d/v.parquet"


def test_what_only_trinity_has_is_named():
    text = made_from({}).yaml
    for before, after in (("sync_offset: 0", "sync_offset: 1"), ("mode: both", "mode: train")):
        assert before in text
        path = "synchronizer.sync_offset" if "sync" in before else "mode"
        assert [each[0] for each in form(text.replace(before, after)).lost] == [path]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("model: {model_path: m}\nbuffer: {batch_size: 3}\n", "translate did not write it"),
        ("echo", "neither a launch of veRL nor a YAML"),
        (LAUNCH.replace("main_ppo", "sft_trainer"), ""),
        (f"{LAUNCH} data.train_batch_size=0.5", "train_batch_size"),
        (f"{LAUNCH} data.train_batch_size=$(nproc)", "depends on $(nproc), which is known only at run time"),
    ],
)
def test_a_text_without_a_form_says_why(text, said):
    with pytest.raises((UserError, RunError)) as found:
        form_of_text(text)
    assert said in str(found.value)


def test_an_answer_is_text():
    answer = form_of_text(f"export RUN=1\n{LAUNCH}")
    assert answer["lost"] == [["explorer.env_vars", "{'RUN': '1'}", None]]
    assert all(isinstance(text, str) for text in answer["texts"].values())
