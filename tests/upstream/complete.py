"""Run by the interpreter that has trinity-rft: YAML texts (JSON rows on stdin) → what it makes of each.

A row out: {"name", "config": dotted path → value} or {"name", "error"}; of a file with stages each one's
configuration by its name, not completed. With ``"trainer": true`` in the row also "trainer", the veRL
configuration that the trainer has then.
"""

import json
import os
import sys
import tempfile
from pathlib import Path

ANSWERS = os.fdopen(os.dup(1), "w", encoding="utf-8")
os.dup2(2, 1)  # trinity logs to stdout
os.environ["HF_HUB_OFFLINE"] = "1"  # it looks for the model's tokenizer, and waits long for a hub

from trinity.common.config import load_config  # noqa: E402


def completed(text, row):
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "x.yaml"
        file.write_text(text)
        config = load_config(str(file))
        config.checkpoint_root_dir = folder
        config.ignore_validator_suggestions = True
        if config.stages:
            return {stage.name: stage.flatten() for stage in config}
        done = config.check_and_update()
        if row.get("trainer"):
            from omegaconf import OmegaConf
            from trinity.trainer.verl.config import build_verl_config

            built = build_verl_config(done) if done.mode in ("both", "train", "colocate") else {}
            row["trainer"] = OmegaConf.to_container(built) if built else {}
        return done.flatten()


def main():
    for line in sys.stdin:
        row = json.loads(line)
        try:
            found = {"config": completed(row["yaml"], row)}
            found |= {"trainer": row["trainer"]} if isinstance(row.get("trainer"), dict) else {}
        except Exception as error:  # whatever upstream raises is its answer
            found = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps({"name": row["name"], **found}, default=str), file=ANSWERS, flush=True)


if __name__ == "__main__":
    main()
