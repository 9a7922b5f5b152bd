"""How sure a difference is. numpy and scipy, which only the ``[compare]`` extra installs: import this package
inside functions, after ``missing``.

``seeds`` (several runs a side) and ``within`` (one) make an ``Estimate``; ``parting`` says from which step
curves differ, ``power`` what could have been seen, ``multiple`` what many tests do to p. Which methods, and
what they hold in simulation: docs/decisions/compare-intervals.md.
"""

from __future__ import annotations

from importlib.util import find_spec


def missing() -> str:
    """What to install before this package can be imported, "" where nothing is missing. Imports nothing."""
    lacking = [name for name in ("numpy", "scipy") if find_spec(name) is None]
    are = "is" if len(lacking) == 1 else "are"
    return (
        f"{' and '.join(lacking)} {are} not installed: pip install 'trinity-compat[compare]'"
        if lacking
        else ""
    )
