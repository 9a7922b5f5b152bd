"""The way back of a YAML whose updates hold an expert's rows beside fresh answers.

trinity-rft 0.6.0, ``algorithm.sample_strategy: mix`` (mix_sample_strategy.py): of ``buffer.train_batch_size``
rows ⌈``expert_data_ratio`` × rows⌉ are read from ``buffer.trainer_input.auxiliary_buffers``, from the buffer
that ``sft_dataset_name`` names, as rows of sft; the others are fresh answers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from trinity_compat.common.errors import UserError
from trinity_compat.common.suggestions import nearest, question
from trinity_compat.job.run_spec import ExpertSpec
from trinity_compat.translate.supervised import rows_in
from trinity_compat.translate.trinity_reader import TrinityReader
from trinity_compat.trinity.config.complete import expert_rows

BUFFERS = "buffer.trainer_input.auxiliary_buffers"
_STRATEGY = "algorithm.sample_strategy_args"
_SIZES = "algorithm.policy_loss_fn_args"


def experts_of(config: Mapping[str, object]) -> ExpertSpec | None:
    """Return an update's share of an expert's rows, paths as the YAML has them; None for other strategies.

    Raises UserError for a buffer that does not exist, and for arguments that count other rows.
    """
    reading = TrinityReader(config)
    each_step = expert_rows(config)
    if not each_step:
        return None
    if reading.get("buffer.batch_size", 0) * reading.get("algorithm.repeat_times", 1) != _fresh(
        reading, each_step
    ):
        raise UserError(
            "algorithm.sample_strategy=mix: the sizes of this file are those of a launch, without an expert's"
            " rows",
            hint="write the YAML by hand (examples/trinity/mix.yaml)",
        )
    name = str(reading.get(f"{_STRATEGY}.sft_dataset_name", "sft_dataset"))
    known = reading.get(BUFFERS, {})
    if name not in known:
        raise UserError(
            f"{BUFFERS}.{name} is missing: sample_strategy mix reads an expert's rows there",
            hint=question(nearest(name, known)) or f"add it, or name another in {_STRATEGY}.sft_dataset_name",
        )
    for path, value, right in _miscounted(reading, each_step):
        raise UserError(f"{path}={value}: an update has {right} of them", hint=f"write {right}")
    return ExpertSpec(rows_in("sft", reading, f"{BUFFERS}.{name}"), each_step)


def _miscounted(reading: TrinityReader, experts: int) -> Iterator[tuple[str, int, int]]:
    """Yield loss arguments whose sizes are not the update's: Trinity would weigh a half by the quotient.

    Trinity's default of 1 counts as not given.
    """
    for kind, right in (("expert", experts), ("usual", _fresh(reading, experts))):
        path = f"{_SIZES}.train_batch_size_{kind}"
        if (told := reading.get(path, 1)) not in (1, right):
            yield path, told, right


def _fresh(reading: TrinityReader, experts: int) -> int:
    """Fresh answers of an update."""
    return int(reading.get("buffer.train_batch_size")) - experts
