"""What scripts/gpu brings to a GPU machine: parts of a size, put together as they arrive."""

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "scripts" / "gpu"))
import parts as gpu_parts  # noqa: E402

LIMIT = 4000


@pytest.fixture
def wheels(tmp_path):
    folder = tmp_path / "wheels"
    folder.mkdir()
    for name, count in {"small": 300, "tiny": 10, "large": 9000}.items():
        with zipfile.ZipFile(folder / f"{name}-1-py3-none-any.whl", "w") as wheel:
            wheel.writestr(f"{name}/data", bytes(count))
    return folder


def test_no_part_is_larger_and_nothing_is_lost(wheels, tmp_path):
    made = gpu_parts.cut(wheels, tmp_path / "parts", LIMIT)
    assert len(made) == 3
    assert all(sum(file.stat().st_size for file in part.iterdir()) <= LIMIT for part in made)
    assert gpu_parts.join(tmp_path / "parts", tmp_path / "joined") == []
    for wheel in wheels.glob("*.whl"):
        assert (tmp_path / "joined" / wheel.name).read_bytes() == wheel.read_bytes()


def test_some_parts_give_what_is_whole(wheels, tmp_path):
    made = gpu_parts.cut(wheels, tmp_path / "parts", LIMIT)
    shutil.rmtree(made[1])
    assert gpu_parts.join(tmp_path / "parts", tmp_path / "joined") == ["large-1-py3-none-any.whl (2 of 3)"]
    joined = {file.name for file in (tmp_path / "joined").iterdir()}
    assert joined == {"small-1-py3-none-any.whl", "tiny-1-py3-none-any.whl"}


def test_what_a_text_model_never_opens_is_left_out(tmp_path):
    with zipfile.ZipFile(tmp_path / "vllm-1-py3-none-any.whl", "w") as wheel:
        for name in ("vllm/vllm-rs", "vllm/__init__.py", "vllm/third_party/deep_gemm/_C.cpython-312-x.so"):
            wheel.writestr(name, "x")
        for name in ("third_party/deep_gemm/_C.cpython-313-x.so", "vllm_flash_attn/_vllm_fa2_C.abi3.so"):
            wheel.writestr(f"vllm/{name}", "x")
    trimmed = gpu_parts._trimmed(tmp_path / "vllm-1-py3-none-any.whl")
    kept = zipfile.ZipFile(trimmed).namelist()
    assert kept == ["vllm/__init__.py", "vllm/third_party/deep_gemm/_C.cpython-312-x.so"]


def installable(folder, name):
    """A wheel with a script, and a module in a package that another wheel has modules in too."""
    folder.mkdir(parents=True)
    info = f"{name}-1.dist-info"
    files = {
        f"shared/{name}.py": "",
        f"{name}-1.data/scripts/{name}": "#!python\n",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    with zipfile.ZipFile(folder / f"{name}-1-py3-none-any.whl", "w") as wheel:
        for path, text in files.items():
            wheel.writestr(path, text)
        wheel.writestr(f"{info}/RECORD", "".join(f"{path},,\n" for path in [*files, f"{info}/RECORD"]))


def test_what_an_earlier_part_has_installed_stays(tmp_path):
    """pip's own way with a target folder takes bin/ away when more scripts come: the shell parser's first."""
    site, env = tmp_path / "machine" / "site", {**os.environ, "PYTHON": sys.executable}
    for number, name in enumerate(("one", "two")):
        arrived = tmp_path / f"arrived-{number}"
        installable(arrived / f"part-{number:02d}", name)
        script = [str(ROOT / "scripts" / "gpu" / "unpack.sh"), str(arrived), str(site)]
        subprocess.run(script, env=env, check=True, capture_output=True)
    assert {path.name for path in (site / "bin").iterdir()} == {"one", "two"}
    assert {path.name for path in (site / "shared").glob("*.py")} == {"one.py", "two.py"}


def test_what_an_earlier_packing_has_left_is_made_again(wheels, tmp_path):
    whole = wheels / "vllm-1-py3-none-any.whl"
    for text in ("old", "new"):
        with zipfile.ZipFile(whole, "w") as wheel:
            wheel.writestr("vllm/vllm-rs", text)
            wheel.writestr("vllm/version", text)
        gpu_parts.cut(wheels, tmp_path / "parts")
    (packed,) = (tmp_path / "parts").glob("part-*/vllm-*.whl")
    assert zipfile.ZipFile(packed).read("vllm/version") == b"new"


def test_a_part_and_the_checkout_travel_together():
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout
    tracked = [ROOT / name for name in listed.decode().split("\0") if name]
    checkout = sum(path.lstat().st_size for path in tracked if path.is_file())
    assert checkout + gpu_parts.LIMIT < gpu_parts.TRAVELS


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

    text = (ROOT / "docs" / "gpu.md").read_text()
    assert [row.name for row in rows.ROWS if row.name not in text and row.name != "broadcast"] == []
    assert {row.name for row in rows.ROWS if row.quick and "cpu" in row.devices} >= {"doctor", "toy"}
