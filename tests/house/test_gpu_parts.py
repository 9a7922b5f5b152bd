"""What scripts/gpu brings to a GPU machine: parts of a size, put together as they arrive."""

import random
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
GPU = ROOT / "scripts" / "gpu"
sys.path.insert(0, str(GPU))


def test_parts_that_arrive_one_by_one_are_unpacked_once_all_are_there(tmp_path):
    source, parts, site = tmp_path / "source", tmp_path / "parts", tmp_path / "machine" / "site"
    for folder in (source, parts):
        folder.mkdir()
    (source / "large").write_bytes(random.Random(1).randbytes(9000))
    (source / "run").write_text("#!/bin/sh\n")
    (source / "run").chmod(0o755)
    packed = subprocess.run(
        ["tar", "-C", str(source), "-cf", "-", "."], capture_output=True, check=True
    ).stdout
    subprocess.run(["sh", str(GPU / "parts.sh"), "4000", str(parts)], input=packed, check=True)
    made = sorted(parts.iterdir())
    assert len(made) == 3 and max(part.stat().st_size for part in made) <= 4000
    for part in made:
        assert not (site / "large").exists()
        arrived = tmp_path / f"arrived-{part.name}"
        arrived.mkdir()
        part.rename(arrived / part.name)
        subprocess.run(["sh", str(GPU / "unpack.sh"), str(arrived), str(site)], check=True)
    assert (site / "large").read_bytes() == (source / "large").read_bytes()
    assert (site / "run").stat().st_mode & 0o111


def test_further_commands_go_on_with_the_same_table(tmp_path, monkeypatch):
    import proof
    import rows

    def failing(_):
        raise rows.Failed("too slow")

    made = [rows.Row("one", "a", lambda _: {"n": 1.0}, 8), rows.Row("two", "b", failing, 400)]
    monkeypatch.setattr(rows, "ROWS", made)

    def run(name, within):
        words = ("--out", str(tmp_path), "--device", "cpu", "--rows", name, "--within", within)
        code = proof.main(words)
        return code, (tmp_path / "proof.md").read_text().splitlines()[4:]

    assert run("one", "50") == (0, ["| one | a | ok | 0 | n 1 |"])
    both = ["| one | a | ok | 0 | n 1 |", "| two | b | failed | 0 | why Failed: too slow |"]
    assert run("two", "500") == (1, both)
    assert run("two", "50") == (0, both)  # no time for it: what is known of it stays


def test_a_tokenizer_has_a_token_for_every_row_of_a_made_model():
    import models

    made = models.whole_tokenizer(400)
    assert len(made) == 400
    assert made("hi<|im_end|>").input_ids[-1] == made.eos_token_id
    assert made.decode([399]) == "<399>"


def test_the_rows_of_the_proof_are_in_its_documentation():
    import rows

    text = (ROOT / "docs" / "measurements" / "gpu.md").read_text()
    assert [row.name for row in rows.ROWS if row.name not in text and row.name != "broadcast"] == []
    assert {row.name for row in rows.ROWS if row.quick and "cpu" in row.devices} >= {"doctor", "toy"}
