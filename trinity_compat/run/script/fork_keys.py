"""A run of a fork's script: the pinned veRL runs it, without what only the fork's code knows."""

from __future__ import annotations

from trinity_compat.audit.phrases import assignment
from trinity_compat.common.errors import UserError, Where
from trinity_compat.common.releases import VERL
from trinity_compat.translate.model import Finding, Status, Translation

_SHOWN = 20


def refuse(translation: Translation, where: Where) -> None:
    """Raise UserError naming the fork's keys that no user rule covers.

    Leaving such a key out would change the training.
    """
    left = [finding for finding in translation.findings if finding.status is Status.FORK_KEY]
    if not left:
        return
    told = "".join(f"\n  {_told(finding)}" for finding in left[:_SHOWN])
    more = f"\n  and {len(left) - _SHOWN} more, which audit lists" if len(left) > _SHOWN else ""
    raise UserError(
        f"the script starts from a fork of veRL, and veRL {VERL} lacks these keys of the fork's:{told}{more}",
        where=where,
        hint="leaving them out changes what is trained: --allow-fork-keys runs without them all, "
        "--rules FILE says what becomes of each",
    )


def _told(finding: Finding) -> str:
    place = f"{finding.where}: " if finding.where else ""
    return f"{place}{assignment(finding)}: {finding.reason}"
