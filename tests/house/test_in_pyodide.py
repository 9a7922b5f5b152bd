"""The light package under pyodide, as a web page runs it: the wheel as built, answers equal to the last byte.

`test_browser_answers.py` holds that `answer` prints what the command line does; here both sides run it.
`TC_SHELL_SCRIPTS` may name a folder of more scripts.
"""

import importlib.metadata
import json
import os
import random
import re
import shlex
import subprocess
import sys
import zipfile
from pathlib import Path

import facts
import pytest
from light_install import light_distributions
from needs import lacking, program
from test_without_posix import MODULES, ROOMS

from trinity_compat.cli._browser import KINDS, answer

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(3600)]
ROOT = Path(__file__).parents[2]
PARSER, PYODIDE = ROOT / ".scratch" / "web" / "parser", ROOT / ".pyodide" / "node_modules" / "pyodide"
FIXTURES = ROOT / "tests" / "launch" / "fixtures"
MOMENT = "1700000000"  # of every reading, on both sides


@pytest.fixture(autouse=True)
def _moment(monkeypatch):
    monkeypatch.setenv("SOURCE_DATE_EPOCH", MOMENT)


@pytest.fixture(scope="module")
def zips(tmp_path_factory):
    """Our wheel, and what it needs of other packages, without what only CPython on Linux loads."""
    folder = tmp_path_factory.mktemp("zips")
    pip = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "--no-index"]
    subprocess.run([*pip, "--wheel-dir", folder, ROOT], check=True)
    with zipfile.ZipFile(folder / "others.zip", "w") as packed:
        for name in light_distributions() - {"trinity-compat", "shfmt-py"}:
            for file in importlib.metadata.distribution(name).files or ():
                inside = ".." not in file.parts and file.suffix not in (".so", ".pyc")
                if inside and file.locate().is_file():
                    packed.write(file.locate(), str(file))
    return sorted(folder.iterdir())


@pytest.fixture(scope="module")
def answered(zips):
    """A function: what lines of requests give."""
    node = program("node", "nodejs")
    for path, target in (
        (PARSER / "parser.wasm", "make web-parser"),
        (PYODIDE, "scripts/site/make_pyodide.sh"),
    ):
        if not path.exists():
            lacking(f"{path} is not there: {target}")

    def of(lines):
        command = [node, Path(__file__).with_name("pyodide_answers.mjs"), PYODIDE, PARSER, *zips]
        asked = "".join(f"{json.dumps(line)}\n" for line in lines)
        said = subprocess.run(command, input=asked, capture_output=True, text=True)
        assert said.returncode == 0, said.stderr[-3000:]
        return [json.loads(line) for line in said.stdout.splitlines()]

    return of


def assert_equal_on_both_sides(answered, requests, folder):
    first = {"python": f"import os; os.environ['SOURCE_DATE_EPOCH'] = '{MOMENT}'"}
    _, *texts = answered([first, *({"request": request, "folder": folder} for request in requests)])
    assert len(texts) == len(requests)
    differ = {}
    for request, text in zip(requests, texts, strict=True):
        here, there = json.loads(answer(json.dumps(request), folder)), json.loads(text)
        if here != there:
            words = f"{request['kind']} {request['text'][:300]}"
            differ[words] = {
                name: (there.get(name), here[name]) for name in here if there.get(name) != here[name]
            }
    assert differ == {}


def request(kind, text, **options):
    return {"kind": kind, "name": "run.sh", "text": text, "options": options}


def test_every_light_module_can_be_imported(answered):
    rooms = [*ROOMS, "trinity.config", "trinity.algorithms"]
    code = f"import sys\nsys.argv = ['', '', *{rooms!r}]\n{MODULES}"
    (told,) = answered([{"python": code}])
    lacks_extra = re.compile(
        r"trinity_compat\.compare\.inference\.\w+ ModuleNotFoundError No module named '(numpy|scipy)'"
    )
    assert [line for line in told.splitlines() if not lacks_extra.fullmatch(line)] == []


def test_recorded_launches_are_translated_to_the_same_bytes(answered, tmp_path):
    launches = [launch for script in facts.public_scripts() for launch in script["launches"]]
    chosen = random.Random(39).sample(launches, 60)
    texts = [shlex.join(["python3", "-m", launch["module"], *launch["args"]]) + "\n" for launch in chosen]
    assert_equal_on_both_sides(
        answered, [request("translate", text) for text in texts], str(tmp_path / "texts")
    )


def test_scripts_are_answered_with_the_same_bytes(answered, tmp_path):
    paths = sorted([*(ROOT / "examples" / "verl_scripts").glob("*.sh"), *FIXTURES.glob("*.sh")])
    if more := os.environ.get("TC_SHELL_SCRIPTS"):
        launching = [
            path for path in sorted(Path(more).rglob("*.sh")) if b"verl.trainer" in path.read_bytes()
        ]
        paths += random.Random(39).sample(launching, 200)
    requests = [
        request(kind, path.read_bytes().decode(errors="surrogateescape"))
        for path in paths
        for kind in ("translate", "audit", "upgrade")
    ]
    assert len(requests) > 300
    assert_equal_on_both_sides(answered, requests, str(tmp_path / "texts"))


def test_each_kind_answers_with_the_same_bytes(answered, tmp_path):
    text = (ROOT / "examples" / "verl_scripts" / "run_toy_grpo.sh").read_text()
    against = {"options": {"against": "verl==0.8.0"}}
    requests = [{**request(kind, text), **(against if kind == "diff" else {})} for kind in KINDS]
    requests.append(request("translate", text, gpus=8, mode="both", minimal=True))
    requests.append(request("translate", text, target="9"))
    assert_equal_on_both_sides(answered, requests, str(tmp_path / "texts"))


@pytest.mark.parametrize("size", [200, 5_000, 100_000])
def test_hostile_texts_end_and_leave_the_next_one_alone(answered, tmp_path, size):
    plain = request("translate", "python3 -m verl.trainer.main_ppo data.train_batch_size=512\n")
    pairs = [("( ", " )"), ("$(echo ", ")"), ("${a:-", "}"), ("$((", "))"), ("{ ", "; }")]
    texts = [opened * size + "1" + closed * size + "\n" + plain["text"] for opened, closed in pairs]
    texts.append("f() { f; }; f\n" + plain["text"])
    lines = [line for text in texts for line in (request("translate", text), plain)]
    said = [json.loads(each) for each in answered([{"request": line, "folder": "/texts"} for line in lines])]
    wanted = json.loads(answer(json.dumps(plain), str(tmp_path / "texts")))
    assert [each["text"] == wanted["text"] for each in said[1::2]] == [True] * len(texts)
    assert all("error" in each or each["text"] for each in said[::2])
