"""Check before a script is executed: the shim must catch each of its training mains.

Each launch as static reading found it (`Start`) is compared with the shim's programs. A launch that is not
caught would train stock veRL, to its end.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from trinity_compat.common.errors import UserError
from trinity_compat.launch import Launch, Start, entrypoints, read_script
from trinity_compat.launch.launchers import LAUNCHERS
from trinity_compat.run.script import shim
from trinity_compat.verl_config import settled

_ANYWHERE = Path("/trinity-compat-run")  # placeholder for the folder of a run


def check(
    script: str,
    arguments: Sequence[str],
    environ: Mapping[str, str],
    mains: Mapping[str, str] = entrypoints.NO_USER_MAINS,
) -> Sequence[Launch]:
    """Return the script's launches.

    ``environ`` is the script's environment, ``mains`` the user's own mains. Raises UserError with the line of
    a launch that cannot be caught, or whose main is not translated.
    """
    launches = launches_of(script, arguments, environ, mains)
    for launch in launches:
        _refuse_untranslated(settled(launch), mains)
        _refuse_unreachable(launch)
    return launches


def launches_of(
    script: str,
    arguments: Sequence[str],
    environ: Mapping[str, str],
    mains: Mapping[str, str] = entrypoints.NO_USER_MAINS,
) -> Sequence[Launch]:
    """Read the script's launches with the shim's folders in front of PATH and PYTHONPATH."""
    data = Path(script).read_bytes()  # wherever a link leads: bash runs it
    env = shim.variables(_ANYWHERE, script_text=data.decode(errors="replace"), env=environ)
    try:
        return read_script(script, args=arguments, env=env, given=(), mains=mains, content=data).launches
    except UserError:  # too large to be read; bash runs it
        return ()


def programs_of(launches: Sequence[Launch]) -> frozenset[str]:
    """Return the programs that start the launches, as the script spells them."""
    return frozenset(launch.start.program for launch in launches if launch.start and launch.start.program)


def submitted_to(launch: Launch) -> str:
    """Return the address of the cluster that ``ray job submit`` sends a launch to, "" for a run here."""
    wrapper, _, rest = launch.start.elsewhere.partition(" ") if launch.start else ("", "", "")
    return rest.rpartition(" ")[2] if wrapper == "ray" else ""


def _refuse_untranslated(launch: Launch, mains: Mapping[str, str]) -> None:
    if launch.main and launch.module not in mains:
        raise UserError(
            f"{launch.module} is not veRL's own main: a run would train by {launch.main} of veRL's instead; "
            "nothing of the script was executed",
            where=launch.where,
            hint=f"where that is meant, add --main {launch.module}={launch.main}; audit says what differs",
        )
    if why := entrypoints.refusal(launch.module, launch.main):
        raise UserError(
            f"{why}; nothing of the script was executed",
            where=launch.where,
            hint=f"a run trains {', '.join(entrypoints.TRANSLATED)}; start another one with bash, by itself",
        )


def _refuse_unreachable(launch: Launch) -> None:
    start = launch.start
    if start is None or _is_caught(start, elsewhere=not submitted_to(launch)):
        return
    wrapper = start.elsewhere.partition(" ")[0]
    if start.elsewhere == wrapper == "srun":
        raise UserError(
            f"srun would train stock veRL: without ALL its --export leaves PATH and BASH_ENV, by which"
            f" {launch.module} is taken over",
            where=launch.where,
            hint="write --export=ALL, or --export=ALL,NAME=value, for this srun (or SLURM_EXPORT_ENV=ALL)",
        )
    if submitted_to(launch) or not wrapper:
        raise UserError(
            f"{start.program} … {launch.module} would train stock veRL, past this run: {_why(start)}",
            where=launch.where,
            hint=f"make it a plain command of a bash script: python3 -m {launch.module} …",
        )
    instead = f"`{start.elsewhere} … trinity-compat run SCRIPT`"
    if wrapper == "sbatch":  # which takes no program
        instead = (
            '`sbatch … --wrap "trinity-compat run SCRIPT"`, or `sbatch FILE` of'
            " `trinity-compat export SCRIPT --to slurm -o FILE`"
        )
    # also where the program is not installed: the verdict is the same on a laptop and on the cluster
    raise UserError(
        f"{start.elsewhere} would train stock veRL: it starts {launch.module} {LAUNCHERS[wrapper].elsewhere}",
        where=launch.where,
        hint=f"put the launch (python3 -m {launch.module} …) into a script without {start.elsewhere}, and"
        f" write {instead} here; there trinity-compat[run] has to be installed",
    )


def _is_caught(start: Start, *, elsewhere: bool) -> bool:
    """Return whether a bash function, a program in front of PATH, or ``sitecustomize`` catches the launch.

    ``elsewhere``: another program than the caught one would start it on another machine.
    """
    if start.elsewhere and elsewhere and not start.travels:
        return False
    by_function = start.hooked and shim.can_be_function(start.program)
    return by_function or _is_first(start) or (_asks(start) and not start.isolated)


def _is_first(start: Start) -> bool:
    """Return whether PATH finds the shim's program first."""
    folders = (start.path or "").split(":")
    if "/" in start.program or str(_ANYWHERE) not in folders:
        return False
    before = ":".join(folders[: folders.index(str(_ANYWHERE))])
    return not before or shutil.which(start.program, path=before) is None


def _asks(start: Start) -> bool:
    return str(shim.python_folder(_ANYWHERE)) in start.python_path.split(":")


def _why(start: Start) -> str:
    """Return the reason why each of the three ways misses the launch."""
    if "/" in start.program:
        way = "a program that is called by its path, but not by bash itself, is found without PATH"
    elif start.path is None:
        way = "an unread command before it may put another folder in front of PATH"
    else:
        way = "another one is found first in PATH"
    if start.isolated and _asks(start):
        return f"{way}, and -I, -E and -S keep Python from asking"
    if not start.path and start.path is not None:
        return "its environment is emptied (env -i)"
    return f"{way}, and its PYTHONPATH lost what it held (PYTHONPATH=…:$PYTHONPATH keeps it)"
