"""veRL's trainer with an expert's rows in each update.

Rewards, advantages and their metrics are those of the fresh answers: the expert's rows are added where the
models score a batch, and for the update.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from verl import DataProto

from trinity_compat.buffer.model import Experience
from trinity_compat.common.errors import UserError
from trinity_compat.trainer.adapter import Claimed
from trinity_compat.trainer.algorithms import COUNTS
from trinity_compat.trainer.batch import BatchShape, to_dataproto
from trinity_compat.trainer.rank_fillers import mini_batch
from trinity_compat.trainer.verl_v0.adapter import TrinityRayPPOTrainer

# What a model takes of a row.
_ROW = ("prompts", "responses", "response_mask", "input_ids", "attention_mask", "position_ids")
# What an update reads of an answer beside that, and an expert's row has zeros for, unless a model scored it.
_ZEROS = ("old_log_probs", "ref_log_prob", "advantages", "returns")
_WEIGHTS = "rollout_is_weights"


class MixTrainer(TrinityRayPPOTrainer):
    """``TrinityRayPPOTrainer`` with an expert's rows. One update a step, of all its rows."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._experts: DataProto | None = None
        self._rows: list[Experience] = []
        if self.processor is not None:
            raise UserError("sample_strategy mix trains text alone, and this model takes images too")

    def claimed(self, step: int) -> Claimed:
        """Train batch of ``step``, whose expert rows are kept for the update."""
        claimed = super().claimed(step)
        self._rows = [each for group in claimed.experts for each in group.experiences]
        self._experts = None
        return claimed

    def widths(self, experiences: Sequence[Experience]) -> BatchShape:
        """Shape of the answers' batch, or wider for the expert's longest row."""
        prompt = max((len(each.prompt_ids) for each in self._rows), default=0)
        response = max((len(each.response_ids) for each in self._rows), default=0)
        own = super().widths(experiences)
        return BatchShape(max(own.prompt, prompt), max(own.response, response), own.pad_id)

    def _compute_old_log_prob(self, batch: DataProto) -> tuple[DataProto, float]:
        """Score the expert's rows too. Not called where veRL uses the rollout's: an expert's are 0 then."""
        scored, mfu = super()._compute_old_log_prob(self._all_of(batch))
        return self._kept(scored, len(batch), ("old_log_probs",)), mfu

    def _compute_ref_log_prob(self, batch: DataProto) -> DataProto:
        scored = super()._compute_ref_log_prob(self._all_of(batch))
        return self._kept(scored, len(batch), ("ref_log_prob",))

    def _updated(self, batch: DataProto) -> DataProto:
        mixed = self._all_of(batch)
        assert self._experts is not None
        answers, experts = len(batch), len(self._experts)
        for name in (*_ZEROS, _WEIGHTS):
            if name in batch.batch:
                of_answers = batch.batch[name]
                none = of_answers.new_full((experts, *of_answers.shape[1:]), float(name == _WEIGHTS))
                mixed.batch[name] = torch.cat([of_answers, self._experts.batch.get(name, none)])
        is_expert = torch.arange(answers + experts) >= answers
        mixed.batch["expert_mask"] = is_expert
        mixed.batch["step"] = torch.full((len(mixed),), self.global_steps)
        mixed.batch[COUNTS] = counts_of(mixed.batch["response_mask"], is_expert)
        if self.config.trainer.balance_batch:
            self._balance_batch(mixed, metrics={})
        mixed.meta_info["global_token_num"] = mixed.batch["attention_mask"].sum(-1).tolist()
        with mini_batch(self.config, self.config.actor_rollout_ref.actor, len(mixed)):
            return super()._updated(mixed)

    def response_logprobs(self, experience: Experience) -> list[float]:
        """Log-probabilities of one answer, without expert rows."""
        rows, self._rows = self._rows, []
        try:
            return super().response_logprobs(experience)
        finally:
            self._rows = rows

    # -- inside -----------------------------------------------------------------------------------

    def _all_of(self, batch: DataProto) -> DataProto:
        """The answers and behind them the expert's rows, as a model takes them."""
        if not self._rows:
            return batch
        if self._experts is None:
            prompt, response = (batch.batch[name].shape[1] for name in ("prompts", "responses"))
            made = to_dataproto(self._rows, BatchShape(prompt, response, self.shape.pad_id))
            self._experts = made.select(list(_ROW), [], [])
        both = {name: torch.cat([batch.batch[name], self._experts.batch[name]]) for name in _ROW}
        out = DataProto.from_dict(tensors=both)
        out.meta_info = {**batch.meta_info, "global_token_num": both["attention_mask"].sum(-1).tolist()}
        return out

    def _kept(self, scored: DataProto, answers: int, names: Sequence[str]) -> DataProto:
        """Part of the answers; the expert's part is kept for the update."""
        if self._rows:
            assert self._experts is not None  # _all_of
            for name in names:
                self._experts.batch[name] = scored.batch[name][answers:]
        return scored[:answers]


def counts_of(mask: torch.Tensor, experts: torch.Tensor) -> torch.Tensor:
    """int64 [N, 2], for each row the tokens and the rows of its kind.

    ``mask``: [N, T], the tokens that count; ``experts``: bool [N].
    """
    tokens = mask.long().sum(-1)
    of_experts, of_answers = (torch.stack([tokens[kind].sum(), kind.sum()]) for kind in (experts, ~experts))
    return torch.where(experts.unsqueeze(-1), of_experts, of_answers)
