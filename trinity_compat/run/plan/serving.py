"""Mode serve: where the endpoint of a job's weights listens, and on which GPUs its engines run.

``explorer.listen_address`` is every interface in trinity-rft where a file says nothing; here it is this
machine alone, and another address needs a key, which clients send as the OpenAI SDK sends its own.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence

from trinity_compat.common.errors import UserError
from trinity_compat.common.nested import Tree, value_at
from trinity_compat.common.network import LOOPBACK, is_loopback
from trinity_compat.common.plain_numbers import is_number
from trinity_compat.job import distillation
from trinity_compat.job.gpus import engine_places
from trinity_compat.job.run_spec import SERVE_KEY, ServeSpec
from trinity_compat.run.plan import reward_model
from trinity_compat.run.plan.verl_view import Step, VerlView
from trinity_compat.translate.trinity_reader import TrinityReader

_EXPLORER = "explorer"
_ENGINES = f"{_EXPLORER}.rollout_model.engine_num"


def endpoint_of(config: Tree, given: Tree) -> tuple[ServeSpec, list[str]]:
    """``config``: the whole Trinity configuration; ``given``: what the file itself says.

    Raises UserError for an address that others reach, without a key.
    """
    reading = TrinityReader(config)
    host, lines = _host(reading, given)
    port, every = (
        reading.get(f"{_EXPLORER}.{name}", default)
        for name, default in (("proxy_port", 8010), ("service_status_check_interval", 60))
    )
    if type(port) is not int or not 0 <= port < 2**16:
        raise UserError(f"{_EXPLORER}.proxy_port={port}: write a port, 0 for a free one")
    if not is_number(every) or every <= 0:
        raise UserError(f"{_EXPLORER}.service_status_check_interval={every}: write a number of seconds")
    return ServeSpec(host, port, float(every)), lines


def _host(reading: TrinityReader, given: Tree) -> tuple[str, list[str]]:
    path = f"{_EXPLORER}.listen_address"
    host = str(reading.get(path) or LOOPBACK)
    if value_at(given, path) is None:
        return LOOPBACK, []
    if host == "localhost":
        return LOOPBACK, []
    with contextlib.suppress(ValueError):  # of a name
        if is_loopback(host):
            return host, []
    if not os.environ.get(SERVE_KEY):
        raise UserError(
            f"{path}={host}: other machines reach that address, and anyone there may use the model",
            hint=f"export {SERVE_KEY}=…, which clients then send as their API key; or write {LOOPBACK}",
        )
    return host, [f"{path}={host}: who sends {SERVE_KEY} as the API key may use the model"]


def alone(verl: VerlView, config: Tree, device: str, sets: Sequence[str]) -> Step:
    """The configuration with the YAML's engines and without a trainer.

    On a CPU there is one engine, unless ``--set`` gives another number. Raises UserError.
    """
    engines = TrinityReader(config).get(_ENGINES) or 1
    width = 1 if device == "cpu" else verl.rollout.tensor_parallel
    if type(engines) is not int or engines < 1:
        raise UserError(f"{_ENGINES}={engines}: write a number, 1 or more")
    if device == "cpu" and not any(text.startswith(f"{_ENGINES}=") for text in sets):
        engines = 1
    without = {reward_model.ENABLE: False, distillation.ENABLED: False}
    return verl.changed({**without, **engine_places(engines, width)}), []
