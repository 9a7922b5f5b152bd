import pytest

from trinity_compat.errors import UserError
from trinity_compat.launch import read_text
from trinity_compat.translate.options import Options
from trinity_compat.translate.pipeline import translate_launch

SCRIPT = """\
NGPU=$(nvidia-smi -L | wc -l)
python3 -m verl.trainer.main_ppo trainer.n_gpus_per_node=$NGPU
"""


def test_the_count_of_what_is_not_known_is_no_number():
    """bash on a machine without a GPU would say 0; the machine that the launch is for may have eight."""
    launch = read_text(SCRIPT).launches[0]
    with pytest.raises(
        UserError, match=r"depends on \$\(nvidia-smi -L \| wc -l\), which is not known"
    ) as error:
        translate_launch(launch, Options())
    assert error.value.hint == "append trainer.n_gpus_per_node=VALUE after --"
