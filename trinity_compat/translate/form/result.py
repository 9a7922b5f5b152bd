"""The files of a form and the remarks on its fields."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from trinity_compat.translate.form.fields import FIELDS


@dataclass(frozen=True, slots=True)
class FormRemark:
    """A message about a field, or about the whole form (``name`` is "").

    ``rank`` is error, decide or note; ``code`` is a finding's, "" for an error.
    """

    rank: str
    message: str
    hint: str = ""
    name: str = ""
    code: str = ""

    @property
    def label(self) -> str:
        """The field's label, or ""."""
        return FIELDS[self.name].label if self.name in FIELDS else self.name


@dataclass(frozen=True, slots=True)
class FormResult:
    """The files of a form; both are "" where none can be made.

    With files an error is what only this machine or this package refuses.

    ``yaml`` is what ``trinity-compat translate run.sh`` writes of ``script``, and ``script`` what ``to-verl``
    writes of ``yaml``. ``sets``: Trinity's settings that a script lacks, as ``run`` takes them with --set;
    ``options``: the same as translate takes them.
    """

    yaml: str = ""
    script: str = ""
    config: Mapping[str, object] = field(default_factory=dict)
    remarks: tuple[FormRemark, ...] = ()
    sets: tuple[str, ...] = ()
    options: tuple[str, ...] = ()

    @property
    def works(self) -> bool:
        """True where there are files."""
        return bool(self.yaml)
