#!/usr/bin/env bash
# Which launches of veRL's main start on GPUs (docs/measurements/starts.md): of the recorded commit none fewer than before. Where
# TC_VERL_GIT names a clone, its newest commit (or TC_VERL_COMMIT) is counted too, without a floor: its scripts differ.
set -euo pipefail
cd "$(dirname "$0")/../.."
vllm=$(scripts/ci/unpack_vllm.sh)
sees="$PWD/tests/vision_site:$(scripts/ci/unpack_vision.sh)"  # torchvision, which vLLM imports for models that see
count() {
  PYTHONPATH=$sees .venv/bin/python scripts/judge/start_corpus.py "$@" --device cuda --vllm "$vllm"
}
if [ -n "${TC_VERL_GIT:-}" ]; then
  newest=$(git -C "$TC_VERL_GIT" rev-parse -q --verify origin/HEAD || echo HEAD)
  count --clone "$TC_VERL_GIT" --commit "${TC_VERL_COMMIT:-$newest}"
fi
count tests/facts/main.json.xz --floor main-2026-08-22
