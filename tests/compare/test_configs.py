"""Two launches by their effect: moved keys, flipped defaults, Trinity YAMLs, jobs, releases."""

from __future__ import annotations

import json
import os
import shlex
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner
from facts import public_scripts

from trinity_compat.cli import cli
from trinity_compat.cli.compare import command
from trinity_compat.common.errors import UserError
from trinity_compat.compare.configs import SettingsDifference, compared
from trinity_compat.compare.effective_settings import read_in_effect, read_sides
from trinity_compat.launch import entrypoints, read_argv, read_script
from trinity_compat.translate import TranslateOptions, translate_launch

EVERY = int(os.environ.get("TRINITY_COMPAT_CORPUS_EVERY", "8"))  # 1: all of them
OURS = Path(__file__).parent / "recorded" / "ours"
EXAMPLES = Path(__file__).parents[2] / "examples" / "trinity"

BASE = """python3 -m verl.trainer.main_ppo \\
    algorithm.adv_estimator=grpo \\
    data.train_files=/d/train.parquet \\
    data.val_files=/d/test.parquet \\
    data.train_batch_size=64 \\
    data.max_prompt_length=512 \\
    data.max_response_length=256 \\
    actor_rollout_ref.model.path=/m \\
    actor_rollout_ref.actor.ppo_mini_batch_size=16 \\
    actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4 \\
    actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=4 \\
    actor_rollout_ref.rollout.name=vllm \\
    actor_rollout_ref.rollout.n=8 \\
    trainer.n_gpus_per_node=8 {more}
"""


def script(tmp_path: Path, name: str, more: str = "") -> str:
    path = tmp_path / name
    path.write_text(BASE.format(more=more))
    return str(path)


def differences(a: str, b: str) -> SettingsDifference:
    return compared(*read_sides([a, b]))


def changed(a: str, b: str) -> dict[str, tuple[object, object]]:
    found = differences(a, b)
    return {row.key: (row.a, row.b) for row in (*found.effective, *found.following)}


def diff(*arguments: str | Path) -> tuple[int, str]:
    """The exit code of the command and its output."""
    result = CliRunner().invoke(cli, ["diff", *map(str, arguments)], standalone_mode=False)
    if isinstance(result.exception, UserError):
        return 2, str(result.exception)
    return result.return_value, result.output


def in_yaml(path: str, **options: object) -> str:
    """The file of the translation of a script."""
    (launch,) = read_script(path).launches
    out = Path(path).with_suffix(".yaml")
    out.write_text(translate_launch(launch, TranslateOptions(resolve=True, **options))[1])
    return str(out)


@pytest.mark.parametrize(
    ("a", "b", "rows"),
    [
        ("${DATA:-$HOME/d}", "/d", [("${oc.env:HOME}/d/t", "/d/t")]),
        ("${DATA:-$HOME/d}", "$HOME/d", []),
        ("${A:-${B:-$HOME/b}/c}", "/b/c", [("${oc.env:HOME}/b/c/t", "/b/c/t")]),
        ("${DATA:-/d}", "/d", []),
    ],
)
def test_a_default_that_holds_an_unset_variable_is_not_a_path_without_it(tmp_path, a, b, rows):
    values = f"trainer.default_local_dir={a}/t", f"trainer.default_local_dir={b}/t"
    sides = [script(tmp_path, f"{number}.sh", value) for number, value in enumerate(values)]
    assert list(changed(*sides).values()) == rows


def test_a_changed_override_is_one_row_with_its_line(tmp_path):
    a = script(tmp_path, "a.sh", "actor_rollout_ref.actor.clip_ratio_high=0.28")
    (row,) = differences(script(tmp_path, "b.sh"), a).effective
    assert (row.key, row.a, row.b) == ("actor_rollout_ref.actor.clip_ratio_high", 0.2, 0.28)
    assert row.b_place.endswith("a.sh:14")


def test_the_same_in_other_words_is_no_difference(tmp_path):
    a = script(tmp_path, "a.sh", "actor_rollout_ref.actor.clip_ratio_high=0.28")
    b = tmp_path / "b.sh"
    b.write_text("HIGH=0.28\n" + BASE.format(more='"actor_rollout_ref.actor.clip_ratio_high=${HIGH}"'))
    assert changed(a, str(b)) == {}


def test_a_key_that_moved_between_releases_is_compared_at_its_new_place(tmp_path):
    old = script(tmp_path, "old.sh", "custom_reward_function.path=/r.py +trainer.ref_log_prob_x=1")
    new = script(tmp_path, "new.sh", "reward.custom_reward_function.path=/r.py")
    assert "reward.custom_reward_function.path" not in changed(old, new)


def test_a_script_equals_its_translation(tmp_path):
    path = script(tmp_path, "a.sh")
    assert changed(path, in_yaml(path)) == {}


