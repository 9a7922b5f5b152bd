"""Steps whose condition cannot be known: which way each is taken.

Each has a first guess (``commands``). Where a reading so guided ends without a launch, it is done again with
a guess turned round, the latest first, until one reaches a launch: a script that waits for its server, and
gives up after a while, is to train once the server is there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TypeVar

from trinity_compat.common.errors import Where

READINGS = 16  # of one script; each further one has what is left of the same budget

T = TypeVar("T")


@dataclass(slots=True)
class Guesses:
    """The guesses of one reading: those turned round, and all that it met, in order."""

    turned: frozenset[Where] = frozenset()
    met: dict[Where, None] = field(default_factory=dict)

    def turns(self, place: Where) -> bool:
        """Return whether the guess at ``place`` is turned round; notes that it was met."""
        self.met[place] = None
        return place in self.turned


def search(read: Callable[[Guesses], T], reaches: Callable[[T], bool]) -> T:
    """The first reading that ``reaches``; where none does, the one without any guess turned.

    Depth first over the places of guesses, the same way at every visit of a place.
    """
    guesses = Guesses()
    first = found = read(guesses)
    path: list[tuple[Where, bool]] = []
    for _ in range(READINGS - 1):
        if reaches(found):
            return found
        path = _next(path, guesses.met)
        if not path:
            break
        guesses = Guesses(frozenset(place for place, turned in path if turned))
        found = read(guesses)
    return found if reaches(found) else first


def _next(path: list[tuple[Where, bool]], met: Iterable[Where]) -> list[tuple[Where, bool]]:
    """The next way to go: the last guess on ``path`` that isn't turned yet is; what follows it is open."""
    known = {place for place, _ in path}
    path = [*path, *((place, False) for place in met if place not in known)]
    while path and path[-1][1]:
        path.pop()
    return [*path[:-1], (path[-1][0], True)] if path else []
