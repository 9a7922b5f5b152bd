"""Each format of an audit, as a whole (tests/recorded.py says how to record them again)."""

from pathlib import Path

import pytest
from recorded import assert_recorded

from trinity_compat import __version__
from trinity_compat.audit.formats import FORMATS, render
from trinity_compat.audit.model import Audit
from trinity_compat.translate.model import Caution, Status
from trinity_compat.web import style

from .cases import MANY, ONE, SAME, TWO, finding, launch

RECORDED = Path(__file__).parent / "recorded"
KINDS = launch(
    *(
        finding(f"a.{status.value}", status, line, code=f"TC03{line}")
        for line, status in enumerate(Status, 1)
    ),
    finding("a.default", Status.UNSUPPORTED, None, [1, None, "x"], target="b.c", target_value={"d": 1.5}),
    finding("a.loose", Status.UNKNOWN, 9, "'q'", file="other.sh", reason=""),
    warnings=(
        Caution("TW003", "the learning rate never arrives", None, None),
        Caution("TW001", "another", launch().where, "do that"),
    ),
    silenced=frozenset({"a.approximated"}),
    module="verl.trainer.fsdp_sft_trainer",
    file="kinds.sh",
)
AUDITS = {
    "none": Audit((), {}, {}),
    "one": Audit((ONE,)),
    "kinds": Audit((KINDS,)),
    "many": MANY,
    "repeated": Audit((ONE, TWO, SAME, KINDS, ONE, launch(*TWO.findings, file="e.sh", refused="no"))),
    "problems": Audit((SAME,), {"bad.sh": "not <readable>", "worse.sh": "gone"}, {"a|b.sh": "why"}),
}


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("name", AUDITS)
def test_the_format_as_recorded(name, form):
    text = render(AUDITS[name], form).replace(__version__, "VERSION").replace(style(), "")
    assert_recorded(RECORDED / f"{name}.{form}", text)
