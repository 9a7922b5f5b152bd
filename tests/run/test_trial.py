"""A trial: its jobs one after the other, modes that stop early, and a rerun. The jobs are fakes."""

import itertools
import json
import math
import signal
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner
from jsonschema import Draft202012Validator

from trinity_compat.cli import cli
from trinity_compat.cli.schema import load
from trinity_compat.common.errors import RunError, UserError
from trinity_compat.compare.margins import MarginAmount, Margins
from trinity_compat.compare.sources import read_side
from trinity_compat.compare.verdict import CompareOptions, compare
from trinity_compat.run import trial
from trinity_compat.run.plan.source import RunOptions

SCRIPT = Path(__file__).parents[2] / "examples" / "verl_scripts" / "run_toy_grpo.sh"
STEPS = 40


def wave(level, seed):
    return [level + 0.01 * math.sin(2.4 * step + seed) + 0.002 * seed for step in range(1, STEPS + 1)]


def write_events(folder, curves, steps):
    pytest.importorskip("tensorboard", reason="needs tensorboard (make install)")
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.summary.writer.event_file_writer import EventFileWriter

    writer = EventFileWriter(str(folder / "monitor" / "tensorboard" / "trainer"))
    for step in range(steps):
        values = [Summary.Value(tag=name, simple_value=ys[step]) for name, ys in curves.items()]
        writer.add_event(Event(step=step + 1, wall_time=float(step), summary=Summary(value=values)))
    writer.close()


class FakeJob:
    """A job that does ten steps each time one looks at it. ``ends``: its exit status, else 0."""

    pid = 4711

    def __init__(self, fakes, job, curves, ends=None):
        self.fakes, self.job, self.curves, self.ends = fakes, job, curves, ends
        self.step, self.number = 0, None

    def wait(self, timeout):
        if self.number or self.ends or self.step == STEPS:
            code = 128 + self.number if self.number else self.ends or 0
            self.fakes.end(self.job, code)
            return code
        self.step += 10
        for file in self.job.glob("monitor/tensorboard/trainer/*"):
            file.unlink()
        write_events(self.job, self.curves, self.step)
        if self.fakes.each_look:
            self.fakes.each_look(self)
        raise subprocess.TimeoutExpired("run", timeout)


class Fakes:
    """Starts fake jobs. ``levels``: offset, or (offset, seed) → (reward, seconds a step)."""

    def __init__(self, levels):
        self.levels, self.started, self.commands, self.at_work = levels, [], [], None
        self.ends, self.each_look = {}, None

    def __call__(self, command, log):
        self.commands.append(command)
        job = Path(command[command.index("--job") + 1])
        offset, seed = (int(name[-1]) for name in (job.parent.name, job.name))
        self.started.append((offset, seed))
        log.write_text("+ python3 -m verl\nerror: no such model: /m\n  hint: name another\n")
        reward, seconds = self.levels.get((offset, seed), self.levels[offset])
        rewards = reward if isinstance(reward, list) else wave(reward, seed)
        curves = {"critic/score/mean": rewards, "timing_s/step": wave(seconds, seed)}
        self.at_work = FakeJob(self, job, curves, self.ends.get((offset, seed)))
        return self.at_work

    def end(self, job, code):
        (job / "log").mkdir(parents=True, exist_ok=True)
        record = {"began": 1.0, "phases": [], "end": {"code": code, "failure": "", "log": "", "at": 2.0}}
        (job / "log" / "phases.json").write_text(json.dumps(record))

    def signal(self, pid, number):
        assert pid == FakeJob.pid
        self.at_work.number = number


SAME = {0: (0.6, 3.2), 1: (0.6, 2.0), 2: (0.6, 1.6)}
WORSE = {**SAME, 2: (0.3, 1.6)}


@pytest.fixture
def fakes(monkeypatch):
    """Makes the starter of fake jobs, which the trial's signals reach."""

    def make(levels):
        made = Fakes(levels)
        monkeypatch.setattr(trial, "start_job", made)
        monkeypatch.setattr(trial, "signal_group", made.signal)
        monkeypatch.setattr(trial, "_steps", lambda job: (made.at_work.step, STEPS))
        return made

    return make


@pytest.fixture
def asked(tmp_path):
    source = tmp_path / "run.sh"
    source.write_text("python3 -m verl.trainer.main_ppo\n")
    return trial.Trial(str(source), (), (0, 1, 2), 3, ("--restarts", "1"), tmp_path / "trial")


