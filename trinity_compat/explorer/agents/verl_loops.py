"""veRL's agent loops and tools, on our engine (verl 0.9.1).

``AgentLoopWorker`` creates loops and tools as configured and passes each finished trajectory to one method,
which is overridden here, before veRL pads it. ``EngineClient`` answers the loops' requests.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, cast

from omegaconf import DictConfig, OmegaConf
from verl.experimental.agent_loop.agent_loop import AgentLoopOutput, AgentLoopWorker
from verl.workers.rollout.replica import TokenOutput

from trinity_compat.buffer.images import opened
from trinity_compat.buffer.media import media_counts
from trinity_compat.buffer.row_fields import all_carried
from trinity_compat.explorer.agents.mcp_tools import native_tools
from trinity_compat.explorer.agents.time_limit import limited, waiting_for_engine
from trinity_compat.explorer.data.tasks import sampling_seed
from trinity_compat.explorer.engine import media_tokens
from trinity_compat.explorer.engine.inflight_requests import AnsweringEngine, GenerationClient
from trinity_compat.explorer.engine.trajectory import RolloutTask, Trajectory
from trinity_compat.explorer.engine.vllm import GenerationRequest

_KINDS = ("image", "video", "audio")  # vLLM's names; veRL's loops append _data
_NO_MEDIA = media_counts(None)


class EngineClient:
    """Replaces veRL's LLMServerClient for the loops."""

    def __init__(self, engine: AnsweringEngine, rollout: Any, processor: Any = None) -> None:
        self._engine, self._processor = engine, processor
        self._rollout = rollout
        self._count = 0

    async def generate(
        self, request_id: str, *, prompt_ids: list[int], sampling_params: dict[str, Any], **media: Any
    ) -> TokenOutput:
        """Generate one turn. Raises ValueError for a prompt that leaves no room to answer."""
        self._count += 1
        # veRL's token budget (vllm_async_server.py, generate)
        prompt = len(prompt_ids)
        limit = self._rollout.prompt_length + self._rollout.response_length
        room = (self._rollout.max_model_len or limit) - prompt
        if room < 1:
            raise ValueError(f"a prompt of {prompt} tokens leaves no room to answer")
        sampling = {name: value for name, value in sampling_params.items() if name != "logprobs"}
        wanted = sampling.pop("max_new_tokens", None) or min(self._rollout.response_length, limit - prompt)
        sampling["max_tokens"] = max(1, min(sampling.get("max_tokens", wanted), room))
        if "seed" in sampling:
            sampling["seed"] = sampling_seed(sampling["seed"], "turn", prompt)
        request = GenerationRequest(
            f"turn-{self._count}",
            media_tokens.collapse_placeholders(prompt_ids, self._processor),
            sampling,
            {kind: media[f"{kind}_data"] for kind in _KINDS if media.get(f"{kind}_data")},
            media.get("mm_processor_kwargs") or {},
        )
        with waiting_for_engine():
            (future,) = await self._engine.submit([request])
            (part,) = await future
        reason = "completed" if part.reason in ("stop", "length") else "aborted"
        return TokenOutput(token_ids=part.token_ids, log_probs=part.logprobs, stop_reason=reason)


class _Worker(AgentLoopWorker):
    async def _agent_loop_postprocess(self, output: Any, validate: bool, **kwargs: Any) -> Any:
        return output


class AgentLoops:
    """Runs jobs through the agent loop that the task, or the configuration, names.

    ``limit_s``: for one trajectory, without the time that it waits for the engine; None for no limit.
    """

    def __init__(
        self,
        config: DictConfig,
        engine: GenerationClient,
        processor: Any = None,
        *,
        limit_s: float | None = None,
    ) -> None:
        self._limit_s = limit_s
        rollout = config.actor_rollout_ref.rollout
        self._engine = engine
        with native_tools(untraced(config)) as configured:
            self._worker = _Worker(configured, EngineClient(engine, rollout, processor))
        self._default = rollout.agent.default_agent_loop

    async def run(self, job: RolloutTask, ended: Callable[[], None] = lambda: None) -> list[Trajectory]:
        """Return n trajectories by seed, then the baseline; ``ended`` is called as each finishes.

        Raises what the loop or a tool raises.
        """
        task = opened(job.task)
        runs = [asyncio.ensure_future(self._one(job, task, run)) for run in range(job.answers)]
        for each in runs:
            each.add_done_callback(lambda _: ended())
        try:
            return list(await asyncio.gather(*runs))
        finally:
            for each in runs:  # none of a failed group continues
                each.cancel()

    async def _one(self, job: RolloutTask, task: Mapping[str, Any], run: int) -> Trajectory:
        sampling = {**job.sampling_of(run), "logprobs": True}
        position = {"step": 0, "sample_index": job.task_no, "rollout_n": run, "validate": job.validate}
        fields = {"agent_name": self._default, **task}
        while True:
            try:
                running = self._worker._run_agent_loop(sampling, position, trace=False, **fields)
                output = await limited(running, self._limit_s)
                return trajectory(output, media_counts(task.get("raw_prompt")))
            except asyncio.CancelledError:  # by a change of weights during one of its turns
                await self._engine.again()


def untraced(config: DictConfig) -> DictConfig:
    """Remove from ``config`` what the explorer does itself, or nothing does.

    rollout.trace: its tracker would be opened and never used. distillation: the worker would ask for its
    teachers' clients.
    """
    off = {
        "distillation": {"enabled": False},
        "actor_rollout_ref": {"rollout": {"trace": {"backend": None, "token2text": False}}},
    }
    return cast(DictConfig, OmegaConf.merge(config, off))


def trajectory(output: AgentLoopOutput, counts: Mapping[str, int] = _NO_MEDIA) -> Trajectory:
    """Convert the output of veRL's agent loop.

    Raises ValueError when it has other images, videos or sounds than the prompt's (``counts``): the trainer
    does not receive those of a tool. TypeError for a value of extra_fields that cannot be stored.
    """
    for kind, count in counts.items():
        total = len((output.multi_modal_data or {}).get(kind) or ())
        if total != count:
            raise ValueError(
                f"{total} {kind}, {count} of them the prompt's: those of tools cannot be trained"
            )
    extra = {name: value for name, value in output.extra_fields.items() if name != "raw_prompt"}
    return Trajectory(
        prompt_ids=list(output.prompt_ids),
        response_ids=list(output.response_ids),
        response_mask=list(output.response_mask),
        logprobs=list(output.response_logprobs or [0.0] * len(output.response_ids)),
        num_turns=output.num_turns,
        reward=output.reward_score,
        metrics={name: float(value) for name, value in output.metrics.model_dump().items()},
        extra=all_carried(extra, "extra_fields"),
    )
