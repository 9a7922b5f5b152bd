"""to-verl: a Trinity YAML as a launch script, which gives the same YAML again."""

from __future__ import annotations

import json
import os
import subprocess
from fnmatch import fnmatchcase
from pathlib import Path

import pytest
from click.testing import CliRunner
from facts import load, public_scripts

from trinity_compat.cli import cli
from trinity_compat.common.errors import RunError, UserError
from trinity_compat.common.releases import VERL
from trinity_compat.compare.configs import compared
from trinity_compat.compare.effective_settings import of_trinity
from trinity_compat.launch import entrypoints, read_text
from trinity_compat.translate import TranslateOptions, translate_config, translate_launch
from trinity_compat.translate.booleans import with_booleans
from trinity_compat.translate.defaults import same
from trinity_compat.translate.env_references import EnvReferences
from trinity_compat.translate.launch_view import LaunchView
from trinity_compat.translate.sections.asynchronous import as_main_ppo
from trinity_compat.translate.verl_from_trinity import to_verl
from trinity_compat.translate.verl_script import _word, verl_script
from trinity_compat.trinity.config.read import parse
from trinity_compat.verl_config import compose_pinned, effective_config, upgrade
from trinity_compat.verl_config.grammar import parse_override

from .helpers import BASICS, flat, launch_of, script

EVERY = int(os.environ.get("TRINITY_COMPAT_CORPUS_EVERY", "8"))  # 1: all of them
EXAMPLES = Path(__file__).parents[2] / "examples" / "trinity"
LAUNCH = "python3 -m verl.trainer.main_ppo " + " ".join(BASICS) + " {more}\n"


def yaml_of(launch, **options) -> str:
    return translate_launch(launch, TranslateOptions(**options))[1]


def again(text: str, **options) -> tuple[str, dict[str, object], dict[str, object]]:
    """The script of a YAML, what the YAML holds, and what the translation of the script holds."""
    target = options.get("target") or "0.6.0"
    config = parse(text, "x.yaml", target)
    written = verl_script(config, "x.yaml")
    assert written.unsaid == ()
    return written.text, config, parse(yaml_of(script(written.text), target=target), "again", target)


def corpus() -> list[tuple[str, dict[str, object]]]:
    scripts = [*public_scripts(), *load("main")["scripts"]]
    found = [(entry["path"], launch) for entry in scripts for launch in entry["launches"]]
    return [(path, launch) for path, launch in found if launch["module"] in entrypoints.TRANSLATED][::EVERY]


# What a launch of main_ppo cannot say of one of veRL's asynchronous mains.
ASYNCHRONOUS = ("staleness_threshold", "partial_rollout", "sync_style", "sync_interval", "sync_offset")


@pytest.mark.parametrize("target", ["0.6.0", "0.4.1"])
def test_a_script_of_every_translation_gives_the_same_yaml(target):
    done = equal = 0
    texts = []
    for path, given in corpus():
        try:
            text = yaml_of(launch_of(given["args"], given["module"], path), target=target)
        except UserError:
            continue
        done += 1
        if unsaid := verl_script(parse(text, "x.yaml", target), "x.yaml").unsaid:
            assert all("{*}" in setting for setting in unsaid), path  # no name in Hydra's grammar
            continue
        written, config, found = again(text, target=target)
        texts.append(written)
        equal += config == found
        if config != found:
            rows = compared(of_trinity("a", config), of_trinity("b", found)).effective
            assert [row for row in rows if not row.key.endswith(ASYNCHRONOUS)] == [], path
    # Beside the asynchronous mains: a default of an older release stands elsewhere than a setting.
    assert equal >= 0.75 * done > 0
    for text in texts:
        subprocess.run(["bash", "-n"], input=text, text=True, check=True)


# Kind of launch → pattern of a key → why the script of its YAML says something else.
EXPLAINED = json.loads(Path(__file__).with_name("to_verl_differences.json").read_text())


