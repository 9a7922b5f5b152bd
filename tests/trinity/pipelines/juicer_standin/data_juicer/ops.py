"""Stands in for data_juicer.ops: a filter by length, and one that needs a package which is not there."""

import json
import subprocess
import sys

STATS = "__dj__stats__"


def length_filter(dataset, text_key="text", min_len=0):
    measured = dataset.map(lambda row: {STATS: json.dumps({"alnum_ratio": _ratio(row[text_key])})})
    return measured.filter(lambda row: len(row[text_key]) >= min_len)


def needs_a_package(dataset):
    subprocess.run([sys.executable, "-m", "pip", "install", "--no-index", "some-package"], check=True)
    return dataset


def _ratio(text):
    return sum(letter.isalnum() for letter in text) / max(1, len(text))


OPERATORS = {"length_filter": length_filter, "needs_a_package": needs_a_package}


def load_ops(process):
    return [(OPERATORS[name], arguments) for each in process for name, arguments in each.items()]
