# ruff: noqa: E501
"""No script costs more than two seconds or 500 MB, starts anything but the parser, or reads elsewhere."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap

import pytest

from trinity_compat.common.readable_files import also_reading

LAUNCH = "python3 -m verl.trainer.main_ppo a=1\n"
BOMBS = {
    "fork bomb": ":(){ :|:& };:",
    "fork bomb in a function": "f() { f & f; }; f",
    "endless while": "while true; do x=1; done",
    "endless while with work": "while :; do echo $x | tr a b >/dev/null; x=$(date)$x; done",
    "endless until": "until false; do ((i++)); done",
    "endless c for": "for ((;;)); do :; done",
    "nested loops": "for a in {1..5000}; do for b in {1..5000}; do for c in {1..5000}; do :; done; done; done",
    "brace range": "echo {1..999999999}",
    "brace product": "echo " + "{a,b}" * 40,
    "brace nesting": "echo " + "{a," * 3000 + "b" + "}" * 3000,
    "string doubling": "x=abcdefgh; while true; do x=$x$x; done",
    "string doubling by replace": "x=aaaaaaaa; for i in {1..60}; do x=${x//a/aa}; done",
    "array doubling": 'a=(1 2 3); while true; do a+=("${a[@]}"); done',
    "positional doubling": 'set -- a b; while true; do set -- "$@" "$@"; done',
    "printf width": "x=$(printf '%999999999d' 1)",
    "printf precision": "x=$(printf '%.999999999f' 1)",
    "power": "echo $((2**99999999)) $((9**9**9**9))",
    "shift count": "echo $((1<<99999999999))",
    "arithmetic nesting": "echo $((" + "(" * 5000 + "1" + ")" * 5000 + "))",
    "arithmetic length": "echo $((1" + "+1" * 50000 + "))",
    "arithmetic recursion": "a=b; b=a; echo $((a))",
    "arithmetic tree": "a='b+b'; b='c+c'; c='d+d'; d='e+e'; e='f+f'; f='g+g'; g='h+h'; h='i+i'; i='j+j'; j='k+k'; "
    "k='l+l'; l='m+m'; m='n+n'; n='o+o'; o='p+p'; p='q+q'; q='r+r'; r=1; echo $((a))",
    "eval recursion": "f() { eval f; }; f",
    "eval of itself": 'x=\'eval "$x"\'; eval "$x"',
    "eval fan-out": 'e() { eval "e $1; e $1"; }; e x',
    "eval of different texts": 'for i in {1..9999}; do eval "x$i=$i"; done',
    "function recursion": "f() { f; }; f",
    "mutual recursion with substitution": "f() { echo $(g) $(g); }; g() { echo $(f) $(f); }; f",
    "source of itself": 'source "$0"; source "$0"',
    "bash of itself": 'bash "$0" & bash "$0"',
    "parentheses": "(" * 3000 + "echo" + ")" * 3000,
    "substitutions": "echo " + "$(echo " * 500 + "x" + ")" * 500,
    "blocks": "{ " * 2000 + "echo; " + "}; " * 2000,
    "ifs": "if true; then " * 1500 + "echo; " + "fi; " * 1500,
    "parameter nesting": "echo " + "${x:-" * 1500 + "y" + "}" * 1500,
    "glob backtracking": "x="
    + "a" * 3000
    + "; [[ $x == "
    + "*a" * 40
    + "*b ]]; echo ${x##"
    + "*a" * 30
    + "b}",
    "extglob backtracking": "shopt -s extglob; x=" + "a" * 300 + "; [[ $x == +(+(a)|+(aa)|a*(a))b ]]",
    "extglob negation": "shopt -s extglob; x=" + "ab" * 300 + "; [[ $x == !(a*!(b*!(a*))) ]]",
    "regex backtracking": "x="
    + "a" * 400
    + "; [[ $x =~ ^(a+)+$b ]]; [[ $x =~ (a|aa)+c ]]; [[ $x =~ (.*)(.*)(.*)(.*)(.*)d ]]",
    "regex repetition": "x=" + "a" * 200 + "; [[ $x =~ ((a{1,200}){1,200}){1,200}b ]]",
    "replace everywhere": "x=" + "a" * 20000 + "; y=${x//*(a)b/c}; z=${x//a*a*a*b/c}",
    "tr": "x=$(printf 'a%.0s' {1..5000}); while true; do x=$(echo $x$x | tr a-z b-za); done",
    "here string growth": 'x=aaaaaaaaaaaaaaaa; while read -r l; do x=$(cat <<< "$x$x"); done < <(echo -e x"\\n"{1..1000})',
    "written files": "for i in {1..9999}; do echo {1..999} > f$i; done",
    "append to a file": "echo aaaaaaaaaaaaaaaaaaaaaaaa > f; while true; do cat f f >> f; done",
    "mapfile": 'mapfile -t a < <(printf "%s\\n" {1..19999}); for i in {1..200}; do b=("${a[@]}"); done',
    "launch loop": "while true; do " + LAUNCH.strip() + "; done",
    "launches": "for i in {1..9999}; do " + LAUNCH.strip() + "; done",
    "many variables": "for i in {1..19999}; do declare v$i=1; (:); done",
    "trap": "trap 'f' EXIT; f() { trap f EXIT; exit; }; f",
    "alias loop": "shopt -s expand_aliases; alias a=b b=a; a",
    "nameref loop": "declare -n a=b; declare -n b=a; a=1; echo $a",
    "indirect loop": "a=a; echo ${!a}; b='${!b}'; eval echo $b",
    "long line": "x='" + "y" * 900_000 + "'; echo $x",
    "long script": "x=1\n" * 150_000,
    "too long": "#" + "x" * 2_000_000,
    "null bytes": "echo a\0b\0\0; x=\0",
    "invalid utf-8": "echo \udcff\udc80 $'\\xff\\u0000'",
    "unfinished": 'echo "${x[$((`(((',
    "devices": "source /dev/zero; . /dev/stdin; x=$(cat /dev/zero); read y < /dev/random; bash /proc/self/mem",
}
RUNNER = """
import json, resource, sys, time
from trinity_compat.launch import read_text
text = sys.stdin.buffer.read().decode(errors="surrogateescape")
clock = time.perf_counter(), time.process_time()
try:
    reading = read_text(text, name="x.sh", cwd=sys.argv[1])
    found = len(reading.launches) >= 1 or [d.code for d in reading.diagnostics] == ["TP112"]
