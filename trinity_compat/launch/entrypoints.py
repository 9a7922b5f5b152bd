"""Recognition of veRL's training mains in command lines, and the list of mains that are translated.

Reading a script (``launch``) and intercepting a run (``run/script/intercept.py``) both call ``find``, so
``run`` catches what ``parse`` shows. Imports nothing heavy, because every intercepted command pays for it.
"""

from __future__ import annotations

import os.path
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from types import MappingProxyType

from trinity_compat.common.errors import UserError, Where
from trinity_compat.launch.launchers import LAUNCHERS, PythonOptions, name_of

PYTHON = re.compile(r"(python|pypy)(\d(\.\d+)?)?w?")
# An argument that Hydra takes for an override, or a flag of its own.
OVERRIDE = re.compile(
    r"(\+\+|\+|~)?[A-Za-z_][\w@]*([./][\w@-]+)+(\[\d+\])?=|(\+\+|\+)[A-Za-z_][\w.]*=|--config-\w+=?"
)
# Characters that editors put in the place of a hyphen or a minus sign.
OTHER_DASH = re.compile("[\u2010-\u2015\u2212]")
# A training main by its last name: main_ppo, main_dapo, fully_async_main, sft_trainer, fsdp_sft_trainer.
_TRAINING = re.compile(r"main_\w+|\w+_main|\w*_main_\w+|(\w+_)?trainer|sft_trainer_\w+")
_NOT_TRAINING = re.compile(r"main_(eval|generation|gen|infer|inference|serve|server|merge)\w*|\w*_eval_main")
# Outside veRL's packages only these names, or Hydra's overrides, mark a training main.
_NAMED = re.compile(r"(\w+_)?main_(ppo|dapo|grpo)(_\w+)?")
_EASY_R1 = "verl.trainer.main"
_OF_VERL = ("verl.", "recipe.", "verl_recipe.")
_PACKAGE = re.compile(r"(?:^|/)((?:verl|recipe|verl_recipe)/.+)$")
_NESTED = 8  # launchers in each other
# Every command line that starts a training main has one of these in it, except for mains of --main.
MARKS = ("main", "trainer", "actor_rollout_ref")

PPO, DAPO, ONE_STEP_OFF, FULLY_ASYNC = TRANSLATED = (
    "verl.trainer.main_ppo",
    "recipe.dapo.main_dapo",
    "verl.experimental.one_step_off_policy.main_ppo",
    "verl.experimental.fully_async_policy.fully_async_main",
)
# How veRL's own packages have spelled a main over its releases: with 0.8 the recipes became a repository of
# their own, and these two a part of veRL.
_SPELLED = {
    ONE_STEP_OFF: re.compile(r"(.+\.)?one_step_off_policy\.(async_)?main_ppo"),
    FULLY_ASYNC: re.compile(r"(.+\.)?fully_async_policy\.(fully_async_main|main_ppo)"),
}
# Trainers on rows of files, whose keys are others (translate/sft.py).
SUPERVISED = (
    "verl.trainer.fsdp_sft_trainer",
    "verl.trainer.sft_trainer",
    "verl.trainer.sft_trainer_ray",
)
# Keys that only the configuration of veRL's mains has; they mark a user's own main as one of these.
_VERL_KEY = re.compile(r"(\+\+|\+|~)?(actor_rollout_ref[.=]|algorithm\.adv_estimator=)")
_DAPO_KEY = re.compile(
    r"(\+\+)?(algorithm\.filter_groups|reward_model\.overlong_buffer|data\.gen_batch_size)"
)
# Sections that only veRL's asynchronous mains have: fully_async's own, and the one that both have.
_ASYNC_KEYS = {
    FULLY_ASYNC: re.compile(r"(\+\+|\+)?async_training\.\w+="),
    ONE_STEP_OFF: re.compile(r"(\+\+|\+)?rollout\.(nnodes|n_gpus_per_node)="),
}
# Modules that take veRL's keys and train nothing with them.
_READS_KEYS = re.compile(
    r"(.*_)?(eval|evaluate|evaluation|generate|generation|infer|inference|serve|server|merge|convert)(_.*)?"
)
_OTHERS = {
    "sft_trainer": "supervised fine-tuning has no rollout to decouple",
    "main_sft": "supervised fine-tuning has no rollout to decouple",
    "transfer_queue": "this recipe replaces veRL's trainer by one on TransferQueue",
    "main_ppo_sync": "it is veRL 0.8's trainer on TransferQueue, which 0.9 has in main_ppo",
    "main_prime": "this recipe also trains its reward model",
    "main_spin": "this recipe trains on pairs of answers, by its own trainer",
    "main_sppo": "this recipe computes a loss of its own",
    "main_flowrl": "this recipe computes a loss of its own",
    "recipe.specRL": "this recipe has a rollout of its own",
    "recipe.vla": "this recipe drives a simulator, by its own trainer",
    "experimental.vla": "this recipe drives a simulator, by its own trainer",
}


