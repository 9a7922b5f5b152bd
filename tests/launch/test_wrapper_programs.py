# ruff: noqa: E501
"""What stands before a launch: the options of programs that run another, and where their command then runs."""

from __future__ import annotations

import pytest

from trinity_compat.launch import read_argv, read_text

MAIN = "python3 -m verl.trainer.main_ppo"


def reading_of(text, folder, **env):
    return read_text(text, name="run.sh", cwd=folder, env={"PATH": "/usr/bin", **env})


def start_of(line, folder, **env):
    (launch,) = reading_of(line + "\n", folder, **env).launches
    return launch.start


# every option with a value, so that none of their values is taken for the command
RUNNERS = {
    "nohup": "--",
    "setsid": "-w -f",
    "unbuffer": "-p",
    "catchsegv": "",
    "command": "-p",
    "/usr/bin/time": "-v -f python3 -o python3 --format python3 --output python3 --format=x",
    "nice": "-n 5 --adjustment 5 --adjustment=5",
    "ionice": "-t -c 2 -n 7 -p 3 --class 2 --classdata 7",
    "timeout": "-k 5 -s KILL --kill-after 5 --signal TERM --preserve-status 1h",
    "stdbuf": "-i 0 -oL -e 0",
    "chrt": "-f 99",
    "taskset": "-c 0-7",
    "numactl": "-l -N 0 -m 0 -C 0-3 -p 1 -i all",
    "sudo": "-E -u me -g grp -p prompt -C 3 -D /d -h host -R /r -r role -T 9 -t type -U who A=1 B=2",
    "doas": "-n -u me -C conf",
    "xvfb-run": "-a -n 99 -s python3 -e err -f auth",
    "env": "-u A --unset B -C /w --chdir=/w D=1",
}


@pytest.mark.parametrize("program", RUNNERS)
def test_no_value_of_an_option_is_taken_for_the_command(program, tmp_path):
    reading = reading_of(f"{program} {RUNNERS[program]} {MAIN} a=1\n", tmp_path)
    ((launch),) = reading.launches
    assert [word.text for word in launch.arguments] == ["a=1"]
    assert launch.wrapper in [(), (program.rpartition("/")[2],)]
    assert reading.diagnostics == ()


def test_programs_that_name_others_start_nothing(tmp_path):
    inert = [
        "pip",
        "pip3",
        "apt",
        "apt-get",
        "yum",
        "dnf",
        "brew",
        "git",
        "pkill",
        "pgrep",
        "kill",
        "killall",
        "grep",
        "ps",
        "ln",
        "mv",
        "wget",
        "curl",
        "man",
        "whereis",
        "huggingface-cli",
        "hf",
        "modelscope",
        "aws",
        "gsutil",
        "rsync",
        "scp",
        "tar",
        "unzip",
        "ls",
        "stat",
        "nvidia-smi",
        "npu-smi",
        "du",
        "df",
        "ray",
        "make",
    ]
    text = "".join(f"{name} {MAIN} a={name}\n{name} verl.trainer.main_ppo\n" for name in inert)
    reading = reading_of(text, tmp_path)
    assert (reading.launches, reading.diagnostics) == ((), ())


@pytest.mark.parametrize(
    "options",
    ["-d , -n 1 -L 2 -I % -P 3 -s 99 -a list -E end", "-0 -r", "--delimiter , --max-args 1 --max-lines 2",
     "--replace % --max-procs 3 --max-chars 99 --arg-file list"],
)  # fmt: skip
def test_what_xargs_runs_is_what_stands_behind_its_options(options, tmp_path):
    assert [one.code for one in reading_of(f"xargs {options} python3\n", tmp_path).diagnostics] == ["TP109"]
    assert reading_of(f"xargs {options} gzip python3x\n", tmp_path).diagnostics == ()


@pytest.mark.parametrize("action", ["-exec", "-execdir", "-ok", "-okdir"])
def test_what_find_runs_is_what_stands_behind_its_action(action, tmp_path):
    assert [one.code for one in reading_of(f"find . {action} bash {{}} +\n", tmp_path).diagnostics] == [
        "TP109"
    ]
    assert reading_of(f"find bash python3 {action} rm {{}} +\n", tmp_path).diagnostics == ()


