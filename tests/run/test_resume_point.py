"""A checkpoint from which a run cannot continue: it is told before anything starts, with the way out."""

import json
import os
import re
import shutil
from dataclasses import replace

import pytest
from checkpoint_files import saved
from toy_plan import source

from trinity_compat.buffer import open_buffer
from trinity_compat.common.errors import UserError
from trinity_compat.job.checkpoints import MARKER
from trinity_compat.run.checks import preflight
from trinity_compat.run.checks.preflight import check_resume
from trinity_compat.run.job_dir import resume_point
from trinity_compat.run.plan.plan_run import make_plan
from trinity_compat.run.plan.source import RunOptions


def plan_of(job, *words, **options):
    return make_plan(
        source(*words)[0].config, RunOptions(job=str(job), **options), cwd=job.parent, device="cpu"
    )


def refusal(job, *words, **options):
    with pytest.raises(UserError) as told:
        check_resume(plan_of(job, *words, **options))
    return told.value


def offered(error):
    found = re.search(r"trainer\.resume_mode=resume_path trainer\.resume_from_path=(\S+)\. ", error.hint)
    assert "trainer.resume_mode=disable" in error.hint
    return found[1] if found else None


@pytest.mark.parametrize("options", [{}, {"mode": "train"}])
@pytest.mark.parametrize("words", [(), ("trainer.use_v1=True",)])
def test_a_newest_checkpoint_that_is_gone_is_not_trained_over(tmp_path, options, words):
    saved(tmp_path, 300, 312, 315, 318)
    check_resume(plan_of(tmp_path, *words, **options))
    shutil.move(tmp_path / "global_step_318", tmp_path / "moved")
    error = refusal(tmp_path, *words, **options)
    assert "names step 318" in error.message and "global_step_318 is missing" in error.message
    assert offered(error) == f"{tmp_path}/global_step_315"


def test_what_the_refusal_says_to_write_is_accepted(tmp_path):
    saved(tmp_path, 3, 6)
    shutil.rmtree(tmp_path / "global_step_6")
    path = offered(refusal(tmp_path))
    check_resume(plan_of(tmp_path, "trainer.resume_mode=resume_path", f"trainer.resume_from_path={path}"))
    check_resume(plan_of(tmp_path, "trainer.resume_mode=disable"))


def test_an_explorer_and_a_bench_load_no_checkpoint_of_the_trainer(tmp_path):
    saved(tmp_path, 3)
    shutil.rmtree(tmp_path / "global_step_3")
    check_resume(plan_of(tmp_path, mode="bench"))


ACTOR, STATE = "global_step_6/actor", "global_step_6/trinity.json"
MODEL = f"{ACTOR}/model_world_size_1_rank_0.pt"


def cut(bytes_left):
    def damage(path):
        data = path.read_bytes()
        path.write_bytes(data[:bytes_left])

    return damage


def fifo(path):
    path.unlink()
    os.mkfifo(path)


def gone(path):
    shutil.rmtree(path) if path.is_dir() else path.unlink()


def hole(path):
    data = path.read_bytes()
    path.write_bytes(data[:60] + data[160:])


def garbage(path):
    path.write_bytes(b"\xff\xfe\x00" * 100)


def other(text):
    return lambda path: path.write_text(text)


def renamed(path):
    data = json.loads(path.read_text())
    path.write_text(json.dumps({**data, "step": 5}))


@pytest.mark.parametrize(
    ("name", "damage", "said"),
    [
        (MODEL, cut(-1), "is truncated"),
        (MODEL, cut(100), "is truncated"),
        (MODEL, cut(0), "is empty"),
        (MODEL, hole, "is damaged"),
        (MODEL, fifo, "is not a regular file"),
        (MODEL, gone, "is missing"),
        (f"{ACTOR}/optim_world_size_1_rank_0.pt", gone, "is missing"),
        (f"{ACTOR}/extra_state_world_size_1_rank_0.pt", garbage, "is truncated"),
        (f"{ACTOR}/fsdp_config.json", cut(4), "is not JSON"),
        (f"{ACTOR}/fsdp_config.json", cut(0), "is empty"),
        (ACTOR, gone, "is missing"),
        (STATE, cut(20), "is not JSON"),
        (STATE, cut(0), "is not JSON"),
        (STATE, garbage, "is not JSON"),
        (STATE, other("[1]"), "not the state"),
        (STATE, other('{"position": {"low": 1}}'), "not the state"),
        (STATE, other("[" * 100_000), "is not JSON"),
        (STATE, renamed, "is of step 5"),
        (STATE, fifo, "is not a regular file"),
    ],
)  # fmt: skip
def test_a_damaged_newest_checkpoint_names_the_file_and_the_newest_whole_one(tmp_path, name, damage, said):
    saved(tmp_path, 2, 4, 6)
    damage(tmp_path / name)
    error = refusal(tmp_path)
    assert f"{tmp_path}/{name}" in error.message and said in error.message
    assert offered(error) == f"{tmp_path}/global_step_4"


