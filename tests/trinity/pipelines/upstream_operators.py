"""Runs inside the real trinity-rft 0.6.0: what its operators give for ``operator_cases.py``, as JSON.

cd tests/trinity/pipelines; <venv of trinity-rft>/bin/python upstream_operators.py > operators.json
"""

import json
import os
import sys
from pathlib import Path

RESULT = os.fdopen(os.dup(1), "w", encoding="utf-8")
os.dup2(2, 1)  # trinity logs to stdout
sys.path.insert(0, str(Path(__file__).parent))

from operator_cases import CASES, experiences, told  # noqa: E402
from trinity.buffer.operators import EXPERIENCE_OPERATORS  # noqa: E402
from trinity.common.experience import EID, Experience  # noqa: E402

if __name__ == "__main__":
    found = [
        told(*EXPERIENCE_OPERATORS.get(name)(**arguments).process(experiences(rows, Experience, EID)))
        for name, arguments, rows in CASES
    ]
    RESULT.write(json.dumps(found, indent=1, sort_keys=True) + "\n")
