"""Audits made by hand: what the formats are given, without reading or translating anything."""

from trinity_compat.audit.model import Audit, LaunchAudit
from trinity_compat.common.errors import Where
from trinity_compat.launch.model import Diagnostic
from trinity_compat.translate.model import Caution, Finding, Status
from trinity_compat.verl_config.model import VersionChoice


def finding(key, status, line=None, value=1, code="TC020", file="run.sh", **more):
    where = None if line is None else Where(file, line)
    return Finding(code, status, key, value, where, reason=more.pop("reason", "because"), **more)


def launch(*findings, file="run.sh", line=3, **more):
    return LaunchAudit(
        source=file,
        where=Where(file, line),
        module=more.pop("module", "verl.trainer.main_ppo"),
        version=VersionChoice("0.5.0", "data.x exists since 0.5.0"),
        findings=findings,
        **more,
    )


ONE = launch(
    finding("data.train_batch_size", Status.DERIVED, 4, 1024, target="buffer.batch_size", target_value=256),
    finding("data.shuffle", Status.APPROXIMATED, None, True, code="TC033", reason="order differs"),
    finding("algorithm.x", Status.UNSUPPORTED_UPSTREAM, 6, "a|b <c>", code="TC022", reason="no switch"),
    finding("actor.typo", Status.UNKNOWN, 7, float("inf"), code="TC001", reason="did you mean actor.type?"),
    warnings=(Caution("TW003", "the learning rate stays near 0", Where("run.sh", 9), "set total_steps"),),
    diagnostics=(Diagnostic("TP105", "a comment ends the command", Where("run.sh", 8)),),
)
TWO = launch(
    finding("data.shuffle", Status.APPROXIMATED, 5, True, code="TC033", file="b.sh", reason="order differs"),
    file="b.sh",
)
SAME = launch(finding("a.b", Status.MAPPED, 2, file="c.sh"), file="c.sh")
REFUSED = launch(
    finding("a.b", Status.UNSUPPORTED, 2, file="d.sh"), file="d.sh", refused="1000 is not divisible by 300"
)
MANY = Audit(
    (ONE, TWO, SAME, REFUSED), {"bad.sh": "not readable"}, {"empty.sh": "empty.sh:3: the script ends here"}
)
