"""The service's work with Data-Juicer, all imports of it, and the order of tasks by its statistics.

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
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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

    def __init__(self, request: Mapping[str, Any]) -> None:
        from data_juicer.config import get_init_configs, prepare_side_configs
        from data_juicer.ops import load_ops

        if not (request.get("operators") or request.get("config_path")):
            raise ValueError("operators or config_path is needed")
        self._request = request
        self._folder = tempfile.TemporaryDirectory(prefix="tc-juicer-")  # Data-Juicer's own logs
        if path := request.get("config_path"):
            self._configuration = get_init_configs(prepare_side_configs(path))
        else:
            settings = {
                "process": list(request["operators"]),
                "np": int(request.get("np") or 1),
                "export_path": str(Path(self._folder.name) / "out.jsonl"),
            }
            if fields := request.get("target_fields"):
                settings["text_keys"] = list(fields)
            self._configuration = get_init_configs(settings)
        load_ops(copy.deepcopy(self._configuration.process))  # raises for unknown ones and arguments

    def experiences(self, table: Any) -> Any:
        """Return the rows of an Arrow table that pass, as an Arrow table."""
        from datasets import Dataset

        processed = self._processed(Dataset(table))
        # A filter keeps the whole table with a list of rows, which trinity-rft's own service sends whole.
        return processed.flatten_indices().data.table

    def tasks(self) -> dict[str, Any]:
        """Process the files ``inputs`` into ``output_dir``/output.jsonl, in the order of their priorities.

        Dropped rows go to ``dropped_path``, if that is set. Makes no folder. Returns the counts.
        """
        rows = _read_files(self._request["inputs"])
        numbered = rows.add_column(ROW, list(range(len(rows))))
        processed: list[Row] = self._processed(numbered).to_list()
        passed = {row[ROW] for row in processed}
        chosen = ranked(processed, self._request.get("priority_weights"), int(self._request.get("top_k", -1)))
        kept = {row[ROW] for row in chosen}
        dropped = [
            {**rows[place], "dropped_by": "top_k" if place in passed else "operators"}
            for place in range(len(rows))
            if place not in kept
        ]
        if path := self._request.get("dropped_path"):
            _write(Path(path), dropped)
        output = [{name: value for name, value in row.items() if name != ROW} for row in chosen]
        _write(Path(self._request["output_dir"]) / OUTPUT, output)
        return {"sample_num": len(chosen), "input_num": len(rows), "dropped_num": len(dropped)}

    def close(self) -> None:
        """Close the session."""
        self._folder.cleanup()

    def _processed(self, dataset: Any) -> Any:
        from data_juicer.core.data import NestedDataset
        from data_juicer.core.executor.default_executor import DefaultExecutor

        executor = DefaultExecutor(cfg=copy.deepcopy(self._configuration))
        return executor.run(NestedDataset(dataset), skip_export=True)


def _read_files(paths: Sequence[str]) -> Any:
    """Concatenate the rows of files. Raises ValueError for another kind of file."""
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
    path.write_text("".join(f"{json.dumps(row, default=str)}\n" for row in rows))


# Scores, ranges and weights of priorities: trinity-rft 0.6.0, trinity/service/data_juicer/server.
STATS = "__dj__stats__"  # data_juicer.utils.constant.Fields.stats
PRIORITY = "priority"
WEIGHTS: Mapping[str, float] = {"difficulty": -0.7, "diversity": 0.8, "usage_frequency": -0.5, "quality": 1.0}
Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class StatisticRange:
    """Range of a statistic, None where the rows determine it; ``less`` is better."""

    least: float = 0.0
    most: float | None = 1.0
    less: bool = False

    def of(self, value: float, seen: Sequence[float]) -> float:
        """Scale ``value`` to 0, the worst, to 1; 1 if all ``seen`` values are the same."""
        least, most = (self.least, self.most) if self.most is not None else (min(seen), max(seen))
        part = (value - least) / (most - least) if most > least else 1.0
        return 1.0 - part if self.less else part


SCORES: Mapping[str, Mapping[str, StatisticRange]] = {
    "quality_score": {
        "alnum_ratio": StatisticRange(),
        "char_rep_ratio": StatisticRange(less=True),
        "flagged_words_ratio": StatisticRange(less=True),
        "special_char_ratio": StatisticRange(less=True),
        "stopwords_ratio": StatisticRange(),
        "word_rep_ratio": StatisticRange(less=True),
        "llm_quality_score": StatisticRange(),
    },
    "difficulty_score": {
        "perplexity": StatisticRange(most=None),
        "lang_score": StatisticRange(less=True),
        "llm_difficulty_score": StatisticRange(),
    },
}


def stats_of(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the statistics of a row: a structure, or its JSON text."""
    stats = row.get(STATS) or {}
    return dict(json.loads(stats) if isinstance(stats, str) else stats)


def ranked(rows: Sequence[Row], weights: Mapping[str, float] | None = None, top_k: int = -1) -> list[Row]:
    """Sort rows by priority, the highest first, and return ``top_k`` of them (-1: all).

    Equal rows keep their order, and so do all rows where one has no value for the priority. ``weights``: of
    quality, difficulty and usage_frequency; None: upstream's.
    """
    weights = weights or WEIGHTS
    ranked_rows = [
        {**row, PRIORITY: _priority(row[STATS], weights)} if PRIORITY not in row and STATS in row else row
        for row in _scored(rows)
    ]
    if all(PRIORITY in row for row in ranked_rows):
        ranked_rows.sort(key=lambda row: -float(row[PRIORITY]))
    return ranked_rows if top_k < 0 else ranked_rows[:top_k]


def _scored(rows: Sequence[Row]) -> list[Row]:
    """Add the mean of each score's available statistics, beside the statistics and as columns."""
    measured = [stats_of(row) for row in rows]
    seen = {
        name: [float(stats[name]) for stats in measured if _is_number(stats.get(name))]
        for scales in SCORES.values()
        for name in scales
    }
    return [
        {**row, STATS: {**stats, **(made := _scores(stats, seen))}, **made} if STATS in row else dict(row)
        for row, stats in zip(rows, measured, strict=True)
    ]


def _scores(stats: Mapping[str, Any], seen: Mapping[str, Sequence[float]]) -> dict[str, float]:
    out = {}
    for score, scales in SCORES.items():
        parts = [
            scale.of(float(stats[name]), seen[name])
            for name, scale in scales.items()
            if _is_number(stats.get(name))
        ]
        out[score] = sum(parts) / len(parts) if parts else 0.0
    return out


def _priority(stats: Mapping[str, Any], weights: Mapping[str, float]) -> float:
    """Return the weighted sum; like upstream it ignores a weight of ``diversity``."""
    values = {
        "usage_frequency": stats.get("consumed_cnt") or 0,
        "quality": stats["quality_score"],
        "difficulty": stats["difficulty_score"],
    }
    return sum(weights[name] * value for name, value in values.items() if name in weights)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
