"""One finding per key, sums that add up, and what counts for --fail-on."""

import pytest

from trinity_compat.audit.model import Audit
from trinity_compat.audit.summary import outcome, summarise
from trinity_compat.translate.model import Status

from .cases import MANY, ONE, REFUSED, SAME, TWO, finding, launch


def test_counts_add_up_to_the_keys():
    assert ONE.keys == 4
    assert sum(ONE.counts.values()) == 4
    assert list(ONE.counts) == [
        Status.DERIVED,
        Status.APPROXIMATED,
        Status.UNSUPPORTED_UPSTREAM,
        Status.UNKNOWN,
    ]


def test_two_findings_for_one_key_are_a_bug_of_ours():
    with pytest.raises(AssertionError, match="more than one finding for a"):
        launch(finding("a", Status.MAPPED, 1), finding("a", Status.DERIVED, 2))


def test_changed_comes_gravest_first():
    assert [f.key for f in ONE.changed()] == ["actor.typo", "algorithm.x", "data.shuffle"]


def test_silenced_findings_are_counted_but_not_heard():
    quiet = launch(finding("a", Status.UNKNOWN, 1), finding("b", Status.MAPPED, 2), silenced=frozenset({"a"}))
    assert quiet.keys == 2
    assert quiet.worst is Status.MAPPED
    assert not Audit((quiet,)).reaches(Status.APPROXIMATED)


@pytest.mark.parametrize(
    "status, reached",
    [
        (Status.MAPPED, True),
        (Status.APPROXIMATED, True),
        (Status.UNSUPPORTED_UPSTREAM, False),
        (Status.UNKNOWN, False),
    ],
)
def test_fail_on_is_reached_by_that_status_or_a_graver_one(status, reached):
    assert Audit((TWO, SAME)).reaches(status) is reached


def test_a_launch_has_the_outcome_of_its_findings():
    assert [outcome(x) for x in (ONE, TWO, SAME, REFUSED)] == ["open", "approximated", "same", "refused"]


def test_the_summary_counts_launches_by_set_and_default_causes():
    summary = summarise(MANY)
    assert dict(summary.outcomes) == {"same": 1, "approximated": 1, "ours only": 0, "open": 1, "refused": 1}
    shuffle = next(cause for cause in summary.causes if cause.key == "data.shuffle")
    assert shuffle.set_in == ("b.sh:3",)
    assert shuffle.default_in == ("run.sh:3",)
    assert summary.causes[0].key == "actor.typo"
    assert summary.refusals == {"1000 is not divisible by 300": ("d.sh:3",)}


def test_of_equally_grave_causes_the_one_in_most_launches_comes_first():
    def of(file, **lines):
        found = (finding(key, Status.APPROXIMATED, line) for key, line in lines.items())
        return launch(*found, file=file)

    audit = Audit(
        (
            of("a.sh", a_rare_one=1, often=2, by_default=None),
            of("b.sh", often=None, by_default=None),
            of("c.sh", often=None, by_default=None),
        )
    )
    causes = summarise(audit).causes
    assert [(c.key, len(c.set_in), len(c.default_in), c.launches) for c in causes] == [
        ("often", 1, 2, 3),
        ("a_rare_one", 1, 0, 1),
        ("by_default", 0, 3, 3),
    ]
