"""Every vLLM engine notes whose answers it works on, step by step.

vLLM loads this in each engine process (group ``vllm.general_plugins``; the metadata beside this file is found
by $PYTHONPATH). A process writes one file below $ENGINE_LOG, a JSON list per line, unbuffered, so that a
SIGKILL loses nothing: ``["ask", number, [prompt token ids], greedy]`` and ``["step", begin, end, [numbers]]``
in seconds since the epoch.
"""

import json
import os
import time
from pathlib import Path


def register():
    from vllm.v1.engine.core import EngineCore

    if hasattr(EngineCore.add_request, "noted"):
        return
    file = Path(os.environ["ENGINE_LOG"]) / f"{os.getpid()}.{time.time():.3f}.jsonl"
    log, numbers = file.open("ab", buffering=0), {}
    add, step, queued_step = EngineCore.add_request, EngineCore.step, EngineCore.step_with_batch_queue

    def note(*row):
        log.write(json.dumps(row).encode() + b"\n")

    def noted(self, request, *args, **kwargs):
        number = numbers[request.request_id] = len(numbers)
        greedy = not (request.sampling_params and request.sampling_params.temperature)
        note("ask", number, list(request.prompt_token_ids or ()), greedy)
        return add(self, request, *args, **kwargs)

    def timed(method):
        def run(self):
            begin = time.time()
            outputs, executed = method(self)
            ids = {one.request_id for each in (outputs or {}).values() for one in each.outputs}
            if ids:
                note("step", begin, time.time(), sorted(numbers[one] for one in ids if one in numbers))
            return outputs, executed

        return run

    noted.noted = True
    EngineCore.add_request = noted
    EngineCore.step, EngineCore.step_with_batch_queue = timed(step), timed(queued_step)
