"""Random Python launchers, run with a stub of subprocess: reading knows no other words than they start."""

import builtins
import random
import sys
from contextlib import suppress
from types import SimpleNamespace

import pytest

from trinity_compat.launch.bash.traced_text import open_source, text_of
from trinity_compat.launch.python import script

HEAD = "import os, subprocess\nM = ['python3', '-m', 'verl.trainer.main_ppo']\nyes, no = True, False\n"
START = "a = 'a0'\nb = 'b0'\nl = ['l0']\nm = ['m0']\n"
TEXTS = ["'x=1'", "a", "b", "f'{a}'", "a + b", "'q=' + a", "os.environ.get('K', 'k')", "' '.join(l)"]
LISTS = ["l", "m", "['x=1']", "[a, b]", "l + ['y=2']", "[*l, a]", "l + m", "['p=' + a]"]
SIMPLE = [
    "{name} = {text}", "{name} = {text}", "{lists} = {list}", "{lists} = {list}", "{name} += {text}",
    "{lists} += {list}", "{lists}.append({text})", "{lists}.append({text})", "{lists}.extend({list})",
    "subprocess.run(M + {list})", "subprocess.run(M + {list})", "subprocess.run(M + {list})",
    "subprocess.run(f\"{{' '.join(M)}} {{a}} {{b}}\", shell=True)", "os.environ['K'] = {text}",
    "touch({lists})", "{lists}[0] = {text}", "del {lists}[0]", "{lists}.insert(0, {text})", "{lists}.clear()",
    "x = {lists}", "x = [{lists}]", "print({lists})", "x = l if yes else m",
]  # fmt: skip
CALLS = ["f()", "g({name})", "g({lists})"]  # of the module alone: functions in a circle never end
BLOCKS = [
    "if {truth}:", "for i in 'st':", "for a in 'st':", "while no:", "def f():", "def g(a='d'):",
    "def g(z='d'):",
    "with open(os.devnull) as h:", "try:", "class C:",
]  # fmt: skip


def block(rng, depth):
    """Statements; some of them hold others."""
    out = ""
    for _ in range(rng.randint(2, 5)):
        indent = "    " * depth
        if depth < 3 and rng.random() < 0.25:
            head = rng.choice(BLOCKS).format(truth=rng.choice(["yes", "no"]))
            out += f"{indent}{head}\n{block(rng, depth + 1)}"
            if head == "try:":
                out += f"{indent}except KeyError:\n{block(rng, depth + 1)}"
            elif head.startswith("if") and rng.random() < 0.5:
                out += f"{indent}else:\n{block(rng, depth + 1)}"
        else:
            words = {"name": "ab", "lists": "lm", "text": TEXTS, "list": LISTS}
            chosen = {name: rng.choice(values) for name, values in words.items()}
            out += indent + rng.choice(SIMPLE if depth else SIMPLE + CALLS).format(**chosen) + "\n"
    return out


def started(code):
    """Line → the commands that it starts, by running the launcher."""
    found = {}

    def run(command, shell=False):
        line = sys._getframe(1).f_lineno
        found.setdefault(line, []).append(command.split() if shell else [str(word) for word in command])

    modules = {"os": SimpleNamespace(environ={}, devnull="/dev/null"), "subprocess": SimpleNamespace(run=run)}
    names = {
        "__builtins__": {**vars(builtins), "__import__": lambda name, *more: modules[name]},
        "print": lambda *each: None,
        "touch": lambda each: each.append("touched"),
    }  # fmt: skip
    with suppress(NameError, TypeError, IndexError, AttributeError, RecursionError):
        exec(compile(code, "launch.py", "exec"), names)
    return found


@pytest.mark.parametrize("seed", range(8))
def test_what_reading_knows_is_what_the_launcher_starts(seed):
    known = 0
    for number in range(300):
        rng = random.Random(f"{seed} {number}")
        code = HEAD + START * (rng.random() < 0.7) + block(rng, 0) + rng.choice(["", "f()\n", "g()\n"])
        ran = started(code)
        for command in script.read("launch.py", code).commands:
            pieces = (bit for value in (*command.words, command.code) for bit in value)
            if not any(open_source(bit) for bit in pieces):
                words = [text_of(word) for word in command.words] or text_of(command.code).split()
                actual = ran.get(command.where.line, [])
                assert all(each == words for each in actual), f"line {command.where.line} of\n{code}"
                known += bool(actual)
    assert known > 10
