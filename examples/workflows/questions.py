"""Write the toy's rows as Trinity's workflows read them: a column that is asked, a column with the truth.

python examples/workflows/questions.py toy
"""

import json
import sys
from pathlib import Path

import pyarrow.parquet as pq


def main(toy: Path) -> None:
    """Write data/train.jsonl and data/val.jsonl beside the Parquet files."""
    for name in ("train", "val"):
        file = toy / "data" / f"{name}.parquet"
        rows = pq.read_table(file).to_pylist()
        lines = [
            json.dumps(
                {"question": row["prompt"][0]["content"], "answer": row["reward_model"]["ground_truth"]}
            )
            for row in rows
        ]
        file.with_suffix(".jsonl").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