def finish(asked):
    """Run what is missing; returns the stopped modes."""
    run = trial.TrialRun(asked, 2, trial.begin(asked))
    assert run.to_the_end() == 0
    return run.stopped


def told(asked, stopped):
    return list(trial.lines(asked, stopped, trial.answers(asked)))


def test_a_seed_runs_in_every_mode_before_the_next_one(asked, fakes):
    made = fakes(SAME)
    stopped = finish(asked)
    assert made.started == [(offset, seed) for seed in (1, 2, 3) for offset in (0, 1, 2)]
    assert stopped == {}
    first, second, third, more = told(asked, stopped)
    assert first == "offset 0: reward 0.604, 3.2 s a step: the others are compared with this"
    assert second.startswith("offset 1: reward equal at every step, 1.6 × as fast (95 %: 1.6 to 1.6)")
    assert third.startswith("offset 2: reward equal at every step, 2.0 × as fast")
    assert more.startswith(f"trinity-compat compare {asked.root}/offset0 {asked.root}/offset1 ")


def test_a_job_has_its_folder_its_seed_and_its_offset_in_updates(asked, fakes):
    made = fakes(SAME)
    finish(replace(asked, arguments=("a=b",)))
    command = made.commands[5]
    assert command[2:5] == ["-m", "trinity_compat", "run"]
    assert command[5:9] == ["--job", str(asked.root / "offset2" / "seed2"), "--restarts", "1"]
    sets = [value for word, value in itertools.pairwise(command) if word == "--set"]
    assert sets == [
        "synchronizer.sync_offset=4",
        "++data.seed=2",
        "++actor_rollout_ref.rollout.seed=2",
        "trainer.experiment_name=run_offset2_seed2",
        "continue_from_checkpoint=true",
    ]
    assert command[-3:] == [asked.source, "--", "a=b"]


def test_a_mode_that_is_worse_stops_while_its_second_seed_runs(asked, fakes):
    made = fakes(WORSE)
    stopped = finish(asked)
    assert made.started == [(0, 1), (1, 1), (2, 1), (0, 2), (1, 2), (2, 2), (0, 3), (1, 3)]
    assert stopped == {2: "at step 20 of seed 2: reward lower by 50 %"}
    assert told(asked, stopped)[2].startswith("offset 2: reward lower by 50 %, 2.0 × as fast")
    assert told(asked, stopped)[2].endswith("; stopped at step 20 of seed 2: reward lower by 50 %")


def test_a_mode_stops_between_seeds_too(asked, fakes, monkeypatch):
    made = fakes(WORSE)
    monkeypatch.setattr(trial, "_steps", lambda job: (0, None))
    assert finish(asked) == {2: "before seed 3: reward lower by 50 %"}
    assert (2, 2) in made.started
    assert (2, 3) not in made.started


def test_a_mode_whose_reward_is_not_a_number_stops_in_its_first_seed(asked, fakes):
    made = fakes({**SAME, 1: ([0.6] * 5 + [math.nan] * 35, 2.0)})
    assert finish(asked) == {1: "at step 20 of seed 1: critic/score/mean is NaN from step 6 on"}
    assert made.started.count((1, 2)) == 0


def test_the_lowest_offset_never_stops(asked, fakes):
    made = fakes({0: (0.3, 3.2), 1: (0.6, 2.0), 2: (0.6, 1.6)})
    made.levels[0, 2] = ([math.nan] * STEPS, 3.2)
    assert finish(asked) == {}
    assert len(made.started) == 9


def test_a_reward_within_the_given_margin_stops_nothing(asked, fakes):
    made = fakes({**SAME, 1: (0.595, 2.0)})
    wide = Margins({"critic/score/mean": MarginAmount(0.02, is_share=True)})
    assert finish(replace(asked, margins=wide)) == {}
    assert len(made.started) == 9


def test_without_a_margin_a_significant_difference_stops_a_mode(asked, fakes):
    fakes({**SAME, 1: (0.595, 2.0)})
    assert finish(asked).keys() == {1}


