"""A replay's priorities are the real trinity-rft's."""

import itertools
import json
import subprocess
from pathlib import Path

import numpy as np
import pytest

from trinity_compat.buffer.replay import priorities
from trinity_compat.translate.replay import replay_of

pytestmark = pytest.mark.upstream

ASKED = (
    ("linear_decay", {}),
    ("linear_decay", {"decay": 0.1}),
    ("linear_decay", {"decay": -3}),
    ("decay_limit_randomization", {}),
    ("decay_limit_randomization", {"decay": 1.7, "use_count_limit": 2}),
    ("decay_limit_randomization", {"use_count_limit": 0}),
    ("decay_limit_randomization", {"use_count_limit": -1, "sigma": -1.0}),
)
DRAWN = ("decay_limit_randomization", {"sigma": 1.5})


def replay(name, arguments):
    buffer = {"enable": True, "reuse_cooldown_time": 0, "priority_fn": name, "priority_fn_args": arguments}
    trainer_input = {"experience_buffer": {"replay_buffer": buffer}}
    sync = {"sync_style": "trainer_driven"}
    return replay_of({"buffer": {"trainer_input": trainer_input}, "synchronizer": sync})


@pytest.mark.parametrize("release", ["0.6.0", "0.4.1"])
def test_priorities_and_limits_are_those_of_the_package(upstream, release):
    numbers = list(itertools.product(range(6), range(5)))
    rows = [(*asked, *pair) for asked in (*ASKED, DRAWN) for pair in numbers] + [(*DRAWN, 3, 1)] * 2000
    script = Path(__file__).parent / "priorities.py"
    done = subprocess.run(
        [upstream(release), script], input=json.dumps(rows), capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr[-3000:]
    theirs = json.loads(done.stdout.splitlines()[-1])
    versions, uses = np.array(numbers).T
    for asked in ASKED:
        mine, part = replay(*asked), theirs[: len(numbers)]
        theirs = theirs[len(numbers) :]
        found = priorities(versions, uses, versions, mine)
        np.testing.assert_allclose(found, [priority for priority, _ in part], rtol=0, atol=1e-9)
        assert [goes for _, goes in part] == [count < mine.max_uses for count in uses]
    drawn = np.array([priority for priority, _ in theirs[len(numbers) :]])
    many = np.arange(2000)
    ours = priorities(np.full(2000, 3), np.full(2000, 1), many, replay(*DRAWN))
    from scipy import stats

    assert stats.ks_2samp(drawn, ours).pvalue > 0.001
