"""Ray's runtime environment of a launch: the audit says what a run refuses of it."""

import pytest

from trinity_compat.translate import TranslateOptions, translate_launch
from trinity_compat.translate.model import Status

from .helpers import BASICS, script, translated

KEY = "ray_kwargs.ray_init.runtime_env"


@pytest.mark.parametrize(
    ("word", "key", "told"),
    [
        ("pip=[sympy]", "pip", "share this Python"),
        ("conda=other", "conda", "share this Python"),
        ("working_dir=/repo", "working_dir", "work in the launch's folder"),
        ("py_modules=[/x/y]", "py_modules", "work in the launch's folder"),
        ("env_vars.N=3", "env_vars.N", "Ray takes texts only"),
        ("env_vars.T=true", "env_vars.T", "Ray takes texts only"),
        ("env_vars.A=on", "env_vars.A", ""),
        ("working_dir=.", "working_dir", ""),
        ("pip=[]", "pip", ""),
    ],
)
def test_what_a_run_refuses_of_it_is_unsupported(word, key, told):
    translation, _ = translated(f"+{KEY}.{word}")
    (found,) = (each for each in translation.findings if each.key == f"{KEY}.{key}")
    assert (found.status is Status.UNSUPPORTED) == bool(told)
    assert told in found.reason


@pytest.mark.parametrize(
    ("folder", "status"),
    [
        ("$PWD", Status.UNSUPPORTED_UPSTREAM),
        ("$SOME_FOLDER", Status.UNSUPPORTED_UPSTREAM),
        ("${F:-/repo}", Status.UNSUPPORTED),
    ],
)
def test_a_folder_that_is_not_known_is_not_judged(folder, status, tmp_path):
    text = f"python3 -m verl.trainer.main_ppo {' '.join(BASICS)} +{KEY}.working_dir={folder}"
    translation, _ = translate_launch(script(text, cwd=tmp_path), TranslateOptions())
    (found,) = (each for each in translation.findings if each.key == f"{KEY}.working_dir")
    assert found.status is status
