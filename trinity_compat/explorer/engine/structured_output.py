"""JSON that an answer is bound to, without free whitespace.

vLLM's grammar of a JSON schema takes any whitespace between two tokens of JSON. A policy that is sampled, or
an untrained one, may write it until its answer is cut (seen on the CPU engine, vLLM 0.28: newlines to the
limit, greedy too). vLLM forbids it for a whole engine only (``structured_outputs_config``); of a request it
ignores the field.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from typing import Any


def compact(bound: Mapping[str, Any]) -> dict[str, Any]:
    """vLLM's ``structured_outputs`` of one request, whose ``disable_any_whitespace`` holds: the schema as a
    grammar with ``json.dumps``'s spaces alone. A schema that xgrammar has no grammar for stays as it is, for
    the backend that vLLM takes then."""
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
    except RuntimeError:  # of schemas that it does not read
        return None
