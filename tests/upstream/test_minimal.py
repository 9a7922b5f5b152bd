"""The real trinity-rft makes the same of a YAML and of its --minimal."""

import pytest
from minimal_launches import LAUNCHES

from trinity_compat.launch import read_argv
from trinity_compat.translate import TranslateOptions, translate_launch
from trinity_compat.trinity.config import TARGETS

pytestmark = pytest.mark.upstream


def texts(target):
    for name, words in LAUNCHES.items():
        (launch,) = read_argv(["python3", "-m", "verl.trainer.main_ppo", *words]).launches
        for kind, short in (("full", False), ("minimal", True)):
            yield (
                f"{name} {kind}",
                translate_launch(launch, TranslateOptions(target=target, minimal=short))[1],
            )


@pytest.mark.parametrize("target", TARGETS)
def test_the_package_completes_both_alike(made_by, target):
    found = made_by(dict(texts(target)), target)
    completed = [name for name in LAUNCHES if isinstance(found[f"{name} full"], dict)]
    assert len(completed) > 5, found
    for name in LAUNCHES:
        assert without_the_folder(found[f"{name} full"]) == without_the_folder(found[f"{name} minimal"]), name


def without_the_folder(config):
    """Each is completed in a folder of its own."""
    return (
        {path: value for path, value in config.items() if "/tmp" not in str(value)}
        if isinstance(config, dict)
        else config
    )