VARIABLE = "TRINITY_COMPAT_MAINS"  # the mains of --main for the processes that a run's script starts, as JSON
NO_USER_MAINS: Mapping[str, str] = MappingProxyType({})


# Programs that start Python by their names, and modules that `python -m` starts.
PROGRAMS = {name: row.python for name, row in LAUNCHERS.items() if row.python is not None}
_TORCHRUN, _ACCELERATE = PROGRAMS["torchrun"], PROGRAMS["accelerate"]
_TRACING_MODULES = (
    "pdb", "cProfile", "profile", "trace", "line_profiler", "memory_profiler", "torch.utils.bottleneck",
    "IPython",
)  # fmt: skip
_MODULES: dict[str, PythonOptions] = {
    **{name: options for name, options in PROGRAMS.items() if name not in ("torchrun", "accelerate")},
    **{name: PythonOptions(name) for name in _TRACING_MODULES},
    "torch.distributed.run": _TORCHRUN,
    "torch.distributed.launch": _TORCHRUN,
    "accelerate.commands.launch": replace(_ACCELERATE, command=""),
    "accelerate.commands.accelerate_cli": _ACCELERATE,
    "deepspeed.launcher.runner": PROGRAMS["deepspeed"],
}


@dataclass(frozen=True, slots=True)
class FoundMain:
    """A training main: its module, the index of its first argument, the launchers before it.

    ``isolated``: its Python takes no code from the environment (``-I``, ``-E``, ``-S``). ``main``: the
    translated main that it is taken for, where it is another one. ``torchrun``: the first of torchrun's
    options, and the word after the last. ``file``: the path by which it is started, empty after ``-m``.
    """

    module: str
    arguments: int
    wrapper: tuple[str, ...] = ()
    isolated: bool = False
    main: str = ""
    torchrun: tuple[int, int] = (0, 0)
    file: str = ""


def find(words: Sequence[str], cwd: str, user_mains: Mapping[str, str] = NO_USER_MAINS) -> FoundMain | None:
    """Return the training main that a command line starts in ``cwd``, None when it starts something else.

    ``user_mains``: the modules of --main, each with the translated main that it is to be taken for.
    Pure, and never raises: ``words`` are those of any program.
    """
    return _Line(words, cwd, user_mains).program(0)


def started(words: Sequence[str], cwd: str) -> FoundMain | None:
    """Return the Python module or file that a command line starts, whether it trains or not."""
    return _Line(words, cwd, every=True).program(0)


def parse_user_mains(given: Sequence[tuple[str, str]]) -> dict[str, str]:
    """Return ``MODULE=MAIN`` pairs as `find` takes them; a module may be spelled as its file.

    Raises UserError for a main that isn't translated.
    """
    for module, main in given:
        if main not in TRANSLATED:
            raise UserError(
                f"--main {module}={main}: {main or 'nothing'} is not a main that is translated",
                hint=f"one of {', '.join(TRANSLATED)}",
            )
    return {as_module(module): main for module, main in given}


def as_module(spelled: str) -> str:
    """Return ``src.train`` for ``src/train.py``."""
    plain = os.path.normpath(spelled) if "/" in spelled else spelled
    return plain.removesuffix(".py").strip("/").replace("/", ".")


def stand_in(module: str, arguments: Sequence[str]) -> str:
    """Return the translated main that another is taken for because it takes veRL's keys, or empty."""
    if not may_stand_in(module) or not has_verl_keys(arguments):
        return ""
    asynchronous = (main for main, key in _ASYNC_KEYS.items() if any(map(key.match, arguments)))
    if main := _spelled(module) or next(asynchronous, ""):
        return main
    dapo = module.rpartition(".")[2] == "main_dapo" or any(map(_DAPO_KEY.match, arguments))
    return DAPO if dapo else PPO


def may_stand_in(module: str) -> bool:
    """Tell whether ``module`` could be taken for a translated main.

    It is not translated itself, not a trainer of another kind, and its name does not show that it only
    evaluates or serves.
    """
    last = module.rpartition(".")[2]
    other = is_translated(module) or module == _EASY_R1 or any(part in module for part in _OTHERS)
    return not other and not _NOT_TRAINING.fullmatch(last) and not _READS_KEYS.fullmatch(last)


def has_verl_keys(arguments: Sequence[str]) -> bool:
    """Tell whether the arguments include keys that only veRL's configuration has."""
    return any(map(_VERL_KEY.match, arguments))


def is_translated(module: str) -> bool:
    """Tell whether ``module`` is a training main that is translated."""
    return canonical(module) in TRANSLATED or module in SUPERVISED


