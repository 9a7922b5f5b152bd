"""One explorer process: put the parts together, explore, end with a reason."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import tempfile
from pathlib import Path
from typing import Any

from trinity_compat.buffer import open_buffer
from trinity_compat.errors import RunError, UserError
from trinity_compat.explorer.heartbeat import Heartbeat, TrainerGone
from trinity_compat.explorer.loop import Explorer
from trinity_compat.explorer.maker import GroupMaker
from trinity_compat.explorer.plan import Plan
from trinity_compat.explorer.report import Report
from trinity_compat.explorer.scoring import make_scorer
from trinity_compat.explorer.tasks import eval_stream, train_stream
from trinity_compat.explorer.workers import Workers
from trinity_compat.spec import RunSpec

DONE, FAILED, BAD_INPUT, PEER_DIED = 0, 1, 2, 3


def main(argv: list[str]) -> int:
    """``python -m trinity_compat.explorer JOB_DIR [--index I]``; returns the exit code."""
    job_dir = Path(argv[0])
    index = int(argv[argv.index("--index") + 1]) if "--index" in argv else 0
    return run(RunSpec.load(job_dir / "config" / "run.json"), index)


def run(spec: RunSpec, index: int = 0) -> int:
    """Explore until the run is finished. 0 done, 1 failed, 2 bad input, 3 the trainer died."""
    name = "explorer" if spec.explorers == 1 else f"explorer_{index}"
    heart = Heartbeat(lambda: open_buffer(spec.database_url), name)
    signal.signal(signal.SIGTERM, _terminate)
    heart.start()
    code, reason = _explore(spec, index, name, heart)
    heart.stop("done" if code == DONE else "failed", **({"reason": reason} if reason else {}))
    if reason:
        print(f"error: {reason}", file=sys.stderr, flush=True)
    return code


def _explore(spec: RunSpec, index: int, name: str, heart: Heartbeat) -> tuple[int, str]:
    try:
        asyncio.run(_async_run(spec, index, name, heart))
    except TrainerGone as error:
        return PEER_DIED, str(error)
    except UserError as error:
        return BAD_INPUT, str(error)
    except RunError as error:
        return FAILED, str(error)
    except (KeyboardInterrupt, asyncio.CancelledError):
        return FAILED, "stopped by a signal"
    return DONE, ""


async def _async_run(spec: RunSpec, index: int, name: str, heart: Heartbeat) -> None:
    _join_ray()
    config, tokenizer, processor = _configuration(spec)
    workers = asyncio.ensure_future(Workers.start(spec.verl, spec.device, spec.env))
    buffer = open_buffer(spec.database_url)
    report = Report(buffer, name)
    try:
        plan = Plan(
            spec,
            buffer,
            await asyncio.to_thread(train_stream, config, tokenizer, processor),
            await asyncio.to_thread(eval_stream, config, tokenizer, processor),
            index=index,
        )
        maker = GroupMaker(await workers, make_scorer(config), tokenizer)
        await Explorer(buffer, plan, maker, report, heart).explore()
    finally:
        report.close()
        buffer.close()
        workers.cancel()


def _configuration(spec: RunSpec) -> tuple[Any, Any, Any]:
    """veRL's configuration, tokenizer and processor, as its main_ppo makes them."""
    from omegaconf import OmegaConf
    from verl.utils import hf_processor, hf_tokenizer
    from verl.utils.fs import copy_to_local

    config = OmegaConf.create(dict(spec.verl))
    model = config.actor_rollout_ref.model
    path = copy_to_local(model.get("tokenizer_path") or model.path)
    trust = bool(config.data.get("trust_remote_code", False))
    return config, hf_tokenizer(path, trust_remote_code=trust), hf_processor(path, trust_remote_code=trust)


def _join_ray() -> None:
    """The supervisor's Ray ($RAY_ADDRESS), else one of our own that ends with this process."""
    import ray

    address = os.environ.get("RAY_ADDRESS")
    if address:
        ray.init(address=address, log_to_driver=True)
        return
    ray.init(
        address="local",
        include_dashboard=False,
        log_to_driver=True,
        _temp_dir=tempfile.mkdtemp(prefix="tc-ray-"),
    )


def _terminate(_signal: int, _frame: Any) -> None:
    raise KeyboardInterrupt
