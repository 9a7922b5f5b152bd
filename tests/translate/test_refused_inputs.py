"""What the commands refuse to read or to write: one sentence, exit code 2, and the files as they were."""

import importlib
import os
import sys

import pytest
import yaml

from trinity_compat.cli import main

SCRIPT = """python3 -m verl.trainer.main_ppo \\
  data.train_files=/d/train.parquet data.val_files=/d/test.parquet \\
  actor_rollout_ref.rollout.name=vllm \\
  actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4
"""


@pytest.fixture
def call(tmp_path, monkeypatch, capsys):
    """Return (exit code, stdout, stderr) of a command line, run in a folder that has ``run.sh``."""
    (tmp_path / "run.sh").write_text(SCRIPT)
    monkeypatch.chdir(tmp_path)

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["trinity-compat", *arguments])
        with pytest.raises(SystemExit) as done:
            main()
        told = capsys.readouterr()
        return done.value.code, told.out, told.err

    return run


@pytest.mark.parametrize("command", [["translate"], ["audit"], ["rules", "init"]])
@pytest.mark.parametrize("output", ["run.sh", "link.sh", "hard.sh"])
def test_no_command_overwrites_what_it_reads(call, tmp_path, command, output):
    (tmp_path / "link.sh").symlink_to("run.sh")
    (tmp_path / "hard.sh").hardlink_to("run.sh")
    code, _, err = call(*command, "run.sh", "-o", output)
    assert code == 2
    assert f"error: {output}: this is the file that is read" in err
    assert (tmp_path / "run.sh").read_text() == SCRIPT


def test_an_audit_of_a_folder_does_not_overwrite_a_script_in_it(call, tmp_path):
    code, _, err = call("audit", ".", "-o", "run.sh")
    assert (code, (tmp_path / "run.sh").read_text()) == (2, SCRIPT)
    assert "this is the file that is read" in err


def test_a_file_that_is_not_read_is_overwritten(call, tmp_path):
    (tmp_path / "out.yaml").write_text("what was there")
    assert call("translate", "run.sh", "-o", "out.yaml")[0] == 0
    assert "what was there" not in (tmp_path / "out.yaml").read_text()


@pytest.mark.parametrize(
    "command",
    [["translate"], ["audit"], ["profile", "cpu", "--as-overrides", "--for"]],
    ids=lambda words: words[0],
)
def test_the_last_line_about_an_open_quote_names_it(call, tmp_path, command):
    (tmp_path / "run.sh").write_text(SCRIPT.removesuffix("4\n") + '"4\n')
    code, out, err = call(*command, "run.sh")
    assert (code, out) == (2, "")
    assert err.splitlines()[-1].startswith(
        "error: run.sh:4: bash stops here: reached EOF without closing quote"
    )


@pytest.mark.parametrize("command", ["translate", "audit", "run"])
def test_arguments_that_the_script_never_reads_are_refused(call, command):
    code, out, err = call(command, "run.sh", "--", "trainer.total_epochs=3")
    assert (code, out) == (2, "")
    assert 'run.sh:1: run.sh never reads its arguments ("$@"): trainer.total_epochs=3 has no effect' in err
    assert "--set KEY=VALUE" in err


@pytest.mark.parametrize(
    "taking",
    [
        '{} "$@"',
        "{} $1",
        '{} trainer.project_name="$*"',
        'go() {{ {} $1; }}; go "$@"',
        "for more; do {} $more; done",
        'while [[ $# -gt 0 ]]; do key=$1; shift; done; {} "$key"',
        'while getopts e: name; do {} "$OPTARG"; done',
        ". ./more.sh; {} $more",
    ],
)
def test_arguments_that_the_script_reads_are_not_lost(call, tmp_path, taking):
    (tmp_path / "more.sh").write_text("more=$1")
    (tmp_path / "takes.sh").write_text(taking.format(SCRIPT.replace("\\\n", " ").strip()))
    _, _, err = call("translate", "takes.sh", "--", "trainer.save_freq=3")
    assert "never reads" not in err


def test_set_takes_a_key_of_verls_as_run_does(call):
    code, out, _ = call("translate", "run.sh", "--set", "trainer.total_epochs=3", "--set", "mode=bench")
    config = yaml.safe_load(out)
    assert (code, config["buffer"]["total_epochs"], config["mode"]) == (0, 3, "bench")


def test_set_of_a_key_of_verls_says_so_where_there_is_no_launch(call, tmp_path):
    (tmp_path / "conf.yaml").write_text("data: {train_batch_size: 8}\ntrainer: {total_epochs: 2}\n")
    code, _, err = call("translate", "conf.yaml", "--set", "trainer.total_epochs=3")
    assert code == 2
    assert "--set trainer.total_epochs: this is a veRL key" in err


TRINITY = "mode: both\nalgorithm:\n  algorithm_type: grpo\nbuffer:\n  batch_size: 8\n"


