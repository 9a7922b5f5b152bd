"""Conversations in which earlier answers keep the tokens that the model sampled.

An agent sends the whole chat with each turn. Tokenized again, an earlier answer may become other tokens than
the sampled ones (a text has many tokenizations, and a template has its own form of tool calls); then the
turns are not one sequence that could be trained.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

Message = Mapping[str, Any]
THOUGHTS = ("reasoning", "reasoning_content")  # vLLM's name of them, and its older name


@dataclass(frozen=True, slots=True)
class ChatTurn:
    """A chat that ends with an answer of the model's, and its token ids: prompt and answer."""

    messages: list[object]
    ids: list[int]


@dataclass(slots=True)
class Conversations:
    """The chats of one run."""

    _turns: list[ChatTurn] = field(default_factory=list)

    def add(self, messages: Sequence[Message], ids: Sequence[int]) -> None:
        """Add a chat that ends with the answer, as it was returned."""
        self._turns.append(ChatTurn([_normal_form(each) for each in messages], list(ids)))

    def before(self, messages: Sequence[Message]) -> tuple[int, list[int]] | None:
        """Return the longest chat that ``messages`` continue: its number of messages, and its tokens."""
        chat = [_normal_form(each) for each in messages]
        earlier = [
            turn
            for turn in self._turns
            if len(turn.messages) < len(chat) and chat[: len(turn.messages)] == turn.messages
        ]
        longest = max(earlier, key=lambda turn: len(turn.messages), default=None)
        return (len(longest.messages), longest.ids) if longest else None


def _normal_form(message: Message) -> object:
    """Return the normal form of a message, equal for equal messages of different clients."""
    calls = [
        (call["function"]["name"], call["function"]["arguments"]) for call in message.get("tool_calls") or ()
    ]
    return message["role"], _text(message.get("content")), thoughts_of(message), calls


def thoughts_of(message: Message) -> str | None:
    """Return the thoughts of a message, stored beside its content."""
    return next((str(message[name]) for name in THOUGHTS if message.get(name)), None)


def _text(content: object) -> object:
    """Join a content's parts if all are text; else return it as it is."""
    if isinstance(content, list) and all(part.get("type") == "text" for part in content):
        return "".join(part["text"] for part in content)
    return content or ""


def rendered(
    tokenizer: Any,
    messages: Sequence[Message],
    template: str | None,
    enable_thinking: bool | None,
    more: Mapping[str, Any] = MappingProxyType({}),
) -> str:
    """Prompt text as in trinity-rft's inference models: it continues a begun answer, else begins one.

    ``more``: further arguments of the template, which count before ``enable_thinking``.
    """
    begun = messages[-1]["role"] == "assistant"
    how: dict[str, Any] = {"add_generation_prompt": True, "enable_thinking": enable_thinking}
    how = {"continue_final_message": True} if begun else how
    return str(
        tokenizer.apply_chat_template(
            list(messages), tokenize=False, chat_template=template, **{**how, **more}
        )
    )


def for_template(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Messages as chat templates read them.

    Contents become texts, thoughts have both names, and a call's arguments are decoded to a mapping if
    possible.
    """
    made = []
    for message in messages:
        out = {**message, "content": _text(message.get("content"))}
        if thoughts := thoughts_of(message):
            out |= dict.fromkeys(THOUGHTS, thoughts)
        if calls := message.get("tool_calls"):
            out["tool_calls"] = [{**call, "function": _decoded(call["function"])} for call in calls]
        made.append(out)
    return made


def _decoded(function: Mapping[str, Any]) -> dict[str, Any]:
    try:
        arguments = json.loads(function["arguments"])
    except (TypeError, ValueError):
        arguments = function["arguments"]
    return {**function, "arguments": arguments}
