"""Validates topic names. Source: ``org.apache.kafka.common.internals.Topic``."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from itertools import product

from tidemill.model.errors import ErrorCode, KafkaError
from tidemill.model.topic_names import name_problem

METADATA_TOPIC = "__cluster_metadata"
"""The name of Apache Kafka 4's own metadata log."""


def check_name(name: str) -> None:
    """Raises INVALID_TOPIC_EXCEPTION unless ``name`` is a valid topic name."""
    problem = name_problem(name)
    if problem:
        raise KafkaError(problem, ErrorCode.INVALID_TOPIC_EXCEPTION)


def collision_key(name: str) -> str:
    """Equal for names that metrics cannot tell apart, because '.' becomes '_' in them."""
    return name.replace(".", "_")


SEPARATORS_MAX = 6
"""Up to this number of '.' and '_', the 64 possible colliding names are looked up one by one."""


class UsedTopicNames:
    """The existing topic names, to find collisions with new ones."""

    def __init__(self, names: Collection[str], before: UsedTopicNames | None = None) -> None:
        """``before``: the names that earlier topics of the same request use."""
        self._names = names
        self._added: dict[str, str] = before._added if before is not None else {}
        self._by_key: dict[str, str] | None = None

    def check(self, name: str) -> None:
        """Raises INVALID_TOPIC_EXCEPTION if another topic differs from ``name`` in '.' and '_' only."""
        key = collision_key(name)
        other = self._added.get(key) or self._colliding(name, key)
        if other is not None and other != name:
            raise KafkaError(
                f"the name {name!r} collides with the topic {other!r}: they differ in '.' and '_' only, "
                "which metrics cannot tell apart. Choose another name.",
                ErrorCode.INVALID_TOPIC_EXCEPTION,
            )

    def add(self, name: str) -> None:
        """Marks a name as used."""
        self._added.setdefault(collision_key(name), name)

    def _colliding(self, name: str, key: str) -> str | None:
        if "_" not in key:
            return None
        if key.count("_") <= SEPARATORS_MAX:
            return next(
                (
                    candidate
                    for candidate in _names_with_key(key)
                    if candidate != name and candidate in self._names
                ),
                None,
            )
        if self._by_key is None:
            self._by_key = {collision_key(name): name for name in self._names}
        return self._by_key.get(key)


def _names_with_key(key: str) -> Iterator[str]:
    """All names with this key."""
    first, *others = key.split("_")
    for joints in product("._", repeat=len(others)):
        yield first + "".join(joint + part for joint, part in zip(joints, others, strict=True))
