"""Rows of files, before anything starts: they are there, and hold the columns that the algorithm reads."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from trinity_compat.common.errors import UserError
from trinity_compat.job.run_spec import RowFormat, RowsSpec
from trinity_compat.run.plan.file_rows import SUFFIXES


def check(rows: RowsSpec) -> None:
    """Raises UserError for a file that is missing, or a Parquet file without a column.

    What lies in a folder or under a dataset's name the trainer finds out.
    """
    for path in map(Path, (*rows.paths, *rows.val_paths)):
        if path.suffix in SUFFIXES and not path.is_file():
            raise UserError(f"{path} does not exist")
        if path.suffix == ".parquet":
            _check_columns(path, columns(rows.schema, rows.format))


def columns(schema: str, form: RowFormat) -> list[str]:
    """Return the columns that each row needs."""
    answers = [form.chosen_key, form.rejected_key] if schema == "dpo" else []
    if form.prompt_type == "messages":
        return [form.messages_key, *answers]
    system = [form.system_prompt_key] if form.system_prompt_key and schema != "cpt" else []
    return [*system, form.prompt_key, *([form.response_key] if schema == "sft" else answers)]


def _check_columns(path: Path, wanted: Sequence[str]) -> None:
    import pyarrow
    import pyarrow.parquet

    try:
        have = pyarrow.parquet.read_schema(path).names
    except (pyarrow.ArrowException, OSError) as error:
        raise UserError(f"{path} is not a Parquet file ({str(error).splitlines()[0]})") from error
    for column in wanted:
        if column not in have:
            raise UserError(
                f"{path} has no column {column!r}; it has {', '.join(sorted(have))}",
                hint="its format section names the columns: messages_key, prompt_key, chosen_key, …",
            )
