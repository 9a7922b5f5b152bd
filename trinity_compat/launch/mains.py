"""Which command lines start a training main: python, torchrun and the other launchers."""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import pairwise

PYTHON = re.compile(r"(python|pypy)(\d(\.\d+)?)?w?")
# A training main by its last name: main_ppo, main_dapo, fully_async_main, sft_trainer, fsdp_sft_trainer.
TRAINING = re.compile(r"main_\w+|\w+_main|\w*_main_\w+|(\w+_)?trainer|sft_trainer_\w+")
NOT_TRAINING = re.compile(r"main_(eval|generation|gen|infer|inference|serve|server|merge)\w*|\w*_eval_main")
PACKAGE = re.compile(r"(?:^|/)((?:verl|recipe|verl_recipe)/.+)$")
DISTRIBUTED = {"torch.distributed.run", "torch.distributed.launch", "accelerate.commands.launch", "deepspeed"}

# Launchers' options that take no value; every other one takes the next word.
TORCHRUN_FLAGS = {
    "--standalone", "--no-python", "--no_python", "--run-path", "--run_path", "--use-env", "--use_env",
    "--enable-cpu-affinity-binding", "-h", "--help",
}  # fmt: skip
ACCELERATE_FLAGS = {
    "--multi_gpu", "--multi-gpu", "--cpu", "--tpu", "--use_deepspeed", "--use-deepspeed", "--use_fsdp",
    "--use-fsdp", "--use_megatron_lm", "--quiet", "-q", "--debug", "--no_python", "--use_xpu", "--ipex",
    "--enable_cpu_affinity", "--same_network", "--standalone", "--downcast_bf16",
}  # fmt: skip
DEEPSPEED_FLAGS = {
    "--no_python",
    "--no_local_rank",
    "--force_multi",
    "--save_pid",
    "--bind_cores_to_rank",
    "--no_ssh",
}
# Modules that run another module or file: their options come before its -m or its path.
TRACERS = {
    "coverage", "debugpy", "pdb", "ipdb", "cProfile", "profile", "trace", "viztracer", "scalene",
    "pyinstrument", "kernprof", "line_profiler", "memory_profiler", "torch.utils.bottleneck",
}  # fmt: skip
LAUNCHERS = {"torchrun": TORCHRUN_FLAGS, "accelerate": ACCELERATE_FLAGS, "deepspeed": DEEPSPEED_FLAGS}


@dataclass(frozen=True, slots=True)
class Found:
    """A training main: its module, the index of its first argument, the launcher before it."""

    module: str
    arguments: int
    wrapper: tuple[str, ...] = ()


def find(texts: list[str], cwd: str) -> Found | None:
    """The training main that a command line starts, None when it starts something else."""
    name = texts[0].rsplit("/", 1)[-1]
    if PYTHON.fullmatch(name):
        return _python(texts, cwd)
    if name == "accelerate" and texts[1:2] != ["launch"]:
        return None
    if name in LAUNCHERS:
        return _launcher(texts, 2 if name == "accelerate" else 1, name, cwd)
    return None


def is_training(module: str) -> bool:
    """Whether a module's name is that of a training main."""
    last = module.rsplit(".", 1)[-1]
    return bool(TRAINING.fullmatch(last)) and not NOT_TRAINING.fullmatch(last)


def mentioned(text: str) -> bool:
    """Whether a text that isn't read as code looks as if it started a training main, or a script."""
    words = [word.rsplit("/", 1)[-1] for word in re.findall(r"[\w./{}-]+", text)]
    starts = any(PYTHON.fullmatch(word) or word in LAUNCHERS for word in words)
    shells = any(word in ("bash", "sh", "source") for word in words)
    return (starts and any(is_training(word.removesuffix(".py")) for word in words)) or (
        shells and any(word.endswith((".sh", "{}")) for word in words)
    )


def named(texts: list[str]) -> bool:
    """Whether the words of a command that isn't followed name a training main to start."""
    modules = (b for a, b in pairwise(texts) if a in ("-m", "--module"))
    return any(is_training(module) for module in modules) or any(
        " " in text and mentioned(text) for text in texts[1:]
    )


def _main(module: str, arguments: int, wrapper: tuple[str, ...] = ()) -> Found | None:
    return Found(module, arguments, wrapper) if is_training(module) else None


def module_of(path: str, cwd: str) -> str:
    """A file as a module: verl/trainer/main_ppo.py is verl.trainer.main_ppo."""
    path = path.removesuffix(".py")
    if path.startswith(cwd.rstrip("/") + "/"):
        path = path[len(cwd.rstrip("/")) + 1 :]
    match = PACKAGE.search(path)
    if match and (path.startswith("/") or match[1].count("/") > 1):
        path = match[1]
        while (
            (deeper := PACKAGE.search(path[1:]))
            and path.startswith("verl/")
            and deeper[1].startswith("verl/")
        ):
            path = deeper[1]
    pieces = [piece for piece in path.split("/") if piece not in ("", ".", "..")]
    return ".".join(pieces if not path.startswith("/") else pieces[-1:])


def _python(texts: list[str], cwd: str) -> Found | None:
    at = 1
    while at < len(texts) and texts[at].startswith("-") and len(texts[at]) > 1:
        option = texts[at]
        if option.startswith("--"):
            at += 2 if option == "--check-hash-based-pycs" else 1
            continue
        letters = option[1:]
        stop = next((i for i, letter in enumerate(letters) if letter in "mcWX"), None)
        if stop is None:
            at += 1
        elif letters[stop] == "m":
            attached = letters[stop + 1 :]
            module = attached or (texts[at + 1] if at + 1 < len(texts) else "")
            return _module(texts, at + (1 if attached else 2), module, cwd)
        elif letters[stop] == "c":
            return None
        else:
            at += 1 if letters[stop + 1 :] else 2
    if at < len(texts) and texts[at].endswith(".py"):
        return _main(module_of(texts[at], cwd), at + 1)
    return None


def _module(texts: list[str], at: int, module: str, cwd: str) -> Found | None:
    if module in DISTRIBUTED:
        start = at + 1 if texts[at : at + 1] == ["launch"] else at
        return _launcher(texts, start, "torchrun" if "torch" in module else "accelerate", cwd)
    if module in TRACERS and (own := traced(texts, at)) is not None:
        inner = find(["python", *texts[own:]], cwd)
        return inner and Found(inner.module, own - 1 + inner.arguments, (module, *inner.wrapper))
    return _main(module, at)


def traced(texts: list[str], at: int) -> int | None:
    """Where a tracer's own options end: at ``-m`` or the path of a file."""
    return next((i for i in range(at, len(texts)) if texts[i] == "-m" or texts[i].endswith(".py")), None)


def _launcher(texts: list[str], at: int, name: str, cwd: str) -> Found | None:
    flags, as_module = LAUNCHERS[name], False
    shown = ("accelerate launch" if name == "accelerate" else name,)
    while at < len(texts) and texts[at].startswith("-"):
        option = texts[at]
        if option in ("-m", "--module"):
            as_module = True
        elif option == "--":
            at += 1
            break
        elif "=" not in option and option not in flags:
            at += 1
        at += 1
    if at >= len(texts):
        return None
    if as_module:
        return _main(texts[at], at + 1, shown)
    if texts[at].endswith(".py"):
        return _main(module_of(texts[at], cwd), at + 1, shown)
    inner = find(texts[at:], cwd)
    return Found(inner.module, at + inner.arguments, (*shown, *inner.wrapper)) if inner else None
