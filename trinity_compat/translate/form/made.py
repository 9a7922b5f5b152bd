"""The YAML and the script of a form, with the remarks of the same checks as ``translate`` makes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from trinity_compat.common.errors import RunError, UserError, Where
from trinity_compat.launch import read_text
from trinity_compat.translate.form.fields import FIELDS
from trinity_compat.translate.form.values import launch_of, values_of
from trinity_compat.translate.model import Severity, Status, TranslateOptions, Translation
from trinity_compat.translate.pipeline import refuse_unstartable, translate_launch
from trinity_compat.translate.verl_script import verl_script

SCRIPT = "run.sh"  # its name in the comments of the YAML


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
    writes of ``yaml``.
    """

    yaml: str = ""
    script: str = ""
    config: Mapping[str, object] = field(default_factory=dict)
    remarks: tuple[FormRemark, ...] = ()

    @property
    def works(self) -> bool:
        """True where there are files."""
        return bool(self.yaml)


def made_from(texts: Mapping[str, str]) -> FormResult:
    """Return the files of a form, field → text. A field that is missing has its default."""
    values, problems = values_of(texts)
    if problems:
        return FormResult(remarks=tuple(map(_of_error, problems)))
    try:
        translation, _ = translate_launch(launch_of(values), TranslateOptions())
        refuse_unstartable(translation)
        script = verl_script(translation.config, SCRIPT)
        lost = [FormRemark("decide", f"not in the script: {line}") for line in script.unsaid]
        yaml, config = translated(script.text)
    except (UserError, RunError) as error:
        return FormResult(remarks=(_of_error(error),))
    return FormResult(yaml, script.text, config, (*_remarks(translation), *lost))


def translated(script: str) -> tuple[str, Mapping[str, object]]:
    """Return the YAML that ``translate`` writes of a script with one launch, and its configuration."""
    (launch,) = read_text(script, name=SCRIPT).launches
    options = TranslateOptions(command=f"trinity-compat translate {SCRIPT}")
    translation, text = translate_launch(launch, options)
    return text, translation.config


def _of_error(error: UserError | RunError) -> FormRemark:
    where = error.where if isinstance(error, UserError) else None
    hint = error.hint or ""
    if hint.startswith("give it: --env"):  # an option of the command line
        hint = "write the value itself"
    return FormRemark("error", error.message, hint, _field(where))


def _remarks(translation: Translation) -> Iterator[FormRemark]:
    """Yield what ``translate`` prints, what asks for something first."""
    for found in translation.findings:
        if found.status.rank >= Status.APPROXIMATED.rank and found.where is not None:
            text = f"{found.key} {found.status}: {found.reason}"
            yield FormRemark("decide", text, name=_field(found.where), code=found.code)
    for caution in sorted(translation.warnings, key=lambda caution: caution.rank is Severity.NOTE):
        rank = str(caution.rank)
        yield FormRemark(rank, caution.message, caution.hint or "", _field(caution.where), caution.code)


def _field(where: Where | None) -> str:
    return where.file if where is not None and where.file in FIELDS else ""
