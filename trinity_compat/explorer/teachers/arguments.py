"""Teachers of a launch, as veRL's DistillationConfig reads them, and the arguments of their engines.

Source: verl 0.9.1, workers/config/distillation.py and experimental/teacher_loop. A teacher that the launch
adds by name has the defaults of veRL's RolloutConfig, not those of the launch's ``inference`` section: it is
read from the dataclass only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from trinity_compat.common.errors import UserError
from trinity_compat.common.nested import value_at
from trinity_compat.explorer.engine.arguments import engine_arguments

if TYPE_CHECKING:
    from verl.workers.config import HFModelConfig


@dataclass(frozen=True, slots=True)
class Teacher:
    """A teacher at ``path``, a folder or a name on a hub, for the rows of ``key``.

    ``servers`` of ``width`` GPUs each; ``inference``: its RolloutConfig, in plain containers.
    """

    key: str
    path: str
    servers: int
    width: int
    inference: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Distillation:
    """Teachers of a launch, in the order of their keys.

    ``column``: a row's field with the key of its teacher; ``top``: number of most probable tokens that the
    loss needs, 0 for the log-probabilities of the response's own tokens.
    """

    teachers: tuple[Teacher, ...]
    column: str
    top: int


def distillation(verl: Mapping[str, Any]) -> Distillation | None:
    """Return the launch's teachers; None without distillation. Raises UserError in veRL's words."""
    if not value_at(verl, "distillation.enabled"):
        return None
    from hydra.errors import InstantiationException
    from omegaconf import OmegaConf
    from verl.utils.config import omega_conf_to_dataclass

    try:
        config = omega_conf_to_dataclass(OmegaConf.create(dict(verl["distillation"])))
    except (InstantiationException, ValueError, NotImplementedError) as error:
        raise UserError(f"distillation: {error.__cause__ or error}") from error
    loss = config.distillation_loss
    top = int(loss.topk) if loss.loss_settings.use_topk else 0
    # Sorted: servers and clients name a teacher by its place, and a run's file has its keys in another order.
    teachers = sorted(map(_teacher, config.teacher_models.values()), key=lambda teacher: teacher.key)
    return Distillation(tuple(teachers), config.teacher_key, top)


def _teacher(model: Any) -> Teacher:
    """Convert a DistillationTeacherModelConfig; a data-parallel replica becomes as many servers."""
    inference = asdict(model.inference)
    width = model.inference.tensor_model_parallel_size * model.inference.pipeline_model_parallel_size
    return Teacher(model.key, model.model_path, model.world_size // width, width, inference)


def teacher_arguments(
    inference: Mapping[str, Any],
    *,
    model_path: str,
    device: str,
    index: int = 0,
    top: int = 0,
    positions: int | None = None,
) -> dict[str, Any]:
    """Return the arguments of vLLM's AsyncEngineArgs for a teacher's server ``index``, in plain containers.

    ``positions``: the model's max_position_embeddings, the longest sequence where ``inference`` has no
    max_model_len (verl 0.9.1, vllm_async_server.py). Raises UserError as ``engine_arguments`` does.
    """
    length = inference.get("max_model_len") or positions
    # Its weights never change: the files are read as they are.
    settings = {**inference, "max_model_len": length, "quantization": None, "mtp": None}
    as_policy = {"actor_rollout_ref": {"rollout": settings, "model": {}}}
    arguments = engine_arguments(as_policy, model_path=model_path, device=device, index=index)
    if not length:
        del arguments["max_model_len"]
    if top:  # vLLM's default refuses requests of more than 20
        arguments["max_logprobs"] = max(top, arguments.get("max_logprobs") or 0)
    return arguments


def served_teacher(
    model: HFModelConfig, inference: Mapping[str, Any], *, device: str, index: int = 0, top: int = 0
) -> dict[str, Any]:
    """Return ``teacher_arguments`` for the teacher's ``model``, as veRL reads it."""
    from verl.workers.rollout.utils import get_max_position_embeddings

    positions = get_max_position_embeddings(model.hf_config)
    return teacher_arguments(
        inference, model_path=model.local_path, device=device, index=index, top=top, positions=positions
    )
