"""``python -m … ARGUMENTS DEVICE HOST PORT``: vLLM's own API server with arguments given as one JSON text.

A process of its own, so that only the server pays for importing vLLM, and its end is seen as an exit code.
"""

from __future__ import annotations

import json
import runpy
import sys

from trinity_compat.common.parent_watch import end_with_parent

MODULE = "vllm.entrypoints.openai.api_server"


def main(arguments: str, device: str, host: str, port: str) -> None:
    """Serve until SIGTERM."""
    from verl.workers.rollout.vllm_rollout.utils import build_cli_args_from_config

    end_with_parent()
    given = {
        **json.loads(arguments),
        "distributed_executor_backend": "uni" if device == "cpu" else "mp",
        "host": host,
        "port": int(port),
    }
    sys.argv = [MODULE, *build_cli_args_from_config(given)]
    runpy.run_module(MODULE, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
