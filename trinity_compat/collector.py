"""Python's garbage collector rests while torch, veRL and vLLM are imported.

They make a million objects that stay to the end. A collection walks through all that there are, and comes the
more often the more are made: with nothing to find it takes a tenth of the time that a process needs to start.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def resting() -> Iterator[None]:
    """For a block that imports. What is there at its end is never walked through again; where the collector
    rested before, it rests on."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if collecting:
            gc.enable()
