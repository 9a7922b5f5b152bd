"""Pack recorded facts about other software for the tests: tests/facts.

    .venv/bin/python scripts/judge/record_facts.py [--from ../shared] [--check]
    .venv/bin/python scripts/judge/record_facts.py --tree 0.9.0=DIR

``--check`` writes nothing and exits with 1 where the packed copy says something else than the folder.
``--tree`` adds the defaults of one release of veRL, as Hydra composes them from its unpacked wheel or
checkout DIR. Defaults that the folder does not have are kept.
"""

from __future__ import annotations

import argparse
import json
import lzma
import sys
from pathlib import Path
from typing import Any

from trinity_compat.common.nested import leaves
from trinity_compat.verl_config import FLAVOURS

ROOT = Path(__file__).resolve().parents[2]
FACTS = ROOT / "tests" / "facts"


def gathered(source: Path) -> dict[str, Any]:
    """Name of a packed file → its content."""
    defaults = {path.stem: json.loads(path.read_text()) for path in (source / "verl_defaults").glob("*.json")}
    return {
        "public": json.loads((source / "corpus" / "public.json").read_text()),
        "verl_defaults": with_defaults(defaults),
    }


def with_defaults(added: dict[str, Any]) -> dict[str, Any]:
    """The packed defaults with those of other releases, oldest release first."""
    return dict(sorted({**read(FACTS / "verl_defaults.json.xz"), **added}.items()))


def composed(tree: Path) -> dict[str, Any]:
    """Flavour → dotted key → default of a release, by Hydra."""
    from hydra import compose, initialize_config_dir
    from omegaconf import OmegaConf

    with initialize_config_dir(str((tree / "verl/trainer/config").resolve()), version_base=None):
        return {
            flavour: dict(leaves(OmegaConf.to_container(compose(flavour), resolve=False)))
            for flavour in FLAVOURS
        }


def read(path: Path) -> Any:
    """The content of a recorded file, packed or not."""
    raw = path.read_bytes()
    return json.loads(lzma.decompress(raw) if path.suffix == ".xz" else raw)


def packed(content: Any) -> bytes:
    """Pack the content as JSON under xz: the same bytes for the same content."""
    text = json.dumps(content, separators=(",", ":"), ensure_ascii=False)
    return lzma.compress(text.encode(), preset=9 | lzma.PRESET_EXTREME)


def different(source: Path) -> list[str]:
    """The packed files that don't hold what the folder holds."""
    wrong = []
    for name, content in gathered(source).items():
        path = FACTS / f"{name}.json.xz"
        if not path.exists() or read(path) != content:
            wrong.append(path.name)
    lines = FACTS / "command_lines.txt"
    if not lines.exists() or lines.read_text() != (source / "corpus" / "command_lines.txt").read_text():
        wrong.append(lines.name)
    return wrong


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--from", dest="source", type=Path, default=ROOT.parent / "shared")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--tree", metavar="VERSION=DIR")
    args = parser.parse_args()
    if args.tree:
        version, _, folder = args.tree.partition("=")
        content = with_defaults({version: composed(Path(folder))})
        (FACTS / "verl_defaults.json.xz").write_bytes(packed(content))
        return
    if args.check:
        wrong = different(args.source)
        print("\n".join(f"{name}: differs from {args.source}" for name in wrong) or "the same")
        sys.exit(bool(wrong))
    for name, content in gathered(args.source).items():
        (FACTS / f"{name}.json.xz").write_bytes(packed(content))
    lines = (args.source / "corpus" / "command_lines.txt").read_text()
    (FACTS / "command_lines.txt").write_text(lines)


if __name__ == "__main__":
    main()
