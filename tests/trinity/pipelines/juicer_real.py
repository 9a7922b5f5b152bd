"""Run by a Python that has the real Data-Juicer: the service with its own operators, as JSON."""

import json
import tempfile
from pathlib import Path
from types import SimpleNamespace

from trinity_compat.common.errors import RunError
from trinity_compat.trinity.pipelines.juicer.client import Client
from trinity_compat.trinity.pipelines.juicer.experiences import DataJuicer


def answer(run, text):
    fields = {"tokens": [1, 2], "logprobs": [-0.5], "action_mask": [1], "prompt_length": 1}
    about = {"metrics": {}, "info": {}, "reward": 0.0, "truncate_status": None}
    eid = SimpleNamespace(batch=1, task="t", run=run, step=0)
    return SimpleNamespace(eid=eid, prompt_text="q", response_text=text, **fields, **about)


def of_answers():
    key = {"text_key": "response_text"}
    operator = DataJuicer(
        {"port": 0}, [{"text_length_filter": {"min_len": 4, **key}}, {"document_deduplicator": key}]
    )
    kept, _ = operator.process([answer(n, text) for n, text in enumerate(["no", "long", "long", "longer"])])
    operator.close()
    return {"runs": [each.eid.run for each in kept], "measured": sorted(kept[0].info)}


def of_unknown():
    try:
        DataJuicer({"port": 0}, [{"text_lenth_filter": {}}])
    except RunError:
        return True
    return False


def of_tasks():
    folder = Path(tempfile.mkdtemp())
    rows = [{"question": text} for text in ("sort 21", "!!!???", "sort 312", "sort 21")]
    (folder / "in.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    operators = [{"alphanumeric_filter": {"min_ratio": 0.5}}, {"document_deduplicator": {}}]
    asked = {"pipeline_type": "task", "operators": operators, "np": 2, "target_fields": ["question"]}
    client = Client({"port": 0}, {**asked, "inputs": [str(folder / "in.jsonl")], "output_dir": str(folder)})
    counts = client.tasks()
    client.close()
    lines = (folder / "output.jsonl").read_text().splitlines()
    return {"tasks": [json.loads(line)["question"] for line in lines], "counts": counts}


if __name__ == "__main__":
    print(json.dumps({**of_answers(), "refused": of_unknown(), **of_tasks()}))