def test_weights_in_safetensors_are_as_long_as_their_header_says(tmp_path):
    saved(tmp_path, 4, 6)
    header = json.dumps({"w": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}}).encode()
    file = tmp_path / ACTOR / "huggingface" / "model.safetensors"
    file.write_bytes(len(header).to_bytes(8, "little") + header + bytes(16))
    check_resume(plan_of(tmp_path))
    file.write_bytes(file.read_bytes()[:-1])
    assert "model.safetensors is truncated" in refusal(tmp_path).message


def test_damaged_checkpoints_on_the_way_are_passed_over(tmp_path):
    saved(tmp_path, 2, 4, 6, 8)
    shutil.rmtree(tmp_path / "global_step_8")
    (tmp_path / ACTOR / "model_world_size_1_rank_0.pt").write_bytes(b"")
    (tmp_path / "global_step_4" / "data.pt").unlink()  # its write was interrupted
    assert offered(refusal(tmp_path)) == f"{tmp_path}/global_step_2"


def test_without_another_whole_checkpoint_only_starting_over_is_offered(tmp_path):
    saved(tmp_path, 6)
    shutil.rmtree(tmp_path / "global_step_6")
    assert offered(refusal(tmp_path)) is None


def test_a_critic_is_looked_at_where_one_is_trained(tmp_path):
    saved(tmp_path, 4, 6, roles=("actor", "critic"))
    shutil.rmtree(tmp_path / "global_step_6" / "critic")
    check_resume(plan_of(tmp_path))
    words = ("algorithm.adv_estimator=gae", "critic.model.path=/m", "critic.ppo_micro_batch_size_per_gpu=4")
    error = refusal(tmp_path, *words)
    assert "global_step_6/critic is missing" in error.message
    assert offered(error) == f"{tmp_path}/global_step_4"


def test_ranks_on_other_machines_may_have_written_there(tmp_path):
    saved(tmp_path, 4, ranks=2)
    (tmp_path / "global_step_4" / "actor" / "model_world_size_2_rank_1.pt").unlink()
    assert "model_world_size_2_rank_1.pt is missing" in refusal(tmp_path).message
    spec = plan_of(tmp_path).spec
    spec.verl["trainer"]["nnodes"] = 2
    assert not resume_point.of(tmp_path, spec).problem


def test_a_file_that_a_resume_does_not_load_may_be_missing(tmp_path):
    saved(tmp_path, 4)
    (tmp_path / "global_step_4" / "actor" / "optim_world_size_1_rank_0.pt").unlink()
    contents = "[model,extra]"
    check_resume(plan_of(tmp_path, f"actor_rollout_ref.actor.checkpoint.load_contents={contents}"))


@pytest.mark.parametrize("name", ["global_step_3", "global_step_3/actor"])
def test_resume_path_to_a_damaged_checkpoint_offers_another(tmp_path, name):
    saved(tmp_path, 1, 3)
    words = ("trainer.resume_mode=resume_path", f"trainer.resume_from_path={tmp_path}/global_step_3")
    check_resume(plan_of(tmp_path, *words))
    (tmp_path / "global_step_3" / "actor" / "model_world_size_1_rank_0.pt").write_bytes(b"PK")
    assert offered(refusal(tmp_path, *words)) == f"{tmp_path}/global_step_1"


@pytest.mark.parametrize("path", ["global_step_3", "./global_step_3", "{job}/global_step_3"])
def test_a_checkpoint_by_a_relative_or_absolute_path(tmp_path, path):
    saved(tmp_path / "job", 3)
    named = path.format(job=tmp_path / "job")
    words = ("trainer.resume_mode=resume_path", f"trainer.resume_from_path={named}")
    check_resume(replace(plan_of(tmp_path / "job", *words), cwd=tmp_path / "job"))


@pytest.mark.parametrize("path", ["null", "", "ck", "ck/global_step_4/", "ck/global_step_x"])
def test_what_verl_could_not_read_is_refused(tmp_path, path):
    error = refusal(tmp_path, "trainer.resume_mode=resume_path", f"trainer.resume_from_path={path}")
    assert "global_step_N, not" in error.message


