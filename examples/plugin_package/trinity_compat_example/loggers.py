"""A logger: one object in the trainer's process and one in each explorer's."""

import json
from pathlib import Path


class FiguresFile:
    """Appends a line of JSON for each step to monitor/NAME.jsonl in the job's folder."""

    def __init__(self, project: str, name: str, config: dict) -> None:
        folder = Path(config["trainer"]["default_local_dir"]) / "monitor"
        folder.mkdir(parents=True, exist_ok=True)
        self._file = (folder / f"{name}.jsonl").open("a", encoding="utf-8")

    def log(self, data: dict, step: int) -> None:
        numbers = {key: float(value) for key, value in data.items() if isinstance(value, int | float)}
        self._file.write(json.dumps({"step": step, **numbers}) + "\n")
        self._file.flush()

    def finish(self) -> None:
        self._file.close()