def test_a_rerun_takes_finished_jobs_and_resumes_the_one_that_was_cut(asked, fakes):
    made = fakes(SAME)
    made.each_look = lambda job: made.started[-1] == (1, 2) and signal.raise_signal(signal.SIGINT)
    run = trial.TrialRun(asked, 2, trial.begin(asked))
    assert run.to_the_end() == 130
    assert made.at_work.number == signal.SIGINT
    again = fakes(SAME)
    finish(asked)
    assert made.started + again.started == [
        *[(0, 1), (1, 1), (2, 1), (0, 2), (1, 2)],
        *[(1, 2), (2, 2), (0, 3), (1, 3), (2, 3)],
    ]
    last = fakes(SAME)
    finish(asked)
    assert last.started == []


def test_a_rerun_remembers_what_it_has_stopped(asked, fakes):
    fakes(WORSE)
    stopped = finish(asked)
    again = fakes(SAME)
    assert finish(asked) == stopped
    assert again.started == []


def test_a_mode_that_was_stopped_stays_so_whatever_its_jobs_say_now(asked, fakes):
    made = fakes(SAME)
    trial.begin(asked)
    record = json.loads((asked.root / "trial.json").read_text())
    (asked.root / "trial.json").write_text(json.dumps({**record, "stopped": {"1": "before seed 2: x"}}))
    assert finish(asked) == {1: "before seed 2: x"}
    assert {offset for offset, _ in made.started} == {0, 2}


@pytest.mark.parametrize(("code", "kind"), [(1, RunError), (2, UserError)])
def test_a_job_that_fails_ends_the_trial_in_its_words(asked, fakes, code, kind):
    made = fakes(SAME)
    made.ends[1, 1] = code
    with pytest.raises(kind) as error:
        finish(asked)
    assert f"offset 1, seed 1 ended with {code}: no such model: /m\n    hint: name another" in str(
        error.value
    )
    assert "log/offset1-seed1.log" in str(error.value)
    assert made.started == [(0, 1), (1, 1)]


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"offsets": (0, 1)}, "offsets"),
        ({"seeds": 2}, "seeds"),
        ({"arguments": ("a=b",)}, "arguments"),
        ({"words": ()}, "options"),
    ],
)
def test_a_folder_with_a_trial_of_other_arguments_is_refused(asked, change, named):
    trial.begin(asked)
    with pytest.raises(UserError, match=f"holds a trial with other {named}") as error:
        trial.begin(replace(asked, **change))
    assert "--out names another folder" in str(error.value)


def test_a_script_that_has_changed_is_another_trial(asked):
    trial.begin(asked)
    Path(asked.source).write_text("python3 -m verl.trainer.main_ppo trainer.total_epochs=2\n")
    with pytest.raises(UserError, match="other content of the source"):
        trial.begin(asked)


def test_a_folder_of_something_else_is_refused(asked):
    asked.root.mkdir()
    (asked.root / "notes.txt").write_text("mine")
    with pytest.raises(UserError, match=r"is not a trial: trial\.json is missing"):
        trial.begin(asked)
    (asked.root / "trial.json").write_text("[]")
    with pytest.raises(UserError, match="is not a trial's record"):
        trial.begin(asked)


def test_a_secret_of_the_arguments_is_not_written(asked):
    trial.begin(replace(asked, arguments=("WANDB_API_KEY=0123456789abcdef0123456789abcdef01234567",)))
    assert "0123456789abcdef" not in (asked.root / "trial.json").read_text()


def test_the_verdicts_are_those_of_compare_on_the_same_folders(asked, fakes):
    fakes({**WORSE, 1: (0.6005, 2.0)})
    stopped = finish(asked)
    for offset, found in trial.answers(asked).items():
        a, b = (read_side([asked.root / f"offset{each}"], "x") for each in (0, offset))
        ours = compare(a, b, CompareOptions())
        assert [(m.name, m.verdict, m.difference) for m in found.metrics] == [
            (m.name, m.verdict, m.difference) for m in ours.metrics
        ]
    modes = trial.record(asked, stopped, trial.answers(asked))["modes"]
    assert [mode["outcomes"][0]["verdict"] for mode in modes] == ["same", "differs"]
    assert [bool(mode["stopped"]) for mode in modes] == [False, True]


