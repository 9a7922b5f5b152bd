"""``run --mode serve``: an OpenAI-compatible endpoint of a job's newest weights, as its user sees it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from trinity_compat.run.job_dir.progress import say
from trinity_compat.run.supervise.standalone import StandaloneWatch

ROLE = "serve"


@dataclass(slots=True)
class ServeWatch(StandaloneWatch):
    """Prints the endpoint's address and weights whenever they change."""

    _before: frozenset[int] = frozenset()
    _at: object = None
    _note: object = None

    def begin(self) -> None:
        """Note earlier endpoints: a killed one has not reported its end."""
        StandaloneWatch.begin(self)
        self._before = frozenset(who.pid for who in self.of(ROLE))

    def update(self) -> None:
        """Called at every poll."""
        for who in self.of(ROLE):
            if who.state == "running" and who.pid not in self._before:
                self._tell(who.detail)

    def _tell(self, detail: Mapping[str, object]) -> None:
        at, note = (detail.get("address"), detail.get("step")), detail.get("note")
        if at != self._at:
            say(line(*at))
        if note and note != self._note:
            say(f"note: {note}")
        self._at, self._note = at, note


def line(address: object, step: object) -> str:
    """The line with the endpoint's address and its weights."""
    weights = f"the weights of step {step}" if step else "the model as it was before training"
    return f"serves {weights} at {address}; Ctrl-C ends it"
