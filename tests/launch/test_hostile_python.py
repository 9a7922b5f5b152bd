# ruff: noqa: E501
"""Python launchers and notebooks that make too much: reading stops at a line, with little work."""

import json
import resource

import pytest

from trinity_compat.common.errors import UserError
from trinity_compat.launch import read_script

LONG = "a" * 100_000
START = 'import subprocess\nsubprocess.run(["python3", "-m", "verl.trainer.main_ppo", f"trainer.project_name={x}"])\n'
STOPS = {
    "doubled": 'x0 = "aaaaaaaa"\n' + "".join(f"x{i} = x{i - 1} + x{i - 1}\n" for i in range(1, 60)),
    "doubled in a format": 'x0 = "aaaaaaaa"\n'
    + "".join(f'x{i} = f"{{x{i - 1}}}{{x{i - 1}}}"\n' for i in range(1, 60)),
    "grown": 'x = "aaaaaaaa"\n' + "x += x\n" * 60,
    "join": f'y = ["{LONG}", "b"]\nx = "{LONG}".join([*y, *y, *y, *y, *y, *y, *y, *y, *y, *y, *y])\n',
    "lines in a format": f'z = 1\ny = "{(chr(92) + "n") * 100_000}"\nx = f"{"{y}" * 500}"\n',
    "a list that doubles": "x = [1, 2]\n" + "x += x\n" * 40,
    "copies of a list": "y = [1]\n" + "y += y\n" * 14 + "x = []\n" + "x += [*y]\n" * 400,
}
OPEN = {
    "the text of a list": f'y = "{LONG}"\nx = str([{", ".join(["y"] * 200)}])\n',
    "width": 'x = f"{1:999999999}"\n',
    "width from a value": 'n = 999999999\nx = f"{1:{n}}"\n',
    "precision": 'x = f"{1.5:.999999999f}"\n',
    "percent": 'x = "%999999999d" % 1\n',
    "times": 'x = "a" * 999999999\n',
    "power": "x = 9 ** 9 ** 9\n",
    "shift": "x = 1 << 99999999999\n",
    "a number of many digits": "x = 0x" + "f" * 20_000 + "\n",
    "the text of such a number": "y = 0x" + "f" * 20_000 + '\nx = str(y) + f"{y}"\n',
    "deep names": "y = " + ".".join("a" * 400) + "\nx = y\n",
}


def read(tmp_path, name, text):
    path = tmp_path / name
    path.write_text(text)
    return read_script(path, cwd=tmp_path, name=name)


@pytest.mark.parametrize("code", STOPS.values(), ids=STOPS.keys())
@pytest.mark.parametrize("ending", ["py", "ipynb"])
def test_reading_stops_at_the_line_that_makes_too_much(tmp_path, code, ending):
    text = code + START
    if ending == "ipynb":
        text = json.dumps({"cells": [{"cell_type": "code", "source": text}]})
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    reading = read(tmp_path, f"x.{ending}", text)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 500_000
    stopped = [note for note in reading.diagnostics if note.code == "TP112"]
    assert len(stopped) == 1 and stopped[0].severity == "error"
    assert 1 < stopped[0].where.line <= text.count("\n") or ending == "ipynb"
    assert reading.launches == ()


@pytest.mark.parametrize("code", OPEN.values(), ids=OPEN.keys())
def test_what_is_too_large_to_compute_stays_open(tmp_path, code):
    (launch,) = read(tmp_path, "x.py", code + START).launches
    assert launch.arguments[0].open


@pytest.mark.parametrize(
    "code",
    [
        "x = " + "-" * 100_000 + "1\n",
        "x = " + "(" * 5_000 + "1" + ")" * 5_000 + "\n",
        "x" + ".a" * 20_000 + "()\n",
        "x = 1" + " + 1" * 20_000 + "\n",
        "f" + "()" * 20_000 + "\n",
        "x = " + "9" * 5_000 + "\n",
    ],
)
def test_deep_code_is_refused_or_stops(tmp_path, code):
    try:
        reading = read(tmp_path, "x.py", code)
    except UserError as error:
        assert str(error).startswith("x.py")
    else:
        assert any(note.code == "TP112" for note in reading.diagnostics)


def test_deep_calls_elsewhere_do_not_matter(tmp_path):
    assert read(tmp_path, "x.py", 'x = "a"\n' + START + "a" + ".b" * 900 + "()\n").launches


@pytest.mark.parametrize(
    "name, text",
    [
        ("x.ipynb", '{"cells": ' + "[" * 100_000),
        ("x.ipynb", '{"cells": [{"cell_type": "code", "source": ' + "9" * 5_000 + "}]}"),
        ("x.ipynb", '{"cells": {"a": 1}}'),
        ("x.ipynb", '{"cells": [{"cell_type": "code", "source": [1]}]}'),
        ("x.yaml", "run: " + "[" * 60_000),
        ("x.yaml", "resources: {}\nrun: " + "{a: " * 60_000),
    ],
)
def test_deep_files_are_refused(tmp_path, name, text):
    with pytest.raises(UserError, match=f"^{name}"):
        read(tmp_path, name, text)


def test_a_shell_line_of_many_names_is_read_once(tmp_path):
    source = "x = 'y'\n!echo $x" + "b" * 300_000 + "'$x'" + " $x" * 2_000
    read(tmp_path, "x.ipynb", json.dumps({"cells": [{"cell_type": "code", "source": source}]}))


@pytest.mark.parametrize(
    "name, text",
    [
        ("x.yaml", 'resources: {}\nrun: "python3 -m verl.trainer.main_ppo a=\\ud800 b=1"\n'),
        ("x.py", 'import os\nos.system("python3 -m verl.trainer.main_ppo a=\\ud800 b=1")\n'),
        (
            "x.ipynb",
            '{"cells": [{"cell_type": "code", "source": "!python3 -m verl.trainer.main_ppo a=\\ud800 b=1"}]}',
        ),
    ],
)
def test_half_a_character_is_read_as_none(tmp_path, name, text):
    (launch,) = read(tmp_path, name, text).launches
    assert [word.text for word in launch.arguments] == ["a=\ufffd", "b=1"]
