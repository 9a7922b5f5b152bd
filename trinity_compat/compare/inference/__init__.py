"""How sure a difference is. numpy and scipy, which only the ``[compare]`` extra installs: import this package
inside functions, after ``available``.

``seeds`` (several runs a side) and ``within`` (one) make an ``Estimate``; ``parting`` says from which step
curves differ, ``power`` what could have been seen, ``multiple`` what many tests do to p. Which methods, and
what they hold in simulation: docs/decisions/compare-intervals.md.
"""

from __future__ import annotations

from importlib.util import find_spec

MISSING = "numpy and scipy are not installed: pip install 'trinity-compat[compare]'"


def available() -> bool:
    """Whether numpy and scipy are there; imports neither."""
    return find_spec("numpy") is not None and find_spec("scipy") is not None
