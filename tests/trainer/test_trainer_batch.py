"""The padded batch, held against veRL's own agent loop on the same answers."""

import asyncio
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from trinity_compat.buffer.model import Experience, Group
from trinity_compat.common.errors import RunError

pytestmark = pytest.mark.verl

PROMPT, RESPONSE, PAD = 6, 5, 0
ROWS = [  # prompt, response, mask, logprobs, reward
    ([11, 12, 13], [21, 22, 23], [1, 1, 1], [-0.1, -0.2, -0.3], 1.0),
    ([11, 12, 13, 14, 15, 16], [31], [1], [-0.5], 0.25),
    ([17], [41, 42, 43, 44, 45], [1, 0, 0, 1, 1], [-1.0, 0.0, 0.0, -2.0, -0.5], -1.0),
]
METRICS = {"generate_sequences": 0.5, "compute_score": 0.125}


def experience(row, run=0, **changes):
    prompt, response, mask, logprobs, reward = row
    values = {
        "run": run,
        "prompt_ids": np.array(prompt, np.int32),
        "response_ids": np.array(response, np.int32),
        "response_mask": np.array(mask, np.uint8),
        "logprobs": np.array(logprobs, np.float32),
        "reward": reward,
        "min_model_version": 2,
        "max_model_version": 3,
        "metrics": METRICS,
        "info": {"acc": reward},
    }
    return Experience(**values | changes)


def teachers_top(ids, size=2):
    """Rows of a teacher in vLLM's and veRL's form: row i describes token i + 1, the last row is a dummy."""
    ranked = torch.tensor([*ids[1:], 0]).unsqueeze(-1) + torch.arange(size)
    return ranked.to(torch.int32), -(ranked / 64.0)


@pytest.fixture(scope="module", params=[False, True], ids=["plain", "distilled"])
def verls(request):
    """Batches of ROWS by veRL's AgentLoopWorker and AgentLoopManager; the second one has a teacher."""
    from verl.experimental.agent_loop.agent_loop import (
        AgentLoopManager,
        AgentLoopMetrics,
        AgentLoopOutput,
        AgentLoopWorker,
    )

    from trinity_compat.run.toy import make_tokenizer

    tokenizer = make_tokenizer()
    worker = object.__new__(AgentLoopWorker)
    worker.rollout_config = SimpleNamespace(prompt_length=PROMPT, response_length=RESPONSE)
    worker.tokenizer, worker.processor = tokenizer, None
    worker.reward_loop_worker_handles, worker.distillation_enabled = [object()], request.param
    worker.teacher_client = worker.teacher_key = worker.mm_processor_kwargs = None

    async def asked(sequence_ids, **_):
        return teachers_top(sequence_ids)

    worker.teacher_server_manager = SimpleNamespace(compute_teacher_logprobs_single=asked)

    def padded(row):
        prompt, response, mask, logprobs, reward = row
        output = AgentLoopOutput(
            prompt_ids=prompt,
            response_ids=response,
            response_mask=mask,
            response_logprobs=logprobs,
            reward_score=reward,
            num_turns=2,
            metrics=AgentLoopMetrics(**METRICS),
            extra_fields={"reward_extra_info": {"acc": reward}, "turn_scores": [], "tool_rewards": []},
        )
        output.extra_fields |= {"min_global_steps": 2, "max_global_steps": 3}
        return asyncio.run(worker._agent_loop_postprocess(output, False, raw_prompt=[{"role": "user"}]))

    batch = worker._postprocess([padded(row) for row in ROWS])
    timing = AgentLoopManager._performance_metrics(None, [batch.meta_info.pop("metrics")], batch)
    return batch, timing, tokenizer.pad_token_id


def taught(row, *, own=False):
    """The experience of ``row`` with the rows of ``teachers_top`` that the buffer keeps."""
    prompt, response = row[:2]
    rows = slice(len(prompt) - 1, len(prompt) + len(response) - 1)
    ids, logprobs = (each[rows].numpy() for each in teachers_top(prompt + response, 1 if own else 2))
    return experience(row, teacher_ids=None if own else ids, teacher_logprobs=logprobs)


@pytest.fixture
def ours(verls):
    from trinity_compat.trainer.batch import BatchShape, to_dataproto

    made = taught if "teacher_ids" in verls[0].batch else experience
    return to_dataproto([made(row) for row in ROWS], BatchShape(PROMPT, RESPONSE, verls[2]))


def test_tensors_are_verls(verls, ours):
    theirs = verls[0].batch
    assert set(ours.batch.keys()) == set(theirs.keys())
    for name in theirs.keys():  # noqa: SIM118 (a TensorDict iterates over rows)
        assert ours.batch[name].dtype == theirs[name].dtype, name
        assert ours.batch[name].shape == theirs[name].shape, name
        if not name.startswith("teacher_"):
            assert torch.equal(ours.batch[name], theirs[name]), name
            continue
        for row, (_, response, *_) in enumerate(ROWS):
            read = slice(PROMPT - 1, PROMPT - 1 + len(response))  # by veRL's losses
            assert torch.equal(ours.batch[name][row, read], theirs[name][row, read]), name
            assert ours.batch[name][row, read].all()
            assert ours.batch[name][row].count_nonzero() == 2 * len(response), "other rows are zeros"


