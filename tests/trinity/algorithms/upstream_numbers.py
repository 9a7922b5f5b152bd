"""Runs inside the real trinity-rft 0.6.0: what it gives for ``algorithm_cases.py``, as JSON on stdout.

    cd tests/trinity/algorithms; <venv of trinity-rft>/bin/python upstream_numbers.py > numbers.json

Of a loss: its value and its gradient by log_prob; of an advantage: every token's, 0 for one that it leaves
out. Tokens that count alone, row after row.
"""

import json
import os
import sys
from pathlib import Path

RESULT = os.fdopen(os.dup(1), "w", encoding="utf-8")
os.dup2(2, 1)  # trinity logs to stdout
os.environ["HF_HUB_OFFLINE"] = "1"
sys.path.insert(0, str(Path(__file__).parent))

import numpy as np  # noqa: E402
import torch  # noqa: E402
from algorithm_batches import answers, of_loss, tokens  # noqa: E402
from algorithm_cases import EXPERTS, SIZES, STEP, answer_batch, cases, turns  # noqa: E402
from trinity.algorithm.advantage_fn import ADVANTAGE_FN  # noqa: E402
from trinity.algorithm.kl_fn import KL_FN  # noqa: E402
from trinity.algorithm.policy_loss_fn import POLICY_LOSS_FN  # noqa: E402
from trinity.common.experience import EID, Experience  # noqa: E402
from verl import DataProto  # noqa: E402


def made(registry, name, arguments):
    found = registry.get(name)
    return found(**(found.default_args() if arguments is None else arguments))


def policy_loss(name, arguments, batch):
    """Of dpo pair by pair: given several, 0.6.0 sums all of them into one."""
    mixed = name in ("mix", "mix_chord")
    of, function = tokens(batch), made(POLICY_LOSS_FN, name, {**arguments, **SIZES} if mixed else arguments)
    rows = len(of["mask"])
    of_experts = {"expert_mask": torch.tensor(EXPERTS), "step": torch.full((rows,), STEP)} if mixed else {}
    parts = [slice(first, first + 2) for first in range(0, rows, 2)] if name == "dpo" else [slice(None)]
    losses = [
        function(
            logprob=of["log_prob"][part],
            old_logprob=of["old"][part],
            ref_logprob=of["ref"][part],
            action_mask=of["mask"][part],
            advantages=of["advantages"][part],
            **of_experts,
        )[0]
        for part in parts
    ]
    return of_loss(sum(losses) / len(parts), of)


def kl_loss(name, arguments, batch):
    of = tokens(batch)
    loss, _ = made(KL_FN, name, arguments).calculate_kl_loss(
        logprob=of["log_prob"],
        ref_logprob=of["ref"],
        response_mask=of["mask"],
        loss_agg_mode="token-mean",
        old_logprob=of["old"],
    )
    return of_loss(loss, of)


def experiences_of_turns(of, turns):
    """One for each turn, with what the environment told of it."""
    for run, told in enumerate(turns):
        for step, info in enumerate(told):
            yield Experience(
                eid=EID(batch=0, task=of["tasks"][run], run=run, step=step),
                tokens=torch.zeros(2, dtype=torch.int32),
                prompt_length=1,
                reward=of["rewards"][run],
                logprobs=torch.zeros(1),
                info=dict(info),
            )


def experiences(of):
    for number, (reward, task) in enumerate(zip(of["rewards"], of["tasks"], strict=True)):
        length = sum(of["mask"][number])
        yield Experience(
            eid=EID(batch=0, task=task, run=number, step=0),
            tokens=torch.zeros(1 + length, dtype=torch.int32),
            prompt_length=1,
            reward=reward,
            logprobs=torch.tensor(of["old"][number][:length]),
        )


def advantage(name, arguments, batch):
    of, function = answer_batch(batch), made(ADVANTAGE_FN, name, arguments)
    if name == "gigpo":
        done, _ = function(list(experiences_of_turns(of, turns(batch))))
        return [float(one.advantages[0]) for one in sorted(done, key=lambda one: (one.eid.run, one.eid.step))]
    if not type(function).compute_in_trainer():
        done, _ = function(list(experiences(of)))
        by_run = {int(one.eid.run): one.advantages.tolist() for one in done}
        return [number for _, row in sorted(by_run.items()) for number in row]
    tensors = answers(batch)
    data = DataProto.from_dict(tensors=tensors, non_tensors={"uid": np.array(of["tasks"])})
    done, _ = function(data)
    trained = done.batch["advantages"] * done.batch["response_mask"]
    return trained[tensors["response_mask"].bool()].tolist()


MAKE = {"policy_loss_fn": policy_loss, "kl_loss_fn": kl_loss, "advantage_fn": advantage}


def rounded(value):
    if isinstance(value, dict):
        return {key: rounded(item) for key, item in value.items()}
    if isinstance(value, list):
        return [rounded(item) for item in value]
    return float(f"{value:.9g}")


def main():
    lines = (
        f"{json.dumps(key)}: {json.dumps(rounded(MAKE[kind](name, arguments, batch)))}"
        for key, kind, name, arguments, batch in cases()
    )
    RESULT.write("{\n" + ",\n".join(lines) + "\n}\n")
    RESULT.flush()


if __name__ == "__main__":
    main()
