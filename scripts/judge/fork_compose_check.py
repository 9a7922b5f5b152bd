"""Compose launches of third-party scripts with Hydra itself, from their own trees, and compare with ours.

python scripts/judge/fork_compose_check.py --mirror DIR --corpus third_party.json [--sample 40] [--seed 0]
[-v]

DIR holds clones as <owner>+<name>/repo. Only text of theirs is read: Hydra composes their YAML with the
launch's own arguments, where the main's file lies and names it; nothing of theirs is imported or run. The
tree is found without our finder: the main's file whose path shares most with the script's.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import subprocess
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from trinity_compat.common.errors import UserError
from trinity_compat.common.nested import leaves
from trinity_compat.launch import read_script
from trinity_compat.launch.model import Launch
from trinity_compat.verl_config import as_tree, effective_config, hydra_flags

MAINS = ("main_ppo", "main_dapo")
TEXT = (".sh", ".bash", ".slurm", ".sbatch", ".py", ".yaml", ".yml", ".toml", ".txt", ".json")
ENV = {"HOME": "/home/user", "USER": "tester"}
DECORATED = re.compile(r"@hydra\.main\(\s*config_path=[\"'](.*?)[\"'],\s*config_name=[\"'](.*?)[\"']")
Entry = dict[str, Any]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mirror", type=Path, required=True)
    parser.add_argument("--corpus", type=Path, required=True)
    parser.add_argument("--only", default="", help="scripts whose repository and path contain this")
    parser.add_argument("--sample", type=int, default=40)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("-v", action="store_true")
    options = parser.parse_args()
    entries = [
        entry for entry in json.loads(options.corpus.read_text())["scripts"] if _wanted(entry, options)
    ]
    random.Random(options.seed).shuffle(entries)
    tally: Counter[str] = Counter()
    keys = 0
    with tempfile.TemporaryDirectory() as folder:
        for entry in entries[: options.sample]:
            verdict, compared, told = judged(entry, options.mirror, Path(folder))
            tally[verdict] += 1
            keys += compared
            if options.v or verdict == "differs":
                print(verdict, entry["repo"], entry["path"], told, flush=True)
    print(f"{sum(tally.values())} launches, {keys} values compared: {dict(tally)}")
    return int(tally["differs"] > 0)


def _wanted(entry: Entry, options: argparse.Namespace) -> bool:
    last = {module.removesuffix(".py").split(".")[-1] for module, *_ in entry["digests"]}
    named = options.only in f"{entry['repo']}/{entry['path']}"
    return named and not last.isdisjoint(MAINS) and git_of(entry, options.mirror).exists()


def git_of(entry: Entry, mirror: Path) -> Path:
    git = mirror / entry["repo"].replace("/", "+", 1) / "repo"
    return git / ".git" if (git / ".git").exists() else git


def judged(entry: Entry, mirror: Path, folder: Path) -> tuple[str, int, str]:
    """(verdict, values compared, what differs) of the first launch of one script."""
    tree = folder / entry["repo"].replace("/", "+", 1)
    if not tree.exists():
        write_tree(git_of(entry, mirror), entry["commit"], tree)
    launch = first_launch(entry, tree)
    if launch is None:
        return "no launch read", 0, ""
    place = config_of(launch, tree, tree / entry["path"])
    if place is None:
        return "no config in the tree", 0, launch.module
    theirs, refused = hydra_s(launch, *place)
    ours, problems = our_own(launch, tree)
    if theirs is None or ours is None or problems:
        same = (theirs is None) == (ours is None or bool(problems))
        return ("both refuse" if same else "differs"), 0, f"Hydra: {refused}; ours: {problems}"
    flat, mine = dict(leaves(theirs)), dict(leaves(ours))
    lost = sorted(flat.keys() ^ mine.keys())
    wrong = [key for key in flat.keys() & mine.keys() if not same_value(flat[key], mine[key])]
    told = "; ".join([*(f"{key}: {flat[key]!r}, ours {mine[key]!r}" for key in wrong), *lost])
    return ("differs" if wrong or lost else "same"), len(flat.keys() & mine.keys()), told


def write_tree(git: Path, commit: str, tree: Path) -> None:
    """The commit's text files below ``tree``. Clones lack large files, which ``git archive`` stops at."""
    command = ["git", "--git-dir", str(git)]
    listed = subprocess.run([*command, "ls-tree", "-r", "-z", commit], capture_output=True, check=True).stdout
    rows = [row.split("\t", 1) for row in listed.decode(errors="replace").split("\0") if row]
    files = [(path, head.split()[2]) for head, path in rows if head[:3] == "100" and path.endswith(TEXT)]
    names = "".join(f"{blob}\n" for _, blob in files).encode()
    texts = subprocess.run([*command, "cat-file", "--batch"], input=names, capture_output=True, check=True)
    for (path, _), content in zip(files, contents(texts.stdout), strict=True):
        if content is not None:
            (tree / path).parent.mkdir(parents=True, exist_ok=True)
            (tree / path).write_bytes(content)
    (tree / ".git").mkdir(exist_ok=True)