def test_the_command_gives_json(tmp_path):
    a, b = script(tmp_path, "a.sh"), script(tmp_path, "b.sh", "algorithm.gamma=0.9")
    result = CliRunner().invoke(command, ["--configs", a, b, "--format", "json"], standalone_mode=False)
    (row,) = json.loads(result.output)["comparisons"][0]["differences"]
    assert (row["key"], row["a"], row["b"]) == ("algorithm.gamma", 1.0, 0.9)


def test_a_script_without_a_launch_is_named(tmp_path):
    path = tmp_path / "x.sh"
    path.write_text("echo hello\n")
    with pytest.raises(UserError, match="no veRL launch"):
        read_in_effect(str(path))


def test_a_launch_that_hydra_refuses_is_no_equal(tmp_path):
    good, bad = script(tmp_path, "a.sh"), script(tmp_path, "b.sh", "trainer.total_epoch=3")
    with pytest.raises(UserError, match=r"b\.sh:14: Hydra would refuse trainer\.total_epoch"):
        changed(good, bad)


def test_an_unset_variable_is_the_same_in_script_and_translation(tmp_path):
    path = Path(
        script(tmp_path, "a.sh", "trainer.experiment_name=${RUN:-one} data.custom_cls.path=$HERE/d.py")
    )
    (launch,) = read_script(path).launches
    (tmp_path / "a.yaml").write_text(translate_launch(launch, TranslateOptions())[1])
    assert changed(str(path), str(tmp_path / "a.yaml")) == {}
    assert read_in_effect(str(path)).values["data.custom_cls.path"] == "${oc.env:HERE}/d.py"


def test_a_guess_at_a_value_is_shown_as_what_it_depends_on(tmp_path):
    script = "N=0\nfor g in $(nvidia-smi -L); do N=$((N + 1)); done\n"
    main = (
        "python3 -m verl.trainer.main_ppo data.train_files=/a data.val_files=/b trainer.experiment_name=x$N"
    )
    (tmp_path / "run.sh").write_text(f"{script}{main} trainer.n_gpus_per_node=$(nvidia-smi -L | wc -l)\n")
    values = read_in_effect(str(tmp_path / "run.sh")).values
    assert values["trainer.experiment_name"] == "x$(nvidia-smi -L)"
    assert values["trainer.n_gpus_per_node"] == "$(nvidia-smi -L | wc -l)"


def test_where_a_value_comes_from(tmp_path):
    path = script(tmp_path, "a.sh")
    Path(path).write_text(BASE.format(more="") * 2)
    found = read_in_effect(path)
    assert found.why.startswith("the first of 2 launches, line 1; veRL ")
    assert found.follows["actor_rollout_ref.actor.rollout_n"].startswith("${")
    (launch, _) = read_script(path).launches
    (tmp_path / "a.yaml").write_text(translate_launch(launch, TranslateOptions(resolve=True))[1])
    assert read_in_effect(str(tmp_path / "a.yaml")).places["data.train_batch_size"].endswith("a.yaml")


@pytest.mark.parametrize("content", [b"{{", b"a: \xff", b"- a"])
def test_a_yaml_that_cannot_be_read_is_named(tmp_path, content):
    (tmp_path / "x.yaml").write_bytes(content)
    with pytest.raises(UserError, match=r"x\.yaml"):
        read_in_effect(str(tmp_path / "x.yaml"))


@pytest.mark.parametrize(
    ("option", "said"),
    [
        (["--assert", "a('x') < 1"], "--assert is about runs"),
        (["-r", "2"], "--updates-per-step is about runs"),
        (["--paired"], "--paired is about runs"),
        (["--format", "html"], "--configs has no HTML"),
    ],
)
def test_an_option_that_would_not_be_heard_is_refused(tmp_path, option, said):
    a = script(tmp_path, "a.sh")
    with pytest.raises(UserError, match=said):
        CliRunner().invoke(
            command, ["--configs", a, a, *option], standalone_mode=False, catch_exceptions=False
        )


def test_the_same_launch_exits_with_0(tmp_path):
    old = script(tmp_path, "old.sh", "custom_reward_function.path=/r.py")
    new = script(tmp_path, "new.sh", "'reward.custom_reward_function.path=\"/r.py\"' algorithm.gamma=1.00")
    code, output = diff(old, new)
    assert code == 0
    assert "no difference in effect" in output


def test_another_setting_exits_with_1_and_comes_before_what_follows_from_it(tmp_path):
    a, b = script(tmp_path, "a.sh"), script(tmp_path, "b.sh", "data.max_response_length=512")
    found = differences(a, b)
    assert [row.key for row in found.effective] == ["data.max_response_length"]
    assert {row.key: row.why for row in found.following}["actor_rollout_ref.rollout.response_length"] == (
        "${oc.select:data.max_response_length,512}"
    )
    code, output = diff(a, b)
    assert code == 1
    assert output.index("data.max_response_length  ") < output.index(
        "actor_rollout_ref.rollout.response_length"
    )


