"""Preflight check of teachers: whether they read tokens as the policy does."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path

from trinity_compat.common.nested import Tree, value_at
from trinity_compat.common.paths import from_home
from trinity_compat.job.distillation import teacher_entries

_MODEL = "actor_rollout_ref.model"
_FILE = "tokenizer.json"


def tokenizer_remarks(verl: Tree, *, cwd: Path) -> Iterator[str]:
    """Yield a warning for each local teacher with other tokens than the policy's.

    Stock veRL sends the policy's token ids all the same.
    """
    entries = teacher_entries(verl)
    own = value_at(verl, f"{_MODEL}.tokenizer_path") or value_at(verl, f"{_MODEL}.path")
    policy = cwd / from_home(str(own)) / _FILE
    for entry in entries:
        teacher = cwd / from_home(entry.path) / _FILE
        mine, other = _text(policy), _text(teacher)
        if not mine or not other or mine == other:
            continue
        if difference := _difference(_tokens(mine), _tokens(other)):
            yield (
                f"warning: {entry.section}.model_path={entry.path}: its tokenizer is another than the"
                f" policy's ({difference}), so that it reads other texts in the policy's tokens"
            )


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError):
        return ""


def _tokens(text: str) -> dict[int, str]:
    """Return id → token of a tokenizer.json; empty for a kind without such a table."""
    try:
        file = json.loads(text)
    except ValueError:
        return {}
    vocabulary = value_at(file, "model.vocab")
    if not isinstance(vocabulary, Mapping):
        return {}
    added = {each["id"]: each["content"] for each in value_at(file, "added_tokens") or ()}
    return {number: token for token, number in vocabulary.items()} | added


def _difference(policy: Mapping[int, str], teacher: Mapping[int, str]) -> str:
    """Describe the first token of the policy that is not the teacher's; "" where there is none."""
    if not policy or not teacher:
        return ""
    for number in sorted(policy):
        if policy[number] != teacher.get(number):
            theirs = repr(teacher[number]) if number in teacher else "none"
            return f"token {number} is {policy[number]!r}, the teacher's is {theirs}"
    return ""
