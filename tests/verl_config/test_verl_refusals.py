"""What a launch's author is told, in text: refusals.txt."""

from __future__ import annotations

from pathlib import Path

import pytest
from verl_samples import make_launch

from trinity_compat.common.errors import UserError
from trinity_compat.launch.model import EnvRef, Launch, UnknownPiece, Word, WordPart
from trinity_compat.verl_config import effective_config, hydra_flags


def blocks() -> list[tuple[list[str], list[str]]]:
    text = (Path(__file__).parent / "refusals.txt").read_text()
    out = []
    for block in text.split("\n\n")[1:]:
        lines = block.splitlines()
        out.append(
            ([line[2:] for line in lines if line[0] == "$"], [line[2:] for line in lines if line[0] == "!"])
        )
    return out


def test_a_key_that_was_refused_is_not_proposed_for_the_next() -> None:
    words = ("actor_rollout_ref.actor.gigpo_weight=1", "critic.gigpo_weight=1", "gigpo_weight=1")
    notes = effective_config(make_launch(*words), version="0.6.1").diagnostics
    assert [note.code for note in notes] == ["TP201"] * 3
    assert not any("did you mean" in note.message for note in notes)


@pytest.mark.parametrize(
    ("word", "instead"),
    [
        (
            "actor_rollout_ref.actor.megatron.grad_offload=True",
            "leave it out (gradients follow param_offload",
        ),
        (
            "actor_rollout_ref.actor.checkpoint.contents=[model]",
            "write actor_rollout_ref.actor.checkpoint.save_contents and actor_rollout_ref.actor.checkpoint."
            "load_contents (",
        ),
    ],
)
def test_a_key_of_an_older_release_beside_new_ones_is_refused_with_what_replaced_it(word, instead) -> None:
    launch = make_launch("ray_kwargs.ray_init.runtime_env.py_executable=null", word)
    (note,) = effective_config(launch, version="0.9.1").diagnostics
    told = f"{word.partition('=')[0]}: verl 0.9.1 has no such key; an older release has it; {instead}"
    assert note.code == "TP201" and told in note.message


def test_a_dict_in_a_section_that_becomes_a_dataclass_takes_any_key() -> None:
    config = effective_config(make_launch("+critic.model.fused_kernel_options.own=1"), version="0.6.1")
    assert (config.diagnostics, config.unknown) == ((), ())


@pytest.mark.parametrize(("arguments", "expected"), blocks(), ids=lambda value: value[0][:40])
def test_a_launch_gets_the_notes_of_its_block(arguments: list[str], expected: list[str]) -> None:
    notes = effective_config(make_launch(*arguments), version="0.6.1").diagnostics
    got = [f"{note.code} {note.severity} {note.where.line}: {note.message}" for note in notes]
    assert len(got) == len(expected), got
    for line, want in zip(got, expected, strict=True):
        head, _, text = want.partition(": ")
        assert line.startswith(head + ": ") and text in line


@pytest.mark.parametrize(
    ("arguments", "message", "hint"),
    [
        (["--config-name=nothing"], "Cannot find the config 'nothing'", '--config-path="$PWD/FOLDER"'),
        (["--config-name=ppo_traner"], "Cannot find the config 'ppo_traner'", "did you mean ppo_trainer?"),
        (["--config-path=/not/here"], "there is no such folder below", "--cwd"),
        (["--config-nam"], "--config-nam needs a value", "--config-nam NAME"),
        (["--nonsense"], "--nonsense is not a flag of Hydra's", "key=value"),
        (["data=3"], "data is a config group", "data.NAME"),
        (["critic=nothing"], "could not find 'nothing'", None),
        (
            ["actor=megatron_actor"],
            "Could not override 'actor'",
            "actor@actor_rollout_ref.actor=megatron_actor",
        ),
    ],
)
def test_what_leaves_no_configuration_is_an_error_at_its_line(arguments, message, hint) -> None:
    with pytest.raises(UserError) as refused:
        effective_config(make_launch("data.seed=1", *arguments), version="0.6.1")
    assert message in refused.value.message
    assert refused.value.where and refused.value.where.line == 3
    assert hint is None or hint in (refused.value.hint or "")


def test_an_unknown_key_still_has_its_value_and_place() -> None:
    config = effective_config(make_launch("data.train_batchsize=3"), version="0.6.1")
    assert config.unknown == ("data.train_batchsize",)
    assert config.get("data.train_batchsize") == 3
    assert str(config.settings["data.train_batchsize"].where) == "run.sh:2"


def test_a_setting_keeps_its_spelling_its_word_and_its_interpolation() -> None:
    config = effective_config(make_launch("+data.copy=${data.seed}", "data.seed=5"), version="0.9.1")
    copy = config.settings["data.copy"]
    assert (copy.value, copy.spelling, copy.interpolation) == (5, "+data.copy", "${data.seed}")
    assert copy.word is not None and copy.word.text == "${data.seed}"
    assert config.set_keys == ("data.copy", "data.seed")
    default = config.settings["trainer.default_local_dir"]
    assert (default.where, default.word) == (None, None)
    assert default.interpolation == "checkpoints/${trainer.project_name}/${trainer.experiment_name}"


