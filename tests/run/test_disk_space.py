"""What a run says of the room that it needs."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from toy_plan import planned, source

from trinity_compat.common.errors import UserError
from trinity_compat.job.run_spec import RowsSpec, RunSpec, SyncSpec
from trinity_compat.run import run
from trinity_compat.run.checks import disk_space, host_memory

FSDP = "actor_rollout_ref.actor.fsdp_config"
VERL = {
    "data": {"train_batch_size": 100, "max_prompt_length": 1000, "max_response_length": 3000},
    "actor_rollout_ref": {"rollout": {"n": 10}, "model": {"path": "Org/Model"}},
    "algorithm": {"adv_estimator": "grpo"},
    "trainer": {"save_freq": -1, "max_actor_ckpt_to_keep": None},
}
SPEC = RunSpec("/job", "sqlite:////job/buffer/experiences.db", VERL, 1, 100, SyncSpec())


def saving(model, **trainer):
    models = {**VERL["actor_rollout_ref"], "model": {"path": str(model)}}
    return replace(
        SPEC, verl={**VERL, "actor_rollout_ref": models, "trainer": {**VERL["trainer"], **trainer}}
    )


def test_the_buffer_holds_every_answer_at_its_longest():
    # 100 steps of 1,000 answers of 1.5 KB, 3,000 tokens of 13 bytes and 1,000 of 9
    assert disk_space.space_needed(SPEC) == disk_space.SpaceNeeded(100 * 1000 * (1500 + 39000 + 9000), 0.0)


def test_rows_of_files_are_not_stored_again(tmp_path):
    of_files = replace(SPEC, rows=RowsSpec("sft", ("a.parquet",)))
    assert disk_space.space_needed(of_files).buffer == 0.0
    assert "buffer" not in "".join(disk_space.remarks(of_files, tmp_path))


def test_kept_steps_alone_hold_their_tokens():
    kept = disk_space.space_needed(replace(SPEC, keep_steps=7))
    assert kept.buffer == 1000 * (100 * 1500 + (7 + 3) * 48000)


def distilled(mode, **fields):
    loss = {"loss_mode": mode, "topk": 64}
    return replace(
        SPEC, verl={**VERL, "distillation": {"enabled": True, "distillation_loss": loss}}, **fields
    )


def test_a_teacher_takes_four_bytes_of_a_token_or_those_of_its_top_tokens_until_no_resume_needs_them():
    plain, kept = (disk_space.space_needed(replace(SPEC, keep_steps=steps)).buffer for steps in (None, 7))
    k1 = disk_space.space_needed(distilled("k1")).buffer
    assert k1 - plain == 100 * 1000 * 3000 * 4
    assert disk_space.space_needed(distilled("k1", keep_steps=7)).buffer - kept == 10 * 1000 * 3000 * 4
    top = disk_space.space_needed(distilled("forward_kl_topk")).buffer
    assert top - plain == 4 * 1000 * 3000 * 64 * 8
    off = {"enabled": False, "distillation_loss": {"loss_mode": "forward_kl_topk"}}
    assert disk_space.space_needed(replace(SPEC, verl={**VERL, "distillation": off})).buffer == plain


def test_checkpoints_hold_weights_and_moments_of_four_bytes(tmp_path):
    (tmp_path / "model.safetensors").write_bytes(bytes(2000))
    assert disk_space.space_needed(saving(tmp_path, save_freq=30)).checkpoints == 4 * 1000 * 12
    assert (
        disk_space.space_needed(saving(tmp_path, save_freq=10, max_actor_ckpt_to_keep=1)).checkpoints
        == 2 * 1000 * 12
    )
    assert disk_space.space_needed(saving("Org/Model", save_freq=10)).checkpoints is None


@pytest.mark.parametrize(("free", "warned"), [(10e9, False), (1e9, True)])
def test_too_little_room_is_warned_of(tmp_path, monkeypatch, free, warned):
    monkeypatch.setattr(disk_space.shutil, "disk_usage", lambda _: type("Usage", (), {"free": free}))
    told = list(disk_space.remarks(SPEC, tmp_path / "not" / "there"))
    assert told[0].startswith("disk      buffer up to 5.0 GB; free at ")
    assert [line.split(":")[0] for line in told[1:]] == ["warning"] * warned


def test_a_database_of_its_own_takes_none_of_this_disk(tmp_path, monkeypatch):
    monkeypatch.setattr(disk_space.shutil, "disk_usage", lambda _: type("Usage", (), {"free": 1e9}))
    spec = replace(SPEC, database_url="postgresql+psycopg://u@h/db")
    (line,) = disk_space.remarks(spec, tmp_path)
    assert "buffer up to 5.0 GB in its database" in line


def test_a_run_of_unknown_length_is_told_by_the_step(tmp_path):
    (line,) = disk_space.remarks(replace(SPEC, total_steps=None), tmp_path)
    assert "buffer up to 50 MB a step" in line


GB = 10**9


def in_turns(*words, **fields):
    made = planned(
        "trainer.n_gpus_per_node=8", "actor_rollout_ref.model.path=Qwen/Qwen2.5-7B", *words, device="cuda"
    )
    return replace(made.spec, **fields)


@pytest.mark.parametrize(
    ("words", "fields", "told"),
    [
        ((), {}, ["2 versions"]),
        ((), {"offloads": True}, ["trainer's, offloaded", "2 versions"]),
        ((f"{FSDP}.optimizer_offload=True",), {}, ["trainer's, offloaded", "2 versions"]),
        ((), {"sync": SyncSpec(method="checkpoint")}, []),
        (("actor_rollout_ref.model.path=/ckpt/step_100",), {"offloads": True}, []),  # of which size?
        (("actor_rollout_ref.model.lora_rank=8",), {}, ["sleeping engines"]),
    ],
)
def test_turns_say_what_memory_a_machine_needs(monkeypatch, tmp_path, words, fields, told):
    for free in (10**15, 10**6):
        monkeypatch.setattr("psutil.virtual_memory", lambda free=free: SimpleNamespace(available=free))
        lines = list(host_memory.remarks(in_turns(*words, **fields), tmp_path))
        parts = ("trainer's, offloaded", "sleeping engines", "2 versions")
        assert [part for part in parts if lines and part in lines[0]] == told
        warned = ["warning"] if told and free < 10**9 else []
        assert [text.split(" ")[0].strip(":") for text in lines] == ["memory"] * bool(told) + warned


def test_what_turns_need_is_shared_by_the_machines_and_a_split_needs_none_of_it(monkeypatch, tmp_path):
    """7.6 billion parameters: 12 bytes of each offloaded, and two versions of 2 bytes."""
    one = host_memory._parts(in_turns(offloads=True), tmp_path)
    assert sum(one.values()) == pytest.approx(7.6e9 * 16, rel=0.02)
    two = host_memory._parts(in_turns("trainer.nnodes=2", offloads=True), tmp_path)
    assert sum(two.values()) == pytest.approx(7.6e9 * 6, rel=0.02)  # versions are in the job's folder
    assert list(host_memory.remarks(in_turns(mode="both"), tmp_path)) == []


def test_versions_in_the_job_s_folder_take_its_disk(shared):
    line, *_ = disk_space.remarks(shared(GB, method="checkpoint"), Path("/"))
    assert "2 versions of the weights 4.0 GB" in line


@pytest.fixture
def shared(tmp_path, monkeypatch):
    """A spec whose weights go through shared memory, for a model of so many GB where so many are free."""

    def made(free, *, stored=2 * GB, method="memory", mode="both", dtype="bfloat16"):
        model, memory = tmp_path / "model", tmp_path / "shm"
        for folder in (model, memory):
            folder.mkdir(exist_ok=True)
        with (model / "model.safetensors").open("wb") as file:
            file.truncate(stored)
        (model / "config.json").write_text(f'{{"torch_dtype": "{dtype}"}}')
        monkeypatch.setattr(disk_space, "_SHARED", memory)
        usage = {memory: free}
        monkeypatch.setattr(
            disk_space.shutil, "disk_usage", lambda path: type("Usage", (), {"free": usage.get(path, 10**15)})
        )
        sync = SyncSpec(method=method, directory=str(memory / "trinity-compat-0-x"))
        return replace(saving(model), sync=sync, mode=mode)

    return made


def test_a_first_handover_that_fits_is_not_refused(shared):
    disk_space.check_shared_memory(shared(2.1 * GB))


@pytest.mark.parametrize("free", [64 * 10**6, 1.9 * GB])
def test_one_that_cannot_fit_is_refused_with_what_to_write(shared, free):
    spec = shared(free)
    with pytest.raises(UserError, match=r"a version of the weights takes 2.0 GB.*\n.*sync_method=checkpoint"):
        disk_space.check_shared_memory(spec)


@pytest.mark.parametrize(
    ("mode", "need", "free", "warned"),
    [
        ("colocate", "4.0 GB in {}/shm (2 versions)", 3.9, True),
        ("colocate", "4.0 GB in {}/shm (2 versions)", 4.1, False),
        ("both", "6.0 GB in {}/shm (2 versions, the first perhaps in float32)", 5.9, True),
        ("both", "6.0 GB in {}/shm (2 versions, the first perhaps in float32)", 6.1, False),
    ],
)
def test_two_versions_are_what_is_needed(shared, tmp_path, mode, need, free, warned):
    told = "\n".join(disk_space.remarks(shared(free * GB, mode=mode), tmp_path))
    assert f"weights   about {need.format(tmp_path)}" in told
    assert ("warning:" in told and "sync_method=checkpoint" in told) is warned


def test_it_is_refused_before_anything_starts(shared, tmp_path, monkeypatch):
    made, options = source()
    monkeypatch.setattr(run.preflight, "check", lambda made: None)
    monkeypatch.setattr(run.start_check, "check", lambda *_, **__: pytest.fail("the start check is later"))
    plan = run.against_stock.plan_and_compare(made, options, cwd=tmp_path)
    monkeypatch.setattr(
        run.against_stock, "plan_and_compare", lambda *_, **__: replace(plan, spec=shared_of(plan, shared(1)))
    )
    with pytest.raises(UserError, match="a version of the weights takes"):
        run.run_source(made, options)


def shared_of(plan, spec):
    """The plan's own spec with the model and the folder of ``spec``."""
    models = {**plan.spec.verl["actor_rollout_ref"], "model": spec.verl["actor_rollout_ref"]["model"]}
    verl = {**plan.spec.verl, "actor_rollout_ref": models}
    return replace(plan.spec, verl=verl, sync=spec.sync)


def test_a_model_stored_in_float32_takes_half_of_its_file(shared):
    disk_space.check_shared_memory(shared(1.1 * GB, dtype="float32"))


def test_what_an_earlier_start_left_there_is_written_over(shared):
    spec = shared(1.5 * GB)
    left = Path(spec.sync.directory, "spare")
    left.mkdir(parents=True)
    with (left / "part-000000.safetensors").open("wb") as file:
        file.truncate(GB)
    disk_space.check_shared_memory(spec)


@pytest.mark.parametrize("other", [{"method": "checkpoint"}, {"method": "nccl"}, {"mode": "explore"}])
def test_weights_that_go_another_way_need_none(shared, tmp_path, other):
    spec = shared(1000, **other)
    disk_space.check_shared_memory(spec)
    assert not [line for line in disk_space.remarks(spec, tmp_path) if line.startswith("weights ")]
