"""Write translators/generated/verl/names.json: what the installed veRL looks up by name.

    python scripts/generate/make_verl_names.py > translators/generated/verl/names.json

Advantage estimators, policy losses and the reward managers of its reward loop, each in veRL's own order.
Code of a user's may register more.
"""

from __future__ import annotations

import json
import os
import sys

RESULT = os.fdopen(os.dup(1), "w", encoding="utf-8")
os.dup2(2, 1)  # packages that are imported log to stdout

import verl  # noqa: E402
import verl.experimental.reward_loop.reward_manager as reward_managers  # noqa: E402
from verl.trainer.ppo import core_algos  # noqa: E402


def main() -> int:
    """Returns the exit code."""
    found = {
        "estimators": core_algos.ADV_ESTIMATOR_REGISTRY,
        "policy_losses": core_algos.POLICY_LOSS_REGISTRY,
        "reward_managers": reward_managers.registry.REWARD_MANAGER,
    }
    names = {kind: [str(name) for name in registry] for kind, registry in found.items()}
    json.dump({"release": verl.__version__.partition(".dev")[0], **names}, RESULT, indent=1)
    RESULT.write("\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
