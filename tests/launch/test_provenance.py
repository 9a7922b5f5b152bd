# ruff: noqa: E501
"""Where each word comes from: environment references, open values, lines, exported variables."""

from __future__ import annotations

import textwrap

import pytest

from trinity_compat.launch import EnvRef, UnknownPiece, read_argv, read_script, read_text

MAIN = "python3 -m verl.trainer.main_ppo"


def reading_of(text, tmp_path, **options):
    return read_text(textwrap.dedent(text).lstrip("\n"), name="run.sh", cwd=tmp_path, **options)


def launch_of(text, tmp_path, **options):
    (launch,) = reading_of(text, tmp_path, **options).launches
    return launch


def parts_of(word):
    return [part.source or part.text for part in word.parts]


def test_a_variable_of_the_surroundings_stays_a_reference(tmp_path):
    launch = launch_of(f'{MAIN} a=$HOME/models b="x${{V:-d}}y" c=${{W:-$HOME/w}}\n', tmp_path)
    a, b, c = launch.arguments
    assert parts_of(a) == ["a=", EnvRef("HOME"), "/models"]
    assert parts_of(b) == ["b=x", EnvRef("V", "d"), "y"]
    assert b.text == "b=xdy"
    assert c.env_refs[0].default == "/w"
    assert [part.source for part in c.env_refs[0].parts] == [EnvRef("HOME"), None]


@pytest.mark.parametrize("quoted", ["""'a"b'""", """'$(echo 'x y')'""", "'${W:-'in'}'"])
def test_quotes_that_the_parser_cannot_be_given_as_bash_reads_them_stay_open(quoted, tmp_path):
    launch = launch_of(f'unset V W\n{MAIN} a="${{V:-{quoted}}}" b="${{V:-\'q\'}}"\n', tmp_path)
    assert launch.arguments[0].open
    assert parts_of(launch.arguments[1]) == ["b='q'"]


@pytest.mark.parametrize("word", ["${V@Q}", "${V@U}", "${V@A}", r"$(printf %q $'a\nb')"])
def test_a_transformed_value_is_open(word, tmp_path):
    launch = launch_of(f"V=v\n{MAIN} a={word}\n", tmp_path)
    assert [one.expression for one in launch.arguments[0].open] == [word]


@pytest.mark.parametrize("declare", ["local -n r=$1[1]", "declare -n r=Q[0]"])
def test_a_reference_to_an_element_is_named(declare, tmp_path):
    reading = reading_of(f"f() {{\n{declare}\n{MAIN} a=$r\n}}\nf Q\n", tmp_path)
    assert [one.expression for one in reading.launches[0].arguments[0].open] == ["$r"]
    assert [(one.code, one.where.line) for one in reading.diagnostics if one.code == "TP109"] == [
        ("TP109", 2)
    ]


@pytest.mark.parametrize(
    "command",
    [
        "echo abc | sed s/b/x/",
        "echo a b | awk '{print $2}'",
        "echo a:b | cut -d: -f2",
        "printf 'b\\na\\n' | sort",
        "printf 'a\\na\\n' | uniq",
        "echo a | wc -c",
        "printf 'a\\nb\\n' | head -1",
        "printf 'a\\nb\\n' | tail -n 1",
        "printf 'a\\nb\\n' | paste -sd,",
        "echo abc | rev",
        "echo 1+2 | bc",
        "echo abc | grep -o b",
        "echo ' x ' | xargs -n 1",
        "seq 3",
        "python3 -c 'print(3 * 2)'",
        "echo abc | tr b $RANDOM",
        r"echo 'a-b' | tr 'a\-z' x",
        "echo aabb | tr -ds a b",
        "echo aabb | tr --complement a b",
        "expr 1 : 1",
        "date -R",
        "uname -a",
        "realpath --fancy=x .",
        "cat -n <<< x",
    ],
)
def test_the_output_of_a_program_that_is_not_computed_is_named(command, tmp_path):
    launch = launch_of(f'{MAIN} "a=$({command})"\n', tmp_path)
    assert [one.expression for one in launch.arguments[0].open] == [f"$({command})"]