def kinds_of(effective):
    config = upgrade(effective).config
    view = LaunchView(config, config.settings, EnvReferences(), TranslateOptions(), effective)
    (told, _), kinds = as_main_ppo(view), ["every launch"]
    if told.async_schedule is not None:
        kinds.append("asynchronous")
    elif told is not view:
        kinds.append("of what it draws")
    return kinds


def values_of(config):
    """Return key → value, sections as their leaves; what veRL takes as true or false as such."""
    leaves = {
        path: value
        for key, setting in with_booleans(config).settings.items()
        for path, value in flat({key: setting.value}).items()
    }
    return {
        path: value
        for path, value in leaves.items()
        if not path.endswith("_target_") and value not in ({}, "???")
    }


def test_the_script_of_a_launch_s_yaml_has_the_launch_s_configuration():
    unexplained, done = [], 0
    for path, given in corpus():
        if given["module"] in entrypoints.SUPERVISED:
            continue
        try:
            effective = effective_config(launch_of(given["args"], given["module"], path))
            _, text = translate_config(effective, TranslateOptions())
        except UserError:
            continue
        written = verl_script(parse(text, "x.yaml", "0.6.0"), "x.yaml").text
        wanted = values_of(upgrade(effective).config)
        found = values_of(effective_config(script(written), version=VERL))
        explained = [pattern for kind in kinds_of(effective) for pattern in EXPLAINED[kind]]
        unexplained += [
            (path, key, wanted.get(key), found.get(key))
            for key in {*wanted, *found}
            if not same(wanted.get(key), found.get(key))
            and not any(fnmatchcase(key, each) for each in explained)
        ]
        done += 1
    assert unexplained == []
    assert done >= 0.75 * len(corpus())


STOCK = (
    "rollout.free_cache_engine=False",
    "rollout.load_format=safetensors",
    "rollout.layered_summon=True",
    "rollout.multi_stage_wake_up=True",
    "rollout.skip_tokenizer_init=False",
    "rollout.checkpoint_engine.update_weights_bucket_megabytes=512",
)


@pytest.mark.parametrize("target", ["0.6.0", "0.4.1"])
def test_what_only_stock_verl_reads_comes_back(target):
    words = [*(f"actor_rollout_ref.{word}" for word in STOCK), "transfer_queue.metrics.enabled=True"]
    written, config, found = again(
        yaml_of(script(LAUNCH.format(more=" ".join(words))), target=target), target=target
    )
    assert config == found
    assert [word for word in words if f"    {word} \\\n" not in written] == []


@pytest.mark.parametrize(
    "folder", ["/ckpt", "ckpt", "$CKPT", "${CKPT:-/ckpt}/${USER}", "$HOME/a b", "/ckpt/p/e", "$CKPT/p/e", "/"]
)
def test_the_job_s_folder_comes_back_as_the_launch_has_it(folder):
    more = f"trainer.project_name=p trainer.experiment_name=e trainer.default_local_dir=\"'{folder}'\""
    text = yaml_of(script(LAUNCH.format(more=more)))
    written, config, found = again(text)
    environment = {"CKPT": "/of the shell", "USER": "u", "HOME": "/h"}
    assert config == found
    asked = subprocess.run(
        ["bash", "-c", f"python3() {{ printf '%s\\n' \"$@\"; }}; {written}\nprintf '%s\\n' \"{folder}\""],
        capture_output=True, text=True, check=True, env=environment,
    ).stdout.splitlines()  # fmt: skip
    (said,) = [parse_override(line).value for line in asked if line.startswith("trainer.default_local_dir=")]
    assert said == asked[-1]


