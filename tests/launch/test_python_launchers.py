"""Python launchers and notebooks that put their words together: dictionaries, loops, functions, options."""

import json

import pytest

from trinity_compat.common.errors import UserError
from trinity_compat.launch import read_script

MAIN = 'M = ["python3", "-m", "verl.trainer.main_ppo"]\nimport os, subprocess, sys, shlex\n'


def read(tmp_path, text, *args, name="launch.py", env=None):
    path = tmp_path / name
    path.write_text(text)
    return read_script(path, cwd=tmp_path, args=args, name=name, env=env)


def words(tmp_path, text, *args, env=None):
    """The words of each launch; what is open in angle brackets."""
    reading = read(tmp_path, MAIN + text, *args, env=env)
    return [
        [word.text + "".join(f"<{piece.expression}>" for piece in word.open) for word in launch.arguments]
        for launch in reading.launches
    ]


# Above each piece of code the words that it starts the main with.
CASES = r'''
# a.b=1
# c.d=True
c = {"a.b": 1, "c.d": True}
subprocess.run(M + [f"{k}={v}" for k, v in c.items()])

# a=1
# b.c=None
# d=2
c = dict(a=1)
c["b.c"] = None
c.update({"d": 2})
subprocess.run([*M, *(f"{k}={c[k]}" for k in c)])

# b=2
for k, v in {"a": 1, "b": 2}.items():
    if v == 1:
        continue
    M.append("{}={}".format(k, v))
subprocess.run(M)

# a.b=1
# a.c.d=2
c = {"a": {"b": 1, "c": {"d": 2}}}
def flat(t, p=""):
    out = []
    for k, v in t.items():
        if isinstance(v, dict):
            out += flat(v, f"{p}{k}.")
        else:
            out.append(f"{p}{k}={v}")
    return out
subprocess.run(M + flat(c))

# a=1
# 2
# b=3
def word(n):
    return f"b={n + 1}"
subprocess.run([*M, *map(str, ["a=1", 2]), *map(word, [2])])

# a=8
# b=1e-06
# c=1
# d=x
# e=4
n = 4
subprocess.run(M + [f"a={n * 2}", f"b={1e-6:.0e}", f"c={n // 3}", f"d={n > 3 and 'x'}", "e=%d" % n])

# a=['console', 'wandb']
# b=console,wandb
# c=true
l = ["console", "wandb"]
subprocess.run(M + [f"a={l}", "b=" + ",".join(l), f"c={str(len(l) == 2).lower()}"])

# a=/data/x/t.parquet
# b=/m/q
from pathlib import Path
d = Path("/data") / "x"
subprocess.run(M + [f"a={d / 't.parquet'}", f"b={os.path.join('/m', 'q')}"])

# a=0.1
# b=16
# c=8
from dataclasses import dataclass
@dataclass
class C:
    lr: float = 0.1
    n: int = 8
c = C(n=16)
subprocess.run(M + [f"a={c.lr}", f"b={c.n}", f"c={C.n}"])

# n=3
class L:
    def __init__(self, n):
        self.n = n
    def words(self):
        return [f"n={self.n}"]
    def run(self):
        subprocess.run(M + self.words())
L(3).run()

# a=1
# b=2
def words(**more):
    return [f"{k}={v}" for k, v in sorted(more.items())]
subprocess.run(M + words(b=2, a=1))

# a=1
# b=2
c = " ".join(M) + " a=1 " + f"b={2}"
subprocess.run(shlex.split(c))

# a=1
# b=2
c = f"""{" ".join(M)} \\
  a=1 \\
  b=2"""
os.system(c)

# a=3
os.environ["N"] = "3"
subprocess.run(" ".join(M) + " a=$N", shell=True)

# a=1
try:
    M.append("a=1")
except OSError:
    M.append("b=1")
finally:
    subprocess.run(M)

# a0=1
# a1=1
i = 0
while i < 2:
    M.append(f"a{i}=1")
    i += 1
subprocess.run(M)
'''