@pytest.mark.parametrize(
    ("condition", "taken"),
    [("cat /n/x | grep -q b", "b"), ("grep -q x file", "b"), ("seq 3", "a"), ("echo a | head -1", "a")],
)
def test_the_status_of_a_program_that_is_not_computed_is_a_guess(condition, taken, tmp_path):
    reading = reading_of(f"if {condition}; then x=a; else x=b; fi\n{MAIN} x=$x\n", tmp_path)
    assert reading.launches[0].arguments[0].text == f"x={taken}"
    assert [(one.code, one.where.line) for one in reading.diagnostics] == [("TP101", 1)]


@pytest.mark.parametrize("expression", [r"\w", r"a\b", r"(a)\1", "[[.a.]]", "[[=a=]]"])
def test_what_an_expression_that_is_not_followed_decides_is_a_guess(expression, tmp_path):
    text = f"e='{expression}'\nif [[ aa =~ $e ]]; then x=1; fi\n{MAIN} x=$x\n"
    assert [(one.code, one.where.line) for one in reading_of(text, tmp_path).diagnostics][:1] == [
        ("TP101", 2)
    ]


def test_what_a_group_of_an_expression_matched_is_open(tmp_path):
    text = f"[[ Qwen-7B =~ ([0-9]+)B ]]\n{MAIN} a=${{BASH_REMATCH[0]}} b=${{BASH_REMATCH[1]}}\n"
    a, b = launch_of(text, tmp_path).arguments
    assert (a.text, a.open) == ("a=7B", ())
    assert parts_of(b)[1].expression == "${BASH_REMATCH[1]}"


def test_a_list_that_is_not_known_is_read_as_one_round(tmp_path):
    reading = reading_of(f"for i in $(seq 3); do\n{MAIN} seed=$i\ndone\n", tmp_path)
    assert [parts_of(one.arguments[0])[1].expression for one in reading.launches] == ["$(seq 3)"]
    assert [(one.code, one.where.line) for one in reading.diagnostics if one.code == "TP101"] == [
        ("TP101", 1)
    ]


@pytest.mark.parametrize(
    "edit", ["sed -i s/1/2/ run.sh", "sed -ri.bak s/1/2/ run.sh", "sed --in-place -e s/1/2/ -e p run.sh"]
)
def test_what_sed_leaves_in_a_file_is_open(edit, tmp_path):
    launch = launch_of(f'echo a=1 > run.sh\n{edit}\n{MAIN} "$(cat run.sh)"\n', tmp_path)
    assert launch.arguments[0].text == ""
    assert launch.arguments[0].open


@pytest.mark.parametrize("run", ["bash", "source"])
def test_a_script_that_sed_changed_in_ways_not_followed_is_not_read(run, tmp_path):
    text = f"echo '{MAIN} a=1' > run.sh\nsed -i '/x/s/1/2/' run.sh\n{run} ./run.sh\n"
    reading = reading_of(text, tmp_path)
    assert reading.launches == ()
    assert [(one.code, one.where.line) for one in reading.diagnostics] == [("TP106", 3)]


def test_a_given_variable_is_plain_text(tmp_path):
    launch = launch_of(f"{MAIN} a=$HOME/models b=${{V:-d}} c=~/x\n", tmp_path, env={"HOME": "/h", "V": "v"})
    assert [word.text for word in launch.arguments] == ["a=/h/models", "b=v", "c=/h/x"]
    assert all(part.source is None for word in launch.arguments for part in word.parts)


def test_references_travel_through_the_script(tmp_path):
    text = f"""
    MODEL=${{MODEL:-qwen}}
    P="$HOME/ckpt/$MODEL"
    f() {{ local x=$1; {MAIN} "${{A[@]}}" d=$x "$@"; }}
    A=(a=$P)
    read -r R <<< "$P"
    f "b=$P" "c=$(echo "$P")" "r=$R"
    """
    launch = launch_of(text, tmp_path)
    for word in launch.arguments:
        assert word.env_refs[:2] == (EnvRef("HOME"), EnvRef("MODEL", "qwen")), word


def test_references_travel_through_code_made_of_text(tmp_path):
    launch = launch_of(f'CMD="{MAIN} a=$HOME/x"\neval "$CMD b=${{V:-1}}"\n', tmp_path)
    assert [parts_of(word) for word in launch.arguments] == [
        ["a=", EnvRef("HOME"), "/x"],
        ["b=", EnvRef("V", "1")],
    ]


