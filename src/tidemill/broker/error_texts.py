"""Error texts of responses, bounded: a small request must not become a response a hundred times as large.

A response to many items may carry a text beside the error code of each. One text a topic stays, that of its
first partition with an error; and of all texts of a response so many as there is room for. The codes stay.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Final

from tidemill.wire.schema import Field, Struct

TEXTS_CHARACTERS_MAX: Final = 64 * 1024
"""Of the texts of all items of one response."""

TEXT: Final = "error_message"
ITEMS_A_SLICE: Final = 500

_paths: dict[type[Struct], list[tuple[Field, Field | None]]] = {}
"""By class of response: its arrays of items with texts, alone or inside of the items of another array."""


def bound_texts(response: Struct) -> None:
    """Takes out the texts that are too many; does nothing where a response has no items with texts."""
    for _ in bound_texts_in_slices(response):
        pass


def bound_texts_in_slices(response: Struct) -> Generator[None, None, None]:
    """The same, with a pause after some items each."""
    cls = type(response)
    paths = _paths.get(cls)
    if paths is None:
        paths = _paths[cls] = _find(cls)
    left = TEXTS_CHARACTERS_MAX
    count = 0
    for outer, inner in paths:
        for item in getattr(response, outer.name) or ():
            has_text = False
            count += 1
            if count % ITEMS_A_SLICE == 0:
                yield
            for one in (item,) if inner is None else getattr(item, inner.name) or ():
                count += 1
                if count % ITEMS_A_SLICE == 0:
                    yield
                text = one.error_message
                if text is None:
                    continue
                if has_text or left <= 0:
                    one.error_message = None
                else:
                    has_text = True
                    left -= len(text)


def _find(cls: type[Struct]) -> list[tuple[Field, Field | None]]:
    found: list[tuple[Field, Field | None]] = []
    for outer, item in _arrays(cls):
        if _has_text(item):
            found.append((outer, None))
        found += [(outer, inner) for inner, part in _arrays(item) if _has_text(part)]
    return found


def _arrays(cls: type[Struct]) -> list[tuple[Field, type[Struct]]]:
    return [(one, one.element) for one in cls.fields_ if one.is_array and isinstance(one.element, type)]


def _has_text(cls: type[Struct]) -> bool:
    return any(one.name == TEXT for one in cls.fields_)
