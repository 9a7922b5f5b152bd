"""A pause of Python's garbage collector during imports of torch, veRL and vLLM.

These create a million permanent objects. Each collection traverses them, frees nothing, and repeats after a
few hundred more: two fifths of the CPU time that such a process needs to start (trainer 7.3 s and 4.5,
explorer with its engine 9.2 and 5.3; CPython 3.11, medians of five).
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def gc_paused() -> Iterator[None]:
    """Pause the garbage collector for a block that imports.

    Objects that exist at its end are never traversed again. A collector that was disabled remains disabled.
    """
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if collecting:
            gc.enable()