def test_an_operation_on_an_unknown_value_stays_open(tmp_path):
    text = f"{MAIN} a=$((N*2)) b=${{N%x}} c=$(nvidia-smi -L | wc -l) d=$(hostname) e=${{#N}} f=${{N,,}}\n"
    launch = launch_of(text, tmp_path)
    expressions = [word.open[0].expression for word in launch.arguments]
    assert expressions == ["$((N*2))", "${N%x}", "$(nvidia-smi -L | wc -l)", "$(hostname)", "${#N}", "${N,,}"]


def test_what_can_be_known_of_an_unknown_path_is_known(tmp_path):
    text = f'P=$HOME/models/Qwen.tar.gz\n{MAIN} a=$(basename $P) b=${{P##*/}} c="${{P%.*}}" d=$(dirname $P) e=${{P#*/}}\n'
    a, b, c, d, e = launch_of(text, tmp_path).arguments
    assert (a.text, a.open, a.env_refs) == ("a=Qwen.tar.gz", (), ())
    assert (b.text, b.open) == ("b=Qwen.tar.gz", ())
    assert parts_of(c) == ["c=", EnvRef("HOME"), "/models/Qwen.tar"]
    assert parts_of(d) == ["d=", EnvRef("HOME"), "/models"]
    assert e.open, "the first slash may be inside HOME"


def test_each_argument_has_the_line_where_it_was_written(tmp_path):
    text = f"""
    LIST=(
      l1=1
      l2=$X  # comment
    )
    OPTS="o1=1
      o2=2"
    run() {{
      {MAIN} \\
        own=$X \\
        "${{LIST[@]}}" \\
        $OPTS \\
        "$@"
    }}
    run p1=1 \\
      "p2=2"
    """
    launch = launch_of(text, tmp_path)
    lines = {word.text.split("=")[0]: word.where.line for word in launch.arguments}
    assert lines == {"own": 9, "l1": 2, "l2": 3, "o1": 5, "o2": 6, "p1": 14, "p2": 15}
    assert launch.where.line == 8


def test_lines_of_a_sourced_file_are_its_own(tmp_path):
    (tmp_path / "common.sh").write_text("#\nCOMMON=(\n  c.a=1\n)\n")
    launch = launch_of(f"source common.sh\n{MAIN} ${{COMMON[@]}}\n", tmp_path)
    where = launch.arguments[0].where
    assert (where.file.endswith("common.sh"), where.line) == (True, 3)


def test_exported_variables_are_the_launch_s_environment(tmp_path):
    text = f"export A=1 B\nB=$HOME; C=3\ndeclare -x D=4\nE=5 {MAIN} x=1\nexport -n A\n"
    launch = launch_of(text, tmp_path, env={"GIVEN": "g"})
    assert {name: word.text for name, word in launch.env.items()} == {"A": "1", "B": "", "D": "4", "E": "5"}
    assert launch.env["B"].env_refs == (EnvRef("HOME"),)


