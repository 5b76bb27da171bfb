"""Limits the error texts of responses: a small request must not cause a response a hundred times as large.

A response to many items may have an error text for each. The limits keep one text for each topic, that of its
first partition with an error, and :data:`TEXTS_CHARACTERS_MAX` characters for the response. Error codes stay.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Final

from tidemill.model.event_loop_slices import ITEMS_PER_SLICE
from tidemill.wire.schema import Field, Struct

TEXTS_CHARACTERS_MAX: Final = 64 * 1024
"""The limit for the texts of all items of one response."""

TEXT: Final = "error_message"

_paths: dict[type[Struct], list[tuple[Field, Field | None]]] = {}
"""For each class of response, its arrays of items with error texts.

The second field of a pair is the inner array if the items with texts are nested in the items of the first.
"""


def bound_texts_in_slices(response: Struct) -> Generator[None, None, None]:
    """Removes the error texts of ``response`` that exceed the limits.

    Yields after every :data:`ITEMS_PER_SLICE` items.
    """
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
            if count % ITEMS_PER_SLICE == 0:
                yield
            for one in (item,) if inner is None else getattr(item, inner.name) or ():
                count += 1
                if count % ITEMS_PER_SLICE == 0:
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