ELSEWHERE = {
    "docker exec box": "docker exec", "podman exec box": "podman exec", "nerdctl exec box": "nerdctl exec",
    "kubectl exec pod --": "kubectl exec", "apptainer exec img": "apptainer", "singularity exec img": "singularity",
    "enroot start img": "enroot", "chroot /r": "chroot", "ssh host": "ssh", "pdsh -w h": "pdsh", "srun -N 1": "srun",
    "sbatch -N 1": "sbatch", "salloc": "salloc", "bsub": "bsub", "qsub --": "qsub", "sudo -u me": "sudo", "doas": "doas",
    "su - me -c": "su", "tmux new": "tmux", "screen -dm": "screen", "systemd-run --user": "systemd-run", "at now": "at",
}  # fmt: skip


@pytest.mark.parametrize("program", ELSEWHERE)
def test_what_runs_out_of_reach_is_said(program, tmp_path):
    assert start_of(f"{program} {MAIN} a=1", tmp_path).elsewhere == ELSEWHERE[program]


@pytest.mark.parametrize(
    "program", ["mpirun -np 1", "nohup", "flock /lock", "uv run", "env A=1", "time", "exec"]
)
def test_a_program_that_runs_here_is_not_called_out_of_reach(program, tmp_path):
    assert start_of(f"{program} {MAIN} a=1", tmp_path).elsewhere == ""


SWITCHES = ["conda", "mamba", "micromamba", "poetry", "pipenv", "pdm", "hatch", "pixi", "rye"]


@pytest.mark.parametrize("program", SWITCHES)
def test_another_environment_may_put_its_folder_in_front_of_path(program, tmp_path):
    assert start_of(f"{program} run {MAIN} a=1", tmp_path).path is None


@pytest.mark.parametrize(
    "line",
    ["conda activate x", "mamba activate x", "micromamba activate x", "module load x", "ml x", "spack load x",
     "workon x", "mise use x", "pyenv shell x", "activate", "source missing.sh", ". missing.sh", 'eval "$(x)"'],
)  # fmt: skip
def test_what_may_change_path_makes_it_unknown_from_there_on(line, tmp_path):
    reading = reading_of(f"{MAIN} a=1\n{line}\n{MAIN} b=1\n", tmp_path)
    assert [launch.start.path for launch in reading.launches] == ["/usr/bin", None]


def test_path_stays_known_behind_programs_that_keep_it(tmp_path):
    assert start_of(f"nohup nice {MAIN} a=1", tmp_path).path == "/usr/bin"
    assert start_of(f"pip install x; ls; {MAIN} a=1", tmp_path).path == "/usr/bin"
    assert start_of(f"export PATH=/opt:$PATH; {MAIN} a=1", tmp_path).path == "/opt:/usr/bin"
    assert start_of(f"PATH=/p PYTHONPATH=/q {MAIN} a=1", tmp_path).path == "/p"
    assert start_of(f"PATH=/p PYTHONPATH=/q {MAIN} a=1", tmp_path).python_path == "/q"
    assert start_of(f"PYTHONPATH=/q; {MAIN} a=1", tmp_path).python_path == ""
    assert start_of(f"export PYTHONPATH=/q; env -u PYTHONPATH {MAIN} a=1", tmp_path).python_path == ""


@pytest.mark.parametrize(
    ("line", "hooked"),
    [
        (f"{MAIN} a=1", True),
        (f"bash -c '{MAIN} a=1'", True),
        (f"sh -c '{MAIN} a=1'", False),
        (f"bash -p -c '{MAIN} a=1'", False),
        (f"env -u BASH_ENV bash -c '{MAIN} a=1'", False),
        (f"unset BASH_ENV; bash -c '{MAIN} a=1'", False),
        (f"nohup {MAIN} a=1", False),
        (f"exec {MAIN} a=1", False),
        (f"command {MAIN} a=1", False),
        (f"$P/{MAIN} a=1", True),
        (f"echo '{MAIN} a=1' > x.sh; bash x.sh", True),
        (f"echo '{MAIN} a=1' > x.sh; sh x.sh", False),
        (f"echo '#!/bin/bash\n{MAIN} a=1' > x.sh; ./x.sh", True),
        (f"echo '#!/bin/sh\n{MAIN} a=1' > x.sh; ./x.sh", False),
        (f"echo '{MAIN} a=1' > x.sh; source ./x.sh", True),
    ],
)  # fmt: skip
def test_whether_bash_starts_the_launch_with_its_own_file_read(line, hooked, tmp_path):
    reading = reading_of(line + "\n", tmp_path, BASH_ENV="/b")
    assert [launch.start.hooked for launch in reading.launches] == [hooked]


