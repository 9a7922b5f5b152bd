"""Stands in for data_juicer.config: what trinity/pipelines/juicer/work.py asks of it."""

import json
import types
from pathlib import Path


def prepare_side_configs(path):
    return json.loads(Path(path).read_text())


def get_init_configs(given):
    return types.SimpleNamespace(**given)
