"""Every recorded launch of every main goes through translate and audit; nothing ends but by UserError.

Each under the release that it was recorded from, too: inferring takes the newest that fits, so that an older
release's configuration would never be read. Supervised launches are started by torchrun, as people do.
"""

import pytest
from facts import RELEASE_OF_TAG, load, public_scripts

from trinity_compat.audit.collect import AuditOptions, audit_launch
from trinity_compat.common.errors import UserError
from trinity_compat.launch import entrypoints, read_argv
from trinity_compat.translate import TranslateOptions, translate_launch


def recorded():
    """(release or None, main) → the words of its launches, one for each set of keys."""
    found = {}
    entries = [(script["tag"], script) for script in public_scripts()]
    entries += [(None, script) for script in load("main")["scripts"]]
    for tag, script in entries:
        for launch in script["launches"]:
            keys = frozenset(word.partition("=")[0] for word in launch["args"])
            place = (RELEASE_OF_TAG.get(tag), launch["module"])
            found.setdefault(place, {}).setdefault(keys, launch["args"])
    return {place: list(launches.values()) for place, launches in found.items()}


LAUNCHES = recorded()


def read(main, words):
    start = ["torchrun", "--nproc_per_node=8"] if main in entrypoints.SUPERVISED else ["python3"]
    (launch,) = read_argv([*start, "-m", main, *words]).launches
    return launch


@pytest.mark.parametrize(("release", "main"), LAUNCHES)
def test_a_recorded_launch_ends_in_a_result_or_an_error_of_the_user_s(release, main):
    for words in LAUNCHES[release, main]:
        launch, options = read(main, words), TranslateOptions(verl_version=release)
        audit = audit_launch(launch, AuditOptions(options=options))
        assert audit.findings
        try:
            translation, _ = translate_launch(launch, options)
        except UserError as error:
            assert error.message
        else:
            assert translation.config and audit.refused is None
