"""Words of a launch that only running the script could tell, and what `--set` gives in their place."""

import pytest

from trinity_compat.common.errors import UserError
from trinity_compat.launch import read_text
from trinity_compat.run.script.static_reading import _by_key, _settled


def word(text, before=""):
    script = f"{before}\npython3 -m verl.trainer.main_ppo {text}\n"
    (launch,) = read_text(script, name="run.sh").launches
    return launch.arguments[-1]


@pytest.mark.parametrize(
    ("text", "sets", "settled"),
    [
        ("trainer.nnodes=2", ["trainer.nnodes=4"], "trainer.nnodes=2"),  # --set counts later, over all words
        ('trainer.nnodes="$(count)"', ["trainer.nnodes=4"], "trainer.nnodes=4"),
        ('+trainer.nnodes="$(count)"', ["trainer.nnodes=4", "data.seed=1"], "trainer.nnodes=4"),
    ],
)
def test_set_replaces_an_open_word(text, sets, settled):
    assert _settled(word(text), _by_key(sets)) == settled


@pytest.mark.parametrize(
    ("text", "said", "hint"),
    [
        (
            'trainer.nnodes="$(count)"',
            "run.sh:2: $(count) is known only at run time",
            "--set trainer.nnodes=… says what it will be; `trinity-compat run` itself lets bash compute it",
        ),
        (
            'trainer.nnodes="$(count)" trainer.project_name="a$(name)"',
            "run.sh:2: $(name) is known only at run time",
            "--set trainer.project_name=… says what it will be",
        ),
    ],
)
def test_an_open_word_without_set_is_named_with_a_remedy(text, said, hint):
    with pytest.raises(UserError) as error:
        _settled(word(text), _by_key(["trainer.total_epochs=1"]))
    assert str(error.value).startswith(said) and hint in error.value.hint


def test_an_argument_that_is_open_as_a_whole_has_no_key_to_set():
    with pytest.raises(UserError) as error:
        _settled(word("$(arguments)"), {})
    assert error.value.hint.startswith("the key=value that it becomes, written out, says what it will be;")


def test_a_variable_may_be_given_in_the_environment():
    with pytest.raises(UserError) as error:
        _settled(word("trainer.nnodes=$NODES_", before="NODES_=$(count)"), {})
    assert error.value.hint.startswith("NODES_=… in the environment says what it will be;")
