"""The stages of a Trinity YAML: what each is, where it lies, and that the run goes on wherever it stopped."""

import json
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner
from trinity_files import LEAST, merged

from trinity_compat.cli.status import command as status
from trinity_compat.common.errors import RunError, UserError
from trinity_compat.common.nested import value_at
from trinity_compat.run import staged_run
from trinity_compat.run.job_dir import stages as record
from trinity_compat.run.job_dir.launch_end import LaunchEnd
from trinity_compat.run.plan.plan_run import plan_source
from trinity_compat.run.plan.source import RunOptions, from_yaml
from trinity_compat.run.plan.stages import parts
from trinity_compat.trinity.config.stages import stages_of

WARM = {
    "stage_name": "warm",
    "mode": "train",
    "algorithm": {"algorithm_type": "sft"},
    "buffer": {
        "train_batch_size": 48,
        "total_steps": 100,
        "trainer_input": {"experience_buffer": {"path": "/d/rows.jsonl"}},
    },
}
WHOLE = merged(
    LEAST,
    {
        "project": "p",
        "name": "n",
        "algorithm": {"algorithm_type": "grpo", "repeat_times": 8, "optimizer": {"lr": 1e-4}},
        "cluster": {"node_num": 1, "gpu_per_node": 3},
        "stages": [WARM, {"stage_name": "rft"}],
    },
)


def file_of(tmp_path, change=None):
    path = tmp_path / "x.yaml"
    path.write_text(yaml.safe_dump(merged(WHOLE, change or {}), sort_keys=False))
    return path


def parts_of(tmp_path, change=None, **options):
    options = RunOptions(device="cuda", **options)
    return parts(from_yaml(file_of(tmp_path, change)), options, tmp_path)


def plan_of(part):
    return plan_source(part.source, part.options, cwd=Path("/work"))


def test_a_section_of_a_stage_takes_the_place_of_the_whole_one():
    warm, rft = stages_of(WHOLE)
    assert (warm.config["mode"], warm.config["name"], rft.config["name"]) == ("train", "n/warm", "n/rft")
    assert warm.config["algorithm"] == {"algorithm_type": "sft"}  # no lr of the file's
    assert rft.config["algorithm"] == WHOLE["algorithm"]
    assert warm.config["model"] == rft.config["model"] == WHOLE["model"]
    assert [each.config["trainer"]["save_hf_checkpoint"] for each in (warm, rft)] == ["last", "last"]
    assert "stages" not in warm.config and "stages" in WHOLE


def test_each_stage_is_a_job_in_the_run_s_folder(tmp_path):
    warm, rft = parts_of(tmp_path)
    made = [plan_of(part) for part in (warm, rft)]
    root = tmp_path / "checkpoints" / "p" / "n"
    assert [each.job.root for each in made] == [root / "warm", root / "rft"]
    assert [(each.spec.mode, each.spec.total_steps) for each in made] == [("train", 100), ("both", None)]
    assert made[0].spec.rows.paths == ("/d/rows.jsonl",)
    assert any("storage_type is not given" in note for note in made[0].notes)
    elsewhere = parts_of(tmp_path, job=str(tmp_path / "j"))
    assert [plan_of(part).job.root.name for part in elsewhere] == ["warm", "rft"]
    assert plan_of(elsewhere[0]).job.root.parent == tmp_path / "j"


def test_the_next_stage_is_on_the_model_of_the_one_before(tmp_path):
    _, rft = parts_of(tmp_path, sets=("model.model_path=/chosen",))
    made = plan_of(rft.on("/left"))
    assert value_at(made.spec.verl, "actor_rollout_ref.model.path") == "/left"
    assert yaml.safe_load(rft.on("/left").source.yaml_text)["model"]["model_path"] == "/left"
    assert value_at(plan_of(rft).spec.verl, "actor_rollout_ref.model.path") == "/chosen"


def test_a_field_that_another_one_names_is_that_of_the_whole_file(tmp_path):
    change = {"model": {"critic_model_path": "${model.model_path}"}, "algorithm": {"algorithm_type": "ppo"}}
    _, rft = parts_of(tmp_path, merged(change, {"algorithm": {"repeat_times": 1}}))
    made = plan_of(rft.on("/left"))
    assert value_at(made.spec.verl, "critic.model.path") == "/m"
    with pytest.raises(UserError, match=r"model\.critic_model_path: \$\{model\.pth\} cannot be resolved"):
        parts_of(tmp_path, {"model": {"critic_model_path": "${model.pth}"}})


