"""Which names a topic may have. Source: ``org.apache.kafka.common.internals.Topic``."""

from __future__ import annotations

import re
from collections.abc import Iterable

from tidemill.model.errors import ErrorCode, KafkaError

NAME_LENGTH_MAX = 249
"""A partition's directory is the name, a dash and the number; with ``.delete`` and an id behind it, 255."""

METADATA_TOPIC = "__cluster_metadata"
"""Apache Kafka 4 keeps its own metadata under this name."""

_LEGAL = re.compile(r"[a-zA-Z0-9._-]+")


def check_name(name: str) -> None:
    """Raises INVALID_TOPIC_EXCEPTION unless ``name`` may name a topic."""
    problem = name_problem(name)
    if problem:
        raise KafkaError(problem, ErrorCode.INVALID_TOPIC_EXCEPTION)


def name_problem(name: str) -> str:
    """What is wrong with a topic's name; empty when nothing is."""
    if not name:
        return "a topic's name cannot be empty"
    if name in (".", ".."):
        return f"a topic cannot be named {name!r}"
    if len(name) > NAME_LENGTH_MAX:
        return f"the name {name[:40]}... has {len(name)} characters; at most {NAME_LENGTH_MAX} are allowed"
    if _LEGAL.fullmatch(name) is None:
        return f"the name {name!r} is not legal: letters, digits, '.', '_' and '-' (all ASCII) are allowed"
    return ""


def collision_key(name: str) -> str:
    """The same for names that metrics could not tell apart, because '.' becomes '_' in them."""
    return name.replace(".", "_")


class TakenNames:
    """The topics that are there, for finding collisions with new ones."""

    def __init__(self, names: Iterable[str]) -> None:
        self._by_key: dict[str, str] = {collision_key(name): name for name in names}

    def check(self, name: str) -> None:
        """Raises INVALID_TOPIC_EXCEPTION when another topic differs from ``name`` in '.' and '_' only."""
        other = self._by_key.get(collision_key(name))
        if other is not None and other != name:
            raise KafkaError(
                f"the name {name!r} collides with the topic {other!r}: they differ in '.' and '_' only, "
                "which metrics cannot tell apart. Choose another name.",
                ErrorCode.INVALID_TOPIC_EXCEPTION,
            )

    def add(self, name: str) -> None:
        """Takes a name."""
        self._by_key.setdefault(collision_key(name), name)
