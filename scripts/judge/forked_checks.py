"""Many examinations from one process, which imports verl and vllm once and forks for each of them."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable
from pathlib import Path

from trinity_compat.common.gc_pause import gc_paused
from trinity_compat.job.known_models import stand_in
from trinity_compat.run.checks import explorer_side, models


def warm(folder: Path) -> None:
    """Import and build once what every examination needs. ``folder``: for stand-ins."""
    from transformers import AutoModelForImageTextToText
    from vllm.model_executor.models import registry

    # vLLM inspects each model class in a new process, to keep CUDA out of its own. Each fork is one already.
    registry._run_in_subprocess = lambda look: look()
    with gc_paused():
        model = models.write(stand_in("Qwen2.5-7B"), folder)
        explorer_side.engine_config({"model": str(model), "enforce_eager": True}, "cpu", native=True)
        tuple(AutoModelForImageTextToText._model_mapping)  # veRL asks it, which imports 150 modules


def forked(call: Callable[[], str]) -> str:
    """Return the result of ``call`` in a forked child, or "" if the child died.

    What the child prints goes nowhere.
    """
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.close(reading)
        _answer(call, writing)
    os.close(writing)
    with os.fdopen(reading) as answer:
        text = answer.read()
    os.waitpid(child, 0)
    return text


def _answer(call: Callable[[], str], writing: int) -> None:
    """Ends the child, whatever ``call`` does: nothing of the parent's may be run again in it."""
    silent = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silent, 1)
    os.dup2(silent, 2)
    gc.disable()  # it would copy the parent's pages, for a process that soon ends
    try:
        text = call()
        with os.fdopen(writing, "w") as out:
            out.write(text)
    finally:
        os._exit(0)
