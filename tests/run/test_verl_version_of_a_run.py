"""``--verl-version`` of run, advise and debug: the plan has its defaults, and a resume keeps them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from trinity_compat.cli import cli
from trinity_compat.common.errors import UserError
from trinity_compat.run import debug, dry_run
from trinity_compat.run.acquire_job import acquire_job
from trinity_compat.run.checks.report import StartReport
from trinity_compat.run.plan.plan_run import make_plan
from trinity_compat.run.plan.source import RunOptions, Source

WORDS = (
    "algorithm.adv_estimator=grpo data.train_files=/d/a.parquet data.val_files=/d/b.parquet"
    " data.train_batch_size=64 actor_rollout_ref.model.path=Qwen/Qwen2.5-0.5B-Instruct"
    " actor_rollout_ref.actor.ppo_mini_batch_size=32 actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4"
    " actor_rollout_ref.rollout.name=vllm actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=4"
    " actor_rollout_ref.rollout.n=4 trainer.n_gpus_per_node=8 trainer.nnodes=1"
    " actor_rollout_ref.actor.clip_ratio=0.3"
)
SEVERAL = "run.sh:1: note TW018 the keys fit veRL 0.2.0 to 0.9.1, and 0.9.1 is taken; defaults differ: "


@pytest.fixture(autouse=True)
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "run.sh").write_text(f"python3 -m verl.trainer.main_ppo {WORDS}\n")
    (tmp_path / "x.yaml").write_text("mode: both\n")
    monkeypatch.chdir(tmp_path)


def options(release: str | None) -> RunOptions:
    return RunOptions(verl_version=release, dry_run=True, device="cuda", job="job")


@pytest.mark.parametrize(("release", "low"), [(None, 0.2), ("0.9.1", 0.2), ("0.3", 0.3), ("0.2.0", 0.3)])
def test_the_plan_has_the_defaults_of_the_release(release: str | None, low: float) -> None:
    ((source, rest),) = dry_run.sources("run.sh", (), options(release))
    plan = make_plan(source.config, rest, cwd=Path.cwd())
    assert plan.spec.verl["actor_rollout_ref"]["actor"]["clip_ratio_low"] == low
    words = ["translate", "--resolve", *(["--verl-version", release] if release else []), "run.sh"]
    assert CliRunner().invoke(cli, words).stdout.partition("\n")[2] == source.yaml_text.partition("\n")[2]
    assert source.yaml_text.startswith(f"# Written by: trinity-compat {' '.join(words)}\n")
    said = [note for note in source.notes if "TW018" in note]
    assert said == ([] if release else [source.release])
    assert (source.release == "") is (release is not None)


def test_each_command_says_that_several_releases_fit(capsys: pytest.CaptureFixture[str]) -> None:
    translated = CliRunner().invoke(cli, ["translate", "run.sh"]).stderr
    (line,) = [line for line in translated.splitlines() if "TW018" in line]
    assert line.startswith(SEVERAL) and "actor.clip_ratio_low" in line
    for release in (None, "0.9.1"):
        given = ["--verl-version", release] if release else []
        advised = json.loads(CliRunner().invoke(cli, ["advise", "run.sh", "--json", *given]).stdout)
        with pytest.raises(UserError, match=r"/d/a\.parquet does not exist"):
            debug.spec_of("run.sh", (), options(release))
        said = capsys.readouterr().err.splitlines()
        assert (line in advised["assumptions"], line in said) == (release is None, release is None)
        (command,) = [one["command"] for one in advised["modes"] if one["name"] == "split, offset 1"]
        assert ("--verl-version 0.9.1" in command) is (release is not None)


@pytest.mark.parametrize("words", [["run", "--dry-run"], ["advise"], ["debug", "-m", "workflow"]])
@pytest.mark.parametrize(
    ("source", "release", "said"),
    [("run.sh", "1.2", "not a release"), ("x.yaml", "0.9.1", "x.yaml is a Trinity YAML")],
)
def test_a_release_that_is_none_or_beside_a_yaml_is_refused(
    words: list[str], source: str, release: str, said: str
) -> None:
    found = CliRunner().invoke(cli, [*words, source, "--verl-version", release])
    assert isinstance(found.exception, UserError) and said in str(found.exception)


def test_a_job_debugs_with_its_own_release(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is a job") as caught:
        debug.spec_of(str(tmp_path), (), options("0.9.1"))
    assert "--verl-version" in caught.value.hint


def start(source: Source, options: RunOptions) -> None:
    """Create the job or join it, as a start does."""
    with acquire_job(make_plan(source.config, options, cwd=Path.cwd()), source, options, StartReport()):
        pass


@pytest.mark.parametrize("began", ["0.9.1", "0.3.0"])
def test_a_resume_has_the_release_of_the_job_or_says_so(
    began: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ((first, rest),) = dry_run.sources("run.sh", (), options(began))
    start(first, rest)
    record = tmp_path / "job" / "config" / "launch.json"
    written = record.read_text()
    for release in (None, "0.3.0", "0.9.1"):
        ((again, rest),) = dry_run.sources("run.sh", (), options(release))
        is_other = began != (release or "0.9.1")
        if is_other and release is None:
            with pytest.raises(UserError, match=r"defaults of veRL 0\.3\.0, and .* 0\.9\.1") as caught:
                start(again, rest)
            assert "--verl-version 0.3.0 continues" in caught.value.hint
        else:
            record.write_text(written)
            start(again, rest)
            assert (
                f"{record.parents[1]} was started with veRL {began}'s" in capsys.readouterr().out
            ) is is_other
    record.write_text("[")
    start(first, replace(rest, verl_version=None))