def test_without_bash_env_nothing_is_hooked(tmp_path):
    assert not start_of(f"bash -c '{MAIN} a=1'", tmp_path).hooked
    assert not read_argv(MAIN.split()).launches[0].start.hooked


@pytest.mark.parametrize(
    ("options", "elsewhere"),
    [
        ("--address http://head:8265", "ray job submit --address http://head:8265"),
        ("--address=http://head:8265", "ray job submit --address http://head:8265"),
        ("--address http://127.0.0.1:8265", ""),
        ("--address http://localhost:8265 --no-wait --working-dir .", ""),
        ("", ""),
    ],
)
def test_a_ray_job_runs_where_its_address_says(options, elsewhere, tmp_path):
    start = start_of(f"ray job submit {options} -- bash -c '{MAIN} a=1'", tmp_path)
    assert (start.program, start.elsewhere) == ("ray", elsewhere)
    assert start_of(f"RAY_ADDRESS=http://h:1 ray job submit -- {MAIN} a=1", tmp_path).elsewhere.endswith(
        "http://h:1"
    )
    assert start_of(
        f"export RAY_ADDRESS=ray://h:1; ray job submit -- {MAIN} a=1", tmp_path
    ).elsewhere.endswith("//h:1")
    assert start_of(f"docker exec box ray job submit -- {MAIN} a=1", tmp_path).elsewhere == "docker exec"


def test_a_ray_job_gets_its_words_as_code_or_as_a_command(tmp_path):
    text = (
        f"ray job submit -- 'export Q=2; {MAIN} q=$Q'\nray job submit -- {MAIN} 'x y'\nray job submit\n"
        f"""ray job submit --runtime-env-json '{{"env_vars": {{"A": 1, "B-": "x"}}}}' -- {MAIN} a=1\n"""
        f"ray job submit --runtime-env-json '[1]' -- {MAIN} b=1\nray job submit --runtime-env-json oops -- {MAIN} c=1\n"
        f"ray job stop -- {MAIN} never=1\n"
    )
    reading = reading_of(text, tmp_path)
    found = [
        ([word.text for word in one.arguments], {k: v.text for k, v in one.env.items()})
        for one in reading.launches
    ]
    assert found == [
        (["q=2"], {"Q": "2"}),
        (["x y"], {}),
        (["a=1"], {"A": "1"}),
        (["b=1"], {}),
        (["c=1"], {}),
    ]
    assert {one.wrapper for one in reading.launches} == {("ray job submit",)}


def test_what_a_container_is_given(tmp_path):
    text = f"export H=1 E=2\ndocker exec -it -e A=1 --env B=2 -eC=3 --env=D=4 -e E -w /w box bash -c '{MAIN} a=$A$B$C$D e=$E h=${{H-none}}'\n"
    (launch,) = reading_of(text, tmp_path).launches
    assert [word.text for word in launch.arguments] == ["a=1234", "e=2", "h=none"]
    given = {"A": "1", "B": "2", "C": "3", "D": "4", "E": "2"}
    assert {name: word.text for name, word in launch.env.items()} == given
    assert launch.wrapper == ("docker exec",)


