"""Time the reading of a launch script: cold (a process of its own) and warm (in one process).

    python benchmarks/parse_speed.py [SCRIPT] [--rounds N]

Prints one JSON object; times in milliseconds, medians. ``parser`` is shfmt's own share.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
IMPORT = "import trinity_compat.launch"
READ = "import sys; from trinity_compat.launch import read_script; read_script(sys.argv[1])"


def generated(keys: int = 45) -> str:
    """A script of the usual shape: variables, defaults, arithmetic, an array, ``$@``."""
    head = (
        "set -x\nMODEL=${MODEL:-Qwen/Qwen2.5-7B}\nN=$((8 * 2))\nNAME=$(basename $MODEL)\nARGS=(trainer.x=1)\n"
    )
    lines = "".join(f'    group.sub.key{i}="$NAME-${{N}}_{i}" \\\n' for i in range(keys))
    return head + "python3 -m verl.trainer.main_ppo \\\n" + lines + '    "${ARGS[@]}" $@ 2>&1 | tee log.txt\n'


def median_ms(rounds: int, work: Callable[[], object]) -> float:
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        work()
        times.append((time.perf_counter() - start) * 1000)
    return round(statistics.median(times), 1)


def main() -> None:
    cli = argparse.ArgumentParser(description=__doc__)
    cli.add_argument("script", nargs="?")
    cli.add_argument("--rounds", type=int, default=15)
    options = cli.parse_args()
    script = Path(options.script) if options.script else Path(tempfile.mkdtemp(), "run.sh")
    if not options.script:
        script.write_text(generated())
    sys.path.insert(0, str(ROOT))
    from trinity_compat.launch import read_script
    from trinity_compat.launch.bash.shell_parser import shfmt_path

    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}

    def python(*args: str) -> Callable[[], object]:
        return lambda: subprocess.run(
            [sys.executable, *args], cwd=ROOT, env=environment, check=True, capture_output=True
        )

    text = script.read_bytes()
    figures = {
        "interpreter": median_ms(options.rounds, python("-c", "pass")),
        "cold import": median_ms(options.rounds, python("-c", IMPORT)),
        "cold read": median_ms(options.rounds, python("-c", READ, str(script))),
        "cold parse command": median_ms(options.rounds, python("-m", "trinity_compat", "parse", str(script))),
        "warm read": median_ms(options.rounds, lambda: read_script(script)),
        "parser": median_ms(
            options.rounds,
            lambda: subprocess.run(
                [shfmt_path(), "--to-json", "-ln", "bash"], input=text, capture_output=True
            ),
        ),
        "arguments": len(read_script(script).launches[0].arguments),
    }
    print(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