@pytest.mark.parametrize("case", CASES.strip().split("\n\n"))
def test_what_a_launcher_puts_together_is_read_as_python_would(tmp_path, case):
    expected = [line[2:] for line in case.splitlines() if line.startswith("# ")]
    assert words(tmp_path, case) == [expected]


OPTIONS = """
import argparse
def parse():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--lr", "-l", type=float, default=1e-6)
    parser.add_argument("--debug", action="store_true")
    parser.add_argument("--model-path", required=True)
    parser.add_argument("rest", nargs="*")
    return parser.parse_args()
args = parse()
M += [f"e={args.epochs * 2}", f"lr={args.lr}", f"m={args.model_path}", *args.rest]
if args.debug:
    M.append("d=1")
subprocess.run(M)
"""


def test_options_of_the_launchers_own_have_their_defaults_which_is_said(tmp_path):
    reading = read(tmp_path, MAIN + OPTIONS)
    assert words(tmp_path, OPTIONS) == [["e=6", "lr=1e-06", "m=<args.model_path>"]]
    assert any("have their defaults: --epochs, --lr" in d.message for d in reading.diagnostics)


def test_options_that_are_given_after_the_dashes_count(tmp_path):
    given = ("--epochs", "5", "--model-path=/m", "x=1", "--debug", "-l", "2e-6")
    assert words(tmp_path, OPTIONS, *given) == [["e=10", "lr=2e-06", "m=/m", "x=1", "d=1"]]


def test_the_words_of_the_command_line_go_where_the_launcher_puts_them(tmp_path):
    text = "subprocess.run(M + sys.argv[1:])"
    assert words(tmp_path, text) == [[]]
    assert words(tmp_path, text, "a=1", "b=2") == [["a=1", "b=2"]]


def test_a_variable_of_the_environment_has_the_value_that_is_given(tmp_path):
    text = 'n = int(os.environ.get("N", "8"))\nsubprocess.run(M + [f"a={n}", f"b={n * 2}"])'
    assert words(tmp_path, text) == [["a=8", "b=16"]]
    assert words(tmp_path, text, env={"N": "4"}) == [["a=4", "b=8"]]
    (ref,) = read(tmp_path, MAIN + text).launches[0].arguments[0].env_refs
    assert (ref.name, ref.default) == ("N", "8")


def test_what_a_launcher_sets_for_what_it_starts_is_the_launchs(tmp_path):
    text = 'env = os.environ.copy()\nenv["A"] = "1"\nsubprocess.run(M, env=env)\n'
    text += 'subprocess.run(M, env={**os.environ, "B": "2"})'
    launches = read(tmp_path, MAIN + text).launches
    assert [{name: word.text for name, word in launch.env.items()} for launch in launches] == [
        {"A": "1"}, {"B": "2"}]  # fmt: skip


def test_a_condition_that_cannot_be_known_is_taken_as_false_and_named_at_its_line(tmp_path):
    text = "if probe() > 4:\n    M.append('big=1')\nif not probe():\n    sys.exit(1)\nsubprocess.run(M)\n"
    assert words(tmp_path, text) == [[]]
    told = [str(d) for d in read(tmp_path, MAIN + text).diagnostics if d.code == "TP101"]
    assert told == [
        "launch.py:3: warning TP101 this depends on probe() > 4, which cannot be known here; taken as false",
        "launch.py:5: warning TP101 this depends on not probe(), which cannot be known here; taken as false",
    ]


def test_the_way_that_ends_a_launcher_is_not_taken(tmp_path):
    text = "if probe():\n    subprocess.run(M + ['a=1'])\nelse:\n    raise SystemExit('no GPU')\n"
    assert words(tmp_path, text) == [["a=1"]]


def test_each_word_has_the_line_of_the_dictionary(tmp_path):
    text = 'c = {\n  "a": 1,\n  "b": 2,\n}\nsubprocess.run(M + [f"{k}={v}" for k, v in c.items()])'
    (launch,) = read(tmp_path, MAIN + text).launches
    assert [word.where.line for word in launch.arguments] == [4, 5]


