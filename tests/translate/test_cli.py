"""The command: YAML on stdout, everything else on stderr, exit codes."""

import re
import sys
from pathlib import Path

import pytest
import yaml

from trinity_compat.cli import main
from trinity_compat.launch import read_script
from trinity_compat.translate import TranslateOptions, translate_launch

SCRIPT = """python3 -m verl.trainer.main_ppo \\
  data.train_files=/d/train.parquet data.val_files=/d/test.parquet \\
  actor_rollout_ref.rollout.name=vllm \\
  actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4 {more} "$@"
"""


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    def call(*arguments, more="", script=None):
        (tmp_path / "run.sh").write_text(script or SCRIPT.format(more=more))
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "argv", ["trinity-compat", "translate", "run.sh", *arguments])
        with pytest.raises(SystemExit) as done:
            main()
        told = capsys.readouterr()
        return done.value.code, told.out, told.err

    return call


def test_stdout_is_yaml_and_stderr_is_not(run):
    code, out, err = run()
    assert code == 0
    assert yaml.safe_load(out)["synchronizer"]["sync_interval"] == 4
    assert out.startswith("# Written by: trinity-compat translate run.sh\n")
    assert "keys:" in err and "TW001" in err


def test_the_header_shows_no_secret(run):
    given = (
        "--env",
        "HF_TOKEN=hf_abc",
        "--",
        "+ray_kwargs.ray_init.runtime_env.env_vars.WANDB_API_KEY=hf_abc",
    )
    header = run(*given)[1].splitlines()[0]
    assert header.startswith("# Written by: trinity-compat translate run.sh --env 'HF_TOKEN=***' -- ")
    assert "hf_abc" not in header


def test_arguments_after_the_dashes_are_the_scripts_own(run):
    _, out, _ = run("--", "trainer.save_freq=3")
    assert yaml.safe_load(out)["trainer"]["save_interval"] == 12


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        ("--cfg job", "run.sh:4: --cfg job: Hydra prints the configuration and trains nothing"),
        ("--cfg=job --resolve", "run.sh:4: --cfg=job: Hydra prints the configuration"),
        ("--help", "run.sh:4: --help: Hydra prints its help and trains nothing"),
        ("-h", "run.sh:4: -h: Hydra prints its help"),
        ("--info", "run.sh:4: --info: Hydra prints what it found"),
    ],
)
def test_a_launch_that_trains_nothing_is_refused(run, flags, told):
    code, out, err = run(more=flags)
    assert (code, out) == (2, "")
    assert told in err


def test_fail_on_sets_the_exit_code_of_translate(run):
    assert run("--fail-on", "unknown")[0] == 0
    assert run("--fail-on", "unsupported_upstream", more="algorithm.adv_estimator=remax")[0] == 1


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ("data.train_batch_size=17 actor_rollout_ref.actor.ppo_mini_batch_size=4", "not divisible"),
        ("trainer.nnodes=$NODES", "--env NODES="),
        ("data.train_batch_size=null", "run.sh:4: data.train_batch_size=null should be a whole number"),
        ("trainer.critic_warmup=True", "run.sh:4: trainer.critic_warmup=True should be a"),
        ("trainer.nodes=2", "trainer.nnodes"),
    ],
)
def test_what_cannot_be_translated_exits_2_with_the_reason(run, more, told):
    code, out, err = run(more=more)
    assert code == 2 and out == "" and told in err and "run.sh:" in err


def test_another_main_is_refused_with_the_reason(run):
    code, out, err = run(script="python3 -m recipe.prime.main_prime a=1\n")
    assert code == 2 and out == "" and "trains its reward model" in err


def test_quiet_says_nothing_but_errors(run):
    code, out, err = run("--quiet")
    assert code == 0 and yaml.safe_load(out) and err == ""
    code, out, err = run("-q", script="python3 -m recipe.prime.main_prime a=1\n")
    assert code == 2 and out == "" and err.startswith("error: run.sh:1")


def test_what_several_launches_share_is_told_once(run):
    _, _, err = run(
        "--launch", "all", script="for s in 1 2; do\n" + SCRIPT.format(more="data.seed=$s") + "\ndone\n"
    )
    assert err.count("TW001") == 1 and "(2 launches)" in err


def test_set_and_no_comments(run):
    _, out, _ = run("--set", "explorer.runner_per_model=3", "--no-comments")
    assert yaml.safe_load(out)["explorer"]["runner_per_model"] == 3
    assert "#" not in out


def test_set_of_a_field_that_trinity_lacks_is_refused(run):
    code, _, err = run("--set", "explorer.runer=3")
    assert code == 2 and "explorer.runer" in err


@pytest.mark.parametrize("position", ["5", "first"])
def test_set_beyond_the_end_of_a_list_is_refused(run, position):
    code, _, err = run("--set", f"buffer.explorer_input.tasksets.{position}.name=mine")
    assert code == 2
    path = f"buffer.explorer_input.tasksets.{position}.name"
    assert f"--set {path}: a list on this path has no such position" in err


