"""The numbers that our algorithms are held against are the real trinity-rft's."""

import json
import subprocess
from pathlib import Path

import pytest

ALGORITHMS = Path(__file__).parents[1] / "trinity" / "algorithms"

pytestmark = pytest.mark.upstream


def leaves(tree, path=""):
    """(place, number) of all that is nested in dictionaries and lists; an empty one too, as its length."""
    if not isinstance(tree, dict | list):
        yield path, tree
        return
    yield f"{path}#", len(tree)
    for key, value in tree.items() if isinstance(tree, dict) else enumerate(tree):
        yield from leaves(value, f"{path}/{key}")


def test_the_recorded_numbers_are_what_trinity_gives(upstream):
    done = subprocess.run(
        [upstream("0.6.0"), ALGORITHMS / "upstream_numbers.py"], capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr[-3000:]
    made, recorded = json.loads(done.stdout), json.loads((ALGORITHMS / "numbers.json").read_text())
    # float32 of another kind of processor: logarithms and sums differ in the last digits
    assert dict(leaves(made)) == pytest.approx(dict(leaves(recorded)), rel=1e-5, abs=1e-6)


def test_the_recorded_rows_are_what_trinitys_formatters_make(upstream, tmp_path):
    from trinity_compat.run.toy import make_tokenizer

    make_tokenizer().save_pretrained(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "qwen2"}')
    script = ALGORITHMS / "upstream_rows.py"
    done = subprocess.run([upstream("0.6.0"), script, tmp_path], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
    assert json.loads(done.stdout) == json.loads((ALGORITHMS / "rows.json").read_text())