@pytest.mark.parametrize(
    "text",
    [
        "x = 'a' * 10**9\nsubprocess.run(M + [x])",
        "x = 10 ** 10 ** 10\nsubprocess.run(M + [f'{x}'])",
        "x = f'{1:9999999999}'\nsubprocess.run(M + [x])",
        "x = '%9999999999d' % 1\nsubprocess.run(M + [x])",
        "def f(n):\n    return f(n + 1)\nsubprocess.run(M + [f(0)])",
        "x = [0]\nfor i in range(10**9):\n    x = x + x\nsubprocess.run(M)",
        "x = 'a'\nfor i in range(999):\n    x = f'{x}{x}'\nsubprocess.run(M)",
        "x = []\nfor i in range(99):\n    x = [x, x]\nsubprocess.run(M + [f'{x}'])",
        "x = 'a' * 9999\nfor i in range(9):\n    x = x.replace('a', x)\nsubprocess.run(M)",
        "while True:\n    subprocess.run(M)",
        "l = list(range(1000))\nx = [a for a in l for b in l for c in l]\nsubprocess.run(M + x)",
    ],
)
def test_what_would_cost_python_much_costs_little(tmp_path, text):
    assert len(words(tmp_path, text)) <= 1


def test_a_list_too_long_to_be_worked_out_is_open_not_cut(tmp_path):
    text = "x = list(range(10 ** 9))\nsubprocess.run(M + [f'a={x}'])"
    assert words(tmp_path, text) == [["a=<list(range(10 ** 9))>"]]


def notebook(tmp_path, *cells):
    text = json.dumps({"cells": [{"cell_type": "code", "source": cell} for cell in cells]})
    reading = read(tmp_path, text, name="n.ipynb")
    return [[word.text for word in launch.arguments] for launch in reading.launches], reading


RUN = "!python3 -m verl.trainer.main_ppo "


def test_ipython_puts_names_and_expressions_into_shell_lines(tmp_path):
    found, _ = notebook(
        tmp_path,
        "BSZ = 64\nMODEL = 'Qwen/Q'\nC = {'lr': 1e-6}",
        RUN + "\\\n  b={BSZ} m=$MODEL \\\n  c={BSZ * 2} lr={C['lr']} q='$MODEL' {{x}} h=$HOME/$$",
    )
    assert [word.partition("=")[::2] for word in found[0][:4]] == [
        ("b", "64"), ("m", "Qwen/Q"), ("c", "128"), ("lr", "1e-06")]  # fmt: skip
    assert found[0][4] == "q=$MODEL" and found[0][5] == "{x}"


def test_a_line_with_a_name_that_nothing_binds_is_left_to_the_shell(tmp_path):
    found, _ = notebook(tmp_path, "BSZ = 64", RUN + "b={BSZ} c={nothing}")
    assert found == [["b={BSZ}", "c={nothing}"]]


def test_cells_know_what_cells_before_them_wrote_and_set(tmp_path):
    found, reading = notebook(
        tmp_path,
        "%env N=3\n%cd sub",
        f"%%writefile run.sh\n{RUN[1:]} a=$1 n=$N",
        "for seed in range(2):\n    !bash run.sh {seed}",
    )
    assert found == [["a=0", "n=3"], ["a=1", "n=3"]]
    assert {launch.cwd for launch in reading.launches} == {str(tmp_path / "sub")}


def test_a_cell_that_is_no_python_still_gives_its_shell_lines(tmp_path):
    found, reading = notebook(tmp_path, f"x = = 1\n{RUN}a=1")
    assert found == [["a=1"]] and str(reading.launches[0].where) == "n.ipynb[1]:2"


def test_code_that_is_no_python_is_refused_with_its_line(tmp_path):
    with pytest.raises(UserError, match=r"launch.py:2: not a Python file"):
        read(tmp_path, "x = 1\ndef f(:\n")
