"""A decoding step takes as long as $PACED_STEP_S, as on a device that the trainer doesn't share.

vLLM loads this in every engine process (group ``vllm.general_plugins``; the metadata beside this file is
found by $PYTHONPATH). Each step is entered in a file of the process's own below $PACED_LOG: its begin and
end (s since the epoch) and how many answers it went on with.
"""

import os
import struct
import time
from pathlib import Path

STEP = struct.Struct("<ddi")


def register():
    from vllm.v1.engine.core import EngineCore

    if hasattr(EngineCore.step, "paced"):
        return
    step, pace = EngineCore.step, float(os.environ["PACED_STEP_S"])
    log = (Path(os.environ["PACED_LOG"]) / f"{os.getpid()}.steps").open("ab", buffering=0)

    def paced(self):
        begin = time.time()
        outputs, executed = step(self)
        if executed:
            running = sum(map(len, (each.outputs for each in outputs.values())))
            time.sleep(max(0.0, begin + pace - time.time()))
            log.write(STEP.pack(begin, time.time(), running))
        return outputs, executed

    paced.paced = True
    EngineCore.step = paced