def test_a_key_that_veRL_does_not_read_differs_without_effect(tmp_path):
    a, b = script(tmp_path, "a.sh"), script(tmp_path, "b.sh", "actor_rollout_ref.nccl_timeout=700")
    found = differences(a, b)
    assert not found.differs
    (row,) = found.idle
    assert (row.key, row.b, row.why) == (
        "actor_rollout_ref.nccl_timeout",
        700,
        "veRL 0.9.1 does not read it (read until 0.7.0)",
    )
    code, output = diff(a, b)
    assert code == 0
    assert "1 setting differs without effect" in output


def test_a_key_that_a_run_here_honours_has_an_effect_although_stock_ignores_it(tmp_path):
    a, b = script(tmp_path, "a.sh"), script(tmp_path, "b.sh", "data.truncation=right")
    (row,) = differences(a, b).effective
    assert row.key == "data.truncation"
    assert (
        "; a run here honours it, stock veRL 0.9.1 stores it where nothing reads it"
        in diff(a, b, "--format", "md")[1]
    )
    (row,) = differences(a, script(tmp_path, "c.sh", "algorithm.gamma=0.9")).effective
    assert row.stock == ""


def test_a_key_of_an_older_release_that_means_nothing_today_differs_without_effect(tmp_path):
    megatron = "--config-name=ppo_megatron_trainer"
    a = script(tmp_path, "a.sh", f"actor_rollout_ref.actor.load_weight=False {megatron}")
    found = differences(a, script(tmp_path, "b.sh", megatron))
    assert not found.differs
    assert found.b.why.endswith(": the newest release that fits all sources")  # not the newest of all
    (row,) = found.idle
    assert (row.key, row.a, row.why) == (
        "actor_rollout_ref.actor.load_weight",
        False,
        "weights are always loaded",
    )


def test_which_trainer_of_veRLs_runs_is_a_difference_of_scripts(tmp_path):
    a, b = script(tmp_path, "a.sh"), script(tmp_path, "b.sh", "trainer.use_v1=False")
    assert changed(a, b) == {"trainer.use_v1": (True, False)}
    assert changed(in_yaml(a), in_yaml(b)) == {}
    v1 = in_yaml(script(tmp_path, "c.sh", "trainer.use_v1=True"))
    assert changed(v1, in_yaml(b)) == {"trainer.use_v1": (True, False)}


def test_a_field_that_only_trinity_has_is_a_difference(tmp_path):
    path = script(tmp_path, "a.sh")
    ahead = in_yaml(script(tmp_path, "b.sh"), sync_offset=2)
    expected = {"synchronizer.sync_offset": (0, 8)}
    assert changed(path, ahead) == expected
    assert changed(in_yaml(path), ahead) == expected


def test_fields_that_translate_derives_follow_from_the_veRL_settings(tmp_path):
    a, b = script(tmp_path, "a.sh"), script(tmp_path, "b.sh", "data.max_response_length=512")
    found = differences(a, in_yaml(b))
    assert [row.key for row in found.effective] == ["data.max_response_length"]
    assert {row.key: row.why for row in found.following}["model.max_model_len"] == "the veRL settings above"


def test_a_trinity_yaml_is_the_launch_that_it_was_translated_from(tmp_path):
    path = script(tmp_path, "a.sh")
    assert changed(path, in_yaml(path)) == {}


def test_yamls_written_by_hand_are_compared(tmp_path):
    text = (EXAMPLES / "grpo.yaml").read_text()
    (tmp_path / "x.yaml").write_text(text)
    assert diff(tmp_path / "x.yaml", EXAMPLES / "grpo.yaml")[0] == 0
    found = changed(str(EXAMPLES / "grpo.yaml"), str(EXAMPLES / "ppo.yaml"))
    assert found["algorithm.adv_estimator"] == ("grpo", "gae")


def test_a_release_stands_for_its_defaults(tmp_path):
    path = script(tmp_path, "a.sh")
    assert changed("verl==0.8.0", "verl==0.9.1")["actor_rollout_ref.rollout.max_num_seqs"] == (1024, 256)
    assert changed("verl==0.9.1", path)["data.train_batch_size"] == (1024, 64)
    megatron = script(tmp_path, "m.sh", "model_engine=megatron")
    found = changed("verl==0.9.1", megatron)
    assert "actor_rollout_ref.actor.megatron.param_offload" not in found
    assert diff("verl==0.9.0", "verl==0.9.1")[0] == 0


