"""The folder of small programs that stands in front of PATH while a script runs.

Each program hands its words on: to ``trinity_compat.runtime.intercept`` when they could start a veRL
training main, to the real program of that name otherwise. Bash functions of the same names (through
``BASH_ENV``) hold the place when the script itself moves something in front of PATH, as
``source .venv/bin/activate`` does, and cover interpreters that are called by an absolute path.
"""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

NAMES = (
    "python", "python3", "python3.9", "python3.10", "python3.11", "python3.12", "python3.13",
    "torchrun", "accelerate", "uv", "ray",
)  # fmt: skip
SESSION = "TRINITY_COMPAT_SESSION"
FOLDER = "TRINITY_COMPAT_SHIM"
USER_BASH_ENV = "TRINITY_COMPAT_USER_BASH_ENV"
REAL = "TRINITY_COMPAT_REAL"
_OURS = (SESSION, FOLDER, USER_BASH_ENV, REAL)

_PROGRAM = """#!/bin/sh
# trinity-compat: hands veRL's training mains to the running `trinity-compat run`, all else on.
real=${{{real}:-}}
unset {real}
if [ -z "$real" ]; then
  rest=${{PATH#*"${folder}":}}
  [ "$rest" = "$PATH" ] && before= || before=${{PATH%%"${folder}":*}}
  real=$(PATH=$before$rest; command -v {name} || :)
fi
case " $* " in
  *main_ppo*|*main_dapo*|" job submit "*)
    exec {interceptor} "$real" {name} "$@" ;;
esac
[ -n "$real" ] || {{ echo "{name}: command not found" >&2; exit 127; }}
exec "$real" "$@"
"""

# A script under `set -x` shall show its own commands, not the body of our functions.
_UNTRACED = "{ local -; set +x; } 2>/dev/null;"
_INTERPRETER = re.compile(r"(?<![\w.$}-])(/[\w./+-]*/(?:python(?:3(?:\.\d+)?)?|torchrun))(?![\w./-])")


def install(
    folder: Path,
    *,
    script_text: str,
    env: Mapping[str, str],
    interceptor: Sequence[str] = (sys.executable, "-P", "-m", "trinity_compat.runtime.intercept"),
) -> dict[str, str]:
    """Write the programs into ``folder`` and return ``env`` with them in front.

    ``interceptor`` is called as ``… REAL NAME WORDS…`` for words that name a training main.
    """
    folder.mkdir(parents=True, exist_ok=True)
    absolute = _absolute_interpreters(script_text, env)
    for name in {*NAMES, *(Path(path).name for path in absolute)}:
        _write_program(folder / name, shlex.join(interceptor))
    (folder / "bash_env").write_text(_bash_env(folder, absolute))
    user_file = env.get("BASH_ENV")
    return {
        **env,
        "PATH": f"{folder}:{env.get('PATH', os.defpath)}",
        "BASH_ENV": str(folder / "bash_env"),
        FOLDER: str(folder),
        **({USER_BASH_ENV: user_file} if user_file else {}),
    }


def without(env: Mapping[str, str]) -> dict[str, str]:
    """``env`` as it was before ``install``: what the processes of a run get."""
    folder = env.get(FOLDER)
    clean = {name: value for name, value in env.items() if name not in (*_OURS, "BASH_ENV")}
    if USER_BASH_ENV in env:
        clean["BASH_ENV"] = env[USER_BASH_ENV]
    if folder:
        clean["PATH"] = ":".join(part for part in env.get("PATH", "").split(":") if part != folder)
    return clean


def _write_program(path: Path, interceptor: str) -> None:
    path.write_text(_PROGRAM.format(interceptor=interceptor, name=path.name, folder=FOLDER, real=REAL))
    path.chmod(0o755)


def _absolute_interpreters(script_text: str, env: Mapping[str, str]) -> list[str]:
    """Absolute interpreter paths that the script could call: those it spells, and those that the
    folders of PATH and the variables of the environment hold."""
    spelled = set(_INTERPRETER.findall(script_text))
    held = {value for value in env.values() if _INTERPRETER.fullmatch(value)}
    roots = [Path(part) for part in env.get("PATH", "").split(":") if part.startswith("/")]
    roots += [Path(env[name]) / "bin" for name in ("VIRTUAL_ENV", "CONDA_PREFIX") if env.get(name)]
    found = {str(root / name) for root in roots for name in NAMES[:7] if (root / name).is_file()}
    return sorted(spelled | held | found)


def _bash_env(folder: Path, absolute: Iterable[str]) -> str:
    """What every bash of the script reads first. POSIX mode refuses such function names."""
    lines = [
        f'[ -z "${{{USER_BASH_ENV}:-}}" ] || . "${USER_BASH_ENV}"',
        "shopt -qo posix && return 0",
        *(f'{name}() {{ {_UNTRACED} {shlex.quote(str(folder / name))} "$@"; }}' for name in NAMES),
    ]
    for path in absolute:
        program = shlex.quote(str(folder / Path(path).name))
        lines.append(f'{path}() {{ {_UNTRACED} {REAL}={shlex.quote(path)} {program} "$@"; }}')
    return "\n".join(lines) + "\n"
