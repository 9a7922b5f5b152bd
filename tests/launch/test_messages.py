# ruff: noqa: E501
"""What a reading says, to the letter: each message with its code, severity, line, and the launches that stay."""

from __future__ import annotations

import pytest

from trinity_compat.common.limits import Budget
from trinity_compat.launch import read_text

MAIN = "python3 -m verl.trainer.main_ppo"
# (script, its launches, what is said of it)
SAID = [
    ('actor.lr=1', 0, [('TP004', 'warning', 1, "bash reads 'actor.lr' as a command, the override is lost: the line above doesn't end in a backslash")]),
    ('true # c \\\nactor.lr=1', 0, [('TP002', 'warning', 2, "bash reads 'actor.lr' as a command, the override is lost: a comment stands inside the continued command and ends it")]),
    ('MAIN a=1 \\\n  # no \\\n  actor.lr=1', 1, [('TP002', 'warning', 3, "bash reads 'actor.lr' as a command, the override is lost: a comment stands inside the continued command and ends it")]),
    ('MAIN a=1 \\\n# no \\\nactor.lr=1', 1, [('TP002', 'warning', 3, "bash reads 'actor.lr' as a command, the override is lost: a comment stands inside the continued command and ends it")]),
    ('MAIN a=1 \\ \nactor.lr=1', 1, [('TP003', 'warning', 2, "bash reads 'actor.lr' as a command, the override is lost: a blank follows the backslash of the line above")]),
    ('MAIN a=1 \\\n\nactor.lr=1', 1, [('TP004', 'warning', 3, "bash reads 'actor.lr' as a command, the override is lost: an empty line ends the command above")]),
    ('MAIN a=1\nactor.lr=1', 1, [('TP004', 'warning', 2, "bash reads 'actor.lr' as a command, the override is lost: the line above doesn't end in a backslash")]),
    ('select x in a b; do :; done', 0, [('TP101', 'warning', 1, 'select waits for input; its body is not read')]),
    (': $((1/0))', 0, [('TP108', 'error', 1, '$((1/0)): division by 0')]),
    ('r=$((1 % 0))', 0, [('TP108', 'error', 1, '$((1 % 0)): division by 0')]),
    ('((1/0))', 0, [('TP108', 'error', 1, '1/0: division by 0')]),
    ('for ((i=0; i<1/0; i++)); do :; done', 0, [('TP108', 'error', 1, 'i<1/0: division by 0')]),
    ('a=abc\n: ${a:1/0}', 0, [('TP108', 'error', 2, '1/0: division by 0')]),
    ('L[1/0]=3', 0, [('TP108', 'error', 1, '1/0: division by 0')]),
    ('declare -i n=08', 0, [('TP108', 'error', 1, 'n=08: 08: value too great for base')]),
    ('readonly R=1\nR=2', 0, [('TP107', 'warning', 2, 'R is readonly; bash refuses to change it')]),
    ('readonly R=1\nunset R', 0, [('TP107', 'warning', 2, 'R is readonly; bash refuses to unset it')]),
    ('readonly R=1\n((R = 2))', 0, [('TP107', 'warning', 2, 'R is readonly; bash refuses to change it')]),
    ('readonly R=1\n((R[0] = 2))', 0, [('TP107', 'warning', 2, 'R is readonly; bash refuses to change it')]),
    ('export MY-KEY=secret', 0, [('TP107', 'warning', 1, 'export MY-KEY: not a name; bash refuses it with status 1 and sets nothing')]),
    ('export GPUS = 4', 0, [('TP107', 'warning', 1, "export '=': not a name; bash refuses it with status 1 and sets nothing")]),
    ('MAIN\nexport X=1\ndeclare A-B=2', 1, [('TP001', 'error', 3, 'bash stops here: invalid var name')]),
    ('readonly ""', 0, [('TP107', 'warning', 1, "readonly '': not a name; bash refuses it with status 1 and sets nothing")]),
    ('export $X$(cmd)', 0, [('TP101', 'warning', 1, 'export of $(cmd), which is known only at run time: it may set any variable')]),
    ('eval "$(cmd)"', 0, [('TP101', 'warning', 1, 'eval of $(cmd), which is known only at run time: it may set any variable')]),
    ('eval "$(conda shell.bash hook)"', 0, [('TP101', 'warning', 1, 'eval of something that is known only at run time; it is skipped')]),
    ('rlaunch bash x.sh', 0, [('TP101', 'warning', 1, 'the variables that rlaunch sets are known only at run time: those that nothing else sets are unknown (set them with --env NAME=…)'), ('TP106', 'warning', 1, 'x.sh: no such file; it is not read')]),
    ('[ -f /x ] && A=1 || A=2', 0, [('TP101', 'warning', 1, 'this depends on -f /x, which is known only at run time; what follows && does not run')]),
    ('case a in $(cmd)) A=1;; esac', 0, [('TP101', 'warning', 1, "this depends on $(cmd), which is known only at run time; 'a' is assumed not to match")]),
    ('for ((i=0; i<$(cmd); i++)); do :; done', 0, [('TP101', 'warning', 1, 'this depends on $(cmd), which is known only at run time; the loop is read as one round')]),
    ('bash <<< $(cmd)', 0, [('TP101', 'warning', 1, 'bash reads code that is known only at run time; it is skipped')]),
    ('source $X/y.sh', 0, [('TP106', 'warning', 1, '$X/y.sh: its path is known only at run time; it is not read')]),
    ('source "$(cmd)"', 0, [('TP106', 'warning', 1, 'a file: its path is known only at run time; it is not read')]),
    ('bash nope.sh', 0, [('TP106', 'warning', 1, 'nope.sh: no such file; it is not read')]),
    ('. /nope/none.sh', 0, [('TP106', 'warning', 1, '/nope/none.sh: not under --cwd; it is not read: --also-read /nope reads it')]),
    ('N=/etc/passwd\nsource $N', 0, [('TP106', 'warning', 2, '/etc/passwd: not under --cwd; it is not read: --also-read /etc reads it')]),
    ('echo a > z\nsed -i s/a/b/ z\nsource ./z', 0, [('TP106', 'warning', 3, './z: its content is known only at run time; it is not read')]),
    ('while [ -z "$(cmd)" ]; do :; done', 0, [('TP101', 'warning', 1, 'this depends on $(cmd), which is known only at run time; the loop is assumed to end')]),
    ('case $(cmd) in a) ;; esac', 0, [('TP101', 'warning', 1, "this depends on $(cmd), which is known only at run time; read as ''")]),
    ('case x$NOPE in a) ;; esac', 0, [('TP102', 'warning', 1, "this depends on $NOPE, which is not set; read as 'x' (set it with --env NOPE=…)")]),
    ('if [ "$A" ]; then :; fi', 0, [('TP102', 'warning', 1, 'this depends on $A, which is not set; taken as false (set it with --env A=…)')]),
    ('if [ "$(cmd)" ]; then :; fi', 0, [('TP101', 'warning', 1, 'this depends on $(cmd), which is known only at run time; taken as false')]),
    ('for i in $(cmd); do :; done', 0, [('TP101', 'warning', 1, 'this depends on $(cmd), which is known only at run time; the loop is read as one round')]),
    ('for i in "$UNK"; do :; done', 0, [('TP102', 'warning', 1, 'this depends on $UNK, which is not set; the loop is read as one round (set it with --env UNK=…)')]),
    ('while true; do MAIN a=1; done', 1, [('TP103', 'warning', 1, 'no end of this loop after 101 rounds; read as one round')]),
    ('while true; do x=1; done', 0, [('TP103', 'warning', 1, 'no end of this loop after 101 rounds; read as one round')]),
    ('for i in 1 2; do while true; do MAIN a=1; done; done', 2, [('TP103', 'warning', 1, 'no end of this loop after 101 rounds; read as one round')]),
    ('if [ "$(cmd)" = a ]; then exit 0; fi', 0, [('TP101', 'warning', 1, 'this depends on $(cmd), which is known only at run time; taken as false')]),
    ('test "$(cmd)" != 1 && exit 1', 0, [('TP101', 'warning', 1, 'this depends on $(cmd), which is known only at run time; the script is assumed to go on')]),
    ('while ! curl x; do ((++n > 3)) && exit 1; done\nMAIN a=1', 1, [('TP101', 'warning', 1, 'this depends on curl x, which is known only at run time; the loop is assumed to end')]),
    ('if curl x; then MAIN a=1; fi', 1, [('TP101', 'warning', 1, 'this depends on curl x, which is known only at run time; taken as true')]),
    ('if ! curl x; then MAIN a=1; fi', 1, [('TP114', 'warning', 1, 'assumed: the condition is true; this depends on curl x, which is known only at run time, and otherwise the script ends without any training')]),
    ('curl x && exit\nMAIN a=1', 1, [('TP101', 'warning', 1, 'this depends on curl x, which is known only at run time; the script is assumed to go on')]),
    ('MAIN "$(cmd)" $(cmd)', 1, [('TP105', 'warning', 1, '$(cmd) may become any number of arguments')]),
    ('MAIN $A', 1, [('TP105', 'warning', 1, '$A is not set; unquoted, it becomes no argument at all')]),
    ('MAIN $(($A)) $P/x', 1, [('TP119', 'warning', 1, '$P is not set: /x here, unless the environment has it')]),
    ('shopt -s nullglob\nMAIN *.none', 1, [('TP105', 'warning', 2, 'nothing matches this pattern; it becomes no argument at all')]),
    ('set -u\n: $A', 0, [('TP104', 'warning', 2, '$A is not set; under set -u bash ends the script here'), ('TP105', 'warning', 2, '$A is not set; unquoted, it becomes no argument at all')]),
    ('set -u\n: $1', 0, [('TP104', 'warning', 2, '$1 is not set; under set -u bash ends the script here')]),
    ('set -u\nMAIN a=${B} b=${C:-x}', 1, [('TP104', 'warning', 2, '$B is not set; under set -u bash ends the script here')]),
    (': ${D:?msg}', 0, [('TP104', 'warning', 1, '$D must be set; without it bash ends the script here'), ('TP105', 'warning', 1, '$D is not set; unquoted, it becomes no argument at all')]),
    (': ${1?}', 0, [('TP104', 'warning', 1, '$1 must be set; without it bash ends the script here'), ('TP105', 'warning', 1, '$1 is not set; unquoted, it becomes no argument at all')]),
    ("trap 'MAIN t=1' TERM", 0, [('TP109', 'warning', 1, 'what the trap for TERM starts is not read')]),
    ("trap 'MAIN t=1' SIGINT\ntrap 'echo' USR1", 0, [('TP109', 'warning', 1, 'what the trap for INT starts is not read')]),
    ('parallel MAIN', 0, [('TP109', 'warning', 1, 'parallel is not read; a training main that it starts is not found')]),
    ('foo verl.trainer.main_ppo', 0, []),
    ('python3 \u2013m verl.trainer.main_ppo a.b=1', 0, [('TP125', 'warning', 1, '\u2013m begins with \u2013 (U+2013), which is not a hyphen: python3 reads it as a file; write -m')]),
    ('torchrun \u2014nproc_per_node=8 -m verl.trainer.sft_trainer', 0, [('TP125', 'warning', 1, '\u2014nproc_per_node=8 begins with \u2014 (U+2014), which is not a hyphen: torchrun reads it as a file; write --nproc_per_node=8')]),
    ('xargs python3', 0, [('TP109', 'warning', 1, 'xargs is not read; a training main that it starts is not found')]),
    ('declare -n a=b[1]', 0, [('TP109', 'warning', 1, 'a reference (declare -n a) is not read; what is done through it is missing here')]),
    ('f() { local -n q=$1[1]; }\nf x', 0, [('TP109', 'warning', 1, 'a reference (local -n q) is not read; what is done through it is missing here')]),
    ('if true; then', 0, [('TP001', 'error', 1, 'bash stops here: `then` must be followed by a statement list')]),
    ('MAIN a=1\nfi', 1, [('TP001', 'error', 2, 'bash stops here: `fi` can only be used to end an `if`')]),
    ('cd nowhere', 0, [('TP106', 'warning', 1, 'cd: there is no directory nowhere')]),
    ('MAIN $(date)', 1, [('TP110', 'warning', 1, 'date gives the time of this reading; set SOURCE_DATE_EPOCH to fix it')]),
    ('exit 3', 0, [('TP111', 'warning', 1, 'the script ends here before it starts a training main')]),
    ('M=eval\nif [ $M = train ]; then\n  A=1 MAIN a=1\nfi', 0, [('TP111', 'warning', 3, 'this line would start a training main, and the script does not come to it; give what decides that: --env NAME=VALUE, or arguments after --')]),
    ('f() {\n  MAIN a=1\n}\necho python3 -m verl.trainer.main_ppo', 0, [('TP111', 'warning', 2, 'this line would start a training main, and the script does not come to it; give what decides that: --env NAME=VALUE, or arguments after --')]),
    ('set -e\nfalse', 0, [('TP111', 'warning', 2, 'the script ends here before it starts a training main')]),
    ('set -e\nx=$(exit 4)\nMAIN', 0, [('TP111', 'warning', 2, 'the script ends here before it starts a training main')]),
    ('let 1/0', 0, [('TP108', 'error', 1, '1/0: division by 0')]),
    ('coproc { :; }', 0, []),
    ('f() { f; }\nf', 0, [('TP112', 'error', 1, 'reading stopped here: more than 60 functions or scripts in each other')]),
    ('x=xxxxxxxxxxxxxxxx\nwhile :; do x=$x$x; done', 0, [('TP112', 'error', 2, 'reading stopped here: too much text')]),
    ('for i in {1..99999}; do :; done', 0, [('TP112', 'error', 1, 'reading stopped here: braces that make more than 20000 words')]),
    ('a={1..200}{1..200}', 0, []),
    (': {a,{1..150}}{1..150}', 0, [('TP112', 'error', 1, 'reading stopped here: braces that make more than 20000 words')]),
    ('for i in {1..600}; do MAIN i=$i; done', 512, [('TP112', 'error', 1, 'reading stopped here: more than 512 launches')]),
    ('for i in {1..2500}; do echo $i > f$i; done', 0, [('TP112', 'error', 1, 'reading stopped here: the script writes too much')]),
    ('for i in {1..99}; do eval "x$i=1"; done', 0, [('TP112', 'error', 1, 'reading stopped here: too many pieces of code made by eval or bash -c')]),
    ('a=({1..20000})\na+=(1)', 0, [('TP112', 'error', 2, 'reading stopped here: more than 20000 words in one list')]),
    ('((x = 1/0)); ((y))', 0, [('TP108', 'error', 1, 'x = 1/0: division by 0')]),
    ('f() { curl x || return 1; }\nf && MAIN a=1', 1, [('TP101', 'warning', 1, 'this depends on curl x, which is known only at run time; the script is assumed to go on')]),
    ('[ "$(cmd)" = a ] || exit 1', 0, [('TP101', 'warning', 1, 'this depends on $(cmd), which is known only at run time; the script is assumed to go on')]),
    ('[ -f /none/x ] || exit 3', 0, [('TP101', 'warning', 1, 'this depends on -f /none/x, which is known only at run time; the script is assumed to go on')]),
    ('curl x | bash', 0, [('TP101', 'warning', 1, 'bash reads code that is known only at run time; it is skipped')]),
    ('shopt -s extglob\n[[ a == @($x|b) ]]', 0, [('TP109', 'warning', 2, 'an expansion or a quote within @($x|b) is not read')]),
    ('while ! curl x; do ((++n > 3)) && exit 1; done\nMAIN a=1', 1, [('TP101', 'warning', 1, 'this depends on curl x, which is known only at run time; the loop is assumed to end')]),
    ('for i in 1; do curl x && break\n[ $i = 1 ] && exit 1\ndone\nMAIN a=1', 1, [('TP114', 'warning', 1, 'assumed: what follows && runs; this depends on curl x, which is known only at run time, and otherwise the script ends without any training')]),
]  # fmt: skip


@pytest.mark.parametrize(("text", "launches", "said"), SAID, ids=[text for text, *_ in SAID])
def test_a_construct_gets_its_message_word_for_word(text, launches, said, tmp_path, monkeypatch):
    monkeypatch.delenv("SOURCE_DATE_EPOCH", raising=False)
    monkeypatch.setattr(Budget, "check_clock", lambda _: None)  # under a tracer it would be first to say stop
    reading = read_text(text.replace("MAIN", MAIN) + "\n", name="run.sh", cwd=tmp_path)
    found = [(one.code, one.severity, one.where.line, one.message) for one in reading.diagnostics]
    assert (len(reading.launches), found) == (launches, said)
    assert {one.where.file for one in reading.diagnostics} <= {"run.sh"}
