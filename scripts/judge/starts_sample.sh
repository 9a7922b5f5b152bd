#!/usr/bin/env bash
# A sample of the public launches (docs/measurements/starts.md): as many start as the last time. Both devices' plans side by side.
set -euo pipefail
cd "$(dirname "$0")/../.."
out=$(mktemp)
trap 'rm -f "$out"' EXIT
vllm=$(scripts/ci/unpack_vllm.sh)
sees="$PWD/tests/vision_site:$(scripts/ci/unpack_vision.sh)"  # torchvision, which vLLM imports for models that see
starts() {
  PYTHONPATH=$sees .venv/bin/python scripts/judge/start_corpus.py tests/facts/public.json.xz --sample 48 --at-least 0.95 "$@"
}
starts --device cuda --vllm "$vllm" >"$out" & gpu=$!
starts --device cpu --spare Megatron || { wait "$gpu" || true; cat "$out"; exit 1; }
wait "$gpu" || { cat "$out"; exit 1; }
cat "$out"
