"""Names under which the pinned veRL registers estimators, policy losses and reward managers.

``translators/generated/verl/names.json``, written by ``scripts/generate/make_verl_names.py``. Code of the
user's may register more, so a name that is not here is refused only where it is one of these misspelt.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from trinity_compat.common.resources import data_json

_NAMES: dict[str, list[str]] = data_json("translators/generated/verl/names.json")
ESTIMATORS, POLICY_LOSSES = tuple(_NAMES["estimators"]), tuple(_NAMES["policy_losses"])
# The reward loop's, and what explorer/rewards/reward_managers.py adds.
REWARD_MANAGERS = (*_NAMES["reward_managers"], "prime", "batch")

# The loggers of ``trainer.logger`` and the package of each; None: nothing to install.
# Source: verl 0.9.1, utils/tracking.py, Tracking.
LOGGERS: Mapping[str, str | None] = {
    "console": None,
    "file": None,
    "wandb": "wandb",
    "tracking": "wandb",
    "mlflow": "mlflow",
    "swanlab": "swanlab",
    "vemlp_wandb": "volcengine_ml_platform",
    "tensorboard": "tensorboard",
    "clearml": "clearml",
    "trackio": "trackio",
    "rl_insight": "rl_insight",
}


def misspelt(name: str, known: Iterable[str]) -> str | None:
    """Return the known name that ``name`` misspells.

    It has the same letters; their order, case, separators or a doubled letter may differ. A name that only
    resembles one (``gspo``, ``hgpo``) may be a method's own.
    """
    return next((word for word in known if _same_letters(word, name)), None)


def _same_letters(word: str, other: str) -> bool:
    first, second = (re.sub(r"[\W_]", "", name.lower()) for name in (word, other))
    return set(first) == set(second) and abs(len(first) - len(second)) <= 1
