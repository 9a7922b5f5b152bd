"""The web page's shell parser under node: the trees and errors of shfmt (docs/web.md).

`TC_SHELL_SCRIPTS` may name a folder of more scripts, such as those of clones of public projects.
"""

import json
import os
import re
import subprocess
from pathlib import Path

import pytest
from needs import lacking, program

from trinity_compat.common import limits
from trinity_compat.launch.bash import shell_parser

pytestmark = pytest.mark.nightly
ROOT = Path(__file__).parents[2]
NODE = Path(__file__).with_name("page_parser.js")
PARSER = ROOT / ".scratch" / "web" / "parser"
LAUNCH = "python3 -m verl.trainer.main_ppo data.train_batch_size=8\n"
# What mvdan/sh 3.6, of which the page's parser is made, reads otherwise than shfmt's 3.14.
TEXTS = {
    "columns count bytes": "# é\nécho é `echo é \\`pwd\\` é` é\n",
    "columns behind line ends": "a \\\n b 'x\\\ny' c \\\\\nd\necho \\",
    "two-character line ends": "cat <<EOF\r\n$x\r\nEOF\r\na \\\r\n \\\r\n# c\r\nif x; then\r\n y\r\nfi\r\n",
    "operators": "a && b || c | d & for x in ${!y*} ${!z@}; do ((x += 1, y **= 2)); done <<<x >&2\n",
    "brackets in words of arrays": "A=(x=['a'] y[0-9]z [k]=v $b[1] c=[\"d\"] [z]=q[1] f[$g] [h]= [i]=[j])\n",
    "brackets with no expression": "A=(x=[a://b] y=[1.5,2] z=['a'] u=[$v:w])\nx=[a:b] c=[1 2\n",
    "loops with braces": "for ((i = 0; i < 3; i++)) { echo $i; } | for x in a; { b; }\n",
    "indices in arithmetic": "((a[1] + ${b[2]} + c[d[3]])); x=$((e[f] * 2)) y=${g[h[1]]:i[2]}\n",
    "fractions in arithmetic": "a=1; ((a + b.c))\n",
    "fractions in keys": "declare -A c=([x.y]=1)\n",
    "fractions elsewhere": "[[ a.b == c.d ]]; case a.b in c.d) e.f ;; esac; x=([1]=a.b); echo ${a:-b.c}\n",
    "no commands": "if x; then\n\nfi\n",
    "no commands in braces": "f() {\n}\n",
    "no commands in parentheses": "( )\n",
    "no condition": "while\ndo x; done\n",
    "no commands in a loop": "until x; do\ndone\n",
    "characters for others": "echo \x02 \x03 \x7f $'\\x01' \"\t\" a[b\n",
    **{
        f"error {number}": text
        for number, text in enumerate(
            [
                "a ( b )\n",
                "if x; then y\n",
                "echo $(a\n",
                "echo ${a.b}\n",
                "echo ${a b\n",
                "echo ${}\n",
                "echo 'a\n",
                'echo "a `b"\n',
                "cat <<EOF\na\n",
                "cat <<'E F'\na\n",
                "case x in a b) ;; esac\n",
                "for in x; do y; done\n",
                "for x y; do z; done\n",
                "fi\n",
                "done; a\n",
                "a; }\n",
                "a)\n",
                "&& a\n",
                "a && \n",
                "[[ a\n",
                "[[ a -b c ]]\n",
                "x=$((1 +))\n",
                "x=$((1 2))\n",
                "x=$((a ? b))\n",
                "((a b))\n",
                "export a-b=1\n",
                "a=(b) c\n",
                "a() b; c() ;\n",
                "a ;; b\n",
                "! \n",
                "echo `a\n",
                "declare -A a=([b c]=d)\n",
                "a | ; b\n",
                "é (\n",
                "a\n  \xff\n",
            ]
        )
    },
}


@pytest.fixture(scope="module")
def answers():
    """A function: the page parser's answers for files."""
    node = program("node", "nodejs")
    if not (PARSER / "parser.wasm").exists():
        lacking(".scratch/web/parser is not there: make web-parser")

    def of(paths):
        said = subprocess.run(
            [node, NODE, PARSER], input="\n".join(map(str, paths)), capture_output=True, text=True
        )
        assert said.returncode == 0, said.stderr
        return [json.loads(line) for line in said.stdout.splitlines()]

    return of