def test_output_goes_to_the_file(run, tmp_path):
    code, out, _ = run("-o", "out.yaml")
    assert code == 0 and out == ""
    assert "-o" not in (tmp_path / "out.yaml").read_text().splitlines()[0]


def test_the_api_gives_the_same_bytes(run, tmp_path):
    _, out, _ = run("--resolve")
    launch = read_script(tmp_path / "run.sh", name="run.sh").launches[0]
    options = TranslateOptions(resolve=True, command="trinity-compat translate run.sh --resolve")
    assert translate_launch(launch, options)[1] == out


COMPUTED = """n=${MINI:-16}
python3 -m verl.trainer.main_ppo data.train_files=/d/train.parquet data.val_files=/d/test.parquet \\
  actor_rollout_ref.rollout.name=vllm actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=$((n*2))
"""


def test_resolve_follows_what_the_script_computes_from_a_variable(run, monkeypatch):
    def micro_batch(text):
        return yaml.safe_load(text)["trainer"]["trainer_config"]["actor_rollout_ref"]["actor"][
            "ppo_micro_batch_size_per_gpu"
        ]

    monkeypatch.setenv("MINI", "4")
    code, out, err = run("--resolve", script=COMPUTED)
    assert (code, micro_batch(out)) == (0, 8), err
    assert "MINI" not in yaml.safe_load(out)["explorer"].get("env_vars", {})
    monkeypatch.delenv("MINI")
    assert micro_batch(run("--resolve", script=COMPUTED)[1]) == 32


LOST = "N=8\nHOME=/h\n" + SCRIPT.format(more="trainer.n_gpus_per_node=$N")


@pytest.mark.parametrize("also", [(), ("--resolve",)])
def test_a_variable_that_the_script_sets_itself_is_said_not_to_count(run, monkeypatch, also):
    monkeypatch.setenv("HOME", "/root")
    code, _, err = run("--env", "N=4", *also, script=LOST)
    assert code == 0
    assert [line.partition(" ")[0] for line in err.splitlines() if "TP113" in line] == ["run.sh:1:"]


def test_the_folder_for_upstream_that_the_hint_names_is_printed(run, monkeypatch, capsys):
    run()
    monkeypatch.setattr(sys, "argv", ["trinity-compat", "audit", "--all", "run.sh"])
    with pytest.raises(SystemExit):
        main()
    assert "$(trinity-compat plugin-dir)" in capsys.readouterr().out
    monkeypatch.setattr(sys, "argv", ["trinity-compat", "plugin-dir"])
    with pytest.raises(SystemExit):
        main()
    assert (Path(capsys.readouterr().out.strip()) / "verl_compat.py").is_file()


def test_a_folder_in_a_scripts_place_and_an_output_that_cannot_be_written(run, tmp_path):
    code, out, err = run("-o", "nowhere/x.yaml")
    assert (code, out) == (2, "") and err.startswith("error: nowhere/x.yaml: cannot write: No such file")
    assert not (tmp_path / "nowhere").exists()


def test_a_folder_is_not_called_missing(tmp_path, monkeypatch, capsys):
    with pytest.raises(SystemExit) as done:
        main(["translate", str(tmp_path)])
    assert done.value.code == 2
    assert capsys.readouterr().err.startswith(f"error: {tmp_path} is a folder\n")


def test_every_key_that_hydra_refuses_is_named_at_once(run):
    code, out, err = run(more="trainer.total_epoch=3 data.seeed=1")
    assert (code, out) == (2, "")
    assert "run.sh:4: Hydra would refuse trainer.total_epoch" in err
    assert "\nrun.sh:4: Hydra would refuse data.seeed" in err


def test_a_release_without_data_is_reported_with_its_substitute(run):
    told = "veRL 0.5.0: used instead of 0.5.1, which was requested"
    code, out, _ = run("--verl-version", "0.5.1")
    assert code == 0 and told in out
    code, _, err = run("--verl-version", "0.5.1", more="reward.num_workers=2")
    assert code == 2 and f"hint: {told}" in err
    assert "stands in" not in run("--verl-version", "0.5.0")[1]


ENVIRONMENT = """LR=${LR:-1e-6}
MODEL=${MODEL:-org/small}
if [ "$DEBUG" = 1 ]; then FREQ=1; else FREQ=5; fi
python3 -m verl.trainer.main_ppo data.train_files=/d/train.parquet data.val_files=/d/test.parquet \\
  actor_rollout_ref.rollout.name=vllm actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4 \\
  actor_rollout_ref.actor.optim.lr=$LR trainer.save_freq=$FREQ actor_rollout_ref.model.path=$MODEL \\
"""


def unused(err):
    return [line.partition(" ")[2] for line in err.splitlines() if "TP123" in line]


