"""What scripts/gpu brings to a GPU machine: parts of a size, put together as they arrive."""

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


def test_the_rows_of_the_proof_are_in_its_documentation():
    import rows

    text = (ROOT / "docs" / "gpu.md").read_text()
    assert [row.name for row in rows.ROWS if row.name not in text and row.name != "broadcast"] == []
    assert {row.name for row in rows.ROWS if row.quick and "cpu" in row.devices} >= {"doctor", "toy"}
