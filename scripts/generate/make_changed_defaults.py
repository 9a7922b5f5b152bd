"""Write changed_defaults.json of veRL: defaults that mean something else in another veRL release.

    python scripts/generate/make_changed_defaults.py

Per flavour and key of the pinned release: its value under each release's defaults, carried forward, in
the order of ``VERSIONS``; null where a release had no such thing. Keys that do not change what is
computed (``MECHANICS``) are left out.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from trinity_compat.launch import read_argv
from trinity_compat.translate.rows import means_nothing
from trinity_compat.verl_config import FLAVOURS, VERSIONS, effective_config, upgrade

OUT = Path(__file__).resolve().parents[2] / "translators" / "generated" / "verl" / "changed_defaults.json"
# How the same thing is computed, stored or split, and paths of veRL's own example model.
MECHANICS = (
    "load_contents",
    "save_contents",
    "use_remove_padding",
    "enforce_eager",
    "max_num_seqs",
    "enable_chunked_prefill",
    "enable_gradient_checkpointing",
    "tensor_model_parallel_size",
    "use_distributed_optimizer",
    "use_mbridge",
    "vanilla_mbridge",
    "override_transformer_config",
    "recompute_",
    "tokenizer_path",
    "_target_",
    "teacher_model.inference",  # follows the rollout's, whose own row says it
)


def defaults(flavour: str, version: str) -> dict[str, Any]:
    """The defaults of a release in the pinned release's words."""
    argv = ["python3", "-m", "verl.trainer.main_ppo", "--config-name", flavour]
    (launch,) = read_argv(argv).launches
    settings = upgrade(effective_config(launch, version=version)).config.settings
    return {key: setting.value for key, setting in settings.items()}


def changed(flavour: str) -> dict[str, list[Any]]:
    """Key → its default per release, for keys where they differ in meaning."""
    per = [defaults(flavour, version) for version in VERSIONS]
    out = {}
    for key in sorted(per[-1]):
        values = [settings.get(key) for settings in per]
        differs = any(value != values[-1] for value in values)
        if differs and not means_nothing(key) and not any(part in key for part in MECHANICS):
            out[key] = values
    return out


def main() -> None:
    tables = {flavour: changed(flavour) for flavour in FLAVOURS}
    rows = (
        f'"{flavour}": {{\n'
        + ",\n".join(f"{json.dumps(key)}: {json.dumps(values)}" for key, values in table.items())
        + "\n}"
        for flavour, table in tables.items()
    )
    OUT.write_text("{\n" + ",\n".join(rows) + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
