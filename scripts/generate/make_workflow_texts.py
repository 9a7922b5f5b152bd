"""Write texts.json of workflows: what trinity-rft's workflows say to a model, and its units.

    <venv of trinity-rft 0.6.0>/bin/python scripts/generate/make_workflow_texts.py > …/texts.json

Facts of the release that an equal prompt and an equal score need letter by letter: the system prompts that a
workflow takes where the taskset gives none, and the words that math_boxed_reward takes out of an answer.
"""

from __future__ import annotations

import json
import os
import sys
from unittest import mock

RESULT = os.fdopen(os.dup(1), "w", encoding="utf-8")
os.dup2(2, 1)  # trinity logs to stdout

from trinity.common.rewards import qwen25_eval  # noqa: E402
from trinity.common.workflows import WORKFLOWS, Task  # noqa: E402


def system_prompt(name: str, **arguments: object) -> str:
    """The workflow's own system prompt."""
    task = Task(workflow=WORKFLOWS.get(name), raw_task={"prompt": "1 + 1"}, workflow_args=arguments)
    return str(task.to_workflow(mock.Mock()).system_prompt)


def main() -> int:
    """Returns the exit code."""
    texts = {
        "math_workflow": system_prompt("math_workflow"),
        "math_boxed_workflow": system_prompt("math_boxed_workflow"),
        "math_boxed_workflow with_think": system_prompt("math_boxed_workflow", with_think=True),
        "units": qwen25_eval.unit_texts,
    }
    RESULT.write(json.dumps(texts, indent=1, ensure_ascii=False) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