# -- the command line ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("levels", "code"), [(SAME, 0), (WORSE, 1)])
def test_the_command_answers_in_a_line_for_each_mode(tmp_path, monkeypatch, fakes, levels, code):
    monkeypatch.setenv("TOY_DIR", "/toy")
    words = [
        "trial",
        str(SCRIPT),
        "--out",
        str(tmp_path / "trial"),
        "--device",
        "cpu",
        "--margin",
        "reward=2%",
    ]
    fakes(levels)
    done = CliRunner().invoke(cli, words, standalone_mode=False)
    assert done.return_value == code, done.output
    lines = done.stdout.splitlines()
    assert [line.split(":")[0] for line in lines[:3]] == ["offset 0", "offset 1", "offset 2"]
    again = CliRunner().invoke(cli, [*words, "--json"], standalone_mode=False)
    assert again.return_value == code
    found = json.loads(again.stdout)
    assert list(Draft202012Validator(load("trial")).iter_errors(found)) == []
    assert lines[1] == f"offset 1: {found['modes'][0]['answer']}"
    assert [bool(mode["worse"]) for mode in found["modes"]] == [False, bool(code)]


def said(*words):
    """The one line of a refused command; nothing was started."""
    done = CliRunner().invoke(cli, ["trial", *map(str, words)])
    assert isinstance(done.exception, UserError), done.output
    return str(done.exception)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--offsets", "0", "1", "1"], "--offsets names 1 twice"),
        (["--offsets", "0", "-1"], "--offsets -1: an explorer cannot be behind its trainer"),
        (["--offsets", "-1", "0"], "--offsets -1: an explorer cannot be behind its trainer"),
        (["--offsets", "1"], "there is only one"),
        (["--offsets", "0", "1.5"], "not whole numbers of steps"),
        (["--seeds", "0"], "--seeds 0"),
        (["--set", "data.seed=7"], "the trial sets data.seed itself"),
        (["--set", "synchronizer.sync_offset=2"], "the trial sets synchronizer.sync_offset itself"),
        (["--set", "synchronizer.sync_style=fully_async"], "under its sync_style fully_async no offset acts"),
        (["--set", "mode=train"], "its mode is train"),
    ],
)
def test_wrong_input_says_what_to_write(tmp_path, monkeypatch, words, message):
    monkeypatch.chdir(tmp_path)
    text = said(SCRIPT, *words, "--device", "cpu")
    assert message in text
    assert "hint: " in text
    assert not (tmp_path / "trials").exists()


def test_a_script_with_two_launches_is_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    two = tmp_path / "two.sh"
    two.write_text(SCRIPT.read_text() + "\npython3 -m verl.trainer.main_ppo trainer.total_epochs=1\n")
    assert "has 2 launches, and a trial is of one" in said(two)


def test_a_mode_that_the_launch_cannot_have_is_refused_before_anything_starts(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    limit = ["--set", "algorithm.sample_strategy=staleness_control"]
    limit += ["--set", "algorithm.sample_strategy_args.max_staleness=2"]
    text = said(SCRIPT, "--offsets", "0", "1", "2", *limit, "--device", "cpu")
    assert text.startswith("offset 2: algorithm.sample_strategy_args.max_staleness allows 1 veRL steps")


@pytest.mark.parametrize("words", [["--offsets", "0", "1", "2"], ["--offsets=2,0,1"], []])
def test_offsets_are_spelled_as_one_likes(tmp_path, monkeypatch, words):
    monkeypatch.chdir(tmp_path)
    seen = []
    monkeypatch.setattr(trial.TrialRun, "to_the_end", lambda run: seen.append(run.trial) or 130)
    more = ["--seeds", "2", "--set", "trainer.save_freq=2", "--device", "cpu"]
    done = CliRunner().invoke(cli, ["trial", *words, str(SCRIPT), *more, "--", "trainer.total_epochs=1"])
    assert done.exception is None, done.output
    assert seen[0].offsets == (0, 1, 2)
    assert seen[0].words == ("--set", "trainer.save_freq=2", "--device", "cpu")
    assert seen[0].arguments == ("trainer.total_epochs=1",)
    assert seen[0].root == tmp_path / "trials" / "run_toy_grpo"


def test_a_trinity_yaml_is_tried_as_well(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TOY_DIR", "/toy")
    text = CliRunner().invoke(cli, ["translate", "--resolve", str(SCRIPT)]).stdout
    yaml = tmp_path / "x.yaml"
    yaml.write_text(text)
    asked = trial.Trial(str(yaml), (), (0, 1), 2, (), tmp_path / "trial")
    assert trial.updates_per_step(asked, RunOptions(device="cpu")) == 2