@pytest.mark.parametrize("command", [["translate"], ["audit"]])
@pytest.mark.parametrize("text", [TRINITY, "algorithm:\n  algorithm_type: grpo\n", "buffer: {}\ndata: {}\n"])
def test_a_trinity_configuration_is_not_translated(call, tmp_path, command, text):
    (tmp_path / "grpo.yaml").write_text(text)
    code, out, err = call(*command, "grpo.yaml")
    assert (code, out) == (2, "")
    assert "grpo.yaml: this is a Trinity configuration already" in err
    assert "trinity-compat run grpo.yaml" in err


def test_a_configuration_of_verls_is_not_run_as_trinitys(call, tmp_path):
    (tmp_path / "conf.yaml").write_text("data: {train_batch_size: 8}\nactor_rollout_ref: {}\n")
    code, _, err = call("run", "conf.yaml", "--dry-run")
    assert code == 2
    assert "conf.yaml:2: this is a veRL configuration" in err
    assert "trinity-compat translate conf.yaml" in err


@pytest.fixture
def unreadable(tmp_path):
    """A folder with a script that this user may not read."""
    folder = tmp_path / "noperm"
    folder.mkdir()
    (folder / "run.sh").write_text(SCRIPT)
    folder.chmod(0)
    for module in ("cli.audit", "cli.parse", "cli.rules", "cli.translate", "buffer.report"):
        importlib.import_module(f"trinity_compat.{module}")  # while this user may still read Python's own
    user = os.geteuid()
    if user == 0:  # whom no permission stops
        os.seteuid(65534)
    yield folder
    os.seteuid(user)
    folder.chmod(0o700)


@pytest.mark.parametrize(
    "command", [["translate"], ["parse"], ["audit"], ["rules", "init"], ["buffer", "stats"]]
)
def test_a_file_that_may_not_be_read_is_named(call, unreadable, command):
    code, _, err = call(*command, f"{unreadable}/run.sh")
    assert code == 2
    assert f"error: {unreadable}/run.sh" in err and ": Permission denied" in err


def test_a_folder_that_may_not_be_read_is_named(call, unreadable):
    code, _, err = call("audit", str(unreadable))
    assert code == 2
    assert f"error: {unreadable}: Permission denied" in err


def test_a_name_that_no_file_can_have_is_named(call):
    code, _, err = call("translate", "x" * 300)
    assert code == 2
    assert "File name too long" in err


@pytest.mark.parametrize(
    ("given", "least"),
    [
        ("data.max_response_length=0", 1),
        ("data.max_prompt_length=-3", 1),
        ("trainer.total_epochs=-1", 0),
        ("trainer.total_training_steps=-5", 0),
    ],
)
def test_a_size_below_what_can_be_is_refused_by_its_line(call, tmp_path, given, least):
    (tmp_path / "small.sh").write_text(f"{SCRIPT.rstrip()} {given}\n")
    code, _, err = call("translate", "small.sh")
    assert (code, err) == (2, f"error: small.sh:4: {given} should be {least} or more\n")


def test_epochs_that_are_not_known_stay_open(call, tmp_path):
    (tmp_path / "open.sh").write_text(f"{SCRIPT.rstrip()} trainer.total_epochs=$E\n")
    code, out, _ = call("translate", "open.sh")
    assert (code, yaml.safe_load(out)["buffer"]["total_epochs"]) == (0, "${oc.env:E}")


@pytest.mark.parametrize("key", ["data.train_files", "actor_rollout_ref.model.path"])
def test_the_home_of_a_user_that_there_is_not_is_no_folder(call, tmp_path, key):
    (tmp_path / "home.sh").write_text(f"{SCRIPT.rstrip()} '{key}=\"~nosuchuser/x.parquet\"'\n")
    code, out, _ = call("translate", "home.sh")
    assert code == 0
    assert "~nosuchuser/x.parquet" in out


def test_the_critics_model_may_be_a_variable_as_the_actors_may(call, tmp_path):
    more = "algorithm.adv_estimator=gae actor_rollout_ref.model.path=$BASE critic.model.path=$BASE"
    (tmp_path / "ppo.sh").write_text(f"{SCRIPT.rstrip()} {more}\n")
    code, out, _ = call("translate", "ppo.sh")
    model = yaml.safe_load(out)["model"]
    assert (code, model["model_path"], model["critic_model_path"]) == (0, *["${oc.env:BASE,''}"] * 2)


def test_an_unknown_value_suggests_set_where_the_script_takes_no_arguments(call, tmp_path):
    (tmp_path / "gpus.sh").write_text(f"{SCRIPT.rstrip()} trainer.n_gpus_per_node=$(nvidia-smi -L | wc -l)\n")
    code, _, err = call("translate", "gpus.sh")
    assert code == 2
    assert "hint: write its value there, or give it: --set trainer.n_gpus_per_node=VALUE" in err
    code, out, _ = call("translate", "gpus.sh", "--set", "trainer.n_gpus_per_node=4")
    assert (code, yaml.safe_load(out)["cluster"]["gpu_per_node"]) == (0, 4)