def contents(batch: bytes) -> Iterator[bytes | None]:
    """Contents from ``git cat-file --batch``; None for a blob that the clone lacks."""
    at = 0
    while at < len(batch):
        end = batch.index(b"\n", at)
        head = batch[at:end].split()
        size = -1 if head[1] == b"missing" else int(head[2])
        yield None if size < 0 else batch[end + 1 : end + 1 + size]
        at = end + 2 + size


def first_launch(entry: Entry, tree: Path) -> Launch | None:
    def placed(text: str) -> str:
        return text.replace("/repo", str(tree), 1) if text.startswith("/repo") else text

    env = {name: placed(value) for name, value in (ENV | entry["env"]).items()}
    arguments = tuple(map(placed, entry["args"]))
    try:
        read = read_script(tree / entry["path"], cwd=placed(entry["cwd"]), env=env, args=arguments)
    except UserError:
        return None
    return read.launches[0] if read.launches else None


def config_of(launch: Launch, tree: Path, script: Path) -> tuple[Path, str, Path] | None:
    """(folder of config files, config's name, where Python imports from)."""
    tail = launch.module.replace(".", "/") + ".py"
    found = [path for path in tree.rglob(Path(tail).name) if path.as_posix().endswith("/" + tail)]
    for path in sorted(found, key=lambda file: -len(os.path.commonpath([file, script]))):
        named = DECORATED.search(path.read_text(errors="replace"))
        if named:
            base = Path(str(path)[: -len(tail)])
            folder = in_package(named[1], tree) if "://" in named[1] else (path.parent / named[1]).resolve()
            return (folder, named[2], base) if folder else None
    return None


def in_package(spelled: str, tree: Path) -> Path | None:
    """The folder that ``pkg://a.b.c`` names, the first below the tree."""
    package = spelled.partition("://")[2].replace(".", "/")
    return next((path for path in sorted(tree.rglob(package)) if path.is_dir()), None)


def hydra_s(launch: Launch, folder: Path, name: str, base: Path) -> tuple[dict[str, Any] | None, str]:
    """The configuration that Hydra composes, or the reason why it refuses."""
    flags = hydra_flags(launch)
    if spelled := flags.get("config_path"):
        folder = folder if spelled.strip("./") == "config" else Path(launch.cwd, spelled)
    overrides = [text for text in texts_but_flags(launch) if not text.startswith(("hydra.", "hydra/"))]
    os.chdir(base)
    try:
        with warnings.catch_warnings(), initialize_config_dir(str(folder), version_base=None):
            warnings.simplefilter("ignore")
            config = compose(flags.get("config_name") or name, overrides=overrides)
            return resolved(config), ""
    except Exception as error:  # whatever Hydra says of a stranger's files is its answer
        return None, str(error).splitlines()[0]
    finally:
        os.chdir("/")
        GlobalHydra.instance().clear()


def texts_but_flags(launch: Launch) -> list[str]:
    """The arguments that are no flag of Hydra's, nor the value of one that stands apart."""
    flags = hydra_flags(launch)
    words = iter(launch.arguments)
    texts = []
    for word in words:
        if not word.text.startswith("-"):
            texts.append(word.text)
        elif "=" not in word.text and any(
            flags.words[name] is word and flags.values[name] for name in flags.words
        ):
            next(words)
    return texts


def resolved(config: Any) -> dict[str, Any]:
    try:
        return dict(OmegaConf.to_container(config, resolve=True))
    except OmegaConfBaseException:
        return dict(OmegaConf.to_container(config, resolve=False))


def our_own(launch: Launch, tree: Path) -> tuple[dict[str, Any] | None, str]:
    try:
        config = effective_config(launch, root=tree)
    except UserError as error:
        return None, error.message
    errors = [
        note.message for note in config.diagnostics if note.severity == "error" and note.code != "TP211"
    ]
    return as_tree(config), "; ".join(errors[:1])


def same_value(one: object, other: object) -> bool:
    return one == other and isinstance(one, bool) == isinstance(other, bool)


if __name__ == "__main__":
    sys.exit(main())
