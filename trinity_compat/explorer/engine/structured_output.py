"""JSON schemas of answers as grammars without free whitespace.

vLLM's grammar of a JSON schema takes any whitespace between two tokens of JSON. A policy that is sampled, or
an untrained one, may write it until its answer is cut (seen on the CPU engine, vLLM 0.28: newlines to the
limit, greedy too). vLLM can forbid it for a whole engine only (``structured_outputs_config``); it ignores the
field of a request.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from typing import Any


def compact(bound: Mapping[str, Any]) -> dict[str, Any]:
    """Apply ``disable_any_whitespace`` of a request's ``structured_outputs``.

    The schema becomes a grammar with only ``json.dumps``'s spaces. A schema without a grammar in xgrammar
    stays, for the backend that vLLM then uses.
    """
    if not bound.get("disable_any_whitespace") or not isinstance(bound.get("json"), Mapping):
        return dict(bound)
    grammar = _grammar(json.dumps(bound["json"]))
    return {"grammar": grammar} if grammar else dict(bound)


@lru_cache(256)
def _grammar(schema: str) -> str | None:
    import xgrammar
    from vllm.v1.structured_output.backend_xgrammar import has_xgrammar_unsupported_json_features

    if has_xgrammar_unsupported_json_features(json.loads(schema)):
        return None
    try:
        return str(xgrammar.Grammar.from_json_schema(schema, any_whitespace=False))
    except RuntimeError:  # a schema that it cannot read
        return None