@pytest.mark.parametrize(
    ("line", "wrapper"),
    [
        (
            "ray job submit --address=x --no-wait -- python3 -m verl.trainer.main_ppo a=1 b=2",
            ("ray job submit",),
        ),
        ("srun --nodes=1 --ntasks 1 -w $N python -m verl.trainer.main_ppo a=1 b=2", ("srun",)),
        ("docker exec -it box bash -c 'cd /verl && python3 -m verl.trainer.main_ppo a=1 b=2'", ()),
        ("ssh -p 22 host 'python3 -m verl.trainer.main_ppo a=1 b=2'", ()),
        ("torchrun --nproc_per_node 8 --standalone -m verl.trainer.main_ppo a=1 b=2", ("torchrun",)),
        ("python3 -m torch.distributed.run --nnodes 1 -m verl.trainer.main_ppo a=1 b=2", ("torchrun",)),
        (
            "accelerate launch --num_processes 8 --multi_gpu -m verl.trainer.main_ppo a=1 b=2",
            ("accelerate launch",),
        ),
        ("uv run --with x -m verl.trainer.main_ppo a=1 b=2", ("uv run",)),
        ("uv run --no-sync python -m verl.trainer.main_ppo a=1 b=2", ("uv run",)),
        (
            "nohup sudo -u me -E FOO=1 numactl -N 0 python -um verl.trainer.main_ppo a=1 b=2 &",
            ("nohup", "sudo", "numactl"),
        ),
        ("/opt/conda/bin/python3.11 /opt/verl/verl/trainer/main_ppo.py a=1 b=2", ()),
        ("conda run -n verl --no-capture-output python -m verl.trainer.main_ppo a=1 b=2", ("conda",)),
        ("mpirun -np 8 python -m verl.trainer.main_ppo a=1 b=2", ("mpirun",)),
        ("numactl --cpunodebind=0 -l python -m verl.trainer.main_ppo a=1 b=2", ("numactl",)),
        ("sudo -Eu me PATH=/x env -u A -uB - C=1 python -m verl.trainer.main_ppo a=1 b=2", ("sudo", "env")),
        ("stdbuf -oL -e 0 nice -10 python -m verl.trainer.main_ppo a=1 b=2", ("stdbuf", "nice")),
        (
            "timeout --kill-after 5 -s KILL -- 1h taskset -c 0-7 python -m verl.trainer.main_ppo a=1 b=2",
            ("timeout", "taskset"),
        ),
        ("bash -lc 'exec python3 -m verl.trainer.main_ppo a=1 \"$@\"' _ b=2", ()),
        ("kubectl exec pod -- bash -c 'python3 -m verl.trainer.main_ppo a=1 b=2'", ("kubectl exec",)),
        ("tmux new-session -d -s t 'python3 -m verl.trainer.main_ppo a=1 b=2'", ()),
        ("coverage run --source verl -p -m verl.trainer.main_ppo a=1 b=2", ("coverage",)),
        ("coverage run verl/trainer/main_ppo.py a=1 b=2", ("coverage",)),
        ("python3 -m coverage run -m verl.trainer.main_ppo a=1 b=2", ("coverage",)),
        ("python -m debugpy --listen 5678 --wait-for-client -m verl.trainer.main_ppo a=1 b=2", ("debugpy",)),
        (
            "python -m debugpy --listen 5678 -m torch.distributed.run --nnodes 1 -m verl.trainer.main_ppo a=1 b=2",
            ("debugpy", "torchrun"),
        ),
        ("python -m cProfile -o out.prof -m verl.trainer.main_ppo a=1 b=2", ("cProfile",)),
        (
            "CUDA_VISIBLE_DEVICES=0 timeout -k 5 1h python3 -W ignore -X dev -m verl.trainer.main_ppo a=1 b=2",
            ("timeout",),
        ),
    ],
)
def test_a_wrapper_hands_its_command_on(line, wrapper, tmp_path):
    launch = launch_of(line + "\n", tmp_path)
    assert launch.module == "verl.trainer.main_ppo"
    assert [word.text for word in launch.arguments] == ["a=1", "b=2"]
    if wrapper:
        assert launch.wrapper == wrapper


def test_the_runtime_environment_of_a_ray_job(tmp_path):
    text = f"""ray job submit --runtime-env-json='{{"env_vars": {{"NCCL_DEBUG": "WARN"}}}}' -- {MAIN} a=1\n"""
    assert launch_of(text, tmp_path).env["NCCL_DEBUG"].text == "WARN"


@pytest.mark.parametrize(
    ("start", "names"),
    [
        ("env -u A", ["B", "C"]),
        ("env -u A --unset=B", ["C"]),
        ("env -i", ["C"]),
        ("env --ignore-environment", ["C"]),
        ("env -", ["C"]),
        ("env", ["A", "B", "C"]),
    ],
)
def test_env_takes_variables_away(start, names, tmp_path):
    launch = launch_of(f"export A=1 B=2\n{start} C=3 {MAIN}\n", tmp_path)
    assert sorted(launch.env) == names


def test_a_container_does_not_see_the_script_s_variables(tmp_path):
    text = f"export M=1\ndocker exec -e N=2 box bash -c '{MAIN} m=$M n=$N'\n"
    m, n = launch_of(text, tmp_path).arguments
    assert parts_of(m) == ["m=", EnvRef("M")]
    assert n.text == "n=2"


@pytest.mark.parametrize(
    "line",
    [
        f"parallel -j2 {MAIN} a={{}} ::: 1 2",
        f"parallel '{MAIN} a={{}}' ::: 1 2",
        f"find . -name x -exec {MAIN} a={{}} \\;",
        "find . -name '*.sh' -exec bash {} \\;",
        "find . -name x -exec python3 {} +",
        f"echo a=1 | xargs {MAIN}",
        f"xargs -0 -I % -P4 --max-lines 2 nohup {MAIN} a=% < list",
        "ls *.sh | xargs -n 1 bash",
        "ls *.py | xargs python3",
        "runner -m verl.trainer.main_ppo a=1",
    ],
)
def test_a_program_that_is_not_followed_is_named(line, tmp_path):
    reading = reading_of(f"true\n{line}\n", tmp_path)
    assert reading.launches == ()
    assert [(one.code, one.where.line) for one in reading.diagnostics] == [("TP109", 2)]


