"""Programs that run another command: nohup, env, sudo, ray job submit, srun, docker exec, ssh.

Known ones are read by their options. For any other program the first word that starts python, a
launcher or a shell is taken for the command that it runs.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field

from trinity_compat import mains, ray_jobs
from trinity_compat.launch.core.state import Shell
from trinity_compat.launch.core.values import Value, doubt_in, from_character, literal, text_of
from trinity_compat.launch.shell.assignments import NAME
from trinity_compat.launch.words import parameters

Prefix = dict[str, Value]

# Options that take the next word as their value, and how many plain words come before the command.
SIMPLE: dict[str, tuple[frozenset[str], int]] = {
    "nohup": (frozenset(), 0),
    "setsid": (frozenset(), 0),
    "time": (frozenset({"-f", "-o", "--format", "--output"}), 0),
    "nice": (frozenset({"-n", "--adjustment"}), 0),
    "ionice": (frozenset({"-c", "-n", "-p", "--class", "--classdata"}), 0),
    "timeout": (frozenset({"-k", "-s", "--kill-after", "--signal"}), 1),
    "stdbuf": (frozenset({"-i", "-o", "-e"}), 0),
    "unbuffer": (frozenset(), 0),
    "catchsegv": (frozenset(), 0),
    "chrt": (frozenset(), 1),
    "taskset": (frozenset(), 1),
    "numactl": (frozenset({"-N", "-m", "-C", "-p", "-i", "-l"}), 0),
    "sudo": (frozenset({"-u", "-g", "-p", "-C", "-D", "-h", "-R", "-r", "-T", "-t", "-U"}), 0),
    "doas": (frozenset({"-u", "-C"}), 0),
    "xvfb-run": (frozenset({"-n", "-s", "-e", "-f"}), 0),
    "command": (frozenset(), 0),
}
# Never looked into: they name programs without running them.
INERT = {
    "pip", "pip3", "apt", "apt-get", "yum", "dnf", "brew", "git", "pkill", "pgrep", "kill", "killall", "grep",
    "ps", "ln", "mv", "wget", "curl", "man", "whereis", "huggingface-cli", "hf", "modelscope",
    "aws",
    "gsutil", "rsync", "scp", "tar", "unzip", "ls", "stat", "nvidia-smi", "npu-smi",
    "du", "df", "ray", "make",
}  # fmt: skip
# They make command lines of something that is only known when they run.
NOT_FOLLOWED = {"find", "parallel", "xargs"}
XARGS_VALUES = frozenset({"-d", "-n", "-L", "-I", "-P", "-s", "-a", "-E"}) | {
    "--max-args", "--max-lines", "--max-procs", "--max-chars", "--arg-file", "--delimiter", "--replace",
}  # fmt: skip
REMOTE = {"docker", "podman", "nerdctl", "kubectl", "ssh"}
# What starts a command out of the script's reach, and how.
ELSEWHERE: dict[str, str] = {
    **dict.fromkeys(
        ("docker", "podman", "nerdctl", "kubectl", "apptainer", "singularity", "enroot", "chroot"),
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
    "conda",
    "mamba",
    "micromamba",
    "module",
    "ml",
    "spack",
    "workon",
    "mise",
    "pyenv",
    "activate",
}
STRINGS = {
    "ssh", "tmux", "su", "script", "flock", "screen", "srun", "pdsh", "sbatch", "kubectl", "docker", "podman",
    "watch", "salloc",
}  # fmt: skip
SSH_VALUES = {f"-{letter}" for letter in "bcDEeFIiJLlmOopQRSWw"}
SHELLS = frozenset({"bash", "sh", "zsh", "dash"})


@dataclass(frozen=True, slots=True)
class Inner:
    """What a wrapper runs: a command line, or text as code."""

    name: str
    call: list[Value] = field(default_factory=list)
    code: Value | None = None
    prefix: Prefix = field(default_factory=dict)
    remote: bool = False
    elsewhere: str = ""
    dropped: tuple[str, ...] | None = ()  # variables that don't go along; None: all of them


def unwrap(sh: Shell, fields: list[Value], prefix: Prefix) -> Inner | None:
    """The command inside a wrapper, None when there is none."""
    texts = [text_of(value) for value in fields]
    name = texts[0].rsplit("/", 1)[-1]
    if name in SIMPLE:
        at = _skip_options(texts, *SIMPLE[name])
        return Inner(name, fields[at:], prefix=prefix) if at < len(fields) else None
    if name == "env":
        return _env(fields, texts, prefix)
    if name == "ray" and texts[1:3] == ["job", "submit"]:
        return _ray(sh, fields, texts, prefix)
    if name == "uv" and "run" in texts:
        return _uv(fields, texts, prefix)
    if name in INERT or name in NOT_FOLLOWED:
        return None
    return _scan(sh, fields, texts, name, prefix)


def _skip_options(texts: list[str], with_value: frozenset[str], words: int) -> int:
    at = 1
    while at < len(texts):
        text = texts[at]
        if text == "--":
            at += 1
            break
        if text.startswith("-") and len(text) > 1:
            at += 2 if text in with_value else 1
            continue
        if NAME.match(text) and "=" in text and texts[0].endswith("sudo"):
            at += 1
            continue
        break
    return at + words


def made_command(texts: list[str]) -> list[str]:
    """The command that ``find`` or ``xargs`` runs, as far as it is written out."""
    if texts[0].endswith("find"):
        at = next((i for i, t in enumerate(texts) if t in ("-exec", "-execdir", "-ok", "-okdir")), len(texts))
        return texts[at + 1 :]
    return texts[_skip_options(texts, XARGS_VALUES, 0) :]


def _env(fields: list[Value], texts: list[str], prefix: Prefix) -> Inner | None:
    at, own = 1, dict(prefix)
    dropped: tuple[str, ...] | None = ()
    while at < len(texts):
        text = texts[at]
        match = re.match(r"([A-Za-z_]\w*)=", text)
        if match:
            own[match[1]] = from_character(fields[at], match.end())
        elif text in ("-i", "-", "--ignore-environment"):
            own, dropped = {}, None
        elif text in ("-u", "--unset", "-C", "--chdir"):
            at += 1
            if "u" in text and dropped is not None:
                dropped = (*dropped, *texts[at : at + 1])
        elif not text.startswith("-"):
            break
        at += 1
    return Inner("env", fields[at:], prefix=own, dropped=dropped) if at < len(fields) else None


def _ray(sh: Shell, fields: list[Value], texts: list[str], prefix: Prefix) -> Inner | None:
    job = ray_jobs.read(texts[1:])
    at = 1 + job.entry
    if at >= len(fields):
        return None
    own = dict(prefix)
    own.update(_runtime_env(sh, job.options.get("--runtime-env-json", "")))
    address = job.options.get("--address") or text_of(prefix.get("RAY_ADDRESS") or sh.exported("RAY_ADDRESS"))
    elsewhere = "" if ray_jobs.is_local(address) else f"ray job submit --address {address}"
    shown = "ray job submit"
    if at == len(fields) - 1 and " " in texts[at]:
        return Inner(shown, code=fields[at], prefix=own, elsewhere=elsewhere)
    return Inner(shown, fields[at:], prefix=own, elsewhere=elsewhere)


def _runtime_env(sh: Shell, text: str) -> Prefix:
    """The variables of ``--runtime-env-json '{"env_vars": {…}}'``."""
    try:
        variables = json.loads(text).get("env_vars", {})
        return {str(k): literal(str(v), sh.where) for k, v in variables.items() if NAME.fullmatch(str(k))}
    except (ValueError, AttributeError, RecursionError):
        return {}


def _uv(fields: list[Value], texts: list[str], prefix: Prefix) -> Inner | None:
    """``uv run bash x.sh``; where it starts a training main itself, ``mains.find`` has found it."""
    start = next((i for i in range(texts.index("run") + 1, len(texts)) if _starts(texts, i)), None)
    return None if start is None else Inner("uv run", fields[start:], prefix=prefix)


def _starts(texts: list[str], at: int) -> bool:
    """Whether the word at ``at`` begins a command that can lead to a training main."""
    name = texts[at].rsplit("/", 1)[-1]
    if at + 1 >= len(texts):
        return False
    if mains.is_launcher(name) or name in SHELLS:
        return True
    return name == "ray" and texts[at + 1 : at + 3] == ["job", "submit"]


def _scan(sh: Shell, fields: list[Value], texts: list[str], name: str, prefix: Prefix) -> Inner | None:
    own = {**prefix, **_container_env(fields, texts)} if name in REMOTE else prefix
    away = name in REMOTE
    shown = " ".join(texts[:2]) if name in REMOTE - {"ssh"} else name
    if name == "ssh" and (inner := _ssh(sh, fields, texts)) is not None:
        return Inner("ssh", code=inner, prefix=prefix, remote=True)
    for index in range(1, len(texts)):
        if _starts(texts, index):
            return Inner(shown, fields[index:], prefix=own, remote=away)
    if name == "sbatch":
        script = next((i for i, t in enumerate(texts) if t.endswith((".sh", ".slurm", ".sbatch"))), None)
        if script is not None:
            return Inner(name, [literal("bash", sh.where), *fields[script:]], prefix=own)
    if name in STRINGS:
        for value, text in zip(fields[1:], texts[1:], strict=True):
            if re.search(r"\b(python\d?|torchrun|accelerate|ray|bash|sh)\s", text) and not doubt_in([value]):
                body = from_character(value, len("--wrap=")) if text.startswith("--wrap=") else value
                return Inner(shown, code=body, prefix=own, remote=away)
    return None


def _container_env(fields: list[Value], texts: list[str]) -> Prefix:
    """``docker exec -e NAME=value``."""
    out: Prefix = {}
    for index, text in enumerate(texts):
        match = re.match(r"(?:-e|--env)(?:=|)([A-Za-z_]\w*)=", text)
        if match:
            out[match[1]] = from_character(fields[index], match.end())
        elif text in ("-e", "--env") and index + 1 < len(texts):
            name, equals, _ = texts[index + 1].partition("=")
            if equals and NAME.fullmatch(name):
                out[name] = from_character(fields[index + 1], len(name) + 1)
    return out


def _ssh(sh: Shell, fields: list[Value], texts: list[str]) -> Value | None:
    at = 1
    while at < len(texts) and texts[at].startswith("-"):
        at += 2 if texts[at] in SSH_VALUES else 1
    command = fields[at + 1 :]
    if command:
        if _starts(texts, at + 1) and texts[at + 1] in ("bash", "sh"):
            return None
        return parameters.join(command, " ", command[0][0].where)
    return sh.stdin if sh.stdin and not doubt_in([sh.stdin]) else None
