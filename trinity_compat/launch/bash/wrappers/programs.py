"""Programs that run another command: nohup, env, sudo, ray job submit, srun, docker exec, ssh.

Known ones are read by their options. For any other program the first word that starts python, a
launcher or a shell is taken for the command that it runs.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace

from trinity_compat.common.errors import UserError
from trinity_compat.launch import entrypoints, ray_submit
from trinity_compat.launch.bash import slurm
from trinity_compat.launch.bash.options import OptionSpec
from trinity_compat.launch.bash.shell.assignments import NAME
from trinity_compat.launch.bash.state import Shell
from trinity_compat.launch.bash.traced_text import (
    Prefix,
    TextPiece,
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
ENV = _before_command("uCS", unset="u", chdir="C", ignore_environment="i", split_string="S")
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
    "sha256sum", "stat", "tail", "wc", "jq", "column", "nl", "od", "shellcheck",
}  # fmt: skip
# They write their last word, on another host where it names one.
COPIES = {"rsync", "scp"}
OF_A_HOST = re.compile(r"[^/]+:")
# They make command lines of something that is only known when they run.
NOT_FOLLOWED = {"find", "parallel", "xargs"}
# Launchers that are looked for in the words of another one: their options count for what they start.
NESTED = {
    "apptainer", "docker", "enroot", "kubectl", "mpiexec", "mpirun", "podman", "singularity", "srun", "sudo",
    "uv",
}  # fmt: skip
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
SCHEDULERS = {"sbatch", "bsub", "qsub", "at", "batch"}
SCRIPTS = (".sh", ".slurm", ".sbatch", ".pbs", ".lsf")
CONTAINERS = {"docker", "podman", "nerdctl"}
# Their options without a value.
FLAGS = {
    "--detach", "--init", "--interactive", "--no-healthcheck", "--oom-kill-disable", "--privileged",
    "--publish-all", "--quiet", "--read-only", "--rm", "--sig-proxy", "--tty",
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
    if environments.keep_setting(sh, fields):
        return []
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
        return _env(sh, fields, prefix)
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
    sh: Shell, name: str, fields: list[Value], start: int, prefix: Prefix, shown: str = "", script: Value = ()
) -> Wrapped:
    """The command that begins at ``start``, in the environment that the launcher's words in front make.

    So do the lines of a scheduler's ``script``.
    """
    words = environments.of_script(name, script, fields[1:start]) if script else fields[1:start]
    found = environments.of_launcher(sh, name, words, prefix)
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


def edits_in_place(words: list[str]) -> bool:
    """Return whether a command changes the files that it is given: ``sed -i``, ``perl -pi``, ``yq -i``."""
    editor = bool(words) and words[0].rsplit("/", 1)[-1] in ("sed", "perl", "yq", "gawk")
    return editor and any(re.match(r"-[a-z]*i|--in-?place", word) for word in words)


def _env(sh: Shell, fields: list[Value], prefix: Prefix) -> Wrapped | None:
    given = ENV.read(fields[1:])
    if given is None:
        return None
    line = given.value("S")
    rest = [*(literal(word, sh.where) for word in text_of(line).split()), *given.operands]
    empty = given.has("i") or bool(rest and text_of(rest[0]) == "-")
    rest = rest[1:] if rest and text_of(rest[0]) == "-" else rest
    dropped = None if empty else tuple(text_of(value) for value in given.options.get("u", []))
    own = {} if dropped is None else {k: v for k, v in prefix.items() if k not in dropped}
    while rest and (match := ASSIGNMENT.match(text_of(rest[0]))):
        own[match[1]] = from_character(rest.pop(0), match.end())
    unread = doubt_in([line])
    return Wrapped("env", rest, prefix=own, dropped=dropped, unread=unread) if rest else None


def _ray(sh: Shell, fields: list[Value], texts: list[str], prefix: Prefix) -> Wrapped | None:
    try:
        job = ray_submit.read(texts[1:])
    except UserError as error:
        sh.warn("TP126", error.message, severity="error")
        return None
    at = 1 + job.entry
    if at >= len(fields):
        return None
    variables, unread = _runtime_env(sh, fields[1:at])
    own = {**prefix, **variables}
    address = job.options.get("--address") or text_of(prefix.get("RAY_ADDRESS") or sh.exported("RAY_ADDRESS"))
    elsewhere = "" if ray_submit.is_local(address) else f"ray job submit --address {address}"
    shown = "ray job submit"
    # ray hands the words to a shell: a single one with blanks is code
    if at == len(fields) - 1 and " " in texts[at]:
        return Wrapped(shown, code=fields[at], prefix=own, elsewhere=elsewhere, unread=unread)
    while at < len(fields) - 1 and (match := ASSIGNMENT.match(texts[at])):  # of the shell's command line
        own[match[1]] = from_character(fields[at], match.end())
        at += 1
    return Wrapped(shown, fields[at:], prefix=own, elsewhere=elsewhere, unread=unread)


_HOLE = "\ue000"  # an open piece within the text of a runtime environment


def _runtime_env(sh: Shell, words: list[Value]) -> tuple[Prefix, UnknownPiece | EnvRef | None]:
    """The variables of ``--runtime-env FILE`` or ``--runtime-env-json TEXT``, and what is not known."""
    files = list(environments.values_of(words, ("--runtime-env",)))
    texts = [sh.files.read(sh.files_path(file)) or () for file in files]
    texts += environments.values_of(words, ("--runtime-env-json",))
    found: Prefix = {}
    for text in texts:
        doubt = doubt_in([text])
        given = ray_submit.env_vars("".join(_HOLE if open_source(bit) else bit.text for bit in text))
        if not text_of(text) or any(_HOLE in name for name in given) or (doubt and not given):
            named = files[0] if files else literal("--runtime-env-json", sh.where)
            return {}, doubt or UnknownPiece(text_of(named), sh.where)
        for name, value in given.items():
            known = _HOLE not in value or doubt is None
            found[name] = literal(value, sh.where) if known else (TextPiece("", sh.where, doubt),)
    return {name: value for name, value in found.items() if NAME.fullmatch(name)}, None


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
    if name == "env" or name in NESTED:
        return any(_starts(texts, later) for later in range(at + 1, len(texts)))
    return name == "ray" and texts[at + 1 : at + 3] == ["job", "submit"]


def _scan(sh: Shell, fields: list[Value], texts: list[str], name: str, prefix: Prefix) -> Wrapped | None:
    shown = " ".join(texts[:2]) if name in REMOTE - {"ssh"} else name
    if name == "ssh" and (remote := _ssh(sh, fields)) is not None:
        return replace(_with_environment(sh, name, fields, len(fields), prefix), code=remote)
    if name in CONTAINERS and (places := _entrypoint(texts)) is not None:
        image, program = places
        start = 13 if texts[program].startswith("--entrypoint=") else 0
        call = [from_character(fields[program], start), *fields[image + 1 :]]
        return replace(_with_environment(sh, name, fields, image, prefix, shown), call=call)
    # the options of mpirun, srun and the like are many; where python or a shell begins is seen without them
    for index in range(1, len(texts)):
        if _starts(texts, index):
            return _with_environment(sh, name, fields, index, prefix, shown)
    if name in SCHEDULERS and (job := _job(sh, fields, texts, name, prefix)) is not None:
        return job
    if name in STRINGS:
        for index, (value, text) in enumerate(zip(fields, texts, strict=True)):
            if index and re.search(r"\b(python\d?|torchrun|accelerate|ray|bash|sh)\s", text):
                _note_open_code(sh, name, value)
                body = from_character(value, len("--wrap=")) if text.startswith("--wrap=") else value
                return replace(_with_environment(sh, name, fields, index, prefix, shown), code=body)
    return None


def _entrypoint(texts: list[str]) -> tuple[int, int] | None:
    """The places of the image, and of the program that ``--entrypoint`` names, of ``docker run``."""
    at, program = texts.index("run") + 1 if "run" in texts else len(texts), 0
    while at < len(texts) and texts[at].startswith("-"):
        alone = "=" in texts[at] or texts[at] in FLAGS or bool(re.fullmatch("-[ditPq]+", texts[at]))
        if texts[at].startswith("--entrypoint"):
            program = at if alone else at + 1
        at += 1 if alone else 2
    return (at, program) if program and at < len(texts) else None


def _job(sh: Shell, fields: list[Value], texts: list[str], name: str, prefix: Prefix) -> Wrapped | None:
    """The script of a scheduler: a file, or its stdin; its lines have options, too."""
    start = next((i for i, t in enumerate(texts) if t.endswith(SCRIPTS) and not re.search(r"\s", t)), None)
    if start is None and (not sh.stdin or any(text.startswith("--wrap") for text in texts)):
        return None
    content, shown = sh.stdin or (), sh.unit.name
    if start is not None:
        path, shown = sh.files_path(fields[start]), texts[start]
        content = (sh.files.read(path, as_it_is=True) if sh.files.kind(path) == "file" else None) or ()
    end = len(fields) if start is None else start
    wrapped = _with_environment(sh, name, fields, end, prefix, script=content)
    if name == "sbatch":
        own = sh.schedule(slurm.of_command(texts[1:end], text_of(content), shown, sh.where))
        wrapped = replace(wrapped, prefix={**own, **wrapped.prefix})
    if start is None:
        return replace(wrapped, code=content)
    return replace(wrapped, call=[literal("bash", sh.where), *fields[start:]])


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