except Exception as error:
    if type(error).__name__ != "UserError":
        raise
    found = text.startswith('python3') and len(text) > 1 << 20
used = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime + time.process_time() - clock[1]
# ru_maxrss would count what the forking parent held before exec
(peak,) = [int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM")]
print(json.dumps([found, used, peak // 1024]))
"""


@pytest.mark.parametrize("name", BOMBS)
def test_a_bomb_stays_small(name, tmp_path):
    data = (LAUNCH + BOMBS[name] + "\n").encode(errors="surrogateescape")
    (tmp_path / "x.sh").write_bytes(data)
    run = subprocess.run(
        [sys.executable, "-c", RUNNER, str(tmp_path)],
        input=data,
        capture_output=True,
        timeout=60,
        cwd=tmp_path,
    )
    assert run.returncode == 0, run.stderr.decode()[-2000:]
    found, seconds, megabytes = json.loads(run.stdout)
    assert found, "the launch before the bomb is read, or the whole script is refused with TP112"
    assert seconds < 2.0
    assert megabytes < 500
    assert sorted(path.name for path in tmp_path.iterdir()) == ["x.sh"]


def _reading_of(text, cwd, env=None):
    from trinity_compat.launch import read_text

    return read_text(textwrap.dedent(text), name="x.sh", cwd=cwd, env=env or {})


def test_files_outside_are_not_read(tmp_path):
    inside, outside = tmp_path / "in", tmp_path / "out"
    inside.mkdir()
    outside.mkdir()
    (outside / "secret").write_text("TOP\n")
    (outside / "lib.sh").write_text("LIB=loaded\n")
    (inside / "link").symlink_to(outside / "secret")
    reading = _reading_of(
        f"""
        D={outside}
        read -r r < {outside}/secret
        source $D/lib.sh
        python3 -m verl.trainer.main_ppo a=$(cat {outside}/secret) b=$(cat ../out/secret) c=$(cat link) d=$r \\
          e=$(head -1 {outside}/secret) f=$(< {outside}/secret) g={outside}/s* h=$LIB
        """,
        inside,
    )
    words = reading.launches[0].arguments
    assert not any("TOP" in word.text or "loaded" in word.text for word in words)
    assert all(word.open for word in words[:6])


def test_a_folder_that_the_user_names_may_be_read_too(tmp_path):
    for name in ("in", "team", "other"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "lib.sh").write_text(f"LIB={name}\n")
    script = "source {}/lib.sh\npython3 -m verl.trainer.main_ppo a=$LIB\n"
    with also_reading([str(tmp_path / "team")]):
        team, other = (
            _reading_of(script.format(tmp_path / name), tmp_path / "in") for name in ("team", "other")
        )
    assert [word.text for word in team.launches[0].arguments] == ["a=team"]
    for reading in (other, _reading_of(script.format(tmp_path / "team"), tmp_path / "in")):
        assert [word.text for word in reading.launches[0].arguments] == ["a="]
        assert "--also-read" in reading.diagnostics[0].message


def test_only_the_parser_is_started(tmp_path, monkeypatch):
    started = []
    original = subprocess.Popen.__init__

    def watch(self, args, *rest, **options):
        started.append(args)
        original(self, args, *rest, **options)

    monkeypatch.setattr(subprocess.Popen, "__init__", watch)
    _reading_of(
        "touch a; curl x | bash; $(rm -rf b); eval 'mkdir c'; bash -c 'touch d'; python3 -c 'x'", tmp_path
    )
    assert started and all(args[0].endswith("shfmt") for args in started)
    assert not list(tmp_path.iterdir())
