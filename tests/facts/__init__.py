"""Facts about other people's software, recorded from it; kept here so that a clone needs nothing else.

`public.json.xz`: what bash hands to Python for the launch scripts of seven revisions of volcengine/verl
(module, arguments, digest of the script; not the script). `verl_defaults.json.xz`: release → flavour → dotted
key → default, as Hydra composes them. `command_lines.txt`: ways in which people start a veRL main.
`scripts/judge/record_facts.py` makes them from the folder that they were recorded in.

`main.json.xz`: the same of a commit of veRL's main, made by `scripts/judge/verl_clone.py`;
`launch_arguments.txt`: which arguments and variables those scripts want; `floors.json`: which of the
launches start, by `scripts/judge/start_corpus.py`. `verl_reads.txt`: keys that stock runs read, each with a
place in veRL, by `scripts/generate/trace_verl_reads.py`.
"""

from __future__ import annotations

import functools
import json
import lzma
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
PUBLIC = HERE / "public.json.xz"
COMMAND_LINES = HERE / "command_lines.txt"
RELEASE_OF_TAG = {
    "v0.2.0.post2": "0.2.0",
    "v0.3.0.post1": "0.3.0",
    "v0.4.1": "0.4.1",
    "v0.5.0": "0.5.0",
    "v0.6.1": "0.6.1",
    "v0.7.0": "0.7.0",
}


@functools.cache
def load(name: str) -> Any:
    """The content of ``NAME.json.xz``; shared by all that ask, so not to be changed."""
    return json.loads(lzma.decompress((HERE / f"{name}.json.xz").read_bytes()))


def public_scripts() -> list[dict[str, Any]]:
    """One entry a script: tag, path, kind, sha, cwd, args, env, launches [{module, args}]."""
    return load("public")["scripts"]
