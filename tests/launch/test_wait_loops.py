"""Scripts that wait for nodes, servers or flags are read past the wait, and say what was assumed."""

import re

import pytest

from trinity_compat.launch import read_text

MAIN = "python3 -m verl.trainer.main_ppo a.b=1\n"
COUNT = "n=$(ray status | grep -c node_)"


@pytest.mark.parametrize(
    "wait",
    [
        f"while true; do {COUNT}; [[ $n -ge 2 ]] && break; sleep 5; done",
        f"while true; do {COUNT}; [[ $n -lt 2 ]] || break; sleep 5; done",
        f'while :; do {COUNT}; if [ "$n" -ge 2 ]; then echo up; break; fi; sleep 5; done',
        f'while [ 1 ]; do {COUNT}; if [ "$n" -lt 2 ]; then sleep 5; else break; fi; done',
        f"until false; do {COUNT}; (( n >= 2 )) && {{ echo up; break; }}; done",
        f"for ((;;)); do {COUNT}; [ $n = 2 ] && echo up && break; done",
        f"wait_for() {{ while true; do {COUNT}; [ $n = 2 ] && return 0; sleep 1; done; }}; wait_for",
        f"while true; do {COUNT}; [ $n = x ] && {{ echo no; exit 1; }}\n [ $n = 2 ] && break; done",
    ],
)
def test_what_an_endless_loop_waits_for_comes(wait):
    reading = read_text(f"{wait}\n{MAIN}")
    assert len(reading.launches) == 1
    assert any("the loop is assumed to get what it waits for" in note.message for note in reading.diagnostics)
    assert "TP112" not in {note.code for note in reading.diagnostics}


USED = "u=$(nvidia-smi -i $i)"


@pytest.mark.parametrize(
    "wait",
    [
        f"for i in 0 1; do {USED}; if [ $u -lt 9 ]; then break 2; fi; done",
        'mapfile -t used < <(nvidia-smi); n=0; for u in "${used[@]}"; do [ $u -lt 9 ] && n=$((n + 1)); done\n'
        "if [ $n -ge 4 ]; then break; fi",
        f"n=0; for i in $(seq 4); do {USED}; if [ $u -lt 9 ]; then n=$((n + 1)); fi; done\n"
        "[ $n -lt 4 ] || { echo go; break; }",
        "[ -f gpus_are_free ] && break",
    ],
)
def test_a_loop_that_would_never_end_has_what_it_waits_for(wait, tmp_path):
    text = f"while true; do {wait}\nsleep 5; done\n{MAIN}"
    reading = read_text(text, cwd=tmp_path)
    assert len(reading.launches) == 1
    said = " ".join(note.message for note in reading.diagnostics)
    assert re.search("the loop (gets|is assumed to get) what it waits for", said)
    assert "TP112" not in {note.code for note in reading.diagnostics}


@pytest.mark.parametrize("end", ["exit 0", "break 2"])
def test_a_launch_inside_a_loop_that_waits_is_found(end):
    check = f"{USED}; if [ $u -gt 9 ]; then echo busy; else {MAIN} {end}\nfi"
    reading = read_text(f"while true; do for i in 0 1; do {check}; done; sleep 5; done\n")
    assert [[word.text for word in launch.arguments] for launch in reading.launches][:1] == [["a.b=1"]]
    assert {"TP101", "TP114"} & {note.code for note in reading.diagnostics}


def test_a_loop_that_counts_its_tries_ends_where_it_says():
    text = (
        f"i=0; while true; do i=$((i + 1)); if [ $i -ge 60 ]; then break; fi; done\n{MAIN.strip()} i.j=$i\n"
    )
    reading = read_text(text)
    assert [word.text for word in reading.launches[0].arguments] == ["a.b=1", "i.j=60"]
    assert reading.diagnostics == ()


@pytest.mark.parametrize(
    "flag",
    [
        "up=0; if curl -s host; then up=1; fi; [ $up -eq 1 ] || exit 1",
        "up=false; for i in 1 2 3; do if curl host; then up=true; break; fi; done; if ! $up; then exit 1; fi",
    ],
)
def test_a_flag_that_an_unknown_condition_sets_is_taken_as_set(flag):
    reading = read_text(f"{flag}\n{MAIN}")
    assert len(reading.launches) == 1
    assert {"TP101", "TP114"} & {note.code for note in reading.diagnostics}


def test_a_launch_that_is_started_again_and_again_is_one():
    text = f"while true; do {MAIN.strip()}; [ -f /done ] && break; done\n"
    assert len(read_text(text).launches) == 1


def test_a_loop_with_a_known_break_is_evaluated():
    text = f"i=0; while true; do i=$((i + 1)); [ $i -ge 3 ] && break; done\n{MAIN.strip()} i.j=$i\n"
    reading = read_text(text)
    assert [word.text for word in reading.launches[0].arguments] == ["a.b=1", "i.j=3"]
    assert reading.diagnostics == ()


def test_code_for_another_terminal_is_read_with_one_piece_open():
    line = 'tmux send-keys -t 0 "cd $HOME/v && python3 -m verl.trainer.main_ppo a.b=$(hostname) c.d=2" C-m\n'
    reading = read_text(line, env={"HOME": "/h"})
    assert [word.text for word in reading.launches[0].arguments] == ["a.b=", "c.d=2"]
    assert [note.code for note in reading.diagnostics if "hostname" in note.message][:1] == ["TP101"]


