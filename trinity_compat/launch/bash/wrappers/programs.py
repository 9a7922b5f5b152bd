"""Programs that run another command: nohup, env, sudo, ray job submit, srun, docker exec, ssh.

Known ones are read by their options. For any other program the first word that starts python, a
launcher or a shell is taken for the command that it runs.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from trinity_compat.launch import entrypoints, ray_submit
from trinity_compat.launch.bash import slurm
from trinity_compat.launch.bash.options import OptionSpec
from trinity_compat.launch.bash.shell.assignments import NAME
from trinity_compat.launch.bash.state import Shell
from trinity_compat.launch.bash.traced_text import (
    Prefix,
    Value,
    doubt_in,
    from_character,
    literal,
    open_source,
    text_of,
)
from trinity_compat.launch.bash.words import parameters
from trinity_compat.launch.bash.wrappers import compose, environments, shells
from trinity_compat.launch.model import EnvRef, UnknownPiece

ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)=")


def _before_command(values: str = "", **long: str) -> OptionSpec:
    """The options of a program that runs another; ``long`` are long spellings of those with a value."""
    spellings = {f"--{name.replace('_', '-')}": letter for name, letter in long.items()}
    return OptionSpec(values=values, long=spellings, leading=True, lenient=True)


PLAIN = _before_command()
# Programs that run the rest of their words: their options, and how many operands come before the command.
RUNNERS: dict[str, tuple[OptionSpec, int]] = {
    **dict.fromkeys(("nohup", "setsid", "unbuffer", "catchsegv", "command"), (PLAIN, 0)),
    "time": (_before_command("fo", format="f", output="o"), 0),
    "nice": (_before_command("n", adjustment="n"), 0),
    "ionice": (_before_command("cnp", **{"class": "c"}, classdata="n"), 0),
    "timeout": (_before_command("ks", kill_after="k", signal="s"), 1),
    "stdbuf": (_before_command("ioe"), 0),
    "chrt": (PLAIN, 1),
    "taskset": (PLAIN, 1),
    "numactl": (_before_command("NmCpi"), 0),
    "sudo": (_before_command("ugpCDhRrTtU"), 0),
    "doas": (_before_command("uC"), 0),
    "xvfb-run": (_before_command("nsef"), 0),
}
ENV = _before_command("uC", unset="u", chdir="C", ignore_environment="i")
SSH = _before_command("bcDEeFIiJLlmOopQRSWw")
XARGS = _before_command(
    "dnLIPsaE",
    delimiter="d",
    max_args="n",
    max_lines="L",
    replace="I",
    max_procs="P",
    max_chars="s",
    arg_file="a",
)
# Never looked into: they name programs without running them.
INERT = {
    "pip", "pip3", "apt", "apt-get", "yum", "dnf", "brew", "git", "pkill", "pgrep", "kill", "killall", "grep",
    "ps", "ln", "mv", "wget", "curl", "man", "whereis", "huggingface-cli", "hf", "modelscope",
    "aws",
    "gsutil", "rsync", "scp", "tar", "unzip", "ls", "stat", "nvidia-smi", "npu-smi",
    "du", "df", "ray", "make",
}  # fmt: skip
# They read the files that they are given, and write none.
READERS = {
    "cmp", "cut", "diff", "du", "egrep", "fgrep", "file", "grep", "head", "less", "ls", "md5sum", "more",
    "sha256sum", "sort", "stat", "tail", "uniq", "wc", "jq", "column", "nl", "od", "xxd", "shellcheck",
}  # fmt: skip
# They make command lines of something that is only known when they run.
NOT_FOLLOWED = {"find", "parallel", "xargs"}
REMOTE = {"docker", "podman", "nerdctl", "kubectl", "ssh"}
# What starts a command out of the script's reach, and how.
ELSEWHERE: dict[str, str] = {
    **dict.fromkeys(
        (
            "docker",
            "podman",
            "nerdctl",
            *compose.ALONE,
            "kubectl",
            "apptainer",
            "singularity",
            "enroot",
            "chroot",
        ),
        "in a container, where this run is not",
    ),
    **dict.fromkeys(("ssh", "pdsh"), "on another machine"),
    **dict.fromkeys(("srun", "sbatch", "salloc", "bsub", "qsub"), "on machines that the scheduler chooses"),
    **dict.fromkeys(("sudo", "doas", "su"), "as another user, with an environment of its own"),
    **dict.fromkeys(("tmux", "screen", "systemd-run", "at"), "in a session with an environment of its own"),
}
# What runs a command with another environment's folder in front of PATH.
SWITCHES = {"conda", "mamba", "micromamba", "uv", "poetry", "pipenv", "pdm", "hatch", "pixi", "rye"}
# What may change PATH of the script itself.
CHANGES_PATH = {
    "conda", "mamba", "micromamba", "module", "ml", "spack", "workon", "mise", "pyenv", "activate",
}  # fmt: skip
STRINGS = {
    "ssh", "tmux", "su", "script", "flock", "screen", "srun", "pdsh", "sbatch", "kubectl", "docker", "podman",
    "watch", "salloc",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Wrapped:
    """The command of a wrapper: a command line, or text as code."""

    name: str
    call: list[Value] = field(default_factory=list)
    code: Value | None = None
    prefix: Prefix = field(default_factory=dict)
    inherits: bool = True  # the script's exported variables go along
    unread: UnknownPiece | EnvRef | None = None  # what may set any variable of the command
    elsewhere: str = ""
    mounts: tuple[tuple[str, str], ...] = ()  # of its container, as those of the shell
    cwd: str = ""  # where it starts, empty for the script's folder
    dropped: tuple[str, ...] | None = ()  # variables that don't go along; None: all of them


def unwrap(sh: Shell, fields: list[Value], prefix: Prefix) -> list[Wrapped]:
    """The command inside a wrapper; several of ``docker compose up``, none where there is none."""
    if (words := compose.words_of(fields)) is not None:
        program = text_of(fields[0]).rsplit("/", 1)[-1]
        name = program if program in compose.ALONE else f"{program} compose"
        found = compose.started(sh, words, prefix)
        return [
            Wrapped(
                name,
                call,
                prefix=made.prefix,
                inherits=False,
                unread=made.unread,
                mounts=made.mounts,
                cwd=made.cwd,
            )
            for call, made in found
        ]
    wrapped = _unwrap(sh, fields, prefix)
    return [] if wrapped is None else [wrapped]


def _unwrap(sh: Shell, fields: list[Value], prefix: Prefix) -> Wrapped | None:
    texts = [text_of(value) for value in fields]
    name = texts[0].rsplit("/", 1)[-1]
    if name in RUNNERS:
        return _runner(sh, name, fields, prefix)
    if name == "env":
        return _env(fields, prefix)
    if name == "ray" and texts[1:3] == ["job", "submit"]:
        return _ray(sh, fields, texts, prefix)
    if name == "uv" and "run" in texts:
        return _uv(sh, fields, texts, prefix)
    if name in INERT or name in NOT_FOLLOWED:
        return None
    return _scan(sh, fields, texts, name, prefix)


def _runner(sh: Shell, name: str, fields: list[Value], prefix: Prefix) -> Wrapped | None:
    options, operands = RUNNERS[name]
    given = options.read(fields[1:])
    rest = given.operands[operands:] if given else []
    while name == "sudo" and rest and ASSIGNMENT.match(text_of(rest[0])):
        rest = rest[1:]
    if not rest:
        return None
    if name not in ("sudo", "doas"):
        return Wrapped(name, rest, prefix=prefix)
    return _with_environment(sh, name, fields, len(fields) - len(rest), prefix)


def _with_environment(
    sh: Shell, name: str, fields: list[Value], start: int, prefix: Prefix, shown: str = ""
) -> Wrapped:
    """The command that begins at ``start``, in the environment that the launcher's words in front make."""
    found = environments.of_launcher(sh, name, fields[1:start], prefix)
    return Wrapped(
        shown or name, fields[start:], prefix=found.prefix, inherits=found.inherits, unread=found.unread
    )