@pytest.mark.parametrize(
    ("text", "arguments", "wrapper"),
    [
        (f"ssh -p 22 -i key -o X=y -l me host 'cd /w && {MAIN} a=1' b=2", ["a=1", "b=2"], ("ssh",)),
        (f"ssh -b b -c c -D 1 -E e -e e -F f -I i -J j -L l -m m -O o -Q q -R r -S s -W w -v host '{MAIN} a=1'", ["a=1"], ("ssh",)),
        (f"ssh host <<'X'\n{MAIN} a=1\nX", ["a=1"], ("ssh",)),
        (f"ssh host bash -s <<'X'\n{MAIN} a=1\nX", ["a=1"], ("ssh",)),
        (f"ssh host bash -lc '{MAIN} a=1'", ["a=1"], ("ssh",)),
        (f"sbatch --nodes 2 --wrap='{MAIN} a=1'", ["a=1"], ("sbatch",)),
        (f"echo '{MAIN} a=$1' > job.sh; sbatch -N 1 job.sh x", ["a=x"], ("sbatch",)),
        (f"echo '{MAIN} a=$1' > j.slurm; sbatch j.slurm x", ["a=x"], ("sbatch",)),
        (f"echo '{MAIN} a=$1' > j.sbatch; sbatch j.sbatch x", ["a=x"], ("sbatch",)),
        (f"echo '{MAIN} a=$1' > job.sh; srun -N 1 bash job.sh x", ["a=x"], ("srun",)),
        (f"uv run --with x bash -c '{MAIN} a=1'", ["a=1"], ("uv run",)),
        (f"tmux new -d '{MAIN} a=1'", ["a=1"], ("tmux",)),
        (f"script -c '{MAIN} a=1'", ["a=1"], ("script",)),
        (f"flock /l -c '{MAIN} a=1'", ["a=1"], ("flock",)),
        (f"watch '{MAIN} a=1'", ["a=1"], ("watch",)),
        (f"salloc '{MAIN} a=1'", ["a=1"], ("salloc",)),
        (f"docker run img '{MAIN} a=1'", ["a=1"], ("docker run",)),
        (f"podman run img '{MAIN} a=1'", ["a=1"], ("podman run",)),
        (f"kubectl exec pod -- '{MAIN} a=1'", ["a=1"], ("kubectl exec",)),
        (f"screen -dmS x '{MAIN} a=1'", ["a=1"], ("screen",)),
        (f"su me -c '{MAIN} a=1'", ["a=1"], ("su",)),
        (f"srun '{MAIN} a=1'", ["a=1"], ("srun",)),
        (f"pdsh -w h '{MAIN} a=1'", ["a=1"], ("pdsh",)),
        (f"nohup bash -c 'nice {MAIN} a=1'", ["a=1"], ("nohup", "nice")),
        (f"env bash -c 'exec {MAIN} a=1'", ["a=1"], ("env",)),
    ],
)  # fmt: skip
def test_the_command_inside_a_wrapper_is_read(text, arguments, wrapper, tmp_path):
    (launch,) = reading_of(text + "\n", tmp_path).launches
    assert ([word.text for word in launch.arguments], launch.wrapper) == (arguments, wrapper)


@pytest.mark.parametrize(
    "line",
    [
        "nohup",
        "timeout 1h",
        "sudo A=1",
        "env A=1",
        "ssh host",
        "uv run",
        "docker exec box bash",
        "srun python3",
        "nice -n",
    ],
)
def test_a_wrapper_of_nothing_starts_nothing(line, tmp_path):
    assert reading_of(line + "\n", tmp_path).launches == ()


@pytest.mark.parametrize(
    "first", ["#!/bin/bash", "#!/usr/bin/env bash", "#!/bin/sh -e", "#!/usr/bin/zsh", "#!/bin/dash"]
)
def test_a_file_is_a_script_by_its_first_line(first, tmp_path):
    (tmp_path / "job").write_text(f"{first}\n{MAIN} a=$1\n")
    assert len(reading_of("./job 1\n", tmp_path).launches) == 1


@pytest.mark.parametrize(
    "first", ["", "# bash", "#!/usr/bin/python3\n# bash", "ELF\n#!/bin/bash", "#!/usr/bin/fish"]
)
def test_a_file_is_no_script_without_it(first, tmp_path):
    (tmp_path / "job").write_text(f"{first}\n{MAIN} a=$1\n")
    assert reading_of("./job 1\njob 1\n", tmp_path).launches == ()


@pytest.mark.parametrize("ending", [".sh", ".bash", ".slurm", ".sbatch"])
def test_a_file_is_a_script_by_its_ending(ending, tmp_path):
    (tmp_path / f"job{ending}").write_text(f"{MAIN} a=$1\n")
    (launch,) = reading_of(f"./job{ending} 1\n", tmp_path).launches
    assert launch.arguments[0].text == "a=1"