def test_an_open_value_stays_text_and_keeps_its_expression() -> None:
    where = make_launch("x=1").arguments[0].where
    open_part = WordPart("", UnknownPiece("$(nvidia-smi -L | wc -l)", where))
    word = Word((WordPart("trainer.n_gpus_per_node=1"), open_part), where)
    setting = effective_config(_one(word), version="0.9.1").settings["trainer.n_gpus_per_node"]
    assert setting.value == "1"
    assert setting.word is not None and [part.expression for part in setting.word.open] == [
        "$(nvidia-smi -L | wc -l)"
    ]


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        (
            "",
            "",
            "an argument is known only at run time: $(cat extra); write out the key=value that it becomes",
        ),
        ("data.", "=2", "the key of 'data.=2' depends on $(cat extra), which is known only at run time"),
    ],
)
def test_an_open_key_is_refused_by_its_expression(before: str, after: str, message: str) -> None:
    where = make_launch("x=1").arguments[0].where
    parts = (WordPart(before), WordPart("", UnknownPiece("$(cat extra)", where)), WordPart(after))
    (note,) = effective_config(_one(Word(parts, where)), version="0.9.1").diagnostics
    assert (note.code, note.severity, note.where) == ("TP204", "error", where)
    assert note.message.startswith(message)


def test_an_environment_variable_is_known_by_its_value_and_its_name() -> None:
    where = make_launch("x=1").arguments[0].where
    word = Word(
        (WordPart("actor_rollout_ref.model.path="), WordPart("/home/u", EnvRef("HOME")), WordPart("/m")),
        where,
    )
    setting = effective_config(_one(word), version="0.9.1").settings["actor_rollout_ref.model.path"]
    assert setting.value == "/home/u/m"
    assert setting.word is not None and setting.word.env_refs == (EnvRef("HOME"),)


def _one(word: Word) -> Launch:
    launch = make_launch()
    return Launch(launch.module, (word,), launch.where)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("${oc.env:NOT_SET_HERE}", "${oc.env:NOT_SET_HERE}"),
        ("${oc.env:NOT_SET_HERE}/x", "${oc.env:NOT_SET_HERE}/x"),
        ("${oc.env:NOT_SET_HERE,d}/x", "d/x"),
        ("${oc.env:SET_BY_SCRIPT}/x", "v/x"),
        ("${hydra:runtime.cwd}/x", "${hydra:runtime.cwd}/x"),
    ],
)
def test_what_only_the_machine_of_the_run_knows_stays_symbolic(text: str, value: str) -> None:
    plain = make_launch(f"trainer.default_local_dir={text}")
    env = {"SET_BY_SCRIPT": Word((WordPart("v"),), plain.where)}
    config = effective_config(Launch(plain.module, plain.arguments, plain.where, env), version="0.9.1")
    assert config.get("trainer.default_local_dir") == value
    assert not config.diagnostics


def test_hydra_s_own_flags() -> None:
    flags = hydra_flags(make_launch("--cfg", "job", "--multirun", "-cn", "x", "a=1"))
    assert (flags.cfg, flags.multirun, flags.get("config_name")) == ("job", True, "x")
    assert hydra_flags(make_launch("a=1")).cfg is None


def test_a_main_that_we_don_t_know_yields_its_keys_and_nothing_else() -> None:
    config = effective_config(make_launch("a.b=1", "+c=[x]", module="my.main"))
    assert {key: setting.value for key, setting in config.settings.items()} == {"a.b": 1, "c": ["x"]}
    assert config.set_keys == ("a.b", "c") and config.unknown == ()


TAU = "actor_rollout_ref.actor.policy_loss.tau_pos"


def test_a_key_added_below_its_section_is_an_error_with_the_key_to_write() -> None:
    (note,) = effective_config(make_launch("data.seed=1", f"+{TAU}=1.5"), version="0.9.1").diagnostics
    assert (note.code, note.severity, note.where.line) == ("TP215", "error", 3)
    assert note.message == (
        f"veRL ends at +{TAU} with a TypeError: actor_rollout_ref.actor.policy_loss becomes a dataclass "
        "without such a field; write actor_rollout_ref.actor.tau_pos="
    )


@pytest.mark.parametrize(
    ("key", "version"),
    [
        (TAU, "0.6.1"),  # another release's class
        ("actor_rollout_ref.actor.policy_loss.mine", "0.9.1"),  # the section above has no such key
        ("critic.checkpoint.ppo_epochs", "0.9.1"),  # built for a critic only
        ("trainer.v1.nnodes", "0.9.1"),  # no dataclass
    ],
)
def test_a_key_that_veRL_may_not_meet_stays_a_warning(key: str, version: str) -> None:
    notes = effective_config(make_launch(f"+{key}=1"), version=version).diagnostics
    assert [(note.code, note.severity) for note in notes] == [("TP214", "warning")]