def test_a_set_may_be_of_one_stage(tmp_path):
    warm, rft = parts_of(tmp_path, sets=("stages.1.buffer.total_steps=2", "trainer.save_interval=7"))
    assert (plan_of(warm).spec.total_steps, plan_of(rft).spec.total_steps) == (100, 2)
    assert [plan_of(part).spec.verl["trainer"]["save_freq"] for part in (warm, rft)] == [7, 7]
    with pytest.raises(UserError, match="stages 0 to 1"):
        parts_of(tmp_path, sets=("stages.2.buffer.total_steps=2",))


def test_a_message_names_the_line_in_the_stage(tmp_path):
    broken = {**WARM, "buffer": {**WARM["buffer"], "train_batch_size": -1}}
    path = file_of(tmp_path, {"stages": [broken, {"stage_name": "rft"}]})
    with pytest.raises(UserError, match="train_batch_size") as error:
        plan_of(parts(from_yaml(path), RunOptions(device="cuda"), tmp_path)[0])
    assert path.read_text().splitlines()[error.value.where.line - 1].strip() == "train_batch_size: -1"


def test_a_stage_that_cannot_be_is_refused_with_its_line(tmp_path):
    path = file_of(tmp_path, {"stages": [{"stage_name": "a", "mode": "trian"}]})
    with pytest.raises(UserError, match=r"stages\.0\.mode=trian") as error:
        parts(from_yaml(path), RunOptions(), tmp_path)
    assert path.read_text().splitlines()[error.value.where.line - 1].strip() == "mode: trian"


def test_a_field_that_names_no_other_is_refused_with_its_line(tmp_path):
    path = file_of(tmp_path, {"name": "${nope.x}"})
    with pytest.raises(UserError, match="names a key that isn't there") as error:
        parts(from_yaml(path), RunOptions(), tmp_path)
    assert path.read_text().splitlines()[error.value.where.line - 1].strip() == "name: ${nope.x}"


