"""The command within another: behind nohup, env, sudo, ray job submit, srun, docker exec, ssh.

Launchers are read by their rows. For any other program the first word that starts python, a launcher or a
shell is taken for the command that it runs.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from itertools import pairwise

from trinity_compat.common.errors import UserError, Where
from trinity_compat.launch import entrypoints, ray_submit
from trinity_compat.launch.bash import slurm
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
from trinity_compat.launch.bash.words import lookup
from trinity_compat.launch.bash.words.segments import place_of
from trinity_compat.launch.bash.wrappers import compose, environments, shells
from trinity_compat.launch.bash.wrappers.environments import ASSIGNMENT, CommandEnvironment
from trinity_compat.launch.launchers import LAUNCHERS, OTHER, before_command, name_of
from trinity_compat.launch.model import EnvRef, UnknownPiece

ENV = before_command("uCS", unset="u", chdir="C", ignore_environment="i", split_string="S")
SSH = before_command("bcDEeFIiJLlmOopQRSWw")
XARGS = before_command(
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
# They make command lines of something that is only known when they run.
NOT_FOLLOWED = {"find", "parallel", "xargs"}
SCRIPTS = (".sh", ".slurm", ".sbatch", ".pbs", ".lsf")
# Options of docker and its like without a value.
FLAGS = {
    "--detach", "--init", "--interactive", "--no-healthcheck", "--oom-kill-disable", "--privileged",
    "--publish-all", "--quiet", "--read-only", "--rm", "--sig-proxy", "--tty",
}  # fmt: skip
_RUNS = re.compile(r"\b(python\d?|torchrun|accelerate|ray|bash|sh)\s")  # in the text of a line for a shell
_TYPES = frozenset({"send-keys", "send", "stuff"})


@dataclass(frozen=True, slots=True)
class Wrapped:
    """The command of a wrapper: a command line, or text as code."""

    name: str
    environment: CommandEnvironment
    call: list[Value] = field(default_factory=list)
    code: Value | None = None
    elsewhere: str = ""
    dropped: tuple[str, ...] | None = ()  # variables that don't go along; None: all of them


def unwrap(sh: Shell, fields: list[Value], prefix: Prefix) -> list[Wrapped]:
    """The command inside a wrapper; several of ``docker compose up``, none where there is none."""
    if environments.keep_setting(sh, fields):
        return []
    if (words := compose.words_of(fields)) is not None:
        program = name_of(text_of(fields[0]))
        name = program if program in compose.ALONE else f"{program} compose"
        return [Wrapped(name, made, call) for call, made in compose.started(sh, words, prefix)]
    wrapped = _unwrap(sh, fields, prefix)
    return [] if wrapped is None else [wrapped]


def _unwrap(sh: Shell, fields: list[Value], prefix: Prefix) -> Wrapped | None:
    texts = [text_of(value) for value in fields]
    name = name_of(texts[0])
    row = LAUNCHERS.get(name, OTHER)
    if row.options is not None:
        given = row.options.read(fields[1:])
        rest = given.operands[row.operands :] if given else []
        while row.words and rest and ASSIGNMENT.match(text_of(rest[0])):
            rest = rest[1:]
        return _with_environment(sh, name, fields, len(fields) - len(rest), prefix) if rest else None
    if name == "env":
        return _env(sh, fields, prefix)
    if name == "ray" and texts[1:3] == ["job", "submit"]:
        return _ray(sh, fields, texts, prefix)
    return None if name in INERT or name in NOT_FOLLOWED else _scan(sh, fields, texts, prefix)


def _with_environment(
    sh: Shell, name: str, fields: list[Value], start: int, prefix: Prefix, shown: str = "", script: Value = ()
) -> Wrapped:
    """The command that begins at ``start``, in the environment that the launcher's words in front make.

    So do the lines of a scheduler's ``script``.
    """
    words = environments.of_script(name, script, fields[1:start]) if script else fields[1:start]
    found = environments.of_launcher(sh, name, words, prefix)
    return Wrapped(shown or name, found, fields[start:])


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
    editor = bool(words) and name_of(words[0]) in ("sed", "perl", "yq", "gawk")
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
    environment = CommandEnvironment(inherits=True, given=own, unread=doubt_in([line]))
    return Wrapped("env", environment, rest, dropped=dropped) if rest else None


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
    environment = CommandEnvironment(inherits=True, given=prefix, variables=variables, unread=unread)
    named = (text_of(prefix.get(name) or sh.exported(name)) for name in ray_submit.ADDRESSES)
    address = job.options.get("--address") or next(filter(None, named), "")
    elsewhere = "" if ray_submit.is_local(address) else f"ray job submit --address {address}"
    shown = "ray job submit"
    # ray hands the words to a shell: a single one with blanks is code
    if at == len(fields) - 1 and " " in texts[at]:
        return Wrapped(shown, environment, code=fields[at], elsewhere=elsewhere)
    while at < len(fields) - 1 and (match := ASSIGNMENT.match(texts[at])):  # of the shell's command line
        variables[match[1]] = from_character(fields[at], match.end())
        at += 1
    return Wrapped(shown, environment, fields[at:], elsewhere=elsewhere)


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


def _starts(texts: list[str], at: int) -> bool:
    """Return whether the word at ``at`` begins a command that can lead to a training main."""
    name = name_of(texts[at])
    if at + 1 >= len(texts):
        return False
    if entrypoints.is_launcher(name) or name in shells.SHELLS:
        return True
    if name == "env" or LAUNCHERS.get(name, OTHER).nested:
        return any(_starts(texts, later) for later in range(at + 1, len(texts)))
    return name == "ray" and texts[at + 1 : at + 3] == ["job", "submit"]


def _scan(sh: Shell, fields: list[Value], texts: list[str], prefix: Prefix) -> Wrapped | None:
    name = name_of(texts[0])
    row = LAUNCHERS.get(name, OTHER)
    shown, first = " ".join(texts[:2]) if row.verbs else name, 1
    if row.verb and row.verb in texts:
        shown, first = f"{name} {row.verb}", texts.index(row.verb) + 1
    if name == "ssh" and (remote := _ssh(sh, fields)) is not None:
        return replace(_with_environment(sh, name, fields, len(fields), prefix), code=remote)
    if row.image and (places := _entrypoint(texts)) is not None:
        image, program = places
        start = 13 if texts[program].startswith("--entrypoint=") else 0
        call = [from_character(fields[program], start), *fields[image + 1 :]]
        return replace(_with_environment(sh, name, fields, image, prefix, shown), call=call)
    # the options of mpirun, srun and the like are many; where python or a shell begins is seen without them
    for index in range(first, len(texts)):
        if _starts(texts, index):
            return _with_environment(sh, name, fields, index, prefix, shown)
    if row.job and (job := _job(sh, fields, texts, name, prefix)) is not None:
        return job
    if row.code:
        typed = _typed_lines(sh, fields, texts)
        for index, (value, text) in enumerate(zip(fields, texts, strict=True)):
            if index and _RUNS.search(text):
                doubts = (doubt for bit in value if isinstance(doubt := open_source(bit), UnknownPiece))
                if doubt := next(doubts, None):  # `tmux send-keys "… $(hostname)"`
                    message = f"{name} is given code that depends on {doubt.expression}"
                    note = "which is known only at run time; the rest of it is read"
                    sh.warn("TP101", f"{message}, {note}", sh.where)
                body = from_character(value, len("--wrap=")) if text.startswith("--wrap=") else value
                body = _as_lines([*typed, body], sh.where)
                return replace(_with_environment(sh, name, fields, index, prefix, shown), code=body)
    return None


def _typed_lines(sh: Shell, fields: list[Value], texts: list[str]) -> list[Value]:
    """Return the lines typed before into the shell of ``tmux send-keys`` and ``screen -X stuff``.

    Those of this command before the one that starts a program are among them, and stay for the next command.
    """
    if _TYPES.isdisjoint(texts):
        return []
    target = next((at for flag, at in pairwise(texts) if flag in ("-t", "-S")), "").partition(":")[0]
    lines = sh.log.typed.setdefault(target, [])
    for value, text in zip(fields[1:], texts[1:], strict=True):
        if _RUNS.search(text):
            break
        if re.search(r"[\s=]", text.strip()) and not text.startswith("-"):
            lines.append(value)
    return lines if not target else [*sh.log.typed.get("", ()), *lines]


def _as_lines(typed: list[Value], where: Where) -> Value:
    """Return lines as one text in which each has the number of its place in the script."""
    out = typed[0]
    for value in typed[1:]:
        text, start = text_of(out), place_of(out, where)
        at = replace(start, line=start.line + text.count("\n"))
        after = place_of(value, where).line - at.line
        separator = "\n" * after if after > 0 else "" if text.endswith("\n") else "; "
        out = (*out, *literal(separator, at), *value)
    return out


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
        settings = slurm.of_command(texts[1:end], text_of(content), shown, sh.where)
        wrapped.environment.scheduled = sh.schedule(settings)
    if start is None:
        return replace(wrapped, code=content)
    return replace(wrapped, call=[literal("bash", sh.where), *fields[start:]])


def _ssh(sh: Shell, fields: list[Value]) -> Value | None:
    """The code that runs on the other machine: the words behind the host, else stdin."""
    given = SSH.read(fields[1:])
    command = given.operands[1:] if given else []
    if not command:
        return sh.stdin if sh.stdin and not doubt_in([sh.stdin]) else None
    texts = [text_of(value) for value in command]
    if texts[0] in ("bash", "sh") and len(texts) > 1:
        return None
    return lookup.join(command, " ", command[0][0].where)
