"""Programs that start another one, a row each: where its command begins, where it runs, in which environment.

Sources: the programs' manuals: docker-run(1), sbatch(1) ``--export``, sudo(8), mpirun(1) of Open MPI and
MPICH, ``apptainer exec``, tmux(1) ``-e``, bsub(1) ``-env``, qsub(1) ``-v``, systemd-run(1), ``uv run``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from trinity_compat.launch.bash.options import OptionSpec


@dataclass(frozen=True, slots=True)
class PythonOptions:
    """The words of a program that starts a Python module or file after options of its own.

    ``shown`` is how messages name it, ``command`` the word that has to come first (``accelerate launch``).
    ``flags`` are its options without a value, where all others have one; None where that isn't known: then
    the first ``-m``, ``x.py`` or further launcher is what it starts.
    """

    shown: str
    command: str = ""
    flags: frozenset[str] | None = None


@dataclass(frozen=True, slots=True)
class Launcher:
    """One program that starts another.

    The command begins behind ``options`` and ``operands`` more words where the options are known, else with
    the first word that starts python, a launcher or a shell, behind ``verb`` where that is one of the words.
    ``python``: it starts modules and files. ``code``: the command may be a text in one word. ``job``: it
    takes a script by its name or from stdin. ``image``: an image stands in front of the command, whose
    program ``--entrypoint`` may replace. ``nested``: it is looked for in the words of another launcher, as
    its options count for what it starts. ``verbs``: messages name its first word, too.

    ``elsewhere``: where the command runs, out of the script's reach. ``travels``: its environment goes there
    with PATH and BASH_ENV, but for options that begin with ``boxes`` and put it into a container.
    ``switches``: another environment's folder is in front of PATH.

    ``inherits``: exported variables go along. ``sets`` take ``NAME=value``, or a ``NAME`` that goes along;
    ``pairs`` take a name and, as a word of its own, its value; ``lists`` take several of these with commas
    between, where ``ALL`` and ``NONE`` stand for what is exported; with ``only`` nothing else goes along
    without ALL. ``files`` name a file with a ``NAME=value`` on each line, whose values docker takes with
    their quotes (``literal_files``). With ``keeps`` exported variables go along, with ``clears`` they do
    not. ``words``: ``NAME=value`` may stand in front of the command. ``opens`` begin words after which
    nothing is known. ``carries`` begin names of exported variables that arrive without that beginning;
    ``listed`` and ``filed`` are variables that stand for the first option of ``lists`` and of ``files``.
    ``directives`` begin lines of the script with options. ``own_file`` is read from the working directory
    where it is there. ``manifest``: the activation of pixi's project there counts.
    """

    options: OptionSpec | None = None
    operands: int = 0
    verb: str = ""
    python: PythonOptions | None = None
    code: bool = False
    job: bool = False
    image: bool = False
    nested: bool = False
    verbs: bool = False
    elsewhere: str = ""
    travels: bool = False
    boxes: str = ""
    switches: bool = False
    inherits: bool = True
    sets: tuple[str, ...] = ()
    pairs: tuple[str, ...] = ()
    lists: tuple[str, ...] = ()
    only: bool = False
    files: tuple[str, ...] = ()
    literal_files: bool = False
    keeps: tuple[str, ...] = ()
    clears: tuple[str, ...] = ()
    words: bool = False
    opens: tuple[str, ...] = ()
    carries: tuple[str, ...] = ()
    listed: str = ""
    filed: str = ""
    directives: tuple[str, ...] = ()
    own_file: str = ""
    manifest: bool = False


def before_command(values: str = "", **long: str) -> OptionSpec:
    """The options of a program that runs another; ``long`` are long spellings of those with a value."""
    spellings = {f"--{name.replace('_', '-')}": letter for name, letter in long.items()}
    return OptionSpec(values=values, long=spellings, leading=True, lenient=True)


def _rows(names: str, row: Launcher) -> dict[str, Launcher]:
    return dict.fromkeys(names.split(), row)


def _tracers(names: str, command: str = "") -> dict[str, Launcher]:
    """Debuggers, profilers and another interpreter."""
    return {name: Launcher(python=PythonOptions(name, command)) for name in names.split()}


_IN_CONTAINER = Launcher(elsewhere="in a container, where this run is not", nested=True)
_CONTAINER = replace(
    _IN_CONTAINER,
    code=True, image=True, verbs=True, inherits=False, sets=("-e", "--env"), files=("--env-file",),
)  # fmt: skip
_KUBERNETES = Launcher(inherits=False, sets=("--env",))
_REMOTE = Launcher(code=True, elsewhere="on another machine", inherits=False)
_SCHEDULED = Launcher(elsewhere="on machines that the scheduler chooses")
_SLURM = replace(
    _SCHEDULED,
    code=True, lists=("--export",), only=True, listed="SBATCH_EXPORT", opens=("--export-file",),
    directives=("#SBATCH",),
)  # fmt: skip
_MPI = Launcher(
    sets=("-x",), pairs=("-env", "-genv"), lists=("-genvlist", "-envlist"), only=True,
    clears=("-genvnone", "-envnone"),
)  # fmt: skip
_SESSION = Launcher(elsewhere="in a session with an environment of its own")
_OTHER_USER = Launcher(elsewhere="as another user, with an environment of its own")
_OTHER_PATH = Launcher(switches=True)
_APPTAINER = replace(
    _IN_CONTAINER,
    lists=("--env",),
    files=("--env-file",),
    clears=("-e", "--cleanenv", "-C", "--containall"),
    carries=("SINGULARITYENV_", "APPTAINERENV_"),
)

LAUNCHERS: dict[str, Launcher] = {
    **_tracers(
        "debugpy ipdb ipdb3 pudb pudb3 viztracer scalene pyinstrument kernprof ipython ipython3"
    ),
    **_tracers("coverage memray", "run"),
    "uv": Launcher(
        verb="run", python=PythonOptions("uv run", "run"), nested=True, switches=True,
        files=("--env-file",), filed="UV_ENV_FILE",
    ),
    "torchrun": Launcher(python=PythonOptions("torchrun", flags=frozenset({
        "--standalone", "--no-python", "--no_python", "--run-path", "--run_path", "--use-env", "--use_env",
        "--enable-cpu-affinity-binding", "-h", "--help",
    }))),
    "accelerate": Launcher(python=PythonOptions("accelerate launch", "launch", frozenset({
        "--multi_gpu", "--multi-gpu", "--cpu", "--tpu", "--use_deepspeed", "--use-deepspeed", "--use_fsdp",
        "--use-fsdp", "--use_megatron_lm", "--quiet", "-q", "--debug", "--no_python", "--use_xpu", "--ipex",
        "--enable_cpu_affinity", "--same_network", "--standalone", "--downcast_bf16",
    }))),
    "deepspeed": Launcher(python=PythonOptions("deepspeed", flags=frozenset({
        "--no_python", "--no_local_rank", "--force_multi", "--save_pid", "--bind_cores_to_rank", "--no_ssh",
    }))),
    # they hand on what they have
    **_rows("python python3 gdb ltrace ncu nsys perf strace valgrind", Launcher()),
    **_rows("flock script watch", Launcher(code=True)),
    **_rows("nohup setsid unbuffer catchsegv command", Launcher(options=before_command())),
    **_rows("chrt taskset", Launcher(options=before_command(), operands=1)),
    "time": Launcher(options=before_command("fo", format="f", output="o")),
    "nice": Launcher(options=before_command("n", adjustment="n")),
    "ionice": Launcher(options=before_command("cnp", **{"class": "c"}, classdata="n")),
    "timeout": Launcher(options=before_command("ks", kill_after="k", signal="s"), operands=1),
    "stdbuf": Launcher(options=before_command("ioe")),
    "numactl": Launcher(options=before_command("NmCpi")),
    "xvfb-run": Launcher(options=before_command("nsef")),
    "sudo": replace(
        _OTHER_USER, options=before_command("ugpCDhRrTtU"), nested=True, inherits=False,
        lists=("--preserve-env",), keeps=("-E", "--preserve-env"), words=True,
    ),
    "doas": replace(_OTHER_USER, options=before_command("uC"), inherits=False),
    "su": replace(_OTHER_USER, code=True, clears=("-", "-l", "--login")),
    "docker": replace(_CONTAINER, literal_files=True),
    "podman": replace(_CONTAINER, keeps=("--env-host", "--env-host=true")),
    "nerdctl": replace(_CONTAINER, code=False, nested=False),
    **_rows("docker-compose podman-compose chroot", replace(_IN_CONTAINER, nested=False)),
    "enroot": replace(_IN_CONTAINER, inherits=False, sets=("-e", "--env")),
    **_rows("apptainer singularity", _APPTAINER),
    "kubectl": replace(_KUBERNETES, elsewhere=_IN_CONTAINER.elsewhere, code=True, nested=True, verbs=True),
    "oc": _KUBERNETES,
    "ssh": replace(_REMOTE, opens=("SendEnv", "SetEnv", "-oSendEnv", "-oSetEnv")),
    "pdsh": _REMOTE,
    "sbatch": replace(_SLURM, job=True),
    "salloc": _SLURM,
    "srun": replace(
        _SLURM, nested=True, listed="SLURM_EXPORT_ENV", directives=(), travels=True, boxes="--container"
    ),
    "bsub": replace(_SCHEDULED, job=True, lists=("-env",), only=True, directives=("#BSUB",)),
    "qsub": replace(
        _SCHEDULED, job=True, inherits=False, lists=("-v",), keeps=("-V",), directives=("#PBS", "#$")
    ),
    **_rows("mpirun mpiexec", replace(_MPI, nested=True)),
    **_rows("orterun horovodrun", _MPI),
    **_rows("at batch", replace(_SESSION, job=True)),
    "screen": replace(_SESSION, code=True),
    "tmux": replace(_SESSION, code=True, sets=("-e",)),
    "systemd-run": replace(
        _SESSION, inherits=False, sets=("-E", "--setenv"),
        opens=("Environment", "-pEnvironment", "--property=Environment"),
    ),
    **_rows("conda mamba micromamba poetry pdm hatch rye", _OTHER_PATH),
    "pipenv": replace(_OTHER_PATH, own_file=".env"),
    "pixi": replace(_OTHER_PATH, manifest=True),
}  # fmt: skip
OTHER = Launcher()  # the row of every program that isn't a launcher, or not known as one


def name_of(program: str) -> str:
    """The name of a program: its path without the folder."""
    return program.rsplit("/", 1)[-1]