def test_a_program_that_starts_no_training_is_not_named(tmp_path):
    text = "find . -name main_ppo.py -exec rm {} +\nls | parallel gzip {}\nls | xargs -n 1 grep python\nvim verl/trainer/main_ppo.py\n"
    assert reading_of(text, tmp_path).diagnostics == ()


def test_a_date_that_is_given_needs_no_epoch(tmp_path, monkeypatch):
    monkeypatch.delenv("SOURCE_DATE_EPOCH", raising=False)
    reading = reading_of(f"{MAIN} $(date -d @0 +%F) $(date -d @86400 +%d) $(printf '%(%Y)T' 0)\n", tmp_path)
    assert [word.text for word in reading.launches[0].arguments] == ["1970-01-01", "02", "1970"]
    assert reading.diagnostics == ()


def test_other_programs_are_no_launches(tmp_path):
    text = """
    python3 -m verl.model_merger merge a=1
    python3 examples/data_preprocess/gsm8k.py
    python3 -m verl.trainer.main_generation a=1
    python3 -m verl.trainer.main_eval a=1
    pip install python3 -m verl.trainer.main_ppo
    echo python3 -m verl.trainer.main_ppo a=1
    pkill -f 'python3 -m verl.trainer.main_ppo'
    """
    assert reading_of(text, tmp_path).launches == ()


@pytest.mark.parametrize(
    ("text", "code", "line"),
    [
        (f"{MAIN} \\\n a.a=1 \\\n # b.b=2 \\\n c.c=3\n", "TP002", 4),
        (f"{MAIN} \\\n a.a=1 \\ \n b.b=2\n", "TP003", 3),
        (f"{MAIN} \\\n a.a=1\n b.b=2\n", "TP004", 3),
        (f"{MAIN} \\\n a.a=1 \\\n\n b.b=2\n", "TP004", 4),
        (f"{MAIN} a=1\nif x; then\n", "TP001", 2),
        (f'if [ "$(hostname)" = x ]; then a=1; fi\n{MAIN} a=$a\n', "TP101", 1),
        (f'if [ "$DEVICE" = npu ]; then a=1; fi\n{MAIN} a=$a\n', "TP102", 1),
        (f"if [ $DEVICE = npu ]; then a=1; fi\n{MAIN} a=$a\n", "TP102", 1),
        (f"while true; do {MAIN} a=1; done\n", "TP103", 1),
        (f"set -u\n{MAIN} a=$NOPE\n", "TP104", 2),
        (f": ${{NOPE:?needed}}\n{MAIN} a=1\n", "TP104", 1),
        (f"{MAIN} a=1 $EXTRA\n", "TP105", 1),
        (f"source missing.sh\n{MAIN} a=1\n", "TP106", 1),
        (f"cd missing\n{MAIN} a=1\n", "TP106", 1),
        (f"readonly X=1\nX=2\n{MAIN} a=$X\n", "TP107", 2),
        (f"{MAIN} a=1\necho $((1/0))\n", "TP108", 2),
        (f"{MAIN} a=$(date)\n", "TP110", 1),
        (f"[ $# -gt 0 ] || exit 1\n{MAIN} a=1\n", "TP111", 1),
        (f"f() {{ {MAIN} a=1; }}\ntrap f USR1\n", "TP109", 2),
    ],
)
def test_a_construct_gets_its_diagnostic_at_its_line(text, code, line, tmp_path, monkeypatch):
    monkeypatch.delenv("SOURCE_DATE_EPOCH", raising=False)
    found = [(d.code, d.where.line) for d in reading_of(text, tmp_path).diagnostics]
    assert (code, line) in found


