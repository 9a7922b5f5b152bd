"""What all tests share: `make test` draws the same examples always; HYPOTHESIS_PROFILE=explore new ones."""

import gc
import logging
import os
import signal
import sys
import time

import pytest
from guard import pytest_configure, pytest_unconfigure  # noqa: F401
from hypothesis import settings

# Collecting the tests is one long import (trinity_compat/common/gc_pause.py), and so is much of what they do.
gc.disable()
# A module is compiled and rewritten once and not by each worker of each part, whatever the environment says;
# only until the collection's end, as tests write modules, two of the same size in a second.
KEEPS_NO_BYTECODE = sys.dont_write_bytecode
sys.dont_write_bytecode = False

# No deadline: how long an example takes depends on what else the machine does.
settings.register_profile("gate", derandomize=True, database=None, deadline=None)
settings.register_profile("explore", derandomize=False, print_blob=True, deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "gate"))

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell's & makes its commands ignore Ctrl-C; what the tests start would ignore it as well.
    signal.signal(signal.SIGINT, signal.default_int_handler)

# What starts Ray, vLLM, a server or a browser, or imports verl in a process of its own, takes a minute on two
# idle cores and several on busy ones. No test is there to find out how long: only what hangs runs into this.
HEAVY = ("runtime", "whole", "verl", "upstream", "postgres", "browser", "chaos", "nightly")
HEAVY_S = 1800
# What shows most comes first, in case time runs out (LAST_START): jobs whose processes are killed, training,
# rollout, then many short files, and the other whole jobs.
ORDER = (
    "faults/test_explorer_or_trainer_killed.py",
    "faults/test_undisturbed_runs.py",
    "trainer/",
    "explorer/",
    "buffer/",
    "run/",
    "upstream/",
    "studio/",
    "web/",
    "trinity/",
    "faults/test_trial_run.py",
    "faults/",
)

CPU_BEFORE = pytest.StashKey[float]()
# When CI has no time left for another heavy test, in seconds since 1970: from then on each is left out, and
# scripts/ci/run_tests.py names it.
LAST_START = float(os.environ.get("TESTS_LAST_START") or "inf")


@pytest.fixture(autouse=True)
def loggers():
    """The root logger's level, and our loggers: what vLLM, verl or a side's start sets holds for one test."""
    level, ours = logging.root.level, logging.getLogger("trinity_compat")
    logging.root.setLevel(logging.WARNING)
    # pytest's own too: a library may raise them, and they are the same in all tests.
    handlers = {handler: handler.level for handler in logging.root.handlers}
    logging.disable(logging.NOTSET)
    ours.propagate, ours.handlers[:] = True, []  # common/process_log.py, in a test that calls a side's main
    ours.setLevel(logging.NOTSET)
    for name, logger in logging.root.manager.loggerDict.items():
        if name.startswith("trinity_compat") and isinstance(logger, logging.Logger):
            logger.disabled = False
    yield
    logging.root.setLevel(level)
    for handler, was in handlers.items():
        handler.setLevel(was)
    logging.disable(logging.NOTSET)


@pytest.fixture
def fresh_ray_token():
    """For a test that starts a run's own Ray: a process keeps the token of the first Ray that it met."""
    from ray._raylet import AuthenticationTokenLoader

    AuthenticationTokenLoader.instance().reset_cache()
    yield
    AuthenticationTokenLoader.instance().reset_cache()


def pytest_collection_modifyitems(items):
    for item in items:
        if _is_heavy(item) and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(HEAVY_S))
    items.sort(key=_turn)


def pytest_collection_finish():
    sys.dont_write_bytecode = KEEPS_NO_BYTECODE
    gc.freeze()
    gc.set_threshold(50_000)
    gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item):
    item.stash[CPU_BEFORE] = _cpu_s()
    if _is_heavy(item) and time.time() > LAST_START:
        pytest.skip("left out: no time left")
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item):
    """CPU seconds of the test, its fixtures and the processes that ended in it go into the report."""
    try:
        return (yield)
    finally:
        item.user_properties.append(("cpu_s", round(_cpu_s() - item.stash[CPU_BEFORE], 3)))


def _cpu_s():
    return sum(os.times()[:4])


def _is_heavy(item):
    return any(item.get_closest_marker(name) for name in HEAVY)


def _turn(item):
    place = item.nodeid.removeprefix("tests/") if _is_heavy(item) else ""
    return next((turn for turn, start in enumerate(ORDER) if place.startswith(start)), len(ORDER))
