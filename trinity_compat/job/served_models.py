"""The models that a run serves beside its policy.

``reward.reward_model`` is the first. Further ones come from a YAML's ``explorer.auxiliary_models``, for which
veRL has no key: ``data.auxiliary_models`` lists all in order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field

from trinity_compat.common.nested import Tree, section_at, value_at

SECTION = "data.auxiliary_models"
_REWARD = "reward.reward_model"


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A served model at ``path``, a folder or a name on a hub, which requests may use too.

    ``name``: the one in the YAML. ``engines`` of ``width`` GPUs each; ``settings``: keys of veRL's rollout
    section for them.
    """

    path: str
    name: str | None = None
    engines: int = 1
    width: int = 1
    settings: Mapping[str, object] = field(default_factory=dict)


def served_models(verl: Tree) -> list[ServedModel]:
    """Return the served models in the YAML's order; none where the run serves none."""
    if not value_at(verl, f"{_REWARD}.enable"):
        return []
    listed = value_at(verl, SECTION)
    return (
        [ServedModel(**each) for each in listed]
        if listed
        else [ServedModel(str(value_at(verl, f"{_REWARD}.model_path")))]
    )


def entry(models: Sequence[ServedModel]) -> Mapping[str, object]:
    """Return veRL key → value that lists ``models``.

    Empty where ``reward.reward_model`` describes the only one.
    """
    says_all = len(models) == 1 and models[0].name is None
    return {} if says_all else {SECTION: [asdict(each) for each in models]}


def configurations(verl: Tree) -> list[Tree]:
    """Return a configuration per served model, in which it is the reward model.

    The first is the run's own, the others differ by their settings and size.
    """
    made = [verl]
    reward, own = section_at(verl, "reward"), section_at(verl, _REWARD)
    for model in served_models(verl)[1:]:
        rollout = {**section_at(own, "rollout"), **model.settings, "tensor_model_parallel_size": model.width}
        size = {"nnodes": 1, "n_gpus_per_node": model.engines * model.width}
        changed = {**own, **size, "model_path": model.path, "rollout": rollout}
        made.append({**verl, "reward": {**reward, "reward_model": changed}})
    return made