def made_command(fields: list[Value]) -> list[str]:
    """The command that ``find`` or ``xargs`` runs, as far as it is written out."""
    texts = [text_of(value) for value in fields]
    if texts[0].endswith("find"):
        at = next((i for i, t in enumerate(texts) if t in ("-exec", "-execdir", "-ok", "-okdir")), len(texts))
        return texts[at + 1 :]
    given = XARGS.read(fields[1:])
    return given.texts() if given else texts[1:]


def _env(fields: list[Value], prefix: Prefix) -> Wrapped | None:
    given = ENV.read(fields[1:])
    if given is None:
        return None
    rest = given.operands
    empty = given.has("i") or bool(rest and text_of(rest[0]) == "-")
    rest = rest[1:] if rest and text_of(rest[0]) == "-" else rest
    own = {} if empty else dict(prefix)
    while rest and (match := ASSIGNMENT.match(text_of(rest[0]))):
        own[match[1]] = from_character(rest.pop(0), match.end())
    dropped = None if empty else tuple(text_of(value) for value in given.options.get("u", []))
    return Wrapped("env", rest, prefix=own, dropped=dropped) if rest else None


def _ray(sh: Shell, fields: list[Value], texts: list[str], prefix: Prefix) -> Wrapped | None:
    job = ray_submit.read(texts[1:])
    at = 1 + job.entry
    if at >= len(fields):
        return None
    variables, unread = _runtime_env(sh, job.options)
    own = {**prefix, **variables}
    address = job.options.get("--address") or text_of(prefix.get("RAY_ADDRESS") or sh.exported("RAY_ADDRESS"))
    elsewhere = "" if ray_submit.is_local(address) else f"ray job submit --address {address}"
    shown = "ray job submit"
    # ray hands the words to a shell: a single one with blanks is code
    if at == len(fields) - 1 and " " in texts[at]:
        return Wrapped(shown, code=fields[at], prefix=own, elsewhere=elsewhere, unread=unread)
    return Wrapped(shown, fields[at:], prefix=own, elsewhere=elsewhere, unread=unread)


