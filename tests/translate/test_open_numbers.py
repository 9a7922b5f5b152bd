import pytest

from trinity_compat.common.errors import UserError
from trinity_compat.common.nested import value_at
from trinity_compat.launch import read_text
from trinity_compat.translate.model import TranslateOptions
from trinity_compat.translate.pipeline import translate_launch

SCRIPT = """\
NGPU=$(nvidia-smi -L | wc -l)
python3 -m verl.trainer.main_ppo trainer.n_gpus_per_node=$NGPU
"""


def test_the_count_of_what_is_not_known_is_no_number():
    """bash on a machine without a GPU would say 0; the machine that the launch is for may have eight."""
    launch = read_text(SCRIPT).launches[0]
    with pytest.raises(
        UserError, match=r"depends on \$\(nvidia-smi -L \| wc -l\), which is known only at run time"
    ) as error:
        translate_launch(launch, TranslateOptions())
    assert error.value.hint == "give it: --env NGPU=…"
    launch = read_text(SCRIPT, env={"NGPU": "8"}).launches[0]
    assert translate_launch(launch, TranslateOptions())[0].config["cluster"]["gpu_per_node"] == 8


def test_what_no_variable_holds_is_appended():
    launch = read_text(SCRIPT.replace("NGPU=", "").replace("$NGPU", "$(hostname)")).launches[0]
    with pytest.raises(UserError) as error:
        translate_launch(launch, TranslateOptions())
    assert error.value.hint == "write its value there, or give it: --set trainer.n_gpus_per_node=VALUE"


@pytest.mark.parametrize(
    ("written", "hint"),
    [
        ("${oc.env:NODES}", "give it: --env NODES=…"),
        # A resolver of a fork's: what it computes only its code knows.
        ("${eval:'2*1'}", "give it: --set trainer.nnodes=VALUE"),
    ],
)
def test_what_stays_an_interpolation_is_not_known(written, hint):
    script = f"""python3 -m verl.trainer.main_ppo 'trainer.nnodes="{written}"'\n"""
    with pytest.raises(UserError) as error:
        translate_launch(read_text(script).launches[0], TranslateOptions())
    assert error.value.message.startswith("trainer.nnodes depends on ${")
    assert error.value.hint == hint


OPEN = """\
python3 -m verl.trainer.main_ppo data.train_files=/d/a.parquet data.val_files=/d/b.parquet \\
  actor_rollout_ref.rollout.name=vllm actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4 \\
  trainer.n_gpus_per_node=$N_GPUS \\
  actor_rollout_ref.rollout.tensor_model_parallel_size=$TP trainer.nnodes=two
"""


def test_everything_that_stands_in_the_way_is_told_at_once():
    with pytest.raises(UserError) as error:
        translate_launch(read_text(OPEN, name="run.sh").launches[0], TranslateOptions())
    told = str(error.value)
    for line in (
        "run.sh:3: trainer.n_gpus_per_node depends on $N_GPUS, which is known only at run time",
        "run.sh:4: actor_rollout_ref.rollout.tensor_model_parallel_size depends on $TP, which is"
        " known only at run time",
        "run.sh:4: trainer.nnodes=two should be a whole number",
        "give them: --env N_GPUS=… --env TP=…",
    ):
        assert line in told


def test_values_from_environment_and_edit_suffice():
    text = OPEN.replace("trainer.nnodes=two", "trainer.nnodes=1")
    launch = read_text(text, env={"N_GPUS": "4", "TP": "2"}).launches[0]
    assert translate_launch(launch, TranslateOptions())[0].config["cluster"]["gpu_per_node"] == 4


@pytest.mark.parametrize("argument", ["trainer.total_epochs", "actor_rollout_ref.actor.optim.lr"])
def test_a_number_that_is_copied_stays_the_variable_that_it_is(argument):
    """OmegaConf makes a number of the variable's text, as the field asks."""
    text = OPEN.partition("  trainer.n_gpus")[0] + f"  {argument}=$GIVEN\n"
    translation, yaml_text = translate_launch(read_text(text).launches[0], TranslateOptions())
    target = next(finding.target for finding in translation.findings if finding.key == argument)
    assert value_at(translation.config, target) == "${oc.env:GIVEN}"
    assert "stands_for" not in yaml_text or argument not in yaml_text.partition("stands_for")[2]


def test_what_is_counted_with_must_be_given():
    text = OPEN.partition("  trainer.n_gpus")[0] + "  data.train_batch_size=$GIVEN\n"
    with pytest.raises(UserError, match=r"data\.train_batch_size depends on \$GIVEN"):
        translate_launch(read_text(text).launches[0], TranslateOptions())


@pytest.mark.parametrize(("words", "said"), [("", {"TW024", "TW027"}), ("$(arguments)", set())])
def test_an_argument_that_is_not_known_may_set_what_seems_missing(tmp_path, command, words, said):
    (tmp_path / "run.sh").write_text(f"python3 -m verl.trainer.main_ppo data.train_batch_size=8 {words}\n")
    _, out, _ = command("audit", "run.sh", "--format", "json")
    assert {code for code in ("TW024", "TW027") if code in out} == said
    assert ("the launch gives no micro-batch size" in out) == bool(said)


@pytest.mark.parametrize(
    ("name", "text", "hint"),
    [
        ("a.sh", "{} trainer.project_name=a$(x)", "edit the YAML, or use trinity-compat run"),
        ("a.py", "import os\nos.system(f'{} trainer.project_name=a{{x()}}')", "edit the YAML (a.py:2)"),
    ],
)
def test_only_a_shell_script_is_run_to_know_what_is_open(tmp_path, command, name, text, hint):
    (tmp_path / name).write_text(text.format("python3 -m verl.trainer.main_ppo"))
    _, out, _ = command("audit", name)
    assert "TW013" in out and hint in " ".join(out.split())