def test_variables_of_the_calling_shell_that_were_not_used_are_named(run, monkeypatch):
    for name, value in {"LR": "5e-6", "DEBUG": "1", "MODEL": "org/large", "OTHER": "1"}.items():
        monkeypatch.setenv(name, value)
    _, out, err = run(script=ENVIRONMENT)
    # The model's name stays a variable in the YAML, and counts when that is used.
    assert yaml.safe_load(out)["model"]["model_path"] == "${oc.env:MODEL,org/small}"
    told = "is set in this shell, where bash would use it; it was not used: --resolve, or --env"
    assert unused(err) == [f'warning TP123 {name} {told} {name}="${name}"' for name in ("LR", "DEBUG")]


@pytest.mark.parametrize("words", [("--resolve",), ("--env", "LR=5e-6", "--env", "DEBUG=1")])
def test_variables_that_were_used_are_not_named(run, monkeypatch, words):
    for name, value in {"LR": "5e-6", "DEBUG": "1"}.items():
        monkeypatch.setenv(name, value)
    _, out, err = run(*words, script=ENVIRONMENT)
    assert yaml.safe_load(out)["algorithm"]["optimizer"]["lr"] == 5e-6
    assert not unused(err)


def test_no_value_of_the_calling_shell_is_shown_by_whatever_name(run, monkeypatch):
    """The script names the variable, so that no list of secrets' names can hold."""
    monkeypatch.setenv("DEPLOYMENT", "tok3n-of-mine")
    script = 'if [ -n "$DEPLOYMENT" ]; then X=1; fi\n' + SCRIPT.format(more="")
    _, out, err = run(script=script)
    assert "TP123 DEPLOYMENT is set" in err and "tok3n" not in out + err


def test_a_variable_used_in_arithmetic_is_written_by_its_default(run):
    named = ENVIRONMENT + "  trainer.experiment_name=${MODEL##*/}\n"
    config = yaml.safe_load(run(script=named)[1])
    assert (config["name"], config["model"]["model_path"]) == ("small", "org/small")


def ranks(err):
    words = (line.split() for line in err.splitlines())
    return {word for line in words for word in line[:2] if word in ("note", "decide", "warning")}


def test_a_plain_grpo_script_gives_notes_only(run):
    sizes = "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=4"
    more = f"algorithm.adv_estimator=grpo actor_rollout_ref.rollout.n=8 {sizes}"
    code, _, err = run("--fail-on", "decide", more=more)
    assert code == 0 and ranks(err) == {"note"}


def test_a_note_on_how_the_configuration_was_composed_is_told(run, tmp_path):
    (tmp_path / "sub" / "config").mkdir(parents=True)
    own = "hydra:\n  searchpath: [file://verl/trainer/config]\ndefaults: [ppo_trainer, _self_]\n"
    (tmp_path / "sub" / "config" / "mine.yaml").write_text(own)
    script = f"cd sub\n{SCRIPT.format(more='--config-path=$PWD/config --config-name=mine')}"
    code, _, err = run(script=script)
    assert code == 0 and "warning TP213 hydra.searchpath: file://verl/trainer/config is not below" in err


@pytest.mark.parametrize(
    "more",
    [
        "algorithm.adv_estimator=hgpo",  # a caution and a finding
        "trainer.experiment_name=$(hostname)",  # a caution alone
        "trainer.rollout_data_dirr=/x",
    ],
)
def test_what_leaves_something_to_the_user_is_seen_by_exit_codes(run, more):
    code, _, err = run("--fail-on", "decide", more=f"+{more}" if "dirr" in more else more)
    assert code == 1 and (ranks(err) == {"note", "decide"} or "unknown" in err)


def test_what_asks_for_something_comes_before_what_is_routine(run):
    err = run(more="trainer.experiment_name=$(hostname)")[2]
    assert err.index("decide TW013") < err.index("note TW018") < err.index(" notes on the YAML: TW001, ")


def test_notes_of_one_kind_are_one_line(run):
    turns = [f"actor_rollout_ref.rollout.multi_turn.max_{side}_turns=3" for side in ("user", "assistant")]
    err = run(more=" \\\n ".join(turns))[2]
    user, assistant = (turn.partition("=")[0] for turn in turns)
    assert (
        f"run.sh:4: TC052 unsupported_upstream 2 keys: {user}, {assistant} (run.sh:5): trinity-compat" in err
    )
    assert re.search(r"^\d notes on the YAML: TW001, [TW0-9, ]+ \(audit --all prints them\)$", err, re.M)
    assert "TW001" not in err.replace("notes on the YAML: TW001", "")


def test_a_variable_stays_one_beside_a_date_that_never_repeats(run):
    """Translate reads a script for each variable again, and compares; all readings have one time."""
    more = "trainer.project_name=${PROJECT:-toy} trainer.experiment_name=x_$(date +%s%N)"
    assert yaml.safe_load(run(more=more)[1])["project"] == "${oc.env:PROJECT,toy}"
