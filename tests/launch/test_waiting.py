"""Scripts that wait for nodes, servers or flags are read past the wait, and say what was assumed."""

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
    assert any("what the loop waits for is taken to come" in note.message for note in reading.diagnostics)
    assert "TP112" not in {note.code for note in reading.diagnostics}


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


def test_a_known_break_is_no_guess():
    text = f"i=0; while true; do i=$((i + 1)); [ $i -ge 3 ] && break; done\n{MAIN.strip()} i.j=$i\n"
    reading = read_text(text)
    assert [word.text for word in reading.launches[0].arguments] == ["a.b=1", "i.j=3"]
    assert reading.diagnostics == ()


def test_code_for_another_terminal_is_read_with_one_piece_open():
    line = 'tmux send-keys -t 0 "cd $HOME/v && python3 -m verl.trainer.main_ppo a.b=$(hostname) c.d=2" C-m\n'
    reading = read_text(line, env={"HOME": "/h"})
    assert [word.text for word in reading.launches[0].arguments] == ["a.b=", "c.d=2"]
    assert [note.code for note in reading.diagnostics if "hostname" in note.message][:1] == ["TP101"]
