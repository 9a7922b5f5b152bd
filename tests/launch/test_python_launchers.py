"""Python launchers and notebooks that put their words together: dictionaries, loops, functions, options."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from trinity_compat.cli import cli
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
# e=1e-06
lr = 1e-6
subprocess.run(M + ["a.b=1", f"c.d={True}"] + [f"e={lr}"])

# a=1
# b=x,y
names = ["x", "y"]
M.append(f"a={str(1)}")
M.extend(["b=" + ",".join(names)])
subprocess.run([*M])

# a=1
# b=2
c = " ".join(M) + " a=1 " + f"b={2}"
subprocess.run(c, shell=True)

# a=1
# b=2
c = f"""{" ".join(M)} \\
  a=1 \\
  b=2"""
os.system(c)

# a=1
# b=2
c = " ".join(M)
c += " a=1"
c += " b=2"
os.system(c)

# a=3
os.environ["N"] = "3"
subprocess.run(" ".join(M) + " a=$N", shell=True)

# a=1
# b=2
def main():
    if probe():
        sys.exit(1)
    with open("log") as log:
        cmd: list[str] = [sys.executable, "-m", "verl.trainer.main_ppo", f"a={A}"]
        cmd += ["b=2"]
        return subprocess.call(args=cmd, stdout=log)
def other(A):
    cmd = ["ls", A]
    subprocess.run(cmd)
A = 1
if __name__ == "__main__":
    main()

# a=1
os.execvp("python3", ["python", "-m", "verl.trainer.main_ppo", "a=1"])
os.system("python3 -m verl.trainer.main_ppo never=1")
'''


@pytest.mark.parametrize("case", CASES.strip().split("\n\n"))
def test_what_a_launcher_puts_together_is_read_as_python_would(tmp_path, case):
    expected = [line[2:] for line in case.splitlines() if line.startswith("# ")]
    assert words(tmp_path, case) == [expected]


# Code that is not computed, and the words of the launch: what is open stands in angle brackets.
NOT_COMPUTED = [
    ("for k in ['a']:\n    if k == 'b':\n        continue\n    M.append(k)", ["<M (depends on k in ['a'])>"]),
    ("i = 0\nwhile i < 2:\n    M.append(f'a{i}=1')\n    i += 1", ["<M (depends on i < 2)>"]),
    ("M += map(str, ['a=1', 2])", ["<map(str, ['a=1', 2])>"]),
    ("n = 2\nM.append('e=%d' % n)", ["<'e=%d' % n>"]),
    ("M.append('{}={}'.format('a', 1))", ["<'{}={}'.format('a', 1)>"]),
    ("class C:\n    lr = 0.1\nM.append(f'a={C.lr}')", ["a=<C.lr>"]),
    ("n = 4\nM += [f'a={n * 2}', f'b={n - 1}']", ["a=<n * 2>", "b=<n - 1>"]),
    ("n = int(os.environ.get('N', '8'))\nM.append(f'a={n}')", ["a=<int(os.environ.get('N', '8'))>"]),
    ("for i in range(2):\n    M.append(f'a{i}=1')", ["<M (depends on i in range(2))>"]),
    ("class C:\n    M.append('a=1')", ["<M (depends on class C)>"]),
    ("c = dict(a=1)\nM += [f'{k}={v}' for k, v in c.items()]", ["<[f'{k}={v}' for k, v in c.items()]>"]),
    ("c = {'a': 1}\nc.update({'a': 2})\nM.append(f\"a={c['a']}\")", ["a=<c['a']>"]),
    ("M += shlex.split('a=1 b=2')", ["<shlex.split('a=1 b=2')>"]),
    ("n = 4\nM.append(f\"a={n and 'x'}\")", ["a=<n and 'x'>"]),
    ("M += sorted(['b=1', 'a=2'])", ["<sorted(['b=1', 'a=2'])>"]),
    ("def words(**more):\n    return [*more]\nM += words(a=1)", ["<words(a=1)>"]),
    ("import json\nM += json.load(open('a'))", ["<json.load(open('a'))>"]),
    ("n = 1\nif probe():\n    n = 2\nM.append(f'a={n}')", ["a=<n>"]),
    ("try:\n    n = 1\nexcept OSError:\n    n = 2\nM.append(f'a={n}')", ["a=<n>"]),
    ("n = 1\ndef f():\n    global n\n    n = 2\nf()\nM.append(f'a={n}')", ["a=<n>"]),
    ("def f(n):\n    subprocess.run(M + [f'a={n}'])\nf(1)\nsys.exit()", ["a=<n>"]),
    ("n = 1\nfor n in (1, 2):\n    pass\nM.append(f'a={n}')", ["a=<n>"]),
    ("n = 1\nM.append(f'a={n + 1}')", ["a=<n + 1>"]),
    ("n = 1\nn = 2\nM.append(f'a={n}')", ["a=<n>"]),
    ("n = 1\nM += [f'a={n}' for n in range(2)]", ["<[f'a={n}' for n in range(2)]>"]),
    ("n = 'a=1'\nif probe():\n    n += '2'\nM.append(n)", ["a=1<n (depends on probe())>"]),
    ("l = ['a=1']\nm = l\nm.append('b=1')\nM += l", ["<l>"]),
    ("l = ['a=1']\nchange(l)\nM += l", ["<l>"]),
    ("l = ['a=1']\ndef f():\n    l.append('b=1')\nf()\nM += l", ["<l>"]),
    ("l = ['a=1']\nl[0] = 'b=1'\nM += l", ["<l>"]),
    ("from other import *\nM.append('a=1')", []),
    ("n = 1\nexec('n = 2')\nM.append(f'a={n}')", []),
    ("n = os.environ.get('N')\nM.append(f'a={n}')", ["a=<os.environ.get('N')>"]),
    ("os.environ['N'] = probe()\nM.append(f\"a={os.environ['N']}\")", ["a=<probe()>"]),
    ("def f():\n    os.environ['N'] = '1'\nM.append(os.environ.get('N', '2'))", ["<os.environ['N']>"]),
    ("os.environ.update(N='1')\nM.append(os.environ.get('N', '2'))", ["<os.environ.get('N', '2')>"]),
    ("def f():\n    if probe():\n        return 'a=1'\n    return 'a=2'\nM.append(f())", ["<f()>"]),
]  # fmt: skip


@pytest.mark.parametrize(("text", "expected"), NOT_COMPUTED)
def test_a_value_that_is_not_computed_is_open_under_its_own_text(tmp_path, text, expected):
    assert words(tmp_path, f"{text}\nsubprocess.run(M)\n") == [expected] * bool(expected)


def test_a_command_that_is_open_as_a_whole_is_named_at_its_line(tmp_path):
    reading = read(tmp_path, "import subprocess\nsubprocess.run('python3 -m x a=%d' % 1, shell=True)\n")
    assert [str(d) for d in reading.diagnostics if d.code == "TP124"] == [
        "launch.py:2: warning TP124 this command cannot be read: 'python3 -m x a=%d' % 1 is not computed from"
        " the text; a training main in it is not found"
    ]


def test_translate_refuses_an_open_argument_with_its_line(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("launch.py").write_text(f"{MAIN}M.append('data.train_batch_size=%d' % 4)\nsubprocess.run(M)\n")
    result = CliRunner().invoke(cli, ["translate", "launch.py"])
    assert isinstance(result.exception, UserError) and "launch.py:3: " in str(result.exception)


def test_the_words_of_the_command_line_go_where_the_launcher_puts_them(tmp_path):
    text = "subprocess.run(M + sys.argv[1:])"
    assert words(tmp_path, text) == [[]]
    assert words(tmp_path, text, "a=1", "b=2") == [["a=1", "b=2"]]


def test_a_variable_of_the_environment_has_the_value_that_is_given(tmp_path):
    text = 'n = os.environ.get("N", "8")\nsubprocess.run(M + [f"a={n}"])'
    assert words(tmp_path, text) == [["a=8"]]
    assert words(tmp_path, text, env={"N": "4"}) == [["a=4"]]
    (ref,) = read(tmp_path, MAIN + text).launches[0].arguments[0].env_refs
    assert (ref.name, ref.default) == ("N", "8")


def test_what_a_launcher_sets_for_what_it_starts_is_the_launchs(tmp_path):
    text = 'os.environ["A"] = "1"\nsubprocess.run(M, cwd="sub")\nos.chdir("x")\nsubprocess.run(M)\n'
    launches = read(tmp_path, MAIN + text).launches
    assert [{name: word.text for name, word in launch.env.items()} for launch in launches] == [{"A": "1"}] * 2
    assert [launch.cwd for launch in launches] == [str(tmp_path / "sub"), str(tmp_path / "x")]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("subprocess.run(M, env={'A': '1'})", "env={'A': '1'}"),
        ("subprocess.run(M, cwd=ROOT)", "cwd=ROOT"),
        ("os.environ.update(A='1')\nsubprocess.run(M)", "os.environ"),
        ("os.chdir(ROOT)\nsubprocess.run(M)", "os.chdir"),
        ("if probe():\n    os.chdir('a')\nsubprocess.run(M)", "os.chdir"),
        ("def f():\n    subprocess.run(M)\nf()\nos.chdir('a')", "os.chdir"),
    ],
)
def test_surroundings_that_are_not_computed_are_named_with_the_launch(tmp_path, text, said):
    (note,) = [d for d in read(tmp_path, MAIN + text).diagnostics if d.code == "TP101"]
    assert f"this launch depends on {said}, which is known only at run time" in note.message


def test_what_an_undecided_condition_adds_is_one_open_word(tmp_path):
    text = "if probe() > 4:\n    M.append('big=1')\nif not probe():\n    sys.exit(1)\nsubprocess.run(M)\n"
    assert words(tmp_path, text) == [["<M (depends on probe() > 4)>"]]


def test_a_launch_in_an_undecided_branch_names_the_condition(tmp_path):
    text = "if probe() > 4:\n    subprocess.run(M + ['big=1'])\nelse:\n    subprocess.run(M)\n"
    reading = read(tmp_path, MAIN + text)
    assert words(tmp_path, text) == [["big=1"], []]
    assert [str(d) for d in reading.diagnostics if d.code == "TP101"] == [
        f"launch.py:{line}: warning TP101 this launch depends on probe() > 4, which is known only at run time"
        for line in (4, 6)
    ]


def test_the_way_that_ends_a_launcher_is_not_taken(tmp_path):
    text = "if probe():\n    subprocess.run(M + ['a=1'])\nelse:\n    raise SystemExit('no GPU')\n"
    assert words(tmp_path, text) == [["a=1"]]


def test_each_word_has_the_line_where_it_is_written(tmp_path):
    text = 'c = [\n  "a=1",\n  "b=2",\n]\nsubprocess.run(M + c)'
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
    found, reading = notebook(
        tmp_path,
        "BSZ = 64\nMODEL = 'Qwen/Q'\nC = {'lr': 1e-6}",
        RUN + "\\\n  b={BSZ} m=$MODEL \\\n  c={BSZ + 2} lr={C['lr']:.0e} q='$MODEL' {{x}} h=$HOME/$$",
    )
    assert found[0][:6] == ["b=64", "m=Qwen/Q", "c=", "lr=", "q=$MODEL", "{x}"]
    opened = [piece for word in reading.launches[0].arguments for piece in word.open]
    assert [(piece.expression, piece.where.line) for piece in opened] == [
        ("BSZ + 2", 3), ("{C['lr']:.0e}", 3), ("$$", 3)]  # fmt: skip


def test_a_line_with_a_name_that_nothing_binds_is_left_to_the_shell(tmp_path):
    found, _ = notebook(tmp_path, "BSZ = 64", RUN + "b={BSZ} c={nothing}")
    assert found == [["b={BSZ}", "c={nothing}"]]


def test_cells_know_what_cells_before_them_wrote_and_set(tmp_path):
    found, reading = notebook(
        tmp_path,
        "%env N=3\n%cd sub",
        f"%%writefile run.sh\n{RUN[1:]} a=$1 n=$N",
        "for seed in (0, 1):\n    !bash run.sh {seed}",
    )
    assert found == [["a=", "n=3"]] and reading.launches[0].arguments[0].open[0].expression == "seed"
    assert {launch.cwd for launch in reading.launches} == {str(tmp_path / "sub")}


def test_a_cell_that_is_no_python_still_gives_its_shell_lines(tmp_path):
    found, reading = notebook(tmp_path, f"x = = 1\n{RUN}a=1")
    assert found == [["a=1"]] and str(reading.launches[0].where) == "n.ipynb[1]:2"


def test_code_that_is_no_python_is_refused_with_its_line(tmp_path):
    with pytest.raises(UserError, match=r"launch.py:2: not a Python file"):
        read(tmp_path, "x = 1\ndef f(:\n")
