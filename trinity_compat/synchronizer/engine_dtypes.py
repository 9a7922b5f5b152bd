"""Dtypes in which the explorers' engines hold the tensors of a version, by which the trainer sends them.

A tensor is rounded before it is sent only if every engine copies it into parameters of that dtype. One that
an engine holds in float32 (a router's bias or gate, ``A_log``), computes with, or has not been seen to load
is sent as the trainer holds it. vLLM's parameters have other names than a version's tensors, so an answer is
by the latter, with ``*`` in the place of a layer's or expert's number.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

import torch

from trinity_compat.job.state_cell import StateCell, StateStore
from trinity_compat.synchronizer.transports.safetensors_io import Named

Dtypes = Mapping[str, str]  # by pattern; "" for a tensor that has to be sent as it is
REPORTED = StateCell[Dtypes]("weights/dtypes")  # by an explorer whose engines are started
_NUMBER = re.compile(r"(?<=\.)\d+(?=\.|$)")


def pattern(name: str) -> str:
    """Return ``name`` with each number between its dots replaced."""
    return _NUMBER.sub("*", name)


def add(dtypes: dict[str, str], names: Iterable[str], dtype: str) -> None:
    """Add a dtype for each pattern of ``names``; "" where it differs from one before."""
    for name in names:
        dtypes[name] = dtype if dtypes.get(name, dtype) == dtype else ""


def merged(answers: Iterable[Dtypes]) -> dict[str, str]:
    """Merge the answers of workers, of which each may hold a part of the model."""
    all_answers = dict[str, str]()
    for answer in answers:
        for name, dtype in answer.items():
            add(all_answers, [name], dtype)
    return all_answers


def agreed(buffer: StateStore, explorers: int) -> dict[str, str]:
    """Merge what all explorers have reported; nothing while a report is missing."""
    answers = [answer for index in range(explorers) if (answer := REPORTED.at(index).get(buffer))]
    return merged(answers) if len(answers) == explorers else {}


def rounded(named: Named, dtypes: Dtypes) -> Named:
    """Return the tensor as it is sent to engines with ``dtypes``; it is never widened."""
    name, tensor = named[0], named[1].detach()
    wanted = dtypes.get(pattern(name))
    if not wanted or not tensor.is_floating_point():
        return name, tensor
    dtype: torch.dtype = getattr(torch, wanted)
    return name, tensor.to(dtype) if dtype.itemsize < tensor.element_size() else tensor
