"""Runs inside the real trinity-rft 0.6.0: the tokens of ``row_cases.py``, as JSON on stdout.

    cd tests/trinity/algorithms; <venv of trinity-rft>/bin/python upstream_rows.py TOKENIZER > rows.json

TOKENIZER: the folder of the toy model. Of each case its experiences: tokens, where the answer begins, and
which of the answer's tokens count.
"""

import json
import os
import sys
from pathlib import Path
from unittest.mock import MagicMock

RESULT = os.fdopen(os.dup(1), "w", encoding="utf-8")
os.dup2(2, 1)  # trinity logs to stdout
os.environ["HF_HUB_OFFLINE"] = "1"
sys.path.insert(0, str(Path(__file__).parent))

# mm_utils imports vLLM for its own signatures; nothing of it is called for texts.
for name in ("vllm", "vllm.config", "vllm.entrypoints", "vllm.entrypoints.chat_utils", "vllm.inputs"):
    sys.modules[name] = MagicMock()

from row_cases import CASES  # noqa: E402
from trinity.buffer.schema import FORMATTER  # noqa: E402
from trinity.common.config import FormatConfig  # noqa: E402
from trinity.common.constants import PromptType  # noqa: E402
from trinity.common.experience import split_dpo_experience_to_single_turn  # noqa: E402


def made(tokenizer, schema, told, row):
    told = {**told, "prompt_type": PromptType(told.get("prompt_type", "messages"))}
    found = FORMATTER.get(schema)(tokenizer_path=tokenizer, format_config=FormatConfig(**told)).format(row)
    every = split_dpo_experience_to_single_turn([found]) if schema == "dpo" else [found]
    return [[one.tokens.tolist(), one.prompt_length, one.action_mask.int().tolist()] for one in every]


lines = [json.dumps(made(sys.argv[1], *case)) for case in CASES]
RESULT.write("[\n" + ",\n".join(lines) + "\n]\n")
RESULT.flush()
