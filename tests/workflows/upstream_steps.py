"""Runs inside the real trinity-rft 0.6.0: multi_step_grpo's advantage of each run of ``RUNS``, as JSON.

<venv of trinity-rft>/bin/python tests/workflows/upstream_steps.py
"""

import json
import os

# Of each task its runs, of each run the rewards of its steps.
RUNS = [[[0.2, 1.0], [0.5], [0.1, 0.2, 0.0]], [[1.0, 1.0], [0.0, 0.3]], [[0.7]]]
ARGUMENTS = [
    {"enable_step_norm": norm, "std_cal_level": level}
    for norm in (False, True)
    for level in ("group", "batch")
]


def advantages():
    import torch
    from trinity.algorithm.advantage_fn.multi_step_grpo_advantage import StepWiseGRPOAdvantageFn
    from trinity.common.experience import EID, Experience

    found = []
    for arguments in ARGUMENTS:
        experiences = [
            Experience(
                tokens=torch.tensor([1, 2, 3]),
                prompt_length=1,
                reward=reward,
                eid=EID(batch=0, task=task, run=run, step=step),
            )
            for task, runs in enumerate(RUNS)
            for run, rewards in enumerate(runs)
            for step, reward in enumerate(rewards)
        ]
        made, _ = StepWiseGRPOAdvantageFn(**arguments).process(experiences)
        of_runs = {}
        for each in made:
            of_runs.setdefault(each.eid.rid, []).extend(each.advantages.tolist())
        assert all(len(set(values)) == 1 for values in of_runs.values())  # each token of a run has the same
        found.append([values[0] for values in of_runs.values()])
    return found


if __name__ == "__main__":
    result = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    result.write(json.dumps(advantages()) + "\n")
