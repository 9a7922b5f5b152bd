"""Values that veRL looks up by name and that Trinity does not have."""

from __future__ import annotations

from collections.abc import Sequence

from trinity_compat.common.suggestions import did_you_mean
from trinity_compat.translate.launch_view import LaunchView
from trinity_compat.translate.model import Status
from trinity_compat.translate.run_refusals import why_refused
from trinity_compat.translate.verl_names import misspelt


def runs_here(view: LaunchView, key: str, name: str, known: Sequence[str]) -> tuple[Status, str]:
    """Return the status of ``name``, the value of ``key``, and the reason: whether our runtime runs it.

    ``known``: the names that veRL itself has.

    Raises KeyRefused for a misspelt one of these.
    """
    if name not in known and (typo := misspelt(name, known)):
        written = view.spelling(key)
        raise view.refused(key, f"{view.written(key)}: veRL has no {name!r}", f"write {written}={typo}")
    if (why := why_refused(view.value, key)) is not None:
        return Status.UNSUPPORTED, f"our runtime refuses it: {why}"
    if name in known:
        return Status.UNSUPPORTED_UPSTREAM, f"our runtime runs {name!r}"
    near = did_you_mean(name.lower(), known)
    hint = f"; did you mean {near}?" if near else ""
    return Status.UNSUPPORTED, f"veRL has none either unless code of yours registers it{hint}"