def _runtime_env(sh: Shell, options: Mapping[str, str]) -> tuple[Prefix, UnknownPiece | None]:
    """The variables of ``--runtime-env FILE`` or ``--runtime-env-json TEXT``, and what is not known."""
    file, text = options.get("--runtime-env", ""), options.get("--runtime-env-json", "")
    if file:
        content = sh.files.read(sh.files_path(literal(file, sh.where)))
        text = text_of(content) if content is not None and not doubt_in([content]) else ""
    if not text:
        given = "--runtime-env-json" in options or "--runtime-env" in options
        return {}, UnknownPiece(file or "--runtime-env-json", sh.where) if given else None
    variables = ray_submit.env_vars(text)
    return {name: literal(value, sh.where) for name, value in variables.items() if NAME.fullmatch(name)}, None


def _uv(sh: Shell, fields: list[Value], texts: list[str], prefix: Prefix) -> Wrapped | None:
    """``uv run bash x.sh``; where it starts a training main itself, ``mains.find`` has found it."""
    start = next((i for i in range(texts.index("run") + 1, len(texts)) if _starts(texts, i)), None)
    return None if start is None else _with_environment(sh, "uv", fields, start, prefix, "uv run")


def _starts(texts: list[str], at: int) -> bool:
    """Return whether the word at ``at`` begins a command that can lead to a training main."""
    name = texts[at].rsplit("/", 1)[-1]
    if at + 1 >= len(texts):
        return False
    if entrypoints.is_launcher(name) or name in shells.SHELLS:
        return True
    if name == "env":
        return any(_starts(texts, later) for later in range(at + 1, len(texts)))
    return name == "ray" and texts[at + 1 : at + 3] == ["job", "submit"]


def _scan(sh: Shell, fields: list[Value], texts: list[str], name: str, prefix: Prefix) -> Wrapped | None:
    shown = " ".join(texts[:2]) if name in REMOTE - {"ssh"} else name
    if name == "ssh" and (remote := _ssh(sh, fields)) is not None:
        return Wrapped("ssh", code=remote, inherits=False)
    # the options of mpirun, srun and the like are many; where python or a shell begins is seen without them
    for index in range(1, len(texts)):
        if _starts(texts, index):
            return _with_environment(sh, name, fields, index, prefix, shown)
    if name == "sbatch":
        script = next((i for i, t in enumerate(texts) if t.endswith((".sh", ".slurm", ".sbatch"))), None)
        if script is not None:
            wrapped = _with_environment(sh, name, fields, script, prefix)
            job = {**_of_job(sh, texts[1:script], fields[script]), **wrapped.prefix}
            return replace(wrapped, call=[literal("bash", sh.where), *fields[script:]], prefix=job)
        if sh.stdin and not any(text.startswith("--wrap") for text in texts):
            wrapped = _with_environment(sh, name, fields, len(fields), prefix)
            own = sh.schedule(slurm.of_command(texts[1:], text_of(sh.stdin), sh.unit.name, sh.where))
            return replace(wrapped, code=sh.stdin, prefix={**own, **wrapped.prefix})
    if name in STRINGS:
        for index, (value, text) in enumerate(zip(fields, texts, strict=True)):
            if index and re.search(r"\b(python\d?|torchrun|accelerate|ray|bash|sh)\s", text):
                _note_open_code(sh, name, value)
                body = from_character(value, len("--wrap=")) if text.startswith("--wrap=") else value
                return replace(_with_environment(sh, name, fields, index, prefix, shown), code=body)
    return None


def _of_job(sh: Shell, options: list[str], script: Value) -> Prefix:
    """Return the environment of the script of ``sbatch``, from its lines and the options of the command."""
    path = sh.files_path(script)
    content = sh.files.read(path, as_it_is=True) if sh.files.kind(path) == "file" else None
    return sh.schedule(slurm.of_command(options, text_of(content or ()), text_of(script), sh.where))


def _note_open_code(sh: Shell, name: str, value: Value) -> None:
    """Say that code with an open piece (``tmux send-keys "… $(hostname)"``) is read without it."""
    doubts = (open_source(bit) for bit in value)
    if doubt := next((doubt for doubt in doubts if isinstance(doubt, UnknownPiece)), None):
        message = f"{name} is given code that depends on {doubt.expression}, which cannot be known here"
        sh.warn("TP101", f"{message}; the rest of it is read", sh.where)


def _ssh(sh: Shell, fields: list[Value]) -> Value | None:
    """The code that runs on the other machine: the words behind the host, else stdin."""
    given = SSH.read(fields[1:])
    command = given.operands[1:] if given else []
    if not command:
        return sh.stdin if sh.stdin and not doubt_in([sh.stdin]) else None
    texts = [text_of(value) for value in command]
    if texts[0] in ("bash", "sh") and len(texts) > 1:
        return None
    return parameters.join(command, " ", command[0][0].where)
