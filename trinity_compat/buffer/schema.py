"""SQLAlchemy models of what people read; docs/buffer.md describes the tables.

    engine = create_engine("sqlite:////jobs/p/n/buffer/experiences.db")
    with Session(engine) as session:
        for row in session.query(ExperienceModel).limit(4):
            print(ExperienceModel.to_experience(row).response_text)

The migrations make the tables; a test holds both to the same columns. Rows are read by these models
and written by the buffer only.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import JSON, ForeignKey
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, relationship

from trinity_compat.buffer import codec
from trinity_compat.buffer.model import Experience


class Base(DeclarativeBase):
    """Base class of the models."""

    type_annotation_map = {dict[str, Any]: JSON}  # noqa: RUF012


class GroupModel(Base):
    """All responses to one task. ``state``: ready, claimed, trained, stale or void."""

    __tablename__ = "task_groups"

    id: Mapped[int] = mapped_column(primary_key=True)
    key: Mapped[str]
    kind: Mapped[str]
    task_no: Mapped[int]
    task: Mapped[dict[str, Any]]
    explorer_step: Mapped[int]
    priority: Mapped[float]
    state: Mapped[str]
    size: Mapped[int]
    min_model_version: Mapped[int]
    max_model_version: Mapped[int]
    history_id: Mapped[int]
    use_count: Mapped[int]
    last_used_at: Mapped[float | None]
    claim_token: Mapped[int | None]
    written_at: Mapped[float]
    pruned_at: Mapped[float | None]
    teachers_pruned_at: Mapped[float | None]
    experiences: Mapped[list[ExperienceModel]] = relationship(
        back_populates="group", order_by="ExperienceModel.run"
    )


class ExperienceModel(Base):
    """One response. Token ids, mask and log-probs are little-endian arrays; a mask of ones is NULL.

    After ``buffer prune`` the arrays and texts are NULL, the rest stays.
    """

    __tablename__ = "experiences"

    id: Mapped[int] = mapped_column(primary_key=True)
    group_id: Mapped[int] = mapped_column(ForeignKey("task_groups.id"))
    run: Mapped[int]
    reward: Mapped[float]
    min_model_version: Mapped[int]
    max_model_version: Mapped[int]
    num_turns: Mapped[int]
    metrics: Mapped[dict[str, Any]]
    info: Mapped[dict[str, Any]]
    prompt_text: Mapped[str | None]
    response_text: Mapped[str | None]
    prompt_ids: Mapped[bytes | None]
    response_ids: Mapped[bytes | None]
    response_mask: Mapped[bytes | None]
    logprobs: Mapped[bytes | None]
    prompt_tokens: Mapped[int | None]  # as response_tokens: of an answer whose ids were dropped
    response_tokens: Mapped[int | None]
    # A teacher's, [response tokens, K] each; read when asked for: they are most of a row.
    teacher_ids: Mapped[bytes | None] = mapped_column(deferred=True)
    teacher_logprobs: Mapped[bytes | None] = mapped_column(deferred=True)
    # The trainer's policy on the response's tokens before the update, of a sample of each step's groups.
    trainer_logprobs: Mapped[bytes | None] = mapped_column(deferred=True)
    entropies: Mapped[bytes | None] = mapped_column(deferred=True)
    group: Mapped[GroupModel] = relationship(back_populates="experiences")

    def to_experience(self) -> Experience:
        """Experience of the row without a teacher's arrays. A pruned one has empty arrays and texts."""
        response = codec.unpack_ints(self.response_ids or b"")
        return Experience(
            run=self.run,
            prompt_ids=codec.unpack_ints(self.prompt_ids or b""),
            response_ids=response,
            response_mask=codec.unpack_mask(self.response_mask, len(response)),
            logprobs=codec.unpack_floats(self.logprobs or b""),
            reward=self.reward,
            min_model_version=self.min_model_version,
            max_model_version=self.max_model_version,
            prompt_text=self.prompt_text or "",
            response_text=self.response_text or "",
            num_turns=self.num_turns,
            metrics={name: float(value) for name, value in self.metrics.items()},
            info=self.info,
        )
