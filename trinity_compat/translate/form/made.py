"""The YAML and the script of a form, with the remarks of the same checks as ``translate`` makes."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping

from trinity_compat.common.errors import RunError, UserError, Where
from trinity_compat.launch import read_text
from trinity_compat.translate.form.fields import FIELDS, OFFLINE
from trinity_compat.translate.form.offline import made_by_hand
from trinity_compat.translate.form.result import FormRemark, FormResult
from trinity_compat.translate.form.sides import options_of, sets_of, words_of
from trinity_compat.translate.form.values import launch_of, values_of
from trinity_compat.translate.model import Severity, Status, TranslateOptions, Translation
from trinity_compat.translate.pipeline import refuse_unstartable, translate_launch
from trinity_compat.translate.verl_script import verl_script

SCRIPT = "run.sh"  # its name in the comments of the YAML
_SPLIT = "--rollout-gpus "


def made_from(texts: Mapping[str, str]) -> FormResult:
    """Return the files of a form, field → text. A field that is missing has its default."""
    values, problems = values_of(texts)
    if problems:
        return FormResult(remarks=tuple(map(_of_error, problems)))
    if values["algorithm"] in OFFLINE:
        return made_by_hand(values)
    words = words_of(values)
    command = shlex.join(["trinity-compat", "translate", SCRIPT, *words])
    try:
        translation, _ = translate_launch(launch_of(values), TranslateOptions())
        refuse_unstartable(translation)
        script = verl_script(translation.config, SCRIPT)
        lost = [FormRemark("decide", f"not in the script: {line}") for line in script.unsaid]
        yaml, config = translated(script.text, options_of(values, command))
    except (UserError, RunError) as error:
        return FormResult(remarks=(_of_error(error),))
    return FormResult(yaml, script.text, config, (*_remarks(translation), *lost), sets_of(values), words)


def translated(script: str, options: TranslateOptions) -> tuple[str, Mapping[str, object]]:
    """Return the YAML that ``translate`` writes of a script with one launch, and its configuration."""
    (launch,) = read_text(script, name=SCRIPT).launches
    translation, text = translate_launch(launch, options)
    return text, translation.config


def _of_error(error: UserError | RunError) -> FormRemark:
    where = error.where if isinstance(error, UserError) else None
    hint = error.hint or ""
    if hint.startswith("give it: --env"):  # an option of the command line
        hint = "write the value itself"
    if error.message.startswith(_SPLIT):
        return FormRemark("error", error.message.partition(": ")[2], hint, "rollout_gpus")
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
