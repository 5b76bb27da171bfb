"""Suggests the known name that is most similar to an unknown one."""

from __future__ import annotations

from collections.abc import Iterable


def most_similar(name: str, known: Iterable[str]) -> str | None:
    """Returns the most similar known name, in lower or upper case; None when there is none."""
    import difflib

    by_lower = {one.lower(): one for one in known}
    found = difflib.get_close_matches(name.lower(), by_lower, 1, 0.6)
    return by_lower[found[0]] if found else None


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Returns ``"; did you mean X?"`` for the most similar known name; empty when there is none."""
    found = most_similar(name, known)
    return f"; did you mean {found}?" if found else ""
