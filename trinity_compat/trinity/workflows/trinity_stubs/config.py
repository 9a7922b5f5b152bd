"""The parts of ``trinity.common.config`` that a task carries."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class FormatConfig:
    """Columns of a row by purpose (trinity/common/config.py, 0.6.0)."""

    prompt_type: str = "messages"
    prompt_key: str = "prompt"
    response_key: str = "response"
    system_prompt_key: str | None = None
    system_prompt: str | None = None
    messages_key: str = "message"
    tools_key: str = "tools"
    image_key: str | None = None
    video_key: str | None = None
    reply_prefix: str | None = None
    workflow_key: str = ""
    reward_fn_key: str = ""
    chosen_key: str = "chosen"
    rejected_key: str = "rejected"
    enable_concatenated_multi_turn: bool = False
    chat_template: str | None = None
    enable_thinking: bool | None = None


@dataclass
class GenerationConfig:
    """Sampling arguments of ``n`` answers."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int = -1
    logprobs: int | None = None
    max_tokens: int | None = None
    n: int = 1