def test_lines_typed_into_one_terminal_keep_their_places():
    text = """tmux send-keys -t w "export N=2" C-m

tmux send-keys -t w "cd /d" C-m "python3 -m verl.trainer.main_ppo a.b=\\$N" C-m
"""
    (launch,) = read_text(text).launches
    assert (str(launch.where).rpartition(":")[2], launch.cwd) == ("3", "/d")
    assert [(word.text, word.where.line) for word in launch.arguments] == [("a.b=2", 3)]


SERVER = "vllm serve org/judge --port 8000"


def beside(text):
    """(line, message) of what a script is said to start beside its launch."""
    return [(note.where.line, note.message) for note in read_text(text).diagnostics if note.code == "TP120"]


@pytest.mark.parametrize(
    "start",
    [
        f"{SERVER} &",
        f"CUDA_VISIBLE_DEVICES=0 nohup {SERVER} > log 2>&1 &",
        f"(cd /srv && {SERVER}) &",
        f"{{ {SERVER} | tee log; }} &",
        f"serve() {{ {SERVER}; }}; serve &",
        "python -m sglang.launch_server --port 8000 &",
        "for i in 0 1; do vllm serve m --port 800$i & done",
    ],
)
def test_a_server_that_starts_beside_the_launch_is_named(start):
    (found,) = beside(f"{start}\nuntil curl -s localhost:8000; do sleep 5; done\n{MAIN}")
    assert found[0] == 1
    assert "trinity-compat run starts it with the rest of the script" in found[1]


def test_the_command_is_shown_on_one_line_without_its_secrets():
    ((_, message),) = beside(f"vllm serve m \\\n  --api-key sk-1 --port 8000 &\n{MAIN}")
    assert message.startswith("vllm serve m --api-key *** --port 8000 & starts in the background")
    ((_, message),) = beside(f"vllm serve {'m' * 99} {'n' * 99} &\n{MAIN}")
    assert len(message.partition(" starts in the background")[0]) <= 160


@pytest.mark.parametrize(
    "text",
    [
        f"{MAIN}{SERVER} &",  # after the launch
        f"{SERVER}\n{MAIN}",  # not in the background
        f"nvidia-smi dmon > gpu.log &\nsleep 9 &\n{MAIN}",
        f"{SERVER} &\n",  # no launch at all
        "python3 -m verl.trainer.main_ppo a.b=1 &\nwait\n",
    ],
)
def test_what_no_launch_could_ask_is_not_named(text):
    assert not beside(text)


def test_the_number_of_a_server_is_a_word_though_it_is_not_known():
    codes = {note.code for note in read_text(f"{SERVER} &\necho $! > pid\n{MAIN}kill $!\n").diagnostics}
    assert codes == {"TP120"}


@pytest.mark.parametrize(
    "monitor",
    [
        "while true; do BODY; sleep 9; done &",
        "while sleep 9; do BODY; done &",
        'while sleep "${EVERY:-60}"; do BODY; done &',
        "watch() { while :; do BODY; if [[ -f /done ]]; then kill 0; exit 1; fi; done; }\nwatch &",
        "(\n  until false; do BODY; done\n) &",
        "bash -c 'while [ 1 ]; do BODY; done' &",
        "while echo; do BODY; done &",
        "while test 1 -lt 2; do x=y; BODY; done &",
        "for ((; 1 < 2; )); do BODY; done &",
    ],
)
def test_a_monitor_in_the_background_costs_a_hundred_rounds_and_the_launch_is_read(monitor):
    monitor = monitor.replace("BODY", "; ".join("nvidia-smi >> gpu.log" for _ in range(10)))
    awaited = read_text(f"{monitor.removesuffix(' &')}\n{MAIN}")
    assert "no end of this loop after 101 rounds" in "\n".join(note.message for note in awaited.diagnostics)
    reading = read_text(f"{monitor}\n{MAIN}")
    assert len(reading.launches) == 1
    assert "TP103" not in {note.code for note in reading.diagnostics}


def test_a_launch_in_the_background_behind_a_loop_without_an_end_is_warned_of():
    reading = read_text(f"(while true; do date; done; {MAIN.strip()}) &\n")
    assert (len(reading.launches), "TP103" in {note.code for note in reading.diagnostics}) == (1, True)


@pytest.mark.parametrize(
    ("loop", "n"),
    [
        ("n=0; while test $n -lt 200; do n=$((n + 1)); done", 200),
        ("a=(); while [ ${#a[@]} -lt 200 ]; do a+=(x); done; n=${#a[@]}", 200),
        (f"set -- {'x ' * 200}; n=0; while [ $# -gt 1 ]; do shift; done; n=$#", 1),
        ("while read -r line && test 1 -lt 2; do n=$line; done <<E\n" + 150 * "x\n" + "z\nE\n", "z"),
    ],
)
def test_a_loop_whose_rounds_differ_goes_on_to_its_end(loop, n):
    reading = read_text(f"{loop}\n{MAIN.strip()} n.n=$n\n")
    assert [word.text for word in reading.launches[0].arguments] == ["a.b=1", f"n.n={n}"]
    assert reading.diagnostics == ()
