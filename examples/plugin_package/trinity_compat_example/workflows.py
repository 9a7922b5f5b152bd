"""A workflow: a class of trinity-rft's, which runs here without trinity-rft too."""

from trinity.common.experience import Experience
from trinity.common.workflows import Workflow


class AskOnce(Workflow):
    """Asks the model once for each answer, and scores it with the taskset's reward."""

    can_repeat = True

    def run(self) -> list[Experience]:
        task = self.task
        score = task.reward_fn(**task.reward_fn_args)
        answers = self.model.chat([{"role": "user", "content": task.task_desc}], n=self.repeat_times)
        for answer in answers:
            parts = score(response=answer.response_text, truth=task.truth)
            answer.reward, answer.metrics = sum(parts.values()), parts
        return answers

    def set_repeat_times(self, repeat_times: int, run_id_base: int) -> None:
        self.repeat_times, self.run_id_base = repeat_times, run_id_base
