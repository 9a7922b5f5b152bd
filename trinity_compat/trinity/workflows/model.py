"""The model of a workflow: trinity-rft's ModelWrapper by its methods, on our engine.

Upstream's own needs Ray actors and imports vLLM. Here each run of a workflow has its own model, so the
history needs no lock. The synchronous methods are for threads: a workflow's ``run`` has one.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

from trinity_compat.trinity.workflows.conversation import Conversations, for_template, rendered, thoughts_of
from trinity_compat.trinity.workflows.reasoning import ReasoningSplitter

T = TypeVar("T")
P = ParamSpec("P")
_SEEDS_OF_A_CALL = 2**20  # vLLM gives the i-th answer of a call seed + i
_NOT_SAMPLING = ("logprobs", "lora_request", "return_token_ids", "timeout")


@dataclass(frozen=True, slots=True)
class GeneratedAnswer:
    """Answer of the engine: ``token_ids`` int [R], ``logprobs`` float [R]; ``reason``: stop or length."""

    token_ids: list[int]
    logprobs: list[float]
    reason: str


class Writer(Protocol):
    """The engine as a workflow's model needs it."""

    async def write(self, prompt_ids: Sequence[int], sampling: Mapping[str, Any]) -> list[GeneratedAnswer]:
        """Generate ``sampling["n"]`` answers; vLLM's SamplingParams by name.

        Raises ValueError for a prompt that leaves no room to answer.
        """

    async def score(self, token_ids: Sequence[int]) -> list[float]:
        """Return the log-probability of every token after the first, float [S - 1]."""


@dataclass(frozen=True, slots=True)
class RunContext:
    """Facts shared by all models of a run. ``experience`` is the class that workflows return."""

    writer: Writer
    tokenizer: Any
    experience: Any
    loop: asyncio.AbstractEventLoop
    path: str
    max_model_len: int
    chat_template: str | None = None
    enable_thinking: bool | None = None
    tool_format: str | None = None
    thoughts: ReasoningSplitter | None = None
    open_client: Callable[[WorkflowModel, str], Any] | None = None  # openai_api.client_of


