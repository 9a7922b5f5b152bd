"""An agent that does not remember: each try sees what the one before it said, and nothing else."""

from trinity.common.experience import Experience
from trinity.common.workflows import WORKFLOWS, Workflow


@WORKFLOWS.register_module("second_try")
class SecondTry(Workflow):
    """Up to three tries, each a step with a reward of its own. No prompt goes on from another."""

    def run(self) -> list[Experience]:
        tries: list[Experience] = []
        question, right = self.task.task_desc, False
        while not right and len(tries) < 3:
            (answer,) = self.model.chat([{"role": "user", "content": question}], n=1)
            right = answer.response_text.strip() == self.task.truth
            answer.eid.step, answer.reward = len(tries), float(right)
            tries.append(answer)
            question = f"sort {answer.response_text}"
        return tries
