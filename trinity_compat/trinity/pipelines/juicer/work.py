"""The service's work with Data-Juicer, and all imports of it.

Data-Juicer installs the packages that an operator lacks, torch among them, into its environment while it runs
(data_juicer/utils/lazy_loader.py, 1.6.1). In a run's environment that would replace pinned packages:
``install_nothing`` makes it an error that names the package.

A configuration is that of trinity-rft's client: ``operators`` (a list of {name: arguments}) or
``config_path``, ``np``; of tasks also ``inputs``, ``output_dir``, ``target_fields``, ``priority_weights``,
``top_k``.
"""

from __future__ import annotations

import copy
import json
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from trinity_compat.trinity.pipelines.juicer.priorities import Row, ranked

ROW = "__row__"  # a task's position among the inputs, to find dropped ones
OUTPUT, DROPPED = "output.jsonl", "dropped.jsonl"
_FORMATS = {".parquet": "parquet", ".json": "json", ".jsonl": "json", ".csv": "csv"}
_INSTALLERS = {"pip", "uv", "pipenv", "poetry"}


def install_nothing() -> None:
    """Prevent this process from starting an installer."""
    sys.addaudithook(_refuse_installer)


def _refuse_installer(event: str, given: tuple[Any, ...]) -> None:
    if event != "subprocess.Popen":
        return
    command = [str(word) for word in given[1]] if isinstance(given[1], list | tuple) else [str(given[1])]
    if "install" in command and _INSTALLERS & set(command):
        raise PermissionError(f"a run's service installs nothing: {' '.join(command)}")


class JuicerPipeline:
    """One pipeline. Raises what Data-Juicer raises of its configuration."""

    def __init__(self, asked: Mapping[str, Any]) -> None:
        if not (asked.get("operators") or asked.get("config_path")):
            raise ValueError("operators or config_path is needed")
        self._asked = asked
        self._folder = tempfile.TemporaryDirectory(prefix="tc-juicer-")  # Data-Juicer's own logs
        self._configuration = self._read()
        self._make_operators()

    def experiences(self, table: Any) -> Any:
        """The rows of an Arrow table that pass, in an Arrow table."""
        from datasets import Dataset

        made = self._processed(Dataset(table))
        # A filter leaves the table whole beside a list of rows: trinity-rft's own service sends it whole.
        return made.flatten_indices().data.table

    def tasks(self) -> dict[str, Any]:
        """Process the files ``inputs`` into ``output_dir``/output.jsonl, in the order of their priorities.

        Dropped rows go to ``dropped_path``, if that is set. Returns the counts.
        """
        rows = _read_files(self._asked["inputs"])
        numbered = rows.add_column(ROW, list(range(len(rows))))
        made: list[Row] = self._processed(numbered).to_list()
        passed = {row[ROW] for row in made}
        chosen = ranked(made, self._asked.get("priority_weights"), int(self._asked.get("top_k", -1)))
        kept = {row[ROW] for row in chosen}
        left = [
            {**rows[place], "dropped_by": "top_k" if place in passed else "operators"}
            for place in range(len(rows))
            if place not in kept
        ]
        if path := self._asked.get("dropped_path"):
            _write(Path(path), left)
        output = [{name: value for name, value in row.items() if name != ROW} for row in chosen]
        _write(Path(self._asked["output_dir"]) / OUTPUT, output)
        return {"sample_num": len(chosen), "input_num": len(rows), "dropped_num": len(left)}

    def close(self) -> None:
        """Close the session."""
        self._folder.cleanup()

    def _read(self) -> Any:
        from data_juicer.config import get_init_configs, prepare_side_configs

        if path := self._asked.get("config_path"):
            return get_init_configs(prepare_side_configs(path))
        given = {
            "process": list(self._asked["operators"]),
            "np": int(self._asked.get("np") or 1),
            "export_path": str(Path(self._folder.name) / "out.jsonl"),
        }
        if fields := self._asked.get("target_fields"):
            given["text_keys"] = list(fields)
        return get_init_configs(given)

    def _make_operators(self) -> None:
        """Create the operators. Raises for unknown ones and unknown arguments."""
        from data_juicer.ops import load_ops

        load_ops(copy.deepcopy(self._configuration.process))

    def _processed(self, dataset: Any) -> Any:
        from data_juicer.core.data import NestedDataset
        from data_juicer.core.executor.default_executor import DefaultExecutor

        executor = DefaultExecutor(cfg=copy.deepcopy(self._configuration))
        return executor.run(NestedDataset(dataset), skip_export=True)


def _read_files(paths: Sequence[str]) -> Any:
    """Raises ValueError for what is not a file of rows."""
    from datasets import concatenate_datasets, load_dataset

    if not paths:
        raise ValueError("inputs names no file")
    parts = []
    for path in paths:
        if not Path(path).is_file() or Path(path).suffix not in _FORMATS:
            raise ValueError(f"{path} is not a file of {', '.join(_FORMATS)}")
        parts.append(load_dataset(_FORMATS[Path(path).suffix], data_files=path, split="train"))
    return concatenate_datasets(parts)


def _write(path: Path, rows: Sequence[Row]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{json.dumps(row, default=str)}\n" for row in rows))