@pytest.mark.parametrize("command", ["translate", "parse", "audit"])
@pytest.mark.parametrize(
    ("data", "told"),
    [
        (b"", "is empty"),
        (b" \n\n", "is empty"),
        (b"\x7fELF\x02\x01\0\0\0", "is not a text file"),
        (SCRIPT.encode("utf-16"), "is UTF-16: save it as UTF-8"),
        (b"\xfe\xff" + SCRIPT.encode("utf-16-be"), "is UTF-16: save it as UTF-8"),
    ],
)
def test_what_is_no_script_is_told_in_one_sentence(call, tmp_path, command, data, told):
    (tmp_path / "x.sh").write_bytes(data)
    code, out, err = call(command, "x.sh")
    assert (code, out, err) == (2, "", f"error: x.sh {told}\n")


def test_an_unknown_command_is_told_with_those_that_there_are(call):
    code, _, err = call("xyz")
    assert code == 2
    assert "no command 'xyz'" in err
    assert "translate" in err


def test_line_ends_in_cr_lf_are_told_in_one_line(call, tmp_path):
    (tmp_path / "crlf.sh").write_bytes(SCRIPT.replace("\n", "\r\n").encode())
    _, _, err = call("translate", "crlf.sh")
    assert [line for line in err.splitlines() if "TP003" in line] == [
        "crlf.sh:2: warning TP003 bash reads 'data.train_files' as a command, the override is lost: a"
        " carriage return follows the backslash of the line above, as of every line here that ends in CR LF"
    ]


def test_a_misspelt_main_is_told_with_the_nearest(call, tmp_path):
    (tmp_path / "pp.sh").write_text(SCRIPT.replace("main_ppo", "main_pp"))
    _, _, err = call("translate", "pp.sh")
    assert "did you mean verl.trainer.main_ppo?" in err
    (tmp_path / "own.sh").write_text(SCRIPT.replace("verl.trainer.main_ppo", "myown.trainer.main_ppox"))
    assert "did you mean" not in call("translate", "own.sh")[2]


def test_a_key_that_there_is_not_hides_nothing_of_those_that_there_are(call):
    code, out, err = call("explain", "data.seed", "nope.nope", "data.shuffle", "data.train_batchsize")
    assert code == 2 and out.startswith("data.seed\n") and "\n\ndata.shuffle\n" in out
    told = [line for line in err.splitlines() if line.startswith("error: ")]
    assert [line.split()[1] for line in told] == ["nope.nope", "data.train_batchsize:"]


def test_a_bad_value_is_named_beside_a_key_that_hydra_refuses(call, tmp_path):
    keys = "trainer.total_epoch=3 \\\n  trainer.total_epochs=two \\\n  data.train_batch_size=x\n"
    (tmp_path / "run.sh").write_text(SCRIPT.rstrip("\n") + " \\\n  " + keys)
    code, out, err = call("translate", "run.sh")
    assert (code, out) == (2, "")
    assert "run.sh:5: Hydra would refuse trainer.total_epoch: " in err
    assert "run.sh:6: trainer.total_epochs=two: 'two' where an integer is expected" in err
    assert "run.sh:7: data.train_batch_size=x should be a whole number" in err


def test_an_unknown_rollout_or_logger_is_named_by_audit(tmp_path, command):
    launch = "python3 -m verl.trainer.main_ppo actor_rollout_ref.actor.use_dynamic_bsz=True"
    (tmp_path / "a.sh").write_text(f"{launch} actor_rollout_ref.rollout.name=vlm\n")
    _, out, _ = command("audit", "a.sh")
    assert out.startswith("open ") and "TC050  unsupported " in out and "veRL has no rollout 'vlm'" in out
    (tmp_path / "a.sh").write_text(
        f"{launch} actor_rollout_ref.rollout.name=vllm trainer.logger=[wandB,file]\n"
    )
    code, _, error = command("translate", "a.sh")
    assert code == 2 and "a.sh:1: trainer.logger=[wandB,file]: veRL has no logger 'wandB'" in error
    assert "hint: write wandb" in error


def test_each_cause_has_its_remedy(call, tmp_path):
    wrong = " data.train_batch_sise=8 algorithm.adv_estimator=grpoo"
    (tmp_path / "run.sh").write_text(SCRIPT.replace(" \\\n", f"{wrong} \\\n", 1))
    code, _, err = call("translate", "run.sh")
    assert code == 2 and "did you mean data.train_batch_size?" in err
    assert "veRL has no 'grpoo'; write algorithm.adv_estimator=grpo" in err