def canonical(module: str) -> str:
    """Return the one name that a main of veRL's has here, under any release's name of it."""
    return (_spelled(module) if module.startswith(_OF_VERL) else "") or module


def _spelled(module: str) -> str:
    return next((main for main, spelled in _SPELLED.items() if spelled.fullmatch(module)), "")


def refusal(module: str, main: str = "") -> str:
    """Return why a training main is not translated, or empty; ``main`` is the one that it is taken for."""
    if is_translated(main or module):
        return ""
    reason = next((why for part, why in _OTHERS.items() if part in module), "it has a trainer of its own")
    same_name = (main for main in TRANSLATED if main.rpartition(".")[2] == module.rpartition(".")[2])
    if module == _EASY_R1:
        reason = "it is EasyR1's, whose configuration has another format"
    elif not module.startswith(_OF_VERL) and (main := next(same_name, "")):
        reason = f"its path is not that of veRL's own main (if it is veRL's, write python3 -m {main})"
    return f"{module} is not translated: {reason}"


def refuse(module: str, where: Where | None = None, main: str = "") -> None:
    """Raise UserError unless ``module``, or the ``main`` that it is taken for, is translated."""
    if why := refusal(module, main):
        hint = f"translated are {', '.join(TRANSLATED)}; audit lists this launch's keys"
        if module != _EASY_R1:  # none of its keys mean anything to veRL's
            hint += f"; --main {module}={PPO} translates it as that main"
        raise UserError(why, where=where, hint=hint)


def is_training(module: str) -> bool:
    """Tell whether a module has the name of a training main."""
    last = module.rsplit(".", 1)[-1]
    return module == _EASY_R1 or (bool(_TRAINING.fullmatch(last)) and not _NOT_TRAINING.fullmatch(last))


def with_hyphens(text: str) -> str:
    """Return a word with hyphens for other dashes; a long one at its beginning stands for two.

    So does an en dash before a word, as word processors write two hyphens; ``-cn`` is Hydra's short option.
    """
    return OTHER_DASH.sub("-", re.sub("^(?:[\u2014\u2015](?=\\w\\w)|\u2013(?=\\w{3}))", "--", text))


def is_launcher(word: str) -> bool:
    """Tell whether a word names Python, or a program that starts a module or a file of Python."""
    name = name_of(word)
    return bool(PYTHON.fullmatch(name)) or name in PROGRAMS


def may_start_training(text: str) -> bool:
    """Tell whether a text that is not read as code seems to start a training main, or a script."""
    words = _names(text)
    shells = any(word in ("bash", "sh", "source") for word in words)
    scripts = any(word.endswith((".sh", "{}")) for word in words)
    return _trains(words) or (shells and scripts)


def names_training_main(text: str) -> bool:
    """Tell whether a text that is not read as code seems to start a training main."""
    return _trains(_names(text))


def _names(text: str) -> list[str]:
    return [name_of(word) for word in re.findall(r"[\w./{}-]+", text)]


def _trains(words: Sequence[str]) -> bool:
    return any(map(is_launcher, words)) and any(is_training(word.removesuffix(".py")) for word in words)


def has_training_main(words: Sequence[str]) -> bool:
    """Tell whether the words of an unknown program name a training main to start."""
    modules = (b for a, b in pairwise(words) if a in ("-m", "--module"))
    return any(is_training(module) for module in modules) or any(
        " " in text and may_start_training(text) for text in words[1:]
    )


def module_of(path: str, cwd: str) -> str:
    """Return a file's module: verl/trainer/main_ppo.py is verl.trainer.main_ppo, in its own folder too."""
    path = path.removesuffix(".py")
    whole = os.path.normpath(f"{cwd}/{path}" if not path.startswith("/") else path)
    known = (main for main in (*TRANSLATED, *SUPERVISED) if whole.endswith("/" + main.replace(".", "/")))
    if main := next(known, ""):
        return main
    if path.startswith(cwd.rstrip("/") + "/"):
        path = path[len(cwd.rstrip("/")) + 1 :]
    match = _PACKAGE.search(path)
    if match and (path.startswith("/") or match[1].count("/") > 1):
        path = match[1]
        while (
            (deeper := _PACKAGE.search(path[1:]))
            and path.startswith("verl/")
            and deeper[1].startswith("verl/")
        ):
            path = deeper[1]
    pieces = [piece for piece in path.split("/") if piece not in ("", ".", "..")]
    return ".".join(pieces if not path.startswith("/") else pieces[-1:])


