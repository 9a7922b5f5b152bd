"""The one that dies is named, the other is ended within ten seconds, and the rerun goes on. With --restarts
the command itself starts a dead trainer again. One job for all of it: a start takes half a minute."""

import re
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import yaml
from safetensors.torch import load_file

from trinity_compat.runtime.job.export import to_hf

FAQ = Path(__file__).parents[2] / "docs" / "faq.md"


@pytest.mark.runtime
def test_the_explorer_is_killed_then_the_same_command_continues_through_its_trainer_s_death(
    run, toy, monkeypatch, capsys
):
    one = run("trainer.total_training_steps=1000").start()
    one.wait_for(lambda: (one.job / "latest_checkpointed_iteration.txt").exists())
    one.side("explorer").kill()
    one.ends()
    assert one.code == 1
    assert len(one.errors) == 1 and "the explorer was killed by SIGKILL" in one.errors[0]
    one.nothing_is_left_and_nothing_lost()

    step = int((one.job / "latest_checkpointed_iteration.txt").read_text())
    again = run(f"trainer.total_training_steps={step + 6}", options=("--restarts", "1")).start()
    again.wait_for(lambda: again.trained_steps() > step)
    again.side("trainer").kill()
    again.finish()
    assert again.code == 0, again.err
    assert f"from step {step}" in again.out
    assert "the trainer was killed by SIGKILL" in again.out and "started again (0 restarts left)" in again.out
    steps = [row[0] for row in again.sql("select distinct trainer_step from ledger order by 1")]
    assert steps == list(range(1, step + 7))
    again.nothing_is_left_and_nothing_lost()
    whole = to_hf(again.job, step=step, out=again.cwd / "hf", critic=False)
    assert (whole / "model.safetensors").is_file()
    monkeypatch.chdir(again.cwd)
    the_faq_s_two_snippets_do_what_they_say(again.job, step, toy, whole, capsys)


def the_faq_s_two_snippets_do_what_they_say(job, step, toy, whole, capsys):
    """docs/faq.md: Trinity's own text, its imports apart."""
    experiences, checkpoint = re.findall(r"```python\n(.*?)```", FAQ.read_text(), re.DOTALL)
    path = yaml.safe_load((job / "config" / "trinity.yaml").read_text())["buffer"]["trainer_input"]
    names = {"buffer": SimpleNamespace(trainer_input=SimpleNamespace(experience_buffer=SimpleNamespace()))}
    names["buffer"].trainer_input.experience_buffer.path = path["experience_buffer"]["path"]
    exec(experiences, names)
    assert capsys.readouterr().out.count("exp.prompt_text='<|im_start|>") == 4
    assert all(len(exp.response_ids) == len(exp.logprobs) > 0 for exp in names["exp_list"])

    names = {"model_path": toy / "model", "checkpoint_root_dir": job.parent.parent}
    names |= {"project": job.parent.name, "name": job.name}
    exec(checkpoint.replace("global_step_780", f"global_step_{step}"), names)
    loaded, start = names["model"].state_dict(), load_file(toy / "model" / "model.safetensors")
    for name, value in load_file(whole / "model.safetensors").items():
        assert torch.equal(loaded[name].bfloat16(), value)
    assert any(not torch.equal(loaded[name], value) for name, value in start.items())
