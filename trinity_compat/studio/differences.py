"""Two texts side by side, with the words in which they differ."""

from __future__ import annotations

import re
from difflib import SequenceMatcher

_WORDS = re.compile(r"\s*\S+|\s+")
_MOST_WORDS = 3000  # of each text: matching takes up to the square
Part = tuple[bool, str]  # whether only this text has it


def differing(a: str, b: str) -> tuple[list[Part], list[Part], bool]:
    """Return both texts in parts, and whether their ends are left out."""
    (first, cut), (second, also_cut) = (
        (words[:_MOST_WORDS], len(words) > _MOST_WORDS) for words in map(_WORDS.findall, (a, b))
    )
    sides: tuple[list[Part], list[Part]] = ([], [])
    for kind, from_a, to_a, from_b, to_b in SequenceMatcher(None, first, second).get_opcodes():
        for side, words in ((sides[0], first[from_a:to_a]), (sides[1], second[from_b:to_b])):
            if words:
                side.append((kind != "equal", "".join(words)))
    return *sides, cut or also_cut
