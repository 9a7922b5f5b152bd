"""What the plugins' workflows make of a recorded model, as JSON: of the stand-in, or of trinity-rft.

    python tests/trinity/workflows/plugin_outcomes.py > outcomes.json

The same in both; run with the interpreter of the one or the other.
"""

import asyncio
import importlib.util
import json
import os
import sys
from pathlib import Path
from unittest import mock

RESULT = os.fdopen(os.dup(1), "w", encoding="utf-8")
os.dup2(2, 1)
HERE = Path(__file__).parent
VLLM = ("config", "inputs", "entrypoints", "entrypoints.chat_utils")
sys.path[:0] = [str(HERE), str(HERE.parents[2])]

if importlib.util.find_spec("vllm") is None:  # trinity's ModelWrapper, which no run here uses, imports it
    for name in ("vllm", *(f"vllm.{part}" for part in VLLM)):
        sys.modules[name] = mock.MagicMock()

from recorded_model import Recorded, make_tokenizer  # noqa: E402

from trinity_compat.trinity.workflows.run_rows import Limits, by_step  # noqa: E402
from trinity_compat.trinity.workflows.runner import Workflows  # noqa: E402
from trinity_compat.trinity.workflows.tasksets import Taskset  # noqa: E402

CASES = [
    ("shouting_workflow", "sorted_reward", {"worth": 2.0}),
    ("async_once_workflow", None, {}),
    ("second_thoughts_workflow", None, {}),
    ("agent_workflow", None, {}),
    ("simple_workflow", "sorted_reward", {}),
    ("math_workflow", "sorted_reward", {}),
    ("graded_workflow", None, {}),
    ("async_graded_workflow", None, {}),
    ("window_workflow", None, {}),
    ("all_windows_workflow", None, {}),
]
BY_STEP = ("graded_workflow", "async_graded_workflow")
APART = ("window_workflow", "all_windows_workflow")


def taskset_of(workflow, reward, arguments):
    parting = "each" if workflow in APART else "joined"
    return Taskset(
        *("t", "t", "", workflow, reward),
        reward_fn_args=arguments,
        by_step=workflow in BY_STEP,
        parting=parting,
    )


async def outcomes():
    found = []
    for workflow, reward, arguments in CASES:
        writer = Recorded()
        running = Workflows(writer, make_tokenizer(), "toy", Limits(512, 64), str(HERE / "plugins"))
        taskset = taskset_of(workflow, reward, arguments)
        row = {"prompt": "sort 21", "response": "12"}
        samplings = [{"temperature": 1.0, "top_p": 1.0, "top_k": -1, "seed": 7 + i} for i in range(3)]
        runs = await running.run(taskset, row, samplings)
        asked = sorted(writer.asked, key=json.dumps)  # threads ask in any order
        found.append({"runs": [vars_of(run) for run in runs], "asked": asked})
    return found


def vars_of(run):
    """Its ``metrics`` apart; ``steps`` as the trainer is told of them."""
    found = {name: getattr(run, name) for name in type(run).__slots__ if name not in ("metrics", "steps")}
    return {**found, "told": by_step(run)}


if __name__ == "__main__":
    RESULT.write(json.dumps(asyncio.run(outcomes()), indent=1) + "\n")
