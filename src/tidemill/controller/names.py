"""Whether a topic may be made by a name. Source: ``org.apache.kafka.common.internals.Topic``."""

from __future__ import annotations

from collections.abc import Iterable

from tidemill.model.errors import ErrorCode, KafkaError
from tidemill.model.topic_names import name_problem

METADATA_TOPIC = "__cluster_metadata"
"""Apache Kafka 4 keeps its own metadata under this name."""


def check_name(name: str) -> None:
    """Raises INVALID_TOPIC_EXCEPTION unless ``name`` may name a topic."""
    problem = name_problem(name)
    if problem:
        raise KafkaError(problem, ErrorCode.INVALID_TOPIC_EXCEPTION)


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
