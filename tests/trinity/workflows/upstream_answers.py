"""Runs inside the real trinity-rft 0.6.0: what it gives for ``workflow_cases.py``, as JSON on stdout.

    cd tests/trinity/workflows; <venv of trinity-rft>/bin/python upstream_answers.py > answers.json

Of a reward: its parts. Of a workflow: what the model was asked, and each answer's parts and reward.
"""

import asyncio
import json
import os
import sys
from pathlib import Path

RESULT = os.fdopen(os.dup(1), "w", encoding="utf-8")
os.dup2(2, 1)  # trinity logs to stdout
sys.path.insert(0, str(Path(__file__).parent))

import torch  # noqa: E402
from trinity.buffer.schema.formatter import TaskFormatter  # noqa: E402
from trinity.common.config import FormatConfig, StorageConfig  # noqa: E402
from trinity.common.experience import Experience  # noqa: E402
from trinity.common.rewards import REWARD_FUNCTIONS  # noqa: E402
from workflow_cases import ANSWERS, REWARDS, ROW, WORKFLOWS  # noqa: E402


class Recorded:
    """A model that gives the same answers to everything."""

    def __init__(self):
        self.asked = []

    def chat(self, messages, **arguments):
        self.asked.append({"messages": messages})
        return [self._experience(answer) for answer in ANSWERS]

    def generate(self, prompts, **arguments):
        self.asked.append({"text": prompts[0]})
        return [self._experience(answer) for answer in ANSWERS]

    async def chat_async(self, messages, **arguments):
        return self.chat(messages)

    async def generate_async(self, prompts, **arguments):
        return self.generate(prompts)

    def _experience(self, answer):
        tokens = torch.tensor([0, *answer.encode()], dtype=torch.int32)
        return Experience(tokens=tokens, prompt_length=1, response_text=answer)


def of_reward(name, arguments, response, truth, about):
    made = REWARD_FUNCTIONS.get(name)(**arguments)
    if (tokens := about.get("response_tokens")) is not None:
        return made(response=response, truth=truth, response_token=torch.zeros(tokens))
    if truth is None:
        return made(response=response)
    return made(response=response, truth=truth, **about)


def of_workflow(name, fields):
    config = StorageConfig(
        default_workflow_type=name,
        default_reward_fn_type=fields.get("reward"),
        format=FormatConfig(**fields.get("format", {})),
        workflow_args=fields.get("workflow_args", {}),
        reward_fn_args=fields.get("reward_fn_args", {}),
    )
    model = Recorded()
    workflow = TaskFormatter(config).format(ROW).to_workflow(model)
    answers = asyncio.run(workflow.run_async()) if workflow.asynchronous else workflow.run()
    (asked,) = model.asked
    return {"asked": asked, "scores": [{"reward": each.reward, "parts": each.metrics} for each in answers]}


def main():
    results = {
        "rewards": [of_reward(*case) for case in REWARDS],
        "workflows": [of_workflow(*case) for case in WORKFLOWS],
    }
    RESULT.write(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
