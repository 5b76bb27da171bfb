"""Fits text into the width of a terminal: lines break between words, and nothing is truncated.

A table that is too wide has its cells wrapped at spaces and after commas. Where its words are too long for
that, each row becomes a block of lines, one line per column.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

GAP = 2
"""Spaces between columns."""

_WORDS = re.compile(r"[^\s,]*,*[^\S\n]*|\n")


class Layout(NamedTuple):
    """A table that fits: its cells contain their line breaks."""

    heads: list[str]
    rows: list[list[str]]


def fit(columns: Sequence[str], rows: Sequence[Sequence[str]], width: int) -> Layout | None:
    """Returns the table wrapped to ``width`` terminal columns; None where its words are too long."""
    cells = [[head, *(row[index] for row in rows)] for index, head in enumerate(columns)]
    widths = [max(map(_width, column)) for column in cells]
    least = [max(_width(word) for cell in column for word in _words(cell)) for column in cells]
    room = width - GAP * (len(columns) - 1)
    if sum(widths) > room:
        if sum(least) > room:
            return None
        widths = _share(widths, least, room)
    wrapped = [
        ["\n".join(wrap(cell, size)) for cell in column] for column, size in zip(cells, widths, strict=True)
    ]
    return Layout(
        [column[0] for column in wrapped],
        [[column[index + 1] for column in wrapped] for index in range(len(rows))],
    )


def blocks(columns: Sequence[str], rows: Sequence[Sequence[str]], width: int) -> list[list[tuple[str, str]]]:
    """Returns each row as pairs of padded column name and wrapped value, without empty cells."""
    label = max(map(_width, columns), default=0)
    found: list[list[tuple[str, str]]] = []
    for row in rows:
        block = []
        for name, cell in zip(columns, row, strict=True):
            if cell:
                lines = wrap(cell, max(1, width - label - GAP))
                value = ("\n" + " " * (label + GAP)).join(lines)
                block.append((name + " " * (label + GAP - _width(name)), value))
        found.append(block)
    return found


def wrap(text: str, width: int) -> list[str]:
    """Returns the lines of a text, broken at spaces and after commas; a word that is too long stays whole."""
    lines = [""]
    for word in _words(text):
        if word == "\n":
            lines.append("")
        elif lines[-1] and _width(lines[-1] + word.rstrip()) > width:
            lines[-1] = lines[-1].rstrip()
            lines.append(word)
        else:
            lines[-1] += word
    return [line.rstrip() for line in lines]


def _words(text: str) -> list[str]:
    return [word for word in _WORDS.findall(text) if word] or [""]


def _share(widths: list[int], least: list[int], room: int) -> list[int]:
    """Shrinks the widest columns until all fit; no column gets narrower than its longest word."""
    found = list(widths)
    while sum(found) > room:
        index = max((i for i in range(len(found)) if found[i] > least[i]), key=lambda i: found[i])
        found[index] -= 1
    return found


def _width(text: str) -> int:
    """Returns the width in terminal columns: East Asian letters take two."""
    from rich.cells import cell_len

    return max(cell_len(line.rstrip()) for line in text.split("\n"))
