"""The rows, tasks and checkpoints of the adapter of veRL's v1 trainer, without workers and TransferQueue."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from trinity_compat.buffer.model import DROPPED, Experience, Group
from trinity_compat.common.errors import RunError

pytestmark = pytest.mark.verl  # verl is imported along the way

TASK = {"data_source": "toy", "reward_model": {"ground_truth": "12"}}


def answer(prompt, response, *, reward=0.5, run=0, **more):
    return Experience(
        run=run,
        prompt_ids=np.array(prompt, np.int32),
        response_ids=np.array(response, np.int32),
        response_mask=np.array([token % 2 for token in response], np.uint8),
        logprobs=-np.arange(1, len(response) + 1, dtype=np.float32),
        reward=reward,
        min_model_version=2,
        max_model_version=3,
        num_turns=2,
        info={"acc": reward},
        **more,
    )


def row(experience, *, prompt=8, response=8):
    from trinity_compat.trainer.batch import BatchShape
    from trinity_compat.trainer.verl_v1.rows import row_of

    return row_of(experience, "4-0", 1, 4, BatchShape(prompt, response, 0), TASK)


def test_a_row_has_the_columns_and_types_of_verls_agent_loop():
    import torch
    from verl.experimental.agent_loop.agent_loop import AgentLoopMetrics, AgentLoopOutput

    stock = AgentLoopOutput(
        prompt_ids=[11, 12, 13],
        response_ids=[21, 22],
        response_mask=[1, 0],
        response_logprobs=[-1.0, -2.0],
        reward_score=0.5,
        num_turns=2,
        metrics=AgentLoopMetrics(),
        extra_fields={"reward_extra_info": {"acc": 0.5}},
    ).as_dict()
    stock.pop("metrics")  # the explorer logs its own times
    made = row(answer([11, 12, 13], [21, 22])).fields
    assert stock.keys() <= made.keys()
    for name, value in stock.items():
        if isinstance(value, torch.Tensor):
            assert made[name].dtype == value.dtype, name
            assert made[name].tolist() == value.tolist(), name
        else:
            assert made[name] == value, name
    # and what AgentLoopWorkerTQ adds (verl 0.9.1, v1/agent_loop_tq.py)
    assert made["loss_mask"].tolist() == [1, 0]
    assert made["input_ids"].tolist() == [11, 12, 13, 21, 22]
    assert made["position_ids"].tolist() == [0, 1, 2, 3, 4]
    assert (made["uid"], made["data_source"], made["reward_model"]) == ("4-0", "toy", {"ground_truth": "12"})


def test_its_key_and_its_tag_are_those_that_verl_reads():
    made = row(answer([11, 12, 13], [21, 22]))
    uid, session, index = made.key.rsplit("_", 2)  # v1/utils.py: compute_advantage_for_multi_trajectories
    assert (uid, session, index) == ("4-0", "1", "0")
    lengths = {"prompt_len": 3, "response_len": 2, "seq_len": 5}
    versions = {"global_steps": 4, "min_global_steps": 2, "max_global_steps": 3}
    assert made.tag == {"status": "success", **lengths, **versions}


def test_no_token_of_a_dropped_answer_counts():
    fields = row(answer([11], [21, 23], metrics={DROPPED: 1.0})).fields
    assert fields["response_mask"].tolist() == fields["loss_mask"].tolist() == [0, 0]


def test_an_answer_longer_than_the_trainers_is_an_error():
    with pytest.raises(RunError, match="1 prompt and 3 response tokens does not fit the trainer's 8 \\+ 2"):
        row(answer([11], [21, 22, 23]), response=2)


def test_rows_of_unlike_columns_are_an_error_for_transfer_queue_would_lose_one_in_silence():
    from trinity_compat.trainer.verl_v1 import queue

    first = row(answer([11], [21]))
    lacking = {name: value for name, value in first.fields.items() if name != "rm_scores"}
    with pytest.raises(RunError, match="differ in their columns: rm_scores"):
        queue.put([first, replace(first, key="4-0_2_0", fields=lacking)], "train")


def stored(monkeypatch, groups):
    """A sampler of ``groups``, its agent loops, the rows that are put by partition, the keys cleared."""
    from transfer_queue import KVBatchMeta

    from trinity_compat.trainer.batch import BatchShape
    from trinity_compat.trainer.multi_modal import MultiModal
    from trinity_compat.trainer.verl_v1 import adapter

    put, cleared = {}, []

    def keep(rows, partition):
        put[partition] = rows
        keys, tags = [each.key for each in rows], [each.tag for each in rows]
        return KVBatchMeta(partition_id=partition, keys=keys, tags=tags)

    monkeypatch.setattr(adapter.queue, "put", keep)
    monkeypatch.setattr(adapter.queue, "clear", lambda keys, partition: cleared.extend(keys))
    trainer = SimpleNamespace(
        multi_modal=MultiModal.none(),
        runs=2,
        claimed=lambda step: SimpleNamespace(groups=groups),
        validation_answers=lambda: groups,
        agent_loop_manager=adapter.AskedTasks(),
        global_steps=4,
        config={"algorithm": {}},
        set_rows_per_task=lambda rows: setattr(trainer, "rows", rows),
        widths=lambda experiences: BatchShape(8, 8, 0),
    )
    return adapter.StoredGroups(trainer), trainer.agent_loop_manager, put, cleared


def group(task, *rewards, **more):
    answers = tuple(answer([11], [20 + task], reward=each, run=n, **more) for n, each in enumerate(rewards))
    return Group(f"h1/{task}_x", task, TASK, 1, answers)


def test_the_answers_to_one_task_are_one_group_of_verls(monkeypatch):
    sampler, _, put, _ = stored(monkeypatch, [group(0, 0.1, 0.2), group(1, 0.3, 0.4)])
    batch, metrics = sampler.sample(4, "train", 2)
    assert batch.keys == ["4-0_0_0", "4-0_1_0", "4-1_0_0", "4-1_1_0"]
    assert [each.fields["uid"] for each in put["train"]] == ["4-0", "4-0", "4-1", "4-1"]
    assert metrics == {}


def test_a_validation_row_gets_the_answers_to_its_task_under_its_own_uid(monkeypatch):
    from verl.utils.tensordict_utils import get_tensordict

    from trinity_compat.trainer.datasets import TASK_NO

    sampler, loops, put, cleared = stored(monkeypatch, [group(0, 0.1), group(1, 0.3, 0.4), group(2, 0.9)])
    loops.generate_sequences(get_tensordict({"uid": ["b", "a"], TASK_NO: [1, 0]}))
    batch, _ = sampler.sample(4, "val", 2)
    assert batch.keys == ["b_0_0", "b_1_0", "a_0_0"]
    assert [float(each.fields["rm_scores"].sum()) for each in put["val"]] == pytest.approx([0.3, 0.4, 0.1])
    assert cleared == ["b", "a"]  # veRL's own entries, which wait for answers
    assert loops.taken() == []


def test_a_workflows_run_may_have_several_rows(monkeypatch):
    from trinity_compat.job.answer_info import OF_RUN

    def rows(task, runs):
        parts = tuple(
            replace(answer([11], [21 + place]), info={OF_RUN: {"run": run, "row": row}})
            for place, (run, row) in enumerate(runs)
        )
        return Group(f"h1/{task}", task, TASK, 1, parts)

    stored_groups = [rows(0, [(0, 0), (0, 1), (1, 0)]), rows(1, [(0, 0), (1, 0)])]
    sampler, _, put, _ = stored(monkeypatch, stored_groups)
    batch, _ = sampler.sample(4, "train", 2)
    assert sampler._trainer.rows == 4  # the largest group has 3 rows: the next multiple of two runs
    assert batch.keys == [f"4-{task}_{row}_0" for task in (0, 1) for row in range(4)]  # sessions of their own
    filling = [bool(each.tag.get("is_padding")) for each in put["train"]]
    assert filling == [False, False, False, True, False, False, True, True]
    assert [each.fields["loss_mask"].sum() > 0 for each in put["train"]][:3] == [True, False, True]


def test_the_inputs_of_a_model_that_sees_are_in_its_row():
    import torch

    from trinity_compat.trainer.batch import BatchShape
    from trinity_compat.trainer.verl_v1.rows import row_of, tokens_of

    seen = answer([11, 12], [21])
    assert [each.tolist() for each in tokens_of(seen)] == [[[11, 12]], [[11, 12, 21]], [[1, 1, 1]]]
    inputs, positions = {"pixel_values": torch.ones(4, 2)}, torch.arange(12).reshape(1, 4, 3)
    fields = row_of(seen, "4-0", 0, 4, BatchShape(8, 8, 0), TASK, (inputs, positions)).fields
    assert fields["multi_modal_inputs"] is inputs
    assert fields["position_ids"].tolist() == positions[0].tolist()


TAUGHT = {"teacher_logprobs": np.array([[-0.5, -1.0], [-0.25, -2.0]], np.float32)}
TOP = {"teacher_ids": np.array([[7, 8], [9, 6]], np.int32)}


def test_a_teachers_rows_stand_before_the_tokens_that_they_describe():
    from trinity_compat.trainer.batch import BatchShape, teacher_size, to_dataproto
    from trinity_compat.trainer.verl_v1.rows import row_of

    taught, shape = answer([11, 12, 13], [21, 22], **TAUGHT, **TOP), BatchShape(8, 8, 0)
    fields = row_of(taught, "4-0", 0, 4, shape, TASK, teacher_size=teacher_size([taught])).fields
    assert fields["teacher_ids"].tolist() == [[0, 0], [0, 0], [7, 8], [9, 6], [0, 0]]
    assert fields["teacher_logprobs"].tolist() == [[0, 0], [0, 0], [-0.5, -1.0], [-0.25, -2.0], [0, 0]]
    v0 = to_dataproto([taught], shape).batch  # the same, padded
    for name in ("teacher_ids", "teacher_logprobs"):
        assert v0[name].dtype == fields[name].dtype
        assert v0[name][0, 5:10].tolist() == fields[name].tolist()
        assert not v0[name][0, :5].any() and not v0[name][0, 10:].any()


def test_a_row_without_a_teacher_among_others_has_its_columns_too(monkeypatch):
    from trinity_compat.job.answer_info import OF_RUN

    one = {"teacher_logprobs": np.array([[-0.5]], np.float32)}
    runs = [[(0, 0), (0, 1), (1, 0)], [(0, 0), (1, 0)]]
    groups = [
        Group(
            f"h1/{task}",
            task,
            TASK,
            1,
            tuple(
                replace(answer([11], [21], **one), info={OF_RUN: {"run": run, "row": row}})
                for run, row in parts
            ),
        )
        for task, parts in enumerate(runs)
    ]
    sampler, _, put, _ = stored(monkeypatch, groups)
    sampler.sample(4, "train", 2)
    assert len({frozenset(each.fields) for each in put["train"]}) == 1
    for each in put["train"]:
        filler = bool(each.tag.get("is_padding"))
        assert each.fields["teacher_ids"].tolist() == ([[0], [0]] if filler else [[21], [0]])
        assert each.fields["teacher_logprobs"].tolist() == ([[0.0], [0.0]] if filler else [[-0.5], [0.0]])


def test_no_checkpoint_counts_while_a_row_is_left_in_transfer_queue(monkeypatch):
    import transfer_queue

    from trinity_compat.trainer.verl_v1 import adapter

    left = {"train": {"4-0_0_0": {}}, "val": {}}
    monkeypatch.setattr(transfer_queue, "kv_list", lambda: left)
    published = []
    trainer = object.__new__(adapter.TrinityPPOTrainer)
    trainer._marker = SimpleNamespace(publish=lambda: published.append("marker"))
    trainer._retention = SimpleNamespace(prune=lambda folder, step: None)
    trainer._directory, trainer._saved = None, 4
    with pytest.raises(RunError, match=r"^rows are left in TransferQueue after their step \(1\)"):
        trainer._publish_marker()
    assert published == []
    left["train"].clear()
    trainer._publish_marker()
    assert published == ["marker"]
