"""Checks names of topics. Source: ``org.apache.kafka.common.internals.Topic``."""

from __future__ import annotations

import re

NAME_LENGTH_MAX = 249
"""The directory name of a partition appends a dash and the number; with ``.delete`` and an id it is 255."""

_LEGAL = re.compile(r"[a-zA-Z0-9._-]+")


def name_problem(name: str) -> str:
    """Returns the reason why a topic name is invalid; empty for a valid name."""
    if not name:
        return "a topic's name cannot be empty"
    if name in (".", ".."):
        return f"a topic cannot be named {name!r}"
    if len(name) > NAME_LENGTH_MAX:
        return f"the name {name[:40]}... has {len(name)} characters; at most {NAME_LENGTH_MAX} are allowed"
    if _LEGAL.fullmatch(name) is None:
        return f"the name {name!r} is not legal: letters, digits, '.', '_' and '-' (all ASCII) are allowed"
    return ""