def test_columns_and_reward_keys_are_verls(verls, ours):
    theirs = verls[0]
    # raw_prompt comes with the task; see task_columns
    assert set(ours.non_tensor_batch) | {"raw_prompt"} == set(theirs.non_tensor_batch)
    assert ours.meta_info["reward_extra_keys"] == theirs.meta_info["reward_extra_keys"] == ["acc"]
    for name in ours.non_tensor_batch:
        assert list(ours.non_tensor_batch[name]) == list(theirs.non_tensor_batch[name]), name


def test_timings_have_verls_names_and_values(verls, ours):
    assert ours.meta_info["timing"] == verls[1]


def test_estimators_get_the_ids_of_the_response_and_other_rows_zeros():
    from trinity_compat.trainer.batch import BatchShape, to_dataproto

    rows = [taught(ROWS[0], own=True), experience(ROWS[1])]
    made = to_dataproto(rows, BatchShape(PROMPT, RESPONSE, PAD)).batch
    assert made["teacher_ids"].shape == (2, PROMPT + RESPONSE, 1)
    assert made["teacher_ids"][0, :, 0].tolist() == [0] * (PROMPT - 1) + [21, 22, 23] + [0] * 3
    assert made["teacher_logprobs"][0, PROMPT - 1 : PROMPT + 2, 0].tolist() == [-21 / 64, -22 / 64, -23 / 64]
    assert not made["teacher_ids"][1].any() and not made["teacher_logprobs"][1].any()


def test_rows_of_unlike_teachers_are_refused():
    from trinity_compat.trainer.batch import BatchShape, to_dataproto

    with pytest.raises(RunError, match="unlike teacher log-probabilities: top 2, own tokens") as refused:
        to_dataproto([taught(ROWS[0]), taught(ROWS[1], own=True)], BatchShape(PROMPT, RESPONSE, PAD))
    assert "distillation.distillation_loss" in refused.value.hint


@pytest.mark.parametrize(
    "row",
    [
        ([1] * (PROMPT + 1), [2], [1], [0.0], 0.0),
        ([1], [2] * (RESPONSE + 1), [1] * (RESPONSE + 1), [0.0] * (RESPONSE + 1), 0.0),
        ([1], [], [], [], 0.0),
    ],
)
def test_an_experience_that_does_not_fit_is_refused(row):
    from trinity_compat.trainer.batch import BatchShape, to_dataproto

    with pytest.raises(RunError, match=r"does not fit the trainer's 6 \+ 5"):
        to_dataproto([experience(row)], BatchShape(PROMPT, RESPONSE, PAD))


def group(*versions):
    rows = [
        experience(ROWS[0], run=i, min_model_version=v, max_model_version=9) for i, v in enumerate(versions)
    ]
    return Group("k", 0, {"data_source": "toy", "index": 4}, 1, tuple(rows))


def test_lag_counts_from_the_oldest_token_to_the_policy_before_the_step():
    from trinity_compat.trainer.batch import lag_metrics

    lag = "training/model_version_lag"
    current, old = lag_metrics([group(4, 4)], 5), lag_metrics([group(1, 4), group(3, 4)], 5)
    assert (current[f"{lag}/mean"], current[f"{lag}/max"]) == (0.0, 0.0)
    assert (old[f"{lag}/mean"], old[f"{lag}/max"]) == (1.0, 3.0)


def test_staleness_has_the_names_and_meaning_of_verls_v1_trainer():
    from trinity_compat.trainer.batch import lag_metrics

    made = [(1, 2), (4, 4)]  # (oldest, newest) version that took part, before step 5
    rows = [experience(ROWS[0], min_model_version=old, max_model_version=new) for old, new in made]
    found = lag_metrics([Group("k", 0, {"data_source": "toy", "index": 4}, 1, tuple(rows))], 5)
    for name, mean, most, least in (
        ("trajectory_spans", 1.5, 2, 1),
        ("trajectory_staleness", 1.0, 2, 0),
        ("trajectory_staleness_worst", 1.5, 3, 0),
    ):
        at = f"training/off_policy/{name}"
        assert [found[f"{at}/{how}"] for how in ("mean", "max", "min")] == [mean, most, least]


def test_task_columns_repeat_each_task_for_its_answers():
    from trinity_compat.trainer.batch import task_columns

    second = Group("l", 1, {"data_source": "other"}, 1, ())
    columns = task_columns([group(0, 0), group(0, 0), second, second])
    assert list(columns) == ["data_source"]
    assert list(columns["data_source"]) == ["toy", "toy", "other", "other"]


def test_drift_of_a_batch_of_several_lags_is_measured_for_each():
    from types import SimpleNamespace

    from trinity_compat.trainer.batch import drift_by_lag

    batch = {
        "response_mask": torch.tensor([[1, 1], [1, 0], [0, 0]]),
        "rollout_log_probs": torch.tensor([[-1.0, -2.0], [-1.0, 9.0], [9.0, 9.0]]),
        "old_log_probs": torch.tensor([[-1.5, -2.5], [-1.25, 0.0], [0.0, 0.0]]),
    }
    data = SimpleNamespace(batch=batch, non_tensor_batch={"min_global_steps": np.array([3, 4, 2], object)})
    measure = drift_by_lag(lambda given: {"training/rollout_probs_diff_mean": 0.5}, lambda: 5)
    assert measure(data) == {
        "training/rollout_probs_diff_mean": 0.5,
        "rollout_drift/lag_0/kl": 0.25,
        "rollout_drift/lag_0/tokens": 1,
        "rollout_drift/lag_1/kl": 0.5,
        "rollout_drift/lag_1/tokens": 2,
    }
    data.non_tensor_batch = {}
    assert measure(data) == {"training/rollout_probs_diff_mean": 0.5}
