"""A value is said to be known only where no piece of it depends on what only a run knows.

The property: real bash runs a script several times, and a program that reading does not know prints something
else each time. An argument that reading calls known must be that text in each of them.
"""

from __future__ import annotations

import os
import shutil
import subprocess

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from trinity_compat.launch import read_text
from trinity_compat.launch.model import EnvRef, UnknownPiece, WordPart

BASH = shutil.which("bash")
EXAMPLES = int(os.environ.get("TC_BASH_EXAMPLES", "60"))
LIMITS = settings(
    max_examples=EXAMPLES,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
PRINTED = ("", "1", "a b", "x/y.z 3", "k", "n=9 P=z a=q gone=8")
SETUP = """
shopt -s extglob
n=2; a=foo/bar.baz; U=$(probe)
L=(one 'two three' $(probe) four)
E=($(probe)); S=("$(probe)" last)
declare -A T=([k]=v [$U]=w)
read -r P Q <<< "x $(probe)"
mapfile -t M < <(probe)
set -- p1 "$(probe)" $(probe) p4
"""
MAIN = "python3 -m verl.trainer.main_ppo"


def known(script: str, folder) -> list[dict[str, str]]:
    """Of each launch the arguments ``key=text`` that reading calls known."""
    launches = read_text(script, name="run.sh", cwd=folder).launches
    return [
        dict(word.text.split("=", 1) for word in launch.arguments if not word.open and "=" in word.text)
        for launch in launches
    ]


def passed(script: str, printed: str, folder) -> list[dict[str, str]]:
    """Of each launch the arguments that bash passes where the program ``probe`` prints ``printed``."""
    probe = 'probe() { printf "%s\\n" "$PRINTED"; }'
    stub = f'{probe}\npython3() {{ printf "%s\\0" "$#" "$@" >&3; }}\nexec 3>&1 >/dev/null\n'
    run = subprocess.run(
        [BASH, "-c", stub + script],
        capture_output=True,
        cwd=folder,
        env={"PATH": "/usr/bin:/bin", "LC_ALL": "C.UTF-8", "PRINTED": printed},
        timeout=120,
    )
    fields = run.stdout.decode(errors="surrogateescape").split("\0")[:-1]
    out = []
    while fields:
        count = int(fields[0])
        out.append(dict(word.split("=", 1) for word in fields[3 : count + 1] if "=" in word))
        fields = fields[count + 1 :]
    return out


def holds_in_each_run(script: str, folder) -> None:
    [said] = known(script, folder)
    for printed in PRINTED:
        for launch in passed(script, printed, folder):  # none where bash finds a mistake in an expression
            for key, text in said.items():
                assert launch.get(key) == text, f"{script}\n{key}= where probe prints {printed!r}"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("open")


PLAIN_NAMES = st.sampled_from(["U", "n", "a", "P", "Q", "gone", "1", "2", "3", "4"])
ELEMENTS = st.sampled_from(
    ["L[0]", "L[1]", "L[2]", "L[3]", "L[-1]", "L[-2]", "L[U]", "L[n-1]", "E[0]", "E[1]", "S[0]", "S[1]",
     "S[-1]", "M[0]", "M[1]", "T[k]", "T[q]", "T[$U]"]
)  # fmt: skip
LISTS = st.sampled_from(["L[@]", "L[*]", "E[@]", "S[@]", "M[*]", "@", "*"])
WHOLE = st.sampled_from(
    ["${#L[@]}", "${#E[@]}", "${#S[@]}", "${#M[@]}", "${#U}", "$#", "${!L[@]}", "${!T[*]}", "${#T[@]}",
     "${*:2:1}", "$(probe)", "$(echo $(probe))", "$?", "x", "b/c", "7"]
)  # fmt: skip
NUMBERS = st.sampled_from(["0", "1", "n", "U", "${U}", "L[U]", "${#E[@]}", "$#", "$(probe)", "T[k]", "Q"])
EXPRESSIONS = st.recursive(
    NUMBERS,
    lambda inner: st.builds(
        lambda a, op, b: f"({a} {op} {b})",
        inner,
        st.sampled_from(["+", "*", "&&", "||", "<", "? 1 :", ","]),
        inner,
    ),
    max_leaves=3,
)


def expansions(inner):
    """Expansions whose words, patterns and offsets are made of ``inner``."""
    names = st.one_of(PLAIN_NAMES, ELEMENTS)
    defaults = st.builds(
        lambda name, op, word: f"${{{name}{op}{word}}}",
        st.one_of(names, LISTS),
        st.sampled_from([":-", "-", ":+", "+"]),
        inner,
    )
    cut = st.builds(
        lambda name, op, word: f"${{{name}{op}{word}}}",
        names,
        st.sampled_from(["#", "##", "%", "%%", "^^"]),
        inner,
    )
    replaced = st.builds(lambda name, old, new: f"${{{name}//{old}/{new}}}", names, inner, inner)
    sliced = st.builds(
        lambda name, start, length: f"${{{name}:{start}:{length}}}",
        st.one_of(names, LISTS),
        EXPRESSIONS,
        EXPRESSIONS,
    )
    return st.one_of(
        defaults,
        cut,
        replaced,
        sliced,
        EXPRESSIONS.map("$(({}))".format),
        st.builds(str.__add__, inner, inner),
    )


WORDS = st.recursive(
    st.one_of(WHOLE, st.one_of(PLAIN_NAMES, ELEMENTS, LISTS).map("${{{}}}".format)), expansions, max_leaves=4
)


@LIMITS
@given(st.lists(WORDS, min_size=1, max_size=4))
@example(["${V:-$((1024 + U*512))}"])
@example(["${V:-${W:-${X:-$(probe)}}}"])
@example(["${E[@]:-${#S[@]}}", "${E[@]:+x}", "${E[*]+x}", "${S[@]:+x}", "${S[@]+x}"])
@example(["${4+x}", "${L[3]+x}", "${T[$U]+x}", "${U+x}", "${1+x}", "${L[0]+x}"])
@example(["${fresh:=$U}", "$fresh"])
@example(["${a:U:1}", "${a%$U}", "${a/$U/y}", "${U:+yes}"])
def test_what_is_called_known_is_the_same_in_every_run(folder, words):
    arguments = " ".join(f'"k{index}={word}"' for index, word in enumerate(words))
    holds_in_each_run(f"{SETUP}{MAIN} {arguments}\n", folder)


STEPS = st.sampled_from(
    [
        "L[$U]=new", "T[$U]=new", "L[n+U]+=x", "unset 'L[U]'", "shift", "shift 2", "shift $U", "E+=(more)",
        'F=("${E[@]}" end)', 'set -- "${S[@]}"', "set -- $U", "(( n += U ))", "let 'n = #L'", "L=([$U]=z)",
        'read -ra R <<< "a $U"', 'IFS=: read -r P Q n <<< "1:$U:3"', "declare -i n=U", "n=${#E[@]}",
        "for i in ${!E[@]}; do n=$i; done", "export n=$U", "printf -v n '%s' \"$U\"", "export $(probe)",
        "local_of() { local n=$1; a=$n; }; local_of $U x", 'eval "$(probe)"', "declare $(probe)",
        'unset "L[$(probe)]"', 'export "$U=5"', 'declare "n$U=5"',
        "declare -n r=n; r=$U", "declare -n r=L; r[$U]=w", 'declare -n r="$U"; r=5',
        "declare -n r; for r in n a; do r=$U; done",
        "eval set -- x $U y", 'O=$(probe); eval "F=(1 $O)"', "shopt -s lastpipe; probe | read -r n",
        'mapfile -t -O 1 L < <(probe)', 'read -r "L[$U]" <<< new',
        'eval "n$U=5"', 'printf -v "$U" 5', 'for kv in $(probe); do export "$kv"; done',
        'while IFS== read -r key value; do export "$key=$value"; done < <(probe)',
    ]
)  # fmt: skip


@LIMITS
@given(st.lists(STEPS, min_size=1, max_size=4))
def test_assignments_of_what_is_not_known_leave_it_open(folder, steps):
    looked_at = [
        "$n",
        "$a",
        "$P",
        "$Q",
        "${L[0]}",
        "${L[1]}",
        "${L[3]}",
        "${#L[@]}",
        "${T[k]}",
        "${#T[@]}",
        "$#",
    ]
    looked_at += ["$1", "$2", "${E[0]}", "${#E[@]}", "${F[-1]}", "${#F[@]}", "${R[0]}", "${R[1]}", "${#R[@]}"]
    arguments = " ".join(f'"k{index}={word}"' for index, word in enumerate(looked_at))
    holds_in_each_run("\n".join([SETUP, *steps, f"{MAIN} {arguments}\n"]), folder)


def test_a_default_never_holds_an_unknown_piece():
    piece = WordPart("", UnknownPiece("$(cmd)", None))
    with pytest.raises(ValueError, match="MODEL"):
        EnvRef("MODEL", "", (piece,))


def test_what_no_unknown_piece_touches_is_known(folder):
    words = 'a=${L[0]} "b=${L[1]//three/3}" c=${S[-1]} d=$n e=$1 f=${L[@]:0:1} g=${U+set} h=${T[k]}'
    # T has a key that is not known, so that T[k] may be any element
    expected = {"a": "one", "b": "two 3", "c": "last", "d": "2", "e": "p1", "f": "one", "g": "set"}
    assert known(f"{SETUP}{MAIN} {words}\n", folder) == [expected]


@pytest.mark.parametrize(
    "script",
    ["unread; n=$?", "unread > log; n=$?", "n=$(unread); n=$?", "unread | tee log; n=${PIPESTATUS[0]}"],
)
def test_the_status_of_a_program_that_is_not_read_is_open(folder, script):
    [launch] = read_text(f"{script}\n{MAIN} k=$n\n", name="run.sh", cwd=folder).launches
    assert [word.open[0].expression for word in launch.arguments] == ["$?"]


@pytest.mark.parametrize(
    "script",
    [
        "unread; [ $? -eq 0 ] && n=2",
        "unread; if (($? == 0)); then n=2; fi",
        "n=$([[ $(unread) == 3 ]] && echo 4 || echo 5)",
        "unread | while read -r line; do n=2; done",
        "f() { return $(($(unread) > 1)); }; f && n=2",
        "(exit $(unread)) || n=2",
        "U=$(unread); (($U > 1)) && n=2",
        "U=$(unread); if (($U > 1)); then n=2; fi",
    ],
)
def test_a_step_that_depends_on_it_is_said(folder, script):
    reading = read_text(f"{script}\n{MAIN} k=$n\n", name="run.sh", cwd=folder)
    assert [note.code for note in reading.diagnostics if note.code == "TP101"] == ["TP101"]


ROUNDS = [
    "for w in $(probe); do n=$((n + 1)); Q=z; done",
    "probe | while read -r l; do n=9; done",
    'while read -r l; do a+=x; done <<< "$U"',
    "for ((i = 0; i < ${#U}; i++)); do L+=(x); done; n=$i",
    "until [ $n -ge ${#U} ]; do n=$((n * 2)); done",
    "while [ $# -gt 1 ]; do case $1 in p1) n=$2;; 1) a=$2;; *) Q=q;; esac; shift; done",
    "set -- $(probe); while getopts nP: o; do case $o in n) n=9;; P) P=$OPTARG;; esac; done",
    "for w in $(probe); do [[ $w == n=* ]] && n=${w#n=}; if [[ $w == k ]]; then a=4; else Q=4; fi; done",
]


@pytest.mark.parametrize("script", ROUNDS)
def test_what_a_loop_changes_in_rounds_that_are_not_counted_is_open(folder, script):
    words = '"k0=$n" "k1=$a" "k2=$P" "k3=$Q" "k4=${#L[@]}" "k5=$gone" "k6=$#"'
    holds_in_each_run(f"{SETUP}{script}\n{MAIN} {words}\n", folder)


def test_what_such_a_loop_leaves_alone_stays_known(folder):
    script = f"n=2 a=3\nfor w in $(probe); do n=$((n + 1)); {MAIN} k=$n; done\n{MAIN} n=$n a=$a\n"
    assert known(script, folder) == [{"k": "3"}, {"a": "3"}]


def test_a_loop_over_lines_that_are_not_known_is_one_round(folder):
    [launch] = read_text(f"unread | while read -r lr; do {MAIN} lr=$lr; done\n", cwd=folder).launches
    assert launch.arguments[0].open


TRAPS = {  # script → whether `n` is known behind it
    "trap 'n=3' ERR; false": True,
    "trap 'n=3' ERR; false; n=5": True,
    "trap 'n=3' ERR; [ $U = 1 ]": False,
    "set -e; trap 'n=3' ERR; [ $U = 1 ]": True,
    "trap 'n=3; exit 1' ERR; [ $U = 1 ]": True,
    "trap 'n=3' ERR; [ $U = 1 ] || true": True,
    "trap 'n=3' ERR; ! false; if false; then :; fi": True,
    "trap 'n=3' ERR; trap - ERR; [ $U = 1 ]": True,
    "f() { [ $U = 1 ]; true; }; trap 'n=3' ERR; f": True,
    "f() { [ $U = 1 ]; true; }; set -E; trap 'n=3' ERR; f": False,
    "f() { trap 'n=3' ERR; }; f; [ $U = 1 ]": False,
    "f() { n=3; }; trap f ERR; [ $U = 1 ]": False,
    "trap 'export n=3' ERR; ( [ $U = 1 ] )": False,
    "trap 'n=3' ERR; x=$(false; true)": True,
    "set -e; trap 'n=3' EXIT; trap 'n=4; exit' USR1": True,
    "trap 'n=$((n+1))' DEBUG; a=1": False,
    "trap 'n=3' DEBUG; trap - DEBUG; n=5": True,
    "f() { a=1; }; trap 'n=3' RETURN; f": True,
    "f() { a=1; return 1; }; set -T; trap 'n=3' RETURN; f": True,
    "f() { trap 'n=3' RETURN; }; f": True,
    "echo a=1 > f.sh; trap 'n=3' RETURN; . ./f.sh": True,
}


@pytest.mark.parametrize("script", TRAPS)
def test_a_trap_counts_where_its_event_takes_place(folder, script):
    script = f"{SETUP}{script}\n{MAIN} k=$n\n"
    assert [bool(launch) for launch in known(script, folder)] == [TRAPS[script.split("\n")[-3]]]
    holds_in_each_run(script, folder)


def test_a_known_failure_ends_the_script_where_its_trap_does(folder):
    assert known(f"trap 'echo failed; exit 1' ERR\nfalse\n{MAIN} k=1\n", folder) == []


def test_a_file_that_a_trap_may_write_is_open(tmp_path):
    script = f"echo 2 > n; trap 'echo 3 > n' ERR; unread\n{MAIN} k=$(cat n)\n"
    assert known(script, tmp_path) == [{}]
