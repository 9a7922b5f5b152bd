"""Cards by name: memory, bandwidth and speed, by the manufacturers' data sheets."""

from __future__ import annotations

from dataclasses import dataclass

from trinity_compat.common.errors import UserError
from trinity_compat.common.suggestions import nearest, question


@dataclass(frozen=True, slots=True)
class Card:
    """A card: memory in GiB as the driver shows it, bandwidth in GB/s, dense bfloat16 in TFLOP/s."""

    name: str
    memory_gib: float
    bandwidth: float
    tflops: float


CARDS = {
    card.name: card
    for card in (
        Card("H100", 79.6, 3350, 989),
        Card("H200", 139.8, 4800, 989),
        Card("B200", 178.0, 8000, 2250),
        Card("H20", 95.6, 4000, 148),
        Card("H800", 79.6, 3350, 989),
        Card("A100", 79.3, 2039, 312),
        Card("A100-40", 39.4, 1555, 312),
        Card("A800", 79.3, 2039, 312),
        Card("L40S", 44.4, 864, 362),
        Card("L20", 44.4, 864, 119),
        Card("A10", 22.0, 600, 125),
        Card("RTX4090", 23.5, 1008, 165),
    )
}
DEFAULT = "H100"


def named(name: str) -> Card:
    """Return a card by its name, in any case. Raises UserError for an unknown one."""
    plain = name.upper().replace(" ", "").replace("_", "-").removesuffix("-80GB").removesuffix("GB")
    if plain in CARDS:
        return CARDS[plain]
    near = question(nearest(plain, CARDS))
    raise UserError(
        f"--card {name}: this card is not known{f'; {near}' if near else ''}",
        hint=f"write one of {', '.join(CARDS)}, and --card-gb N for another memory",
    )
