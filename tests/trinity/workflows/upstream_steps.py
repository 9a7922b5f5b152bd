"""Runs inside the real trinity-rft 0.6.0: the advantage of each step of step_cases.RUNS, case by case.

cd tests/trinity/workflows; <venv of trinity-rft>/bin/python upstream_steps.py > steps.json
"""

import json
import os

from step_cases import CASES, steps


def advantages():
    import torch
    from trinity.algorithm import ADVANTAGE_FN
    from trinity.common.experience import EID, Experience

    found = []
    for name, arguments in CASES:
        experiences = [
            Experience(
                tokens=torch.tensor([1, 2]),
                prompt_length=1,
                reward=reward,
                logprobs=torch.zeros(1),
                eid=EID(batch=0, task=task, run=run, step=step),
                info=info,
            )
            for task, run, step, reward, info in steps()
        ]
        function = ADVANTAGE_FN.get(name)
        made, _ = function(**{**function.default_args(), **arguments}).process(experiences)
        by_step = {
            (int(each.eid.task), each.eid.run, each.eid.step): each.advantages.tolist() for each in made
        }
        found.append([value for _, (value,) in sorted(by_step.items())])
    return found


if __name__ == "__main__":
    result = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    result.write(json.dumps(advantages()) + "\n")
