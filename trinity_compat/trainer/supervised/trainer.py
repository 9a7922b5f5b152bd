"""veRL's trainer on rows: without a rollout policy, so without old log-probabilities."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from omegaconf import DictConfig
from verl import DataProto
from verl.utils.config import omega_conf_to_dataclass

from trinity_compat.buffer.model import Experience
from trinity_compat.buffer.store import Buffer
from trinity_compat.common.errors import UserError
from trinity_compat.job.run_spec import RowsSpec
from trinity_compat.trainer.batch import BatchShape, to_dataproto
from trinity_compat.trainer.lease_heartbeat import LeaseHeartbeat
from trinity_compat.trainer.step_count import PlaceholderDataset, set_length
from trinity_compat.trainer.supervised.exchange import RowsExchange
from trinity_compat.trainer.supervised.files import open_rows
from trinity_compat.trainer.supervised.formats import Formatter
from trinity_compat.trainer.supervised.order import RowOrder
from trinity_compat.trainer.verl_v0.adapter import TrinityRayPPOTrainer


class RowsData:
    """Tokenizer and rows, as ``Datasets`` has them for answers. Raises UserError for too few rows."""

    def __init__(self, config: DictConfig, spec: RowsSpec) -> None:
        model = omega_conf_to_dataclass(config.actor_rollout_ref.model)
        self.tokenizer, self.processor = model.tokenizer, model.processor
        self.rows = open_rows(spec)
        batch = config.data.train_batch_size
        if len(self.rows) < batch:
            raise UserError(
                f"{', '.join(spec.paths)}: {len(self.rows)} rows do not fill one batch of {batch}",
                hint="lower buffer.train_batch_size, or give more rows",
            )
        self.order = RowOrder(spec, len(self.rows), batch, self.rows)
        self.formatter = Formatter(spec, self.tokenizer)
        self.validation = open_rows(spec, spec.val_paths) if spec.val_paths else ()
        self.train, self.val = PlaceholderDataset(len(self.rows)), PlaceholderDataset(1)
        set_length(config, self.order.steps, len(self.rows) // batch)

    def exchange(self, buffer: Buffer, heart: LeaseHeartbeat) -> RowsExchange:
        """Exchange over these rows."""
        return RowsExchange(buffer, heart, self.rows, self.formatter, self.order, self.validation)


class SupervisedTrainer(TrinityRayPPOTrainer):
    """``TrinityRayPPOTrainer`` on rows."""

    exchange: RowsExchange

    def widths(self, experiences: Sequence[Experience]) -> BatchShape:
        """Shape of the longest of these rows."""
        prompt = max(len(each.prompt_ids) for each in experiences)
        response = max(len(each.response_ids) for each in experiences)
        return BatchShape(max(prompt, 1), response, self.tokenizer.pad_token_id)

    def _validate(self, *args: object, **kwargs: object) -> dict[str, float]:
        """The loss of the validation rows: −log π, the mean over their tokens that count."""
        lost = tokens = 0.0
        for experiences in self.exchange.validation(self.ranks):
            batch = to_dataproto(experiences, self.widths(experiences))
            tokens_of_rows = batch.batch["attention_mask"].sum(-1).tolist()
            batch.meta_info = {"temperature": 1.0, "images_seqlens": [], "global_token_num": tokens_of_rows}
            batch.meta_info |= self._of_micro_batches(len(batch))
            answered, _ = super()._compute_old_log_prob(batch)
            mask = batch.batch["response_mask"]
            lost -= float((answered.batch["old_log_probs"] * mask).sum())
            tokens += float(mask.sum())
        return {"val/loss": lost / tokens} if tokens else {}

    def _of_micro_batches(self, rows: int) -> dict[str, object]:
        """Micro-batch size for ``rows`` rows that divides each rank's share, as veRL demands.

        The last batch can have fewer rows than the others, so that the configured size may not divide it.
        """
        rollout = self.config.actor_rollout_ref.rollout
        if rollout.log_prob_use_dynamic_bsz:
            return {}
        each = rows // self.ranks
        size = math.gcd(each, int(rollout.log_prob_micro_batch_size_per_gpu))
        return {"use_dynamic_bsz": False, "micro_batch_size_per_gpu": size}

    def _compute_old_log_prob(self, batch: DataProto) -> tuple[DataProto, float]:
        """Zeros, which no loss of rows reads: a forward pass less."""
        batch.batch.pop("rollout_log_probs", None)
        zeros = torch.zeros_like(batch.batch["response_mask"], dtype=torch.float32)
        return DataProto.from_dict(tensors={"old_log_probs": zeros, "entropys": zeros.clone()}), 0.0
