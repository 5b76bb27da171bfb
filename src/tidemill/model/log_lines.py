"""Formats log texts about many items."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

ITEMS_A_LINE: Final = 50
ITEM_CHARACTERS_MAX: Final = 300
"""Limit for an item: names and settings come from outside."""


def cut_short(text: str, characters_max: int) -> str:
    """Returns the text, truncated to ``characters_max``."""
    return text if len(text) <= characters_max else text[: characters_max - 3] + "..."


def in_lines(items: Iterable[str]) -> Iterator[str]:
    """Yields lines of up to ``ITEMS_A_LINE`` items, separated by semicolons."""
    line = []
    for item in items:
        line.append(cut_short(item, ITEM_CHARACTERS_MAX))
        if len(line) == ITEMS_A_LINE:
            yield "; ".join(line)
            line.clear()
    if line:
        yield "; ".join(line)