def test_a_section_that_follows_another_takes_a_key_that_the_other_brings():
    section = "megatron.override_transformer_config.num_layers_in_first_pipeline_stage"
    text = LAUNCH.format(
        more=f"model_engine=megatron +actor_rollout_ref.actor.{section}=2 ++actor_rollout_ref.ref.{section}=3"
    )
    written, config, found = again(yaml_of(script(text)))
    assert config == found
    assert f"+actor_rollout_ref.actor.{section}=2" in written
    assert effective_config(script(written)).diagnostics == ()


@pytest.mark.parametrize("target", ["0.6.0", "0.4.1"])
def test_a_section_of_an_older_release_does_not_cut_what_it_follows_today(target):
    text = LAUNCH.format(more="--config-name=ppo_megatron_trainer")
    older = yaml_of(script(text), target=target, verl_version="0.5.0")
    key = "actor_rollout_ref.ref.megatron.override_transformer_config"
    run = flat(compose_pinned(to_verl(parse(older, "x.yaml", target)), "ppo_megatron_trainer"))
    assert run[f"{key}.recompute_modules"] == ["core_attn"]
    _, config, found = again(older, target=target)
    assert not compared(of_trinity("a", config), of_trinity("b", found)).effective
    text = LAUNCH.format(more=f"{key}.recompute_method=block --config-name=ppo_megatron_trainer")
    assert "recompute_method: block" in yaml_of(script(text), target=target, verl_version="0.5.0")


@pytest.mark.parametrize("release", ["0.4.1", "0.5.0", "0.6.1", "0.9.1"])
def test_a_section_that_a_passed_key_cuts_keeps_what_it_follows(release):
    key = "megatron.override_transformer_config.num_layers_in_first_pipeline_stage"
    engine = "--config-name=ppo_megatron_trainer" if release < "0.8" else "model_engine=megatron"
    text = LAUNCH.format(more=f"+actor_rollout_ref.actor.{key}=5 {engine}")
    made = yaml_of(script(text), verl_version=release)
    back = effective_config(script(again(made)[0]), version=VERL)
    run = compose_pinned(to_verl(parse(made, "x.yaml", "0.6.0")), "ppo_megatron_trainer")
    for told in (values_of(back), flat(run)):
        assert [told[f"actor_rollout_ref.{role}.{key}"] for role in ("actor", "ref")] == [5, 5]


def test_the_environment_stays_with_the_shell():
    text = yaml_of(
        script(
            LAUNCH.format(
                more='trainer.experiment_name="a ${RUN:-it is}-${A:-${B:-x}}" data.custom_cls.path=$HERE/d.py'
                ' actor_rollout_ref.actor.checkpoint.load_contents="[$HOME/a b, c]"'
            )
        )
    )
    written, config, found = again(text)
    assert '"trainer.experiment_name=a ${RUN:-it is}-${A:-${B:-x}}"' in written
    assert '"data.custom_cls.path=${HERE}/d.py"' in written
    assert config == found


def test_what_the_script_exports_is_exported_again():
    text = yaml_of(read_text("export NOTE='a b'\n" + LAUNCH.format(more="")).launches[0])
    written, config, found = again(text)
    assert "export NOTE='a b'\n" in written
    assert config == found


def test_a_flavour_is_chosen_by_model_engine():
    text = yaml_of(script(LAUNCH.format(more="--config-name=ppo_megatron_trainer")))
    written, config, found = again(text)
    assert "model_engine=megatron" in written
    assert config == found


@pytest.mark.parametrize(
    "value",
    [
        *("", "null", "true", "1e-6", "a b", "a,b", "it's", 'say "x"', "$HOME `x` $(x)", "a!b", "#x", "~/x"),
        *("back\\slash", "end\\", "'quoted'", "a\nb", "{x}", "[x]", "k=v", "日本", "\\'", '\\"', " a ", "*"),
        *(1, 1.5, 1e-10, -3, True, None, [], {}),
        [1, "a b", "it's", None, ["x,y", "null"], {"a": "]", "b c": "}"}],
        {"x": {"y": "'"}},
    ],
)
def test_bash_and_hydra_read_a_value_as_it_is(value):
    word = _word("a.b", value)
    done = subprocess.run(["bash", "-c", f"printf %s {word}"], capture_output=True, text=True, check=True)
    assert parse_override(done.stdout).value == value


