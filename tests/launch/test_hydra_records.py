"""Records that Hydra leaves of a run are launches: ``.hydra/overrides.yaml``, and a log with its error."""

import pytest

from trinity_compat.common.errors import UserError
from trinity_compat.launch import read_script, read_text
from trinity_compat.launch.job_files import is_configuration, is_job
from trinity_compat.run.script.run_script import check_script

WORDS = ["data.train_files=['/d/a.parquet', '/d/b.parquet']", "+a.b=it's", "~critic.x", "trainer.n=8", "p.q="]
LINE = f"Error executing job with overrides: {WORDS!r}\n"
TRACE = """Traceback (most recent call last):
  File "/opt/hydra/_internal/utils.py", line 220, in run_and_report
    return func()
  File "/home/me/{main}.py", line 42, in main
    run(config)
"""


def words_of(launch):
    return [word.text for word in launch.arguments]


@pytest.mark.parametrize(
    "before", ["", "(TaskRunner pid=7) ", "\x1b[36m(main pid=7, ip=1.2.3.4)\x1b[0m ", "12:03:04 | "]
)
@pytest.mark.parametrize(
    "main, module",
    [
        ("verl/trainer/main_ppo", "verl.trainer.main_ppo"),
        ("w/recipe/dapo/main_dapo", "recipe.dapo.main_dapo"),
        ("w/verl/trainer/fsdp_sft_trainer", "verl.trainer.fsdp_sft_trainer"),
        ("", "verl.trainer.main_ppo"),
    ],
)
def test_the_error_of_a_log_is_a_launch(main, module, before, tmp_path):
    text = f"starting\n{before}{LINE}" + (TRACE.format(main=main) if main else "")
    (tmp_path / "run.log").write_text(text)
    for reading in (read_script(tmp_path / "run.log", name="run.log"), read_text(text, name="run.log")):
        (launch,) = reading.launches
        assert (launch.module, words_of(launch), str(launch.where)) == (module, WORDS, "run.log:2")
        assert "TP116" in {note.code for note in reading.diagnostics}


def test_a_log_gives_each_launch_once(tmp_path):
    other = LINE.replace("trainer.n=8", "trainer.n=4")
    reading = read_text(LINE + other + LINE + "Error executing job with overrides: [broken\n")
    assert [words_of(launch)[3] for launch in reading.launches] == ["trainer.n=8", "trainer.n=4"]


@pytest.mark.parametrize(
    "line",
    [
        f"# {LINE}",
        "echo \"Error executing job with overrides: ['a.b=2']\"\n",
        "grep 'Error executing job with overrides: [x]' log\n",
    ],
)
def test_a_script_that_has_the_words_is_a_script(line):
    (launch,) = read_text(f"{line}python3 -m verl.trainer.main_ppo a.b=1\n").launches
    assert words_of(launch) == ["a.b=1"]


@pytest.mark.parametrize(
    ("job", "module", "config"),
    [
        (None, "verl.trainer.main_ppo", []),
        ("{name: main_ppo, config_name: ppo_trainer}", "verl.trainer.main_ppo", []),
        (
            "{name: main_ppo, config_name: ppo_megatron_trainer}",
            "verl.trainer.main_ppo",
            ["ppo_megatron_trainer"],
        ),
        ("{name: main_dapo, config_name: dapo_trainer}", "recipe.dapo.main_dapo", []),
        ("{name: sft_trainer, config_name: sft_trainer_engine}", "verl.trainer.sft_trainer", []),
        (
            "{name: main_ppo, config_name: one_step_off_ppo_trainer}",
            "verl.experimental.one_step_off_policy.main_ppo",
            [],
        ),
        ("[]", "verl.trainer.main_ppo", []),
    ],
)
def test_the_overrides_of_a_run_are_a_launch(job, module, config, tmp_path):
    folder = tmp_path / "outputs" / ".hydra"
    folder.mkdir(parents=True)
    (folder / "overrides.yaml").write_text("- data.train_batch_size=64\n- +x.y=[1,2]\n- ~critic.z\n")
    if job:
        (folder / "hydra.yaml").write_text(f"hydra:\n  job: {job}\n")
    file = folder / "overrides.yaml"
    (launch,) = read_script(file, name="overrides.yaml" if not job else None).launches
    given = [f"--config-name={name}" for name in config]
    assert (launch.module, words_of(launch)) == (
        module,
        [*given, "data.train_batch_size=64", "+x.y=[1,2]", "~critic.z"],
    )
    assert launch.arguments[-1].where.line == 3
    assert is_job(str(file)) and not is_configuration(str(file))
    with pytest.raises(UserError, match="is not a shell script"):
        check_script(file)


@pytest.mark.parametrize(
    "text", ["- a\n- b\n", "[]\n", "- {a: 1}\n", "trainer: {n: 1}\n", "- a.b=1\n- two words\n"]
)
def test_another_list_is_no_launch(text, tmp_path):
    (tmp_path / "x.yaml").write_text(text)
    assert not is_job(str(tmp_path / "x.yaml"))


def test_a_log_is_not_executed_by_a_run(tmp_path):
    (tmp_path / "run.log").write_text(LINE)
    with pytest.raises(UserError, match="is not a shell script"):
        check_script(tmp_path / "run.log")
