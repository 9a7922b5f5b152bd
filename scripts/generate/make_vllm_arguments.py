"""Write translators/generated/vllm/arguments.json: which release of vLLM takes which engine argument.

    python scripts/generate/make_vllm_arguments.py 0.9.2=DIR 0.24.0=DIR 0.28.0=DIR …

DIR is an unpacked wheel, or the site-packages that vLLM is installed in (a folder with
``vllm/engine/arg_utils.py``); the releases oldest first. That file is parsed, never imported, so no torch
is needed. Written per argument: the first and the last of the given releases that have it; and which
arguments of the newest release are true or false.
"""

from __future__ import annotations

import argparse
import ast
import json
from pathlib import Path

OUT = Path(__file__).resolve().parents[2] / "translators" / "generated" / "vllm" / "arguments.json"
BOOLEAN = ("bool", "bool | None", "Optional[bool]")
CLASSES = ("EngineArgs", "AsyncEngineArgs")


def arguments_of(folder: Path) -> dict[str, str]:
    """The fields of vLLM's argument dataclasses with their types, but for those that it keeps to itself."""
    tree = ast.parse((folder / "vllm" / "engine" / "arg_utils.py").read_text(encoding="utf-8"))
    classes = [node for node in tree.body if isinstance(node, ast.ClassDef) and node.name in CLASSES]
    if len(classes) != len(CLASSES):
        raise SystemExit(f"{folder}: vllm/engine/arg_utils.py does not define {' and '.join(CLASSES)}")
    fields = {name: kind for node in classes for name, kind in fields_of(node)}
    return {name: kind for name, kind in fields.items() if not name.startswith("_")}


def fields_of(node: ast.ClassDef) -> list[tuple[str, str]]:
    """A dataclass's fields with their types: what is annotated in its body, class variables apart."""
    fields = [
        (item.target.id, ast.unparse(item.annotation))
        for item in node.body
        if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name)
    ]
    return [(name, kind) for name, kind in fields if not kind.startswith("ClassVar")]


def spans(taken: dict[str, dict[str, str]]) -> dict[str, list[str]]:
    """Argument → the first and the last release that has it. Exits where one was away in between."""
    releases = list(taken)
    out = {}
    for name in sorted(set().union(*taken.values())):
        having = [release for release in releases if name in taken[release]]
        if having != releases[releases.index(having[0]) : releases.index(having[-1]) + 1]:
            raise SystemExit(f"{name} is in {', '.join(having)} and missing in between")
        out[name] = [having[0], having[-1]]
    return out


def main() -> None:
    cli = argparse.ArgumentParser(description=__doc__)
    cli.add_argument("trees", nargs="+", metavar="RELEASE=DIR")
    cli.add_argument("--out", type=Path, default=OUT)
    options = cli.parse_args()
    taken = {
        release: arguments_of(Path(folder))
        for release, _, folder in (spec.partition("=") for spec in options.trees)
    }
    rows = ",\n".join(f"{json.dumps(name)}: {json.dumps(span)}" for name, span in spans(taken).items())
    options.out.parent.mkdir(parents=True, exist_ok=True)
    newest = list(taken.values())[-1]
    booleans = ",\n".join(json.dumps(name) for name, kind in sorted(newest.items()) if kind in BOOLEAN)
    head = f'"releases": {json.dumps(list(taken))},\n"booleans": [\n{booleans}\n]'
    options.out.write_text(f'{{{head},\n"arguments": {{\n{rows}\n}}}}\n')


if __name__ == "__main__":
    main()
