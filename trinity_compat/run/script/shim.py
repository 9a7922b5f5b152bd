"""Stand-ins on PATH for the programs that could start a veRL training main, while a script runs.

Three things, since a script can go past each: a folder of small programs in front of PATH; bash functions of
the same names (through BASH_ENV), which hold when the script itself puts something in front of PATH, as
``source .venv/bin/activate`` does, and cover programs that bash calls by a path; and a ``sitecustomize`` in
front of PYTHONPATH, by which every Python that comes up otherwise (``exec /usr/bin/python3``, ``conda run``,
a launcher written in Python) looks at its own command line. Each hands words that could start a training main
to ``trinity_compat.run.script.intercept``, all else to the real program.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from trinity_compat.launch import background, entrypoints

ALWAYS = ("python", "python3")
# Only those that exist when the script starts: `command -v uv` must not find others.
NAMES = (*(f"python3.{minor}" for minor in range(8, 16)), "pypy", "pypy3", *entrypoints.PROGRAMS, "ray")
SESSION = "TRINITY_COMPAT_SESSION"
FOLDER = "TRINITY_COMPAT_SHIM"
USER_BASH_ENV = "TRINITY_COMPAT_USER_BASH_ENV"
REAL = "TRINITY_COMPAT_REAL"
ASKED = "TRINITY_COMPAT_ASKED"
MAINS = entrypoints.VARIABLE
_OURS = (SESSION, FOLDER, USER_BASH_ENV, REAL, ASKED, MAINS)
_MARKS = (*entrypoints.MARKS, "job submit")

_PROGRAM = """#!/bin/sh
# trinity-compat: hands veRL's training mains to the running `trinity-compat run`, all else on.
real=${{{real}:-}}
unset {real}
: "${{{folder_name}:=${{0%/*}}}}" # `env -i PATH=…` keeps neither
: "${{{session_name}:=${{{folder_name}%/*}}}}"
export {folder_name} {session_name}
if [ -z "$real" ]; then
  rest=${{PATH#*"${folder_name}":}}
  [ "$rest" = "$PATH" ] && before= || before=${{PATH%%"${folder_name}":*}}
  real=$(PATH=$before$rest; command -v {name} || :)
fi
case " $* " in
  {patterns})
    exec {interceptor} "$real" {name} "$@" ;;
esac
[ -n "$real" ] || {{ echo "{name}: command not found" >&2; exit 127; }}
case ":${{PYTHONPATH:-}}:" in
  *":${folder_name}/site:"*) ;;
  *) PYTHONPATH=${folder_name}/site${{PYTHONPATH:+:$PYTHONPATH}}; export PYTHONPATH ;;
esac
exec "$real" "$@"
"""

_SITE = """\
# trinity-compat: a Python that the script starts past the programs in front of PATH asks here whether it is
# to train; then the environment's own sitecustomize follows, as without this one.
import os
import sys

_HERE = os.path.dirname(os.path.abspath(__file__))


def _ask():
    with open("/proc/self/cmdline", "rb") as file:
        words = [os.fsdecode(word) for word in file.read().split(b"\\0")[:-1]]
    name, text = os.path.basename(words[0]), " ".join(words[1:])
    if not name.startswith(("python", "pypy")) or not any(mark in text for mark in {marks!r}):
        return
    interceptor = {interceptor!r}
    if words[1 : len(interceptor)] == interceptor[1:] or not sys.executable:
        return
    if os.environ.get({asked!r}) == str(os.getpid()):
        return
    os.environ.setdefault({folder_name!r}, os.path.dirname(_HERE))
    os.environ.setdefault({session_name!r}, os.path.dirname(os.environ[{folder_name!r}]))
    os.environ[{asked!r}] = str(os.getpid())
    os.execv(interceptor[0], interceptor + [sys.executable, name] + words[1:])


try:
    _ask()
except Exception:  # a Python that cannot look is one that runs as it would
    pass
sys.path[:] = [folder for folder in sys.path if os.path.abspath(folder or ".") != _HERE]
_ours = sys.modules.pop("sitecustomize")
try:
    import sitecustomize
except ImportError:
    sys.modules["sitecustomize"] = _ours
