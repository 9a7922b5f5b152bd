"""Runs inside the real trinity-rft: each case of plugin_case.py with the plugin loaded by it.

    <venv>/bin/python tests/upstream/plugin_run.py PLUGIN_DIR < cases.jsonl > results.jsonl

Each case has a process of its own, forked from this one: importing all of it takes ten seconds, a case a
tenth of one.
"""

import json
import os
import sys

RESULT = os.fdopen(os.dup(1), "w", encoding="utf-8")
os.dup2(2, 1)
os.environ["TRINITY_PLUGIN_DIRS"] = sys.argv[1]

from plugin_case import answer  # noqa: E402
from trinity.buffer.schema import formatter  # noqa: E402, F401  a case needs it
from trinity.utils.plugin_loader import load_plugins  # noqa: E402
from verl.utils.dataset import rl_dataset  # noqa: E402, F401  a case needs it
from verl.workers import reward_manager  # noqa: E402, F401  a case needs it


def main():
    load_plugins()
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            print(json.dumps(answer(json.loads(line)), default=str), file=RESULT, flush=True)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        if status:
            sys.exit(f"the case's process ended with {os.waitstatus_to_exitcode(status)}")


if __name__ == "__main__":
    main()