WAITS = [
    """
wait_for_server() {
    local attempt=0
    while [ $attempt -lt 60 ]; do
        if curl -s http://localhost:30000/health >/dev/null; then
            return 0
        fi
        sleep 10
        ((attempt++))
    done
    return 1
}
if ! wait_for_server; then
    exit 1
fi
""",
    """
for i in $(seq 1 30); do
    curl -sf localhost:8000/health && break
    [ $i -eq 30 ] && exit 1
    sleep 2
done
""",
    """
ready=0
for i in {1..5}; do
    if ray status | grep -q "8.0/8.0 GPU"; then ready=1; break; fi
done
if [ $ready = 0 ]; then echo no GPUs >&2; exit 1; fi
""",
    """
tries=0
set -e
while ! nc -z localhost 6379 || false; do
    tries=$((tries + 1))
    if [ $tries -gt 3 ]; then exit 1; fi
done
for host in a b; do
    up=no
    for i in 1 2 3; do
        if [ "$(curl -s $host/health)" = ok ]; then up=yes; break; fi
    done
    [ $up = yes ] || exit 1
done
""",
    """
if [ "$(hostname)" = head ]; then
    :
else
    ray start --address=head:6379 --block
    exit 0
fi
""",
]


@pytest.mark.parametrize("wait", WAITS)
def test_a_wait_that_would_end_the_script_is_taken_to_succeed(wait, tmp_path):
    reading = reading_of(f"{wait}{MAIN} a=1\n", tmp_path)
    (launch,) = reading.launches
    assert [word.text for word in launch.arguments] == ["a=1"]


def test_what_is_assumed_is_named_with_its_line(tmp_path):
    reading = reading_of(f"{WAITS[0]}{MAIN} a=1\n", tmp_path)
    (assumed,) = [one for one in reading.diagnostics if one.code == "TP114"]
    assert assumed.where.line == 4
    assert "assumed: the condition is true" in assumed.message
    assert "curl -s http://localhost:30000/health" in assumed.message


def test_a_step_that_can_be_known_is_never_turned_round(tmp_path):
    for text in ("false || exit 1\n", "[ -n '$UNSET' ] && exit 1\n", "if [ $UNSET = 1 ]; then\n"):
        end = "fi\n" if "if" in text else ""
        assert reading_of(f"{text}{MAIN} a=1\n{end}", tmp_path).launches == ()


def test_where_no_guess_leads_to_a_launch_the_first_reading_counts(tmp_path):
    reading = reading_of('if [ "$(hostname)" = a ]; then echo a; else echo b; fi\n', tmp_path)
    assert (reading.launches, [one.code for one in reading.diagnostics]) == ((), ["TP101"])


def test_a_plain_script_has_no_diagnostics(tmp_path):
    text = f"set -euxo pipefail\nN=${{N:-8}}\n{MAIN} \\\n  a.b=$N \\\n  c.d='x' \"$@\" 2>&1 | tee log\n"
    assert reading_of(text, tmp_path).diagnostics == ()


@pytest.mark.parametrize(
    "line",
    [
        "N=8",
        "export N=8",
        "local N=8",
        "unset N",
        "readonly N=8",
        "((N = 8))",
        "N[0]=8",
        "N=(8)",
        "read N <<< 8",
    ],
)
def test_a_given_variable_that_the_script_replaces_is_named(line, tmp_path):
    text = f"f() {{\n{line}\n{MAIN} a=$N\n}}\nf\n"
    found = [d for d in reading_of(text, tmp_path, env={"N": "4"}).diagnostics if d.code == "TP113"]
    assert [str(d.where) for d in found] == ["run.sh:2"]
    assert "--env N=4" in found[0].message and "N=${N:-…}" in found[0].message


@pytest.mark.parametrize(
    "lines",
    [
        "N=${N:-8}",
        ": ${N:=8}",
        "N=4",
        "N=$N/x",
        "N+=x",
        "((N += 1))",
        "N=$((N / 2))",
        '[ -n "$N" ] || N=8',
        "[ -v N ] || N=8",
        "(N=8)",
        "M=$N; N=8",
        "if false; then N=8; fi",
        "V=N; M=${!V}; N=8",
    ],
)
def test_a_given_variable_that_counts_is_not_named(lines, tmp_path):
    reading = reading_of(f"{lines}\n{MAIN} a=$N b=$M\n", tmp_path, env={"N": "4"})
    assert "TP113" not in [d.code for d in reading.diagnostics]