"""

# A script under `set -x` shall show its own commands, not the body of our functions.
_UNTRACED = "{ local -; set +x; } 2>/dev/null;"
_NAME = "|".join(("python(?:3(?:\\.\\d+)?)?", "pypy3?", *entrypoints.PROGRAMS, "ray"))
_BY_PATH = re.compile(rf"(?<![\w.$}}-])(/[\w./+-]*/(?:{_NAME}))(?![\w./-])")
_FUNCTION = re.compile(r"[\w./+-]+", re.A)
# A script that handles an unset PYTHONPATH must not find one.
_ASKS_FOR_PYTHONPATH = re.compile(r"\$\{PYTHONPATH:?[-=?]|-[nzv]\s+[\"']?\$?\{?PYTHONPATH")


def variables(folder: Path, *, script_text: str, env: Mapping[str, str]) -> dict[str, str]:
    """Return ``env`` with ``folder`` in front of PATH, BASH_ENV and PYTHONPATH."""
    user_file, python_path = env.get("BASH_ENV"), env.get("PYTHONPATH", "")
    changed = {
        "PATH": f"{folder}:{env.get('PATH', os.defpath)}",
        "BASH_ENV": str(folder / "bash_env"),
        FOLDER: str(folder),
    }
    if python_path or not _ASKS_FOR_PYTHONPATH.search(script_text):
        changed["PYTHONPATH"] = ":".join(filter(None, (str(python_folder(folder)), python_path)))
    return {**env, **changed, **({USER_BASH_ENV: user_file} if user_file else {})}


def python_folder(folder: Path) -> Path:
    """Return the folder of ``sitecustomize``."""
    return folder / "site"


def install(
    folder: Path,
    *,
    script_text: str,
    env: Mapping[str, str],
    script: str = "",
    programs: Iterable[str] = (),
    mains: Mapping[str, str] = entrypoints.NO_USER_MAINS,
    interceptor: Sequence[str] = (sys.executable, "-P", "-m", "trinity_compat.run.script.intercept"),
) -> dict[str, str]:
    """Write the programs into ``folder``, which lies in the session's, and return ``env`` with them in front.

    ``script`` is how bash is given it. ``programs`` are those that start the script's launches, as it spells
    them, ``mains`` the mains that the user named. ``interceptor`` is called as ``… REAL NAME WORDS…`` for
    words that may start a training main.
    """
    python_folder(folder).mkdir(parents=True, exist_ok=True)
    by_path = _called_by_path(script_text, env)
    by_path |= {name for name in programs if "/" in name and can_be_function(name)}
    there = {name for name in NAMES if shutil.which(name, path=env.get("PATH", os.defpath))}
    # A module is also called as its file: what both spellings have is the last part of the name.
    marks = (*_MARKS, *(module.rpartition(".")[2] for module in mains))
    names = sorted({*ALWAYS, *there, *(name for name in programs if "/" not in name)})
    for name in {*names, *(Path(path).name for path in by_path)}:
        text = _PROGRAM.format(
            interceptor=shlex.join(interceptor),
            name=name,
            patterns="|".join(f'*"{mark}"*' for mark in marks),
            folder_name=FOLDER,
            session_name=SESSION,
            real=REAL,
        )
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    alone = _in_its_place(script, script_text)
    (folder / "bash_env").write_text(_bash_env(folder, names, sorted(by_path), alone))
    (python_folder(folder) / "sitecustomize.py").write_text(
        _SITE.format(
            marks=marks,
            asked=ASKED,
            folder_name=FOLDER,
            session_name=SESSION,
            interceptor=list(interceptor),
        )
    )
    known = {MAINS: json.dumps(dict(mains))} if mains else {}
    return {**variables(folder, script_text=script_text, env=env), **known}


def without(env: Mapping[str, str]) -> dict[str, str]:
    """Return ``env`` as it was before ``install``, for the processes of a run."""
    folder = env.get(FOLDER)
    clean = {name: value for name, value in env.items() if name not in (*_OURS, "BASH_ENV")}
    if USER_BASH_ENV in env:
        clean["BASH_ENV"] = env[USER_BASH_ENV]
    if folder:
        clean["PATH"] = _without_folder(env.get("PATH", ""), folder)
        python_path = _without_folder(env.get("PYTHONPATH", ""), str(python_folder(Path(folder))))
        if python_path != env.get("PYTHONPATH", ""):
            clean["PYTHONPATH"] = python_path
        if not clean.get("PYTHONPATH"):
            clean.pop("PYTHONPATH", None)
    return clean


def _without_folder(path: str, folder: str) -> str:
    return ":".join(part for part in path.split(":") if part != folder)


def _called_by_path(script_text: str, env: Mapping[str, str]) -> set[str]:
    """Return programs that the script could call by a path.

    These are the paths in its text, and programs in the folders of PATH and of environment variables.
    """
    spelled = set(_BY_PATH.findall(script_text))
    held = {value for value in env.values() if _BY_PATH.fullmatch(value)}
    roots = [Path(part) for part in env.get("PATH", "").split(":") if part.startswith("/")]
    roots += [Path(env[name]) / "bin" for name in ("VIRTUAL_ENV", "CONDA_PREFIX") if env.get(name)]
    found = {str(root / name) for root in roots for name in (*ALWAYS, *NAMES) if (root / name).is_file()}
    return spelled | held | set(filter(can_be_function, found))


def can_be_function(program: str) -> bool:
    """Return whether bash takes the word, written as it is, for the name of a function."""
    return _FUNCTION.fullmatch(program) is not None


def _in_its_place(script: str, text: str) -> str:
    """Return bash code that is true where a function may replace its shell by the program.

    A background command has its own shell, and the script ends the server by that shell's pid.
    """
    lines = " ".join(map(str, background.lines_of_commands(text)))
    here = f'${{BASH_SOURCE[1]-}} = {shlex.quote(script)} && " {lines} " = *" ${{BASH_LINENO[0]}} "*'
    return f"[[ $BASHPID != $$ && {here} ]]"


def _bash_env(folder: Path, names: Iterable[str], by_path: Iterable[str], alone: str) -> str:
    """Return the text that every bash of the script reads first.

    POSIX mode refuses such function names. ``alone``: see `_in_its_place`.
    """
    lines = [
        f'[ -z "${{{USER_BASH_ENV}:-}}" ] || . "${USER_BASH_ENV}"',
        "shopt -qo posix && return 0",
    ]
    for name in names:
        lines.append(_function(name, shlex.quote(str(folder / name)), alone))
    for path in by_path:
        program = shlex.quote(str(folder / Path(path).name))
        lines.append(_function(path, program, alone, f"{REAL}={shlex.quote(path)} "))
    return "\n".join(lines) + "\n"


def _function(name: str, program: str, alone: str, given: str = "") -> str:
    return f'{name}() {{ {_UNTRACED} ! {alone} || {given}exec {program} "$@"; {given}{program} "$@"; }}'
