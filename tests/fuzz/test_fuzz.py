"""No input makes a traceback, a hang, a process, a file, or a key without a status.

TC_FUZZ_INPUTS sets how many inputs of each kind are made (default 150); scripts/judge/fuzz.py runs millions.
"""

import os

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from .harness import GRAMMARS, SPITE, check_argv, check_text, run, seed_argvs, seed_texts

INPUTS = int(os.environ.get("TC_FUZZ_INPUTS", "150"))
ARGVS = seed_argvs(seed_texts())
KEYS = sorted({word.partition("=")[0] for argv in ARGVS for word in argv[3:]})
calm = settings(
    max_examples=max(20, INPUTS // 3),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    derandomize=True,
)


SHARES = {"tree": 5, "parse": 5, "argv": 1, "text": 1, "yaml": 1, **dict.fromkeys(GRAMMARS, 0.4)}


@pytest.mark.parametrize("kind, share", SHARES.items())
def test_mutated_scripts_end_in_a_reading_or_a_user_error(kind, share):
    failures = []
    run(kind, int(INPUTS * share), 1, seed_texts(), lambda made, error: failures.append((made, repr(error))))
    assert failures == []


words = st.sampled_from(SPITE) | st.builds(
    "{}{}={}".format, st.sampled_from(["", "+", "++", "~"]), st.sampled_from(KEYS), st.text(max_size=20)
)


@calm
@given(st.lists(words, max_size=8))
def test_any_overrides(extra):
    check_argv([*ARGVS[0], *extra])


@calm
@given(st.text(alphabet="ab=$(){}[]\"'\\\n |&;<>`#!*?0- /", max_size=60))
def test_any_text_around_a_launch(noise):
    check_text(f"{noise}\npython3 -m verl.trainer.main_ppo data.seed=1 {noise}\n")