@pytest.mark.parametrize("line", ["N=$(nvidia-smi -L | wc -l)", "export N=$(hostname)", "N=`nproc`"])
def test_a_given_variable_replaces_an_unknown_assignment(line, tmp_path):
    reading = reading_of(f"{line}\n{MAIN} a=$N b=$((N * 2))\n", tmp_path, env={"N": "4"})
    assert [word.text for word in reading.launches[0].arguments] == ["a=4", "b=8"]
    assert [(d.code, d.where.line) for d in reading.diagnostics] == [("TP117", 1)]
    assert "the value given for N stands for it" in reading.diagnostics[0].message


def test_a_given_variable_does_not_stand_for_another_variable(tmp_path):
    reading = reading_of(f"N=$M\n{MAIN} a=$N\n", tmp_path, env={"N": "4"})
    assert [d.code for d in reading.diagnostics] == ["TP113", "TP119"]


def test_only_what_the_user_gave_is_named(tmp_path):
    text = f"HOME=/h\nN=8\n{MAIN} a=$HOME b=$N\n"
    found = reading_of(text, tmp_path, env={"HOME": "/root", "N": "4"}, given=["N"]).diagnostics
    assert [(d.code, d.where.line) for d in found] == [("TP113", 2)]


def test_what_cannot_be_known_never_ends_the_script(tmp_path):
    text = f"""
    set -eo pipefail
    [ -d /data/models ] || exit 1
    X=$(grep a none | sort | tr a b)
    grep -q a none
    grep -o a <<< b | cat
    if [ ! -f $MODEL/config.json ]; then echo missing; exit 1; fi
    die() {{ echo "$1"; exit 2; }}
    command -v nvidia-smi || die none
    test "$(nvidia-smi -L | wc -l)" -ge 8 || die few
    until ray status; do sleep 1; done
    pip install x
    {MAIN} a=1
    """
    assert len(reading_of(text, tmp_path).launches) == 1


def test_an_argument_vector(tmp_path):
    reading = read_argv(["python3", "-m", "verl.trainer.main_ppo", "a=$HOME", "b='x'"], env={"HOME": "/h"})
    (launch,) = reading.launches
    assert [(word.text, word.where.line) for word in launch.arguments] == [("a=$HOME", 3), ("b='x'", 4)]
    assert str(launch.arguments[0].where) == "argv:3"


def test_the_name_is_only_shown(tmp_path):
    (tmp_path / "run.sh").write_text(f"{MAIN} zero=$0\n")
    reading = read_script(tmp_path / "run.sh", cwd=tmp_path, name="shown.sh")
    assert reading.launches[0].arguments[0].text == f"zero={tmp_path}/run.sh"
    assert reading.launches[0].arguments[0].where.file == "shown.sh"


def test_date_follows_the_epoch(tmp_path):
    launch = launch_of(f"{MAIN} a=$(date +%Y%m%d)\n", tmp_path, env={"SOURCE_DATE_EPOCH": "1767323045"})
    assert launch.arguments[0].text == "a=20260102"
    assert not any(isinstance(part.source, UnknownPiece) for part in launch.arguments[0].parts)


@pytest.mark.parametrize(
    "date",
    [
        "$(date -d yesterday +%F)",
        "$(date -d 2024-01-02 +%F)",
        "$(TZ=Asia/Kolkata date +%F)",
        "$(date --rfc-3339=s)",
    ],
)
def test_another_form_of_date_is_open_with_its_line(date, tmp_path):
    launch = launch_of(f"{MAIN} a={date}\n", tmp_path, env={"SOURCE_DATE_EPOCH": "1767323045"})
    (word,) = launch.arguments
    assert [(piece.expression, piece.where.line) for piece in word.open] == [(date, 1)]


@pytest.mark.parametrize("start", ["bash -u -c", "bash -euo pipefail -c", "bash -o nounset -c"])
def test_an_unset_variable_under_bash_u_is_named(start, tmp_path):
    reading = reading_of(f"true\n{start} '{MAIN} a=$NOPE'\n", tmp_path)
    assert reading.launches[0].arguments[0].env_refs == (EnvRef("NOPE", required=True),)
    assert [(one.code, one.where.line) for one in reading.diagnostics] == [("TP104", 2)]


def test_an_unset_variable_under_bash_ends_nothing(tmp_path):
    reading = reading_of(f"bash -c '{MAIN} a=x$NOPE'\n", tmp_path)
    assert reading.launches[0].arguments[0].env_refs == (EnvRef("NOPE"),)
    assert [d.code for d in reading.diagnostics] == ["TP119"]
