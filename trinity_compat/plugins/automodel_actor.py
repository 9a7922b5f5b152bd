"""The actor's configuration for engine automodel, with which veRL 0.9.1 trains rows alone.

workers/config/actor.py has a class for each other engine; here the fields of FSDP's, with another engine.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from verl.workers.config import AutomodelEngineConfig, FSDPActorConfig


@dataclass
class ActorConfig(FSDPActorConfig):
    """FSDP's actor with the section ``automodel``."""

    automodel: AutomodelEngineConfig = field(default_factory=AutomodelEngineConfig)

    def __post_init__(self) -> None:
        """Check as veRL's class does, and choose the engine."""
        super().__post_init__()
        self.engine = self.automodel