def shfmt(path):
    """The program's own answer, without the reader's limits."""
    command = [shell_parser.shfmt_path(), "--to-json", "-ln", "bash"]
    return subprocess.run(command, input=Path(path).read_bytes(), capture_output=True)


def of_shfmt(path):
    """The answer for a file that the page's parser should give."""
    said = shfmt(path)
    error = said.stderr.decode(errors="replace").strip().removeprefix("<standard input>:")
    return {"error": error} if error else {"tree": json.loads(said.stdout)}


def differing(answers, paths):
    if not paths:
        return []
    texts = answers(paths)
    assert len(texts) == len(paths)
    return [str(path) for path, text in zip(paths, texts, strict=True) if json.loads(text) != of_shfmt(path)]


# shfmt takes a backslash that ends a comment for a continuation, and then "#" of the next line for part of a
# word; the page's parser does not. The reader takes such backslashes away and parses again (`tree.parse`).
CONTINUED_COMMENT = re.compile(rb"^([ \t]*#.*)\\$", re.MULTILINE)


def without_continued_comments(paths, folder):
    copies = [folder / f"{number}.sh" for number, _ in enumerate(paths)]
    for copy, path in zip(copies, paths, strict=True):
        copy.write_bytes(CONTINUED_COMMENT.sub(rb"\1 ", Path(path).read_bytes()))
    return copies


@pytest.mark.timeout(3600)
def test_every_tree_of_the_scripts_here_is_shfmts(answers, tmp_path):
    folders = [ROOT / "tests", ROOT / "examples", *filter(None, [os.environ.get("TC_SHELL_SCRIPTS")])]
    paths = [path for folder in folders for path in Path(folder).rglob("*.sh")]
    assert len(paths) > 150
    wrong = differing(answers, paths)
    assert all(CONTINUED_COMMENT.search(Path(path).read_bytes()) for path in wrong), wrong
    assert differing(answers, without_continued_comments(wrong, tmp_path)) == []


def test_trees_and_errors_are_shfmts_where_the_versions_differ(answers, tmp_path):
    paths = {name: tmp_path / f"{number}.sh" for number, name in enumerate(TEXTS)}
    for name, path in paths.items():
        path.write_bytes(TEXTS[name].encode("latin-1" if "\xff" in TEXTS[name] else "utf-8"))
    wrong = differing(answers, list(paths.values()))
    assert [name for name, path in paths.items() if str(path) in wrong] == []


def test_a_text_that_is_nested_too_deeply_leaves_the_next_one_alone(answers, tmp_path):
    deep, plain = tmp_path / "deep.sh", tmp_path / "plain.sh"
    deep.write_text("$(" * 200_000)
    plain.write_text(LAUNCH)
    first, *others = answers([deep, plain, deep, plain])
    assert json.loads(first) == {"error": "commands nested too deeply"} == json.loads(others[1])
    assert json.loads(others[0]) == of_shfmt(plain) == json.loads(others[2])


@pytest.mark.parametrize("lines", [6_500, 7_100])
def test_the_page_refuses_a_tree_as_large_as_the_reader_does(answers, tmp_path, lines):
    """Its size is that of shfmt's text, with indentation: `limits.TREE`."""
    script = tmp_path / "run.sh"
    script.write_text("echo a b c d\n" * lines)
    (answer,) = map(json.loads, answers([script]))
    said = shfmt(script).stdout
    if len(said) > limits.TREE:
        assert answer == {"error": "a syntax tree that is too large"}
    else:
        assert answer == {"tree": json.loads(said)}
    assert (len(said) > limits.TREE) == (lines == 7_100)


def test_more_brackets_in_arrays_than_can_be_found_are_an_error(answers, tmp_path):
    """Each is found by parsing again, so the work is bounded by the bytes that are parsed."""
    script = tmp_path / "run.sh"
    script.write_text("A=(" + " x=['a']" * (limits.SCRIPT // 9) + ")\n")
    (answer,) = map(json.loads, answers([script]))
    assert answer["error"].endswith("`[x]` must be followed by `=`")