def test_a_missing_checkpoint_names_those_that_are_there(tmp_path):
    saved(tmp_path, 4)
    path = f"trainer.resume_from_path={tmp_path}/global_step_6"
    error = refusal(tmp_path, "trainer.resume_mode=resume_path", path)
    assert (
        "no checkpoint there" in error.message and error.hint == f"checkpoints in {tmp_path}: global_step_4"
    )


# -- the marker


def test_a_missing_marker_is_told_where_a_checkpoint_was_finished(tmp_path):
    saved(tmp_path, 2, 4, marker=False)
    error = refusal(tmp_path)
    assert f"{MARKER} is missing" in error.message
    assert offered(error) == f"{tmp_path}/global_step_4"


def test_a_death_before_the_first_marker_starts_over(tmp_path):
    """Its step was not logged: the marker is held back until then."""
    saved(tmp_path, 2, marker=False)
    (tmp_path / "latest_checkpointed_iteration.held").write_text("2")
    check_resume(plan_of(tmp_path))
    (tmp_path / "global_step_2" / "data.pt").unlink()
    (tmp_path / "latest_checkpointed_iteration.held").unlink()
    check_resume(plan_of(tmp_path))


@pytest.mark.parametrize("text", ["", "x", "²", "9" * 5000, "-4", "\0"])
def test_a_torn_marker_means_the_checkpoint_that_was_finished_last(tmp_path, text):
    saved(tmp_path, 2, 4)
    (tmp_path / MARKER).write_text(text)
    check_resume(plan_of(tmp_path))
    (tmp_path / "global_step_4" / "actor" / "model_world_size_1_rank_0.pt").write_bytes(b"")
    assert offered(refusal(tmp_path)) == f"{tmp_path}/global_step_2"


def test_a_marker_that_is_a_pipe_is_not_waited_for(tmp_path):
    saved(tmp_path, 2, marker=False)
    os.mkfifo(tmp_path / MARKER)
    check_resume(plan_of(tmp_path))


# -- branches


def test_a_branch_that_a_resume_left_is_not_offered(tmp_path):
    """Trained to 6, continued from 2, and the branch's 4 is gone: 3 and 6 are on the branch that was left."""
    url = f"sqlite:///{tmp_path}/db"
    saved(tmp_path, 2, 3, 6, 4)
    buffer = open_buffer(url)
    own = buffer.position(step=0).buffer
    buffer.reconcile(step=2)
    buffer.close()
    for step, history in ((2, 1), (3, 1), (6, 1), (4, 2)):
        state = tmp_path / f"global_step_{step}" / "trinity.json"
        data = json.loads(state.read_text())
        data["position"] |= {"buffer": own, "history": history}
        state.write_text(json.dumps(data))
    shutil.rmtree(tmp_path / "global_step_4")
    spec = replace(plan_of(tmp_path).spec, database_url=url)
    assert "resume_from_path=" + f"{tmp_path}/global_step_2. " in resume_point.of(tmp_path, spec).hint
    (tmp_path / "db").unlink()  # unknown without it: the last one before
    assert f"{tmp_path}/global_step_3. " in resume_point.of(tmp_path, spec).hint


def test_the_files_of_torch_are_what_is_looked_for(tmp_path):
    torch = pytest.importorskip("torch")
    saved(tmp_path, 2)
    file = tmp_path / "global_step_2" / "actor" / "model_world_size_1_rank_0.pt"
    torch.save({"w": torch.zeros(100), "n": [1, 2]}, file)
    check_resume(plan_of(tmp_path))
    cut(-1)(file)
    assert f"{file} is truncated" in refusal(tmp_path).message


@pytest.mark.parametrize("rows", [None, "rows of files"])
def test_the_preflight_check_looks_whatever_is_trained_on(tmp_path, monkeypatch, rows):
    for name in ("models", "data", "dataset_class", "file_rows", "reward_function", "cache"):
        monkeypatch.setattr(preflight, f"check_{name}", lambda *_, **__: None)
    saved(tmp_path, 2, 4)
    plan = plan_of(tmp_path)
    plan = replace(plan, spec=replace(plan.spec, rows=rows))
    preflight.check(plan)
    shutil.rmtree(tmp_path / "global_step_4")
    with pytest.raises(UserError, match="global_step_4 is missing"):
        preflight.check(plan)