REFUSED = {
    "a name twice": ([{"stage_name": "a"}, {"stage_name": "a"}], {}, "an earlier stage has this name"),
    "no name": ([{"stage_name": ""}], {}, "each stage has a folder of this name"),
    "a folder of a job's": ([{"stage_name": "buffer"}], {}, "each stage has a folder of this name"),
    "a way out": ([{"stage_name": "../a"}], {}, "each stage has a folder of this name"),
    "a bench": ([{"stage_name": "a", "mode": "bench"}], {}, "a stage trains"),
    "one side": ([{"stage_name": "a"}], {"mode": "train"}, "--mode train"),
    "an endpoint": ([{"stage_name": "a"}], {"mode": "serve"}, "--mode serve.*\n.*named n/a"),
    "one database": ([{"stage_name": "a"}], {"database": "postgresql://h/d"}, "--database"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_stages_that_cannot_be_run_in_order_are_refused(case, tmp_path):
    given, options, said = REFUSED[case]
    with pytest.raises(UserError, match=said):
        parts_of(tmp_path, {"stages": given}, **options)


# ------------------------------------------------------------------ in order


class Fake:
    """Runs stages by writing what a run leaves. ``die``: stage → what to raise once it is through."""

    def __init__(self, die=None):
        self.begun, self.die = [], die or {}

    def __call__(self, source, options):
        job = Path(options.job)
        self.begun.append((job.name, source.config["model"]["model_path"]))
        model = job / "global_step_3" / "actor" / "huggingface"
        model.mkdir(parents=True, exist_ok=True)
        (model / "model.safetensors").touch()
        (job / "latest_checkpointed_iteration.txt").write_text("3")
        fault = self.die.pop(job.name, 0)
        if isinstance(fault, BaseException):
            raise fault
        return LaunchEnd(fault, str(job))


@pytest.fixture
def yaml_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(staged_run.preflight, "missing", lambda plan: iter(()))
    return file_of(tmp_path)


ROOT = Path("checkpoints/p/n")


def run(path, fake):
    return staged_run.run_yaml(path, RunOptions(device="cuda"), runner=fake)


def states():
    return [(each.name, each.state) for each in record.read(ROOT)]


def test_they_run_in_order_and_a_finished_run_starts_none(yaml_file):
    fake = Fake()
    ended = run(yaml_file, fake)
    left = str(ROOT.absolute() / "warm" / "global_step_3" / "actor" / "huggingface")
    assert fake.begun == [("warm", "/m"), ("rft", left)]
    assert (ended.code, ended.job) == (0, str(ROOT.absolute()))
    assert states() == [("warm", "done"), ("rft", "done")]
    again = Fake()
    assert run(yaml_file, again).code == 0 and again.begun == []


@pytest.mark.parametrize("stage", ["warm", "rft"])
@pytest.mark.parametrize("fault", [1, 130, KeyboardInterrupt(), RunError("ray died")])
def test_a_stage_that_ends_badly_is_the_one_that_goes_on(yaml_file, stage, fault):
    try:
        assert run(yaml_file, Fake({stage: fault})).code == fault
    except BaseException as error:
        assert error is fault
    assert dict(states())[stage] == "running"
    again = Fake()
    assert run(yaml_file, again).code == 0
    assert [name for name, _ in again.begun] == (["warm", "rft"] if stage == "warm" else ["rft"])
    assert again.begun[-1][1].endswith("global_step_3/actor/huggingface")


def test_a_merge_that_was_interrupted_is_made_again(yaml_file, monkeypatch):
    def merge(root, *, step, out):
        out.mkdir(parents=True)
        (out / "half").touch()
        if not made:
            made.append(step)
            raise KeyboardInterrupt
        (out / "model.safetensors").touch()
        return out

    class Shards(Fake):
        def __call__(self, source, options):
            ended = super().__call__(source, options)
            (Path(options.job) / "global_step_3" / "actor" / "huggingface" / "model.safetensors").unlink()
            return ended

    made = []
    monkeypatch.setattr(staged_run.export, "to_hf", merge)
    with pytest.raises(KeyboardInterrupt):
        run(yaml_file, Shards())
    fake = Shards()
    assert run(yaml_file, fake).code == 0
    assert fake.begun[-1][1] == str(ROOT.absolute() / "warm" / "global_step_3" / "hf")
    assert (ROOT / "warm" / "global_step_3" / "hf" / "model.safetensors").exists()


def test_other_stages_than_the_run_has_been_through_are_refused(yaml_file, tmp_path):
    run(yaml_file, Fake({"rft": 1}))
    other = file_of(tmp_path, {"stages": [{**WARM, "stage_name": "cold"}, {"stage_name": "rft"}]})
    with pytest.raises(UserError, match="has completed warm, rft"):
        run(other, Fake())
    anew = file_of(tmp_path, {"continue_from_checkpoint": False})
    fake = Fake()
    assert run(anew, fake).code == 0
    assert [name for name, _ in fake.begun] == ["warm", "rft"]
    assert len(list(ROOT.parent.glob("n_*/stages.json"))) == 1


def test_a_later_stage_s_fault_shows_before_the_first_one_starts(yaml_file, tmp_path):
    bad = {"stage_name": "rft", "algorithm": {"algorithm_type": "nosuch"}}
    fake = Fake()
    with pytest.raises(UserError, match="nosuch"):
        run(file_of(tmp_path, {"stages": [WARM, bad]}), fake)
    assert fake.begun == []


def test_two_stages_on_one_database_are_refused(yaml_file, tmp_path):
    one = {"trainer_input": {"experience_buffer": {"path": "postgresql+psycopg://db/run"}}}
    two = [{"stage_name": "a"}, {"stage_name": "b"}]
    with pytest.raises(UserError, match="the stages a and b name the same database"):
        run(file_of(tmp_path, {"stages": two, "buffer": one}), Fake())


def test_status_tells_how_far_the_stages_are(yaml_file):
    run(yaml_file, Fake({"rft": 1}))
    told = CliRunner().invoke(status, [str(ROOT)])
    assert "1 warm  done, checkpoint of step 3" in told.output
    assert "2 rft   running, checkpoint of step 3" in told.output


def test_a_dry_run_with_a_folder_writes_each_stage_s_files(yaml_file, tmp_path, monkeypatch):
    from trinity_compat.run import dry_run
    from trinity_compat.run.checks.report import StartReport

    monkeypatch.setattr(dry_run.start_check, "check", lambda *_, **__: StartReport())
    lines = list(dry_run.lines(str(yaml_file), (), RunOptions(device="cuda", job=str(tmp_path / "j"))))
    told = [line for line in lines if line in ("stage     1 of 2: warm", "stage     2 of 2: rft")]
    assert len(told) == 2
    for name in ("warm", "rft"):
        config = tmp_path / "j" / name / "config"
        assert json.loads((config / "launch.json").read_text())["stage"] == name
        assert (config / "run.json").exists() and (config / "verl.yaml").exists()
