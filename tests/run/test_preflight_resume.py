"""A checkpoint that is not there is said before anything starts."""

import pytest

from trinity_compat.common.errors import UserError
from trinity_compat.run.checks.preflight import check_resume


def check(cwd, mode, path=None):
    check_resume({"trainer": {"resume_mode": mode, "resume_from_path": path}}, cwd=cwd)


@pytest.fixture
def saved(tmp_path):
    (tmp_path / "ck" / "global_step_4" / "actor").mkdir(parents=True)
    return tmp_path


@pytest.mark.parametrize("path", ["ck/global_step_4", "./ck/global_step_4"])
def test_a_checkpoint_by_a_relative_or_absolute_path(saved, path):
    check(saved, "resume_path", path)
    check(saved, "resume_path", str(saved / path))


@pytest.mark.parametrize("mode", ["auto", "disable"])
def test_other_modes_read_no_path(saved, mode):
    check(saved, mode, "nowhere")


@pytest.mark.parametrize("path", [None, "", "ck", "ck/global_step_4/", "ck/global_step_x"])
def test_what_verl_could_not_read_is_refused(saved, path):
    with pytest.raises(UserError, match=r"global_step_N, not"):
        check(saved, "resume_path", path)


def test_a_missing_checkpoint_names_those_that_are_there(saved):
    with pytest.raises(UserError, match=r"(?s)no checkpoint there.*in .*ck: global_step_4"):
        check(saved, "resume_path", "ck/global_step_6")
