"""``python -m … ARGUMENTS DEVICE HOST PORT``: vLLM's API server, with its arguments as one JSON text.

A separate process, so that only the server imports vLLM, and its end is an exit code.
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
    settings = {
        **json.loads(arguments),
        "distributed_executor_backend": "uni" if device == "cpu" else "mp",
        "host": host,
        "port": int(port),
    }
    sys.argv = [MODULE, *build_cli_args_from_config(settings)]
    runpy.run_module(MODULE, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
