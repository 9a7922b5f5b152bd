"""A file's row as what a trainer takes: tokens of prompt and response, and which of them count.

As trinity-rft 0.6.0's SFTFormatter, CPTFormatter and DPOFormatter (buffer/schema/formatter.py) and
``tokenize_and_mask_messages_default`` (common/models/utils.py).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
from jinja2 import TemplateError

from trinity_compat.buffer.model import Experience
from trinity_compat.common.errors import UserError
from trinity_compat.job.run_spec import RowsSpec

Tokenizer: TypeAlias = Any  # transformers' PreTrainedTokenizerBase
Message: TypeAlias = Mapping[str, Any]
Row: TypeAlias = Mapping[str, Any]
Tokens = Sequence[int]


class Formatter:
    """Makes experiences of rows: one of sft and cpt, the chosen one and the rejected one of dpo."""

    def __init__(self, spec: RowsSpec, tokenizer: Tokenizer) -> None:
        self._spec, self._format, self._tokenizer = spec, spec.format, tokenizer
        self._make = {"sft": self._sft, "cpt": self._cpt, "dpo": self._dpo}[spec.schema]

    def experiences(self, row: Row, number: int) -> tuple[Experience, ...]:
        """Experiences of a row, numbered from 0. Raises UserError with its number where it is invalid."""
        try:
            made = self._make(row)
        except KeyError as error:
            what = "key" if error.args[0] in ("role", "content") else "column"
            raise self._wrong(number, f"has no {what} {error}; it has {', '.join(row)}") from error
        except (TypeError, ValueError, IndexError, TemplateError) as error:
            raise self._wrong(number, str(error)) from error
        return tuple(self._experience(run, number, *parts) for run, parts in enumerate(made))

    def _wrong(self, number: int, what: str) -> UserError:
        return UserError(f"{', '.join(self._spec.paths)}: row {number} {what}")

    def _experience(
        self, run: int, number: int, prompt: Tokens, response: Tokens, mask: Sequence[int]
    ) -> Experience:
        kept, start, limit = [*prompt, *response], 0, self._spec.max_length
        if limit is not None and len(kept) > limit:
            if self._spec.truncation == "error":
                raise self._wrong(number, f"has {len(kept)} tokens, more than the {limit} that are allowed")
            start = len(kept) - limit if self._spec.truncation == "left" else 0
            kept = kept[start : start + limit]
        split = max(len(prompt) - start, 1)  # what nothing comes before cannot be learnt
        counted = list(mask)[max(start + split - len(prompt), 0) :][: len(kept) - split]
        if split >= len(kept) or not any(counted):
            raise self._wrong(number, "holds no token to learn")
        return Experience(
            run=run,
            prompt_ids=np.array(kept[:split], np.int32),
            response_ids=np.array(kept[split:], np.int32),
            response_mask=np.array(counted, np.uint8),
            logprobs=np.zeros(len(kept) - split, np.float32),
            reward=0.0,
            min_model_version=0,
            max_model_version=0,
        )

    # -- what a row is ----------------------------------------------------------------------------

    def _cpt(self, row: Row) -> list[tuple[Tokens, Tokens, Sequence[int]]]:
        """Every token but the first, which nothing comes before."""
        ids = self._tokenizer(row[self._format.prompt_key])["input_ids"]
        return [(ids[:1], ids[1:], [1] * (len(ids) - 1))]

    def _sft(self, row: Row) -> list[tuple[Tokens, Tokens, Sequence[int]]]:
        """The last answer, or all of the assistant's with ``enable_concatenated_multi_turn``."""
        messages, tools = self._messages(row), _loaded(row.get(self._format.tools_key))
        if self._format.response_then_eos:
            prompt = self._templated(messages[:-1], tools=tools, answers=True)
            text = f"{messages[-1]['content']}{self._tokenizer.eos_token}"
            response = self._tokenizer(text, add_special_tokens=False)["input_ids"]
            return [(prompt, response, [1] * len(response))]
        if self._format.enable_concatenated_multi_turn:
            ids, mask = self._masked(messages, tools)
            first = mask.index(1) if 1 in mask else len(mask)
            return [(ids[:first], ids[first:], mask[first:])]
        ids = self._templated(messages, tools=tools)
        prompt = self._templated(messages[:-1], tools=tools, answers=True)
        return [(ids[: len(prompt)], ids[len(prompt) :], [1] * (len(ids) - len(prompt)))]

    def _dpo(self, row: Row) -> list[tuple[Tokens, Tokens, Sequence[int]]]:
        form = self._format
        if form.prompt_type == "plaintext":
            prompt = [*self._system(row), {"role": "user", "content": row[form.prompt_key]}]
            answers = [
                [{"role": "assistant", "content": row[key]}] for key in (form.chosen_key, form.rejected_key)
            ]
        else:
            prompt = list(_loaded(row[form.messages_key]))
            answers = [list(_loaded(row[key])) for key in (form.chosen_key, form.rejected_key)]
        before = self._templated(prompt, answers=True, plain=True)
        whole = [self._templated([*prompt, *answer], plain=True) for answer in answers]
        return [(before, ids[len(before) :], [1] * (len(ids) - len(before))) for ids in whole]

    # -- messages ---------------------------------------------------------------------------------

    def _messages(self, row: Row) -> list[Message]:
        form = self._format
        if form.prompt_type == "messages":
            return list(_loaded(row[form.messages_key]))
        question = _inside(row[form.prompt_key], form.prompt_dict_keys)
        answer = {"role": "assistant", "content": _inside(row[form.response_key], form.response_dict_keys)}
        return [*self._system(row), {"role": "user", "content": question}, answer]

    def _system(self, row: Row) -> list[Message]:
        form = self._format
        if form.system_prompt_key is not None:
            return [{"role": "system", "content": row[form.system_prompt_key]}]
        return [] if form.system_prompt is None else [{"role": "system", "content": form.system_prompt}]

    def _templated(
        self,
        messages: Sequence[Message],
        *,
        tools: object = None,
        answers: bool = False,
        plain: bool = False,
    ) -> list[int]:
        """Token ids of messages by the chat template.

        ``answers``: with the prompt of an answer at the end. ``plain``: without tools and
        ``enable_thinking``, as Trinity's dpo.
        """
        more = {} if plain else {"tools": tools, "enable_thinking": self._format.enable_thinking}
        ids: list[int] = self._tokenizer.apply_chat_template(
            list(messages),
            add_generation_prompt=answers,
            chat_template=self._format.chat_template,
            tokenize=True,
            return_dict=False,
            **more,
        )
        return ids

    def _masked(self, messages: Sequence[Message], tools: object) -> tuple[list[int], list[int]]:
        """All tokens, and a mask that is 1 for tokens of the assistant's messages.

        For a template with thoughts only those after the last question. Requires that each round's tokens are
        the beginning of the next round's.
        """
        ids = self._templated(messages, tools=tools)
        mask = [0] * len(ids)
        thinks = "<think>" in str(self._format.chat_template or self._tokenizer.chat_template)
        questions = [place for place, message in enumerate(messages) if message["role"] == "user"]
        for place in range(questions[-1] if thinks and questions else 0, len(messages)):
            if messages[place]["role"] == "assistant":
                upto = self._templated(messages[:place], tools=tools, answers=True) if place else []
                through = self._templated(messages[: place + 1], tools=tools)
                mask[len(upto) : len(through)] = [1] * (len(through) - len(upto))
        return ids, mask


def _inside(value: Any, keys: Sequence[str]) -> Any:
    """Value at the path ``keys``."""
    for key in keys:
        value = value[key]
    return value


def _loaded(value: Any) -> Any:
    """Decode messages or tools stored as JSON texts: Arrow would fill gaps of unlike sections with nulls."""
    if not isinstance(value, str):
        return value
    return json.loads(value) if value else None