def test_no_text_of_the_yaml_is_a_command():
    text = yaml_of(launch_of([*BASICS, "trainer.project_name='$(touch x) `touch x` ${RUN:-$(touch x)}'"]))
    written = verl_script(parse(text, "x.yaml"), "x\n$(touch x)").text
    folder = subprocess.run(
        ["bash", "-c", f"cd $(mktemp -d); python3() {{ :; }}; {written}\nls"], capture_output=True, text=True
    )
    assert folder.stdout == ""


def command(path: Path) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of the command."""
    result = CliRunner().invoke(cli, ["to-verl", str(path)], standalone_mode=False)
    if isinstance(result.exception, RunError | UserError):
        return (1 if isinstance(result.exception, RunError) else 2), "", str(result.exception)
    return result.return_value, result.stdout, result.stderr


def test_the_command_writes_the_script(tmp_path):
    path = tmp_path / "x.yaml"
    path.write_text(yaml_of(script(LAUNCH.format(more="algorithm.gamma=0.5"))))
    code, out, err = command(path)
    assert (code, err) == (0, "")
    assert "    algorithm.gamma=0.5 \\\n" in out


def test_a_micro_batch_over_all_gpus_becomes_that_of_one_gpu(tmp_path):
    """veRL takes the former until 0.7, and the script is for the pinned release."""
    sizes = {"actor.ppo": 16, "rollout.log_prob": 32, "ref.log_prob": 8}
    words = [f"actor_rollout_ref.{role}_micro_batch_size={size}" for role, size in sizes.items()]
    given = [word for word in BASICS if "micro_batch" not in word]
    more = " ".join([*given, *words, "trainer.n_gpus_per_node=4", "actor_rollout_ref.actor.use_kl_loss=True"])
    path = tmp_path / "x.yaml"
    launch = script(f"python3 -m verl.trainer.main_ppo {more}\n")
    path.write_text(yaml_of(launch, verl_version="0.7.0"))
    code, out, err = command(path)
    assert (code, err) == (0, "")
    found = [line.strip(" \\") for line in out.splitlines() if "micro_batch" in line]
    assert {line for line in found if line.startswith("actor_rollout_ref.")} == {
        f"actor_rollout_ref.{role}_micro_batch_size_per_gpu={size // 4}" for role, size in sizes.items()
    }


def test_what_a_launch_cannot_say_is_named(tmp_path):
    path = tmp_path / "x.yaml"
    path.write_text(yaml_of(script(LAUNCH.format(more="")), sync_offset=1))
    code, out, err = command(path)
    assert code == 1
    assert out.startswith("#!/usr/bin/env bash\n")
    assert (
        "not in the script: synchronizer.sync_offset=4; as a launch it is 0 (translate has --sync-offset)"
        in err
    )


def test_an_expression_that_bash_has_to_compute_is_named(tmp_path):
    path = tmp_path / "x.yaml"
    path.write_text(yaml_of(script(LAUNCH.format(more="trainer.experiment_name=${MODEL##*/}"))))
    code, _, err = command(path)
    assert code == 1
    assert "trainer.experiment_name='\\\\${MODEL##*/}'" in err


@pytest.mark.parametrize(
    ("name", "said"), [("sft", "trains on rows of files (sft)"), ("grpo", "did not write it")]
)
def test_a_training_that_main_ppo_does_not_do_is_named(name, said):
    code, _, err = command(EXAMPLES / f"{name}.yaml")
    assert code == 1
    assert said in err


def test_a_file_that_cannot_be_read_is_named(tmp_path):
    assert command(tmp_path / "x.yaml")[0] == 2
