"""``agent_loop_manager_class`` for a stock run of v0: veRL's own, each train batch kept in $RECORD_DIR.

``recording_v1`` does the same in a run of v1.
"""

import os
from collections.abc import Iterator
from pathlib import Path

import torch
from verl.experimental.agent_loop import AgentLoopManager

OF_RESPONSES = ("response_mask", "rollout_log_probs", "rm_scores")
OF_A_TEACHER = ("teacher_ids", "teacher_logprobs")  # of a distilled run


def keep(rows: list[dict[str, torch.Tensor]], step: int) -> None:
    """Write a train batch: rows without padding, whole groups one after the other."""
    torch.save(rows, Path(os.environ["RECORD_DIR"]) / f"{step}.pt")


class Recording(AgentLoopManager):
    def generate_sequences(self, prompts):
        out = super().generate_sequences(prompts)
        keep(list(_rows(out.batch)), prompts.meta_info["global_steps"])
        return out


def _rows(batch) -> Iterator[dict[str, torch.Tensor]]:
    for row in range(len(batch)):
        one = {name: values[row] for name, values in batch.items()}
        prompt = len(one["prompts"])
        asked, said = one["attention_mask"][:prompt].bool(), one["attention_mask"][prompt:].bool()
        kept = {"prompts": one["prompts"][asked], "responses": one["responses"][said]}
        kept |= {name: one[name][said] for name in OF_RESPONSES}
        # Row i of a teacher describes token i + 1.
        of_responses = slice(prompt - 1, prompt - 1 + int(said.sum()))
        kept |= {name: one[name][of_responses] for name in OF_A_TEACHER if name in one}
        yield {name: values.clone() for name, values in kept.items()}