def _synchronous(
    method: Callable[Concatenate[WorkflowModel, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[WorkflowModel, P], T]:
    """Return the method for threads of one that ends in ``_async``."""
    return lambda self, *args, **kwargs: self.wait(method(self, *args, **kwargs))


@dataclass(slots=True)
class WorkflowModel:
    """Model of one run of a workflow.

    ``sampling``: defaults of a call's arguments; ``context``: the run's, for calls over HTTP (openai_app.py).
    """

    around: RunContext
    sampling: Mapping[str, Any]
    version: int = 0
    history: list[Any] = field(default_factory=list)
    enable_history: bool = True
    context: contextvars.Context | None = None
    _clients: dict[str, Any] = field(default_factory=dict)
    _conversations: Conversations = field(default_factory=Conversations)
    _calls: int = 0

    async def generate_async(self, prompts: Sequence[str], **sampling: Any) -> list[Any]:
        """Generate answers to complete prompts; returns experiences."""
        answers = await asyncio.gather(*(self._answers(self.tokens_of(text), sampling) for text in prompts))
        return self._recorded([experience for several in answers for experience in several])

    async def chat_async(self, messages: Sequence[Mapping[str, Any]], **sampling: Any) -> list[Any]:
        """Return experiences of a chat; a last message of the assistant's is continued."""
        return self._recorded(await self._answers(self.tokens_of(self.templated(messages)), sampling))

    async def logprobs_async(self, tokens: Sequence[int], temperature: float | None = None) -> Any:
        """Return a float tensor [S - 1]; the weights' own probabilities, whatever the temperature."""
        import torch

        return torch.tensor(await self.around.writer.score([int(token) for token in tokens]))

    async def convert_messages_to_experience_async(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Any] | None = None,
        temperature: float | None = None,
    ) -> Any:
        """Convert a conversation to one experience; tokens that are not the assistant's are masked."""
        ids, mask = self._conversation(list(messages), tools)
        if 1 not in mask:
            raise ValueError("the conversation has no assistant message")
        limit, status = self.around.max_model_len - 1, None
        if len(ids) > limit:
            ids, mask, status = ids[:limit], mask[:limit], "response_truncated"
        start = mask.index(1)
        scores = await self.logprobs_async(ids)
        return self.around.experience(
            tokens=ids,
            logprobs=scores[start - 1 :],
            prompt_length=start,
            action_mask=[bool(own) for own in mask[start:]],
            messages=list(messages),
            truncate_status=status,
        )

    generate, chat = _synchronous(generate_async), _synchronous(chat_async)
    logprobs = _synchronous(logprobs_async)
    convert_messages_to_experience = _synchronous(convert_messages_to_experience_async)

    def extract_experience_from_history(self, clear_history: bool = True) -> list[Any]:
        """Return the experiences of all calls since the last extraction, by any method."""
        found = list(self.history)
        if clear_history:
            self.history.clear()
        return found

    def clone_with_isolated_history(self) -> WorkflowModel:
        """Return another model on the same engine."""
        return replace(self, history=[], _clients={}, _conversations=Conversations())

    def get_openai_client(self) -> Any:
        """Return openai.OpenAI on this model, without a network in between. For threads."""
        return self._client("sync")

    def get_openai_async_client(self) -> Any:
        """Return openai.AsyncOpenAI on this model."""
        return self._client("async")

    def _client(self, kind: str) -> Any:
        if kind not in self._clients:
            assert self.around.open_client is not None
            self._clients[kind] = self.around.open_client(self, kind)
        return self._clients[kind]

    @property
    def model_path(self) -> str:
        """The policy's path."""
        return self.around.path

    model_name = model_path

    @property
    def model_version(self) -> int:
        """The weights that were in place when the run began."""
        return self.version

    @property
    def config(self) -> SimpleNamespace:
        """The fields of upstream's InferenceModelConfig that workflows read."""
        around = self.around
        return SimpleNamespace(
            model_path=around.path,
            max_model_len=around.max_model_len,
            enable_history=self.enable_history,
            enable_openai_api=True,
            enable_thinking=around.enable_thinking,
            temperature=self.sampling.get("temperature"),
            top_p=self.sampling.get("top_p"),
            max_response_tokens=self.sampling.get("max_tokens"),
        )

    model_config = config

    @property
    def generate_kwargs(self) -> dict[str, Any]:
        """Arguments for an OpenAI client's calls."""
        return {name: self.sampling[name] for name in ("temperature", "top_p") if name in self.sampling}

    def wait(self, request: Coroutine[Any, Any, T]) -> T:
        """Return the result, in a thread. Raises RuntimeError on the engine's own loop: a deadlock."""
        try:
            running: asyncio.AbstractEventLoop | None = asyncio.get_running_loop()
        except RuntimeError:
            running = None
        if running is self.around.loop:
            request.close()
            raise RuntimeError("run_async asks the model with the methods that end in _async")
        return asyncio.run_coroutine_threadsafe(request, self.around.loop).result()

    def templated(self, messages: Sequence[Mapping[str, Any]], **more: Any) -> str:
        """Return the prompt of a chat, as trinity-rft's inference models render it."""
        _check_text(messages)
        around = self.around
        return rendered(around.tokenizer, messages, around.chat_template, around.enable_thinking, more)

    def prompt_of(self, messages: Sequence[Mapping[str, Any]], tools: Any = None, **more: Any) -> list[int]:
        """Return the token ids of a client's chat.

        Messages of this model keep the tokens that it sampled. Others, and all where the template drops parts
        of earlier answers, are tokenized from their text.
        """
        plain = for_template(messages)
        whole = self.templated(plain, tools=tools, **more)
        found = self._conversations.before(messages)
        if found is None:
            return self.tokens_of(whole)
        count, ids = found
        tokenizer, template = self.around.tokenizer, self.around.chat_template
        how = {"enable_thinking": self.around.enable_thinking, **more}
        before = str(
            tokenizer.apply_chat_template(
                plain[:count], tokenize=False, tools=tools, chat_template=template, **how
            )
        )
        end = before.rfind(tokenizer.eos_token)
        own = (thoughts_of(messages[count - 1]) or "").strip()
        if end < 0 or own not in before or not whole.startswith(before):
            return self.tokens_of(whole)
        # An answer that was cut lacks the end that the template gives it.
        end += len(tokenizer.eos_token) if ids[-1] == tokenizer.eos_token_id else 0
        return [*ids, *tokenizer(whole[end:], add_special_tokens=False).input_ids]

    def add_conversation(self, messages: Sequence[Mapping[str, Any]], ids: Sequence[int]) -> None:
        """Add a chat that ends with an answer of this model's, and its token ids: prompt and answer."""
        self._conversations.add(messages, ids)

    def tokens_of(self, text: str) -> list[int]:
        """Return the token ids of a text with the tokenizer's special tokens, as upstream."""
        return [int(token) for token in self.around.tokenizer(text).input_ids]

    async def write(self, prompt_ids: Sequence[int], sampling: Mapping[str, Any]) -> list[GeneratedAnswer]:
        """Generate answers with the call's sampling arguments, else the run's."""
        own = {
            name: value for name, value in sampling.items() if value is not None and name not in _NOT_SAMPLING
        }
        every = {**self.sampling, **own}
        # Each call its own seed, or equal prompts would have equal answers.
        if "seed" in self.sampling and "seed" not in own:
            every["seed"] = self.sampling["seed"] + self._calls * _SEEDS_OF_A_CALL
        self._calls += 1
        return await self.around.writer.write(prompt_ids, every)

    def experience_of(self, prompt_ids: Sequence[int], part: GeneratedAnswer) -> Any:
        """Convert an answer to an experience."""
        tokenizer = self.around.tokenizer
        return self.around.experience(
            tokens=[*prompt_ids, *part.token_ids],
            logprobs=part.logprobs,
            prompt_length=len(prompt_ids),
            prompt_text=tokenizer.decode(list(prompt_ids)),
            response_text=tokenizer.decode(part.token_ids, skip_special_tokens=True),
        )

    async def _answers(self, prompt_ids: list[int], sampling: Mapping[str, Any]) -> list[Any]:
        return [self.experience_of(prompt_ids, part) for part in await self.write(prompt_ids, sampling)]

    def _recorded(self, experiences: list[Any]) -> list[Any]:
        if self.enable_history:
            self.history.extend(experiences)
        return experiences

    def _conversation(
        self, messages: list[Mapping[str, Any]], tools: Sequence[Any] | None
    ) -> tuple[list[int], list[int]]:
        """Return token ids and mask, int [S] each, of a chat.

        The mask is 1 from the end of a generation prompt to the end of the assistant's message. Requires a
        template whose beginning stays when messages are added, as upstream's default does.
        """
        _check_text(messages)
        ids = self._ids(messages, tools)
        mask = [0] * len(ids)
        # A template that takes thoughts out of earlier answers leaves only those after the last question.
        template = self.around.chat_template or self.around.tokenizer.chat_template or ""
        questions = [place for place, message in enumerate(messages) if message["role"] == "user"]
        first = questions[-1] if questions and "<think>" in template else 0
        for place, message in enumerate(messages):
            if message["role"] != "assistant" or place < first:
                continue
            start = len(self._ids(messages[:place], tools, add_generation_prompt=True)) if place else 0
            end = len(self._ids(messages[: place + 1], tools))
            mask[start:end] = [1] * (min(end, len(ids)) - start)
        return ids, mask

    def _ids(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Any] | None,
        add_generation_prompt: bool = False,
    ) -> list[int]:
        text = self.around.tokenizer.apply_chat_template(
            list(messages),
            tokenize=False,
            tools=tools,
            chat_template=self.around.chat_template,
            enable_thinking=self.around.enable_thinking,
            add_generation_prompt=add_generation_prompt,
        )
        return [int(token) for token in self.around.tokenizer(text, add_special_tokens=False).input_ids]


def _check_text(messages: Sequence[Mapping[str, Any]]) -> None:
    """Raise ValueError for a part of a message that is not text.

    A template would write a placeholder, and the model would answer without the part.
    """
    contents = [message.get("content") for message in messages]
    parts = [part for content in contents if isinstance(content, list) for part in content]
    for part in parts:
        kind = part.get("type") if isinstance(part, Mapping) else type(part).__name__
        if kind != "text":
            raise ValueError(f"a message holds {kind}: a workflow's model is asked in text here")
