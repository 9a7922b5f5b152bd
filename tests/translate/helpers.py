"""Launches made of plain arguments, and flat views of what comes out."""

from pathlib import Path

import yaml

from trinity_compat.common.errors import Where
from trinity_compat.launch import Launch, Word, WordPart, read_text
from trinity_compat.translate import TranslateOptions, translate_launch

MAIN = "verl.trainer.main_ppo"
BASICS = (
    "data.train_files=/data/gsm8k/train.parquet",
    "data.val_files=/data/gsm8k/test.parquet",
    "actor_rollout_ref.rollout.name=vllm",
    "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4",
)


def launch_of(arguments, module=MAIN, file="run.sh"):
    """A launch whose argument i stands on line i + 1."""
    words = tuple(Word((WordPart(text),), Where(file, line)) for line, text in enumerate(arguments, start=1))
    return Launch(module, words, Where(file, 1), cwd=str(Path(__file__).parent))


def script(text, **kwargs):
    """The first launch of a script's text."""
    return read_text(text, name="run.sh", **kwargs).launches[0]


def translated(*arguments, module=MAIN, **options):
    """(translation, configuration as YAML reads it back) of BASICS and ``arguments``."""
    translation, text = translate_launch(
        launch_of([*BASICS, *arguments], module), TranslateOptions(**options)
    )
    return translation, yaml.safe_load(text)


def flat(node, prefix=""):
    """Dotted path → leaf; positions of a list of mappings count as parts."""
    if isinstance(node, dict) and node:
        return {
            path: leaf for key, item in node.items() for path, leaf in flat(item, f"{prefix}{key}.").items()
        }
    if isinstance(node, list) and node and isinstance(node[0], dict):
        return {p: leaf for i, item in enumerate(node) for p, leaf in flat(item, f"{prefix}{i}.").items()}
    return {prefix[:-1]: node}