def job(tmp_path: Path, name: str, **changes: object) -> Path:
    """A copy of the recorded job with other values in config/run.json, by dotted key."""
    copy = tmp_path / name
    shutil.copytree(OURS, copy)
    record = json.loads((copy / "config/run.json").read_text())
    for key, value in changes.items():
        *path, last = key.split(".")
        node = record
        for part in path:
            node = node[part]
        node[last] = value
    (copy / "config/run.json").write_text(json.dumps(record))
    return copy


def test_two_jobs_differ_by_veRLs_settings_and_by_the_runs_own(tmp_path):
    other = job(tmp_path, "b", **{"verl.algorithm.gamma": 0.9, "sync.offset": 3, "job_dir": "/elsewhere"})
    assert changed(str(OURS), str(other)) == {"algorithm.gamma": (1.0, 0.9), "run.sync.offset": (0, 3)}
    assert diff(OURS, job(tmp_path, "c"))[0] == 0


def test_a_job_is_compared_with_its_yaml_and_with_what_was_set(tmp_path):
    path = script(tmp_path, "a.sh")
    directory = job(tmp_path, "j")
    shutil.copy(in_yaml(path), directory / "config/trinity.yaml")
    record = {"options": {"sets": ["synchronizer.sync_offset=4", "algorithm.gamma=0.5"]}}
    (directory / "config/launch.json").write_text(json.dumps(record))
    found = differences(path, str(directory))
    assert {row.key: row.b for row in found.effective}["synchronizer.sync_offset"] == 4


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("nothing.sh", "no such file"),
        (".", "not a job directory"),
        ("verl==0.11", "not a release that trinity-compat knows"),
    ],
)
def test_a_side_that_cannot_be_read_exits_with_2(tmp_path, monkeypatch, source, said):
    a = script(tmp_path, "a.sh")
    monkeypatch.chdir(tmp_path)
    code, output = diff(a, source)
    assert code == 2
    assert said in output


def test_a_main_that_is_not_translated_is_refused(tmp_path):
    path = tmp_path / "own.sh"
    path.write_text("python3 -m mine.main_grpo data.train_files=/d\n")
    code, output = diff(path, path)
    assert code == 2
    assert "mine.main_grpo is not translated" in output


SFT = "torchrun -m verl.trainer.fsdp_sft_trainer data.train_files=/d model.partial_pretrain=/m {more}\n"


def test_trainings_on_files_are_compared(tmp_path):
    a, b = tmp_path / "a.sh", tmp_path / "b.sh"
    a.write_text(SFT.format(more="optim.lr=1e-4"))
    b.write_text(SFT.format(more="optim.lr=0.0003 data.truncation=left"))
    assert changed(str(a), str(b)) == {"optim.lr": (1e-4, 3e-4), "data.truncation": ("error", "left")}
    assert diff(a, a)[0] == 0


def test_the_formats_say_the_same(tmp_path):
    a = script(tmp_path, "a.sh")
    b = script(tmp_path, "b.sh", "algorithm.gamma=0.9 actor_rollout_ref.nccl_timeout=1")
    (found,) = json.loads(diff(a, b, "--format", "json")[1])["comparisons"]
    assert not found["same"]
    assert [row["key"] for row in found["differences"]] == ["algorithm.gamma"]
    assert [row["key"] for row in found["without_effect"]] == ["actor_rollout_ref.nccl_timeout"]
    code, text = diff(a, b, "--format", "md")
    assert code == 1
    assert f"| algorithm.gamma | `1.0` | `0.9` | default / {b}:14 |" in text


def test_a_secret_is_not_shown(tmp_path):
    a, b = (script(tmp_path, f"{n}.sh", f"+data.api_key={n}{n}word") for n in "ab")
    for form in ("text", "md", "json"):
        output = diff(a, b, "--format", form)[1]
        assert "data.api_key" in output
        assert "word" not in output


def test_public_launches_equal_their_translations(tmp_path):
    launches = [
        (entry["path"], launch)
        for entry in public_scripts()[::EVERY]
        for launch in entry["launches"]
        if launch["module"] in entrypoints.TRANSLATED
    ]
    done = 0
    for path, given in launches:
        (launch,) = read_argv(["python3", "-m", given["module"], *given["args"]]).launches
        try:
            _, text = translate_launch(launch, TranslateOptions())
        except UserError:
            continue
        (tmp_path / "x.yaml").write_text(text)
        (tmp_path / "x.sh").write_text(_as_script(given))
        assert changed(str(tmp_path / "x.sh"), str(tmp_path / "x.yaml")) == {}, path
        done += 1
    assert done >= 0.8 * len(launches)


def _as_script(given: dict[str, object]) -> str:
    return shlex.join(["python3", "-m", given["module"], *given["args"]])
