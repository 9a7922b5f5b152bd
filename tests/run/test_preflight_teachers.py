"""Teachers are looked at before a run starts: their folders and their tokenizers."""

import json
import shutil

import pytest
from toy_plan import planned

from trinity_compat.common.errors import UserError
from trinity_compat.run.checks import preflight, teachers

ONE = "distillation.teacher_models.teacher_model"
ON = ("distillation.enabled=True", "distillation.nnodes=1")


def model(folder, tokens=("a", "b"), added=(), **more):
    """A model's folder as far as the checks read it."""
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    vocabulary = {token: number for number, token in enumerate(tokens)}
    marks = [{"id": len(tokens) + number, "content": token} for number, token in enumerate(added)]
    file = {"model": {"vocab": vocabulary}, "added_tokens": marks, **more}
    (folder / "tokenizer.json").write_text(json.dumps(file))
    return folder


def verl_of(policy, teacher, *words):
    made = planned(*ON, f"actor_rollout_ref.model.path={policy}", f"{ONE}.model_path={teacher}", *words)
    return made.spec.verl


def remarks(tmp_path, verl):
    return list(teachers.tokenizer_remarks(verl, cwd=tmp_path))


@pytest.mark.parametrize(
    ("tokens", "added", "difference"),
    [
        (("a", "c"), (), "token 1 is 'b', the teacher's is 'c'"),
        (("a",), (), "token 1 is 'b', the teacher's is none"),
        (("a", "b"), ("<think>",), None),  # tokens that the policy never writes
        (("a",), ("b",), None),
    ],
)
def test_a_teacher_of_other_tokens_is_warned_of(tmp_path, tokens, added, difference):
    verl = verl_of(model(tmp_path / "p"), model(tmp_path / "t", tokens, added))
    found = remarks(tmp_path, verl)
    if difference is None:
        assert found == []
        return
    (line,) = found
    assert line.startswith(f"warning: {ONE}.model_path={tmp_path}/t: its tokenizer is another")
    assert difference in line


def test_tokenizers_that_are_equal_or_cannot_be_compared_say_nothing(tmp_path):
    policy = model(tmp_path / "p")
    assert remarks(tmp_path, verl_of(policy, shutil.copytree(policy, tmp_path / "same"))) == []
    assert remarks(tmp_path, verl_of(policy, "org/teacher")) == []
    (unigram := model(tmp_path / "u")).joinpath("tokenizer.json").write_text(
        '{"model": {"vocab": [["a", 0]]}}'
    )
    assert remarks(tmp_path, verl_of(policy, unigram)) == []
    (broken := model(tmp_path / "b")).joinpath("tokenizer.json").write_text("{")
    assert remarks(tmp_path, verl_of(policy, broken)) == []


def test_the_policy_s_own_tokenizer_is_compared(tmp_path):
    apart = model(tmp_path / "tokenizer", ("x", "y"))
    verl = verl_of(
        model(tmp_path / "p"), model(tmp_path / "t"), f"+actor_rollout_ref.model.tokenizer_path={apart}"
    )
    assert len(remarks(tmp_path, verl)) == 1


def test_a_teacher_that_is_not_there_is_named(tmp_path):
    verl = verl_of(model(tmp_path / "p"), "./missing")
    with pytest.raises(UserError, match=rf"{ONE}\.model_path=\./missing: no such folder"):
        preflight.check_models(verl, cwd=tmp_path)
    off = {**verl, "distillation": {**verl["distillation"], "enabled": False}}
    preflight.check_models(off, cwd=tmp_path)
