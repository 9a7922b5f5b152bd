"""Statistical inference on differences.

It needs numpy and scipy, which only the ``[compare]`` extra installs: import it inside functions, after
``missing``. ``seeds`` (several runs per side) and ``within`` (one) compute an ``Estimate``; ``estimate`` also
has the detectable difference and the correction of p for many tests; ``divergence_step`` finds the step from
which curves differ. The methods and their error rates: docs/decisions/compare-intervals.md.
"""

from __future__ import annotations

from importlib.util import find_spec

from trinity_compat.common.optional_packages import install_command


def missing() -> str:
    """Return the missing packages with the command that installs them, "" if none is missing."""
    lacking = [name for name in ("numpy", "scipy") if find_spec(name) is None]
    are = "is" if len(lacking) == 1 else "are"
    return f"{' and '.join(lacking)} {are} not installed: {install_command('compare')}" if lacking else ""