@dataclass(slots=True)
class _Line:
    """One command line during the search for its main. ``at`` is always the index of a word."""

    words: Sequence[str]
    cwd: str
    user_mains: Mapping[str, str] = field(default_factory=dict)
    nested: int = 0
    every: bool = False  # any module counts

    def program(self, at: int) -> FoundMain | None:
        """Return the main that the program at ``at`` starts."""
        name = name_of(self.words[at])
        if PYTHON.fullmatch(name):
            return self._python(at + 1)
        launcher = PROGRAMS.get(name)
        return self._launched(at + 1, launcher) if launcher else None

    def _main(self, arguments: int, module: str) -> FoundMain | None:
        """Return a started module if it trains.

        The user named it, it has the name of a main of veRL's, or its arguments are overrides.
        """
        if self.every:
            return FoundMain(module, arguments)
        if main := self.user_mains.get(module) or stand_in(module, self.words[arguments:]):
            return FoundMain(module, arguments, main=main)
        if not is_training(module):
            return None
        known = module.startswith(_OF_VERL) or _NAMED.fullmatch(module.rpartition(".")[2])
        given = (OVERRIDE.match(word) for word in self.words[arguments:])
        return FoundMain(module, arguments) if known or any(given) else None

    def _python(self, at: int) -> FoundMain | None:
        """Parse Python's own options, so that the ``-m`` of another program is not taken for Python's."""
        given = ""
        while at < len(self.words) and self.words[at].startswith("-") and len(self.words[at]) > 1:
            letters, value, at = self._option(at)
            given += letters
            if letters.endswith("c"):
                return None
            if letters.endswith("m"):
                found = self._module(at, value)
                break
        else:
            found = self._file(at)
        return found and replace(found, isolated=found.isolated or not set("IES").isdisjoint(given))

    def _option(self, at: int) -> tuple[str, str, int]:
        """Return one of Python's options: its letters, the value of the last, the index of the next word."""
        option, at = self.words[at], at + 1
        if option.startswith("--"):
            return "", "", at + (option == "--check-hash-based-pycs")
        stop = next((i for i, letter in enumerate(option) if letter in "mcWX"), len(option))
        letters, value = option[1 : stop + 1], option[stop + 1 :]
        if stop < len(option) and not value:
            value, at = "".join(self.words[at : at + 1]), at + 1
        return letters, value, at

    def _module(self, at: int, module: str) -> FoundMain | None:
        launcher = _MODULES.get(module)
        if launcher is not None:
            return self._launched(at, launcher)
        from_inside = any(main.endswith(f".{module}") for main in TRANSLATED)  # cd verl/trainer
        return self._main(at, module_of(module.replace(".", "/"), self.cwd) if from_inside else module)

    def _file(self, at: int) -> FoundMain | None:
        """Return the main of a file: its own, or a launcher's (``python /opt/conda/bin/torchrun …``)."""
        if at >= len(self.words):
            return None
        if self.words[at].endswith(".py"):
            found = self._main(at + 1, module_of(self.words[at], self.cwd))
            return found and replace(found, file=self.words[at])
        launcher = PROGRAMS.get(name_of(self.words[at]))
        return self._launched(at + 1, launcher) if launcher else None

    def _launched(self, at: int, launcher: PythonOptions) -> FoundMain | None:
        self.nested += 1
        if self.nested > _NESTED:
            return None
        if launcher.command:
            if launcher.command not in self.words[at:]:
                return None
            at = self.words.index(launcher.command, at) + 1
        if launcher.flags is None:
            found = self._searched(at)
        else:
            end, as_module = self._options_end(at, launcher.flags)
            if end >= len(self.words):
                return None
            if as_module:
                found = self._module(end + 1, self.words[end])
            else:
                found = self._file(end) if self.words[end].endswith(".py") else self.program(end)
            if found and launcher is _TORCHRUN:
                found = replace(found, torchrun=(at, end))
        return found and replace(found, wrapper=(launcher.shown, *found.wrapper))

    def _searched(self, at: int) -> FoundMain | None:
        """Search the words of a launcher whose options are not known."""
        while at < len(self.words):
            word = self.words[at]
            if word in ("-p", "--python") and is_launcher("".join(self.words[at + 1 : at + 2])):
                at += 1  # uv's option, and the interpreter to take
            elif word in ("-m", "--module"):
                return self._module(at + 2, self.words[at + 1]) if at + 1 < len(self.words) else None
            elif word.endswith(".py"):
                return self._file(at)
            elif is_launcher(word):
                return self.program(at)
            at += 1
        return None

    def _options_end(self, at: int, flags: frozenset[str]) -> tuple[int, bool]:
        """Return the index after a launcher's options, and whether a module's name stands there."""
        as_module = False
        while at < len(self.words) and self.words[at].startswith("-"):
            option = self.words[at]
            at += 1
            if option == "--":
                break
            if option in ("-m", "--module"):
                as_module = True
            elif "=" not in option and option not in flags:
                at += 1
        return at, as_module
