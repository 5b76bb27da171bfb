"""Whether a topic may be made by a name. Source: ``org.apache.kafka.common.internals.Topic``."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from itertools import product

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


SEPARATORS_MAX = 6
"""Of a name with so many '.' and '_' the 64 that it could collide with are looked up, one by one."""


class TakenNames:
    """The topics that are there, for finding collisions with new ones."""

    def __init__(self, names: Collection[str], before: TakenNames | None = None) -> None:
        """``before``: the same for the topics of the same request that came before."""
        self._names = names
        self._added: dict[str, str] = before._added if before is not None else {}
        self._by_key: dict[str, str] | None = None

    def check(self, name: str) -> None:
        """Raises INVALID_TOPIC_EXCEPTION when another topic differs from ``name`` in '.' and '_' only."""
        key = collision_key(name)
        other = self._added.get(key) or self._colliding(name, key)
        if other is not None and other != name:
            raise KafkaError(
                f"the name {name!r} collides with the topic {other!r}: they differ in '.' and '_' only, "
                "which metrics cannot tell apart. Choose another name.",
                ErrorCode.INVALID_TOPIC_EXCEPTION,
            )

    def add(self, name: str) -> None:
        """Takes a name."""
        self._added.setdefault(collision_key(name), name)

    def _colliding(self, name: str, key: str) -> str | None:
        if "_" not in key:
            return None
        if key.count("_") <= SEPARATORS_MAX:
            return next((one for one in _same_key(key) if one != name and one in self._names), None)
        if self._by_key is None:
            self._by_key = {collision_key(one): one for one in self._names}
        return self._by_key.get(key)


def _same_key(key: str) -> Iterator[str]:
    """All names of that key."""
    first, *others = key.split("_")
    for joints in product("._", repeat=len(others)):
        yield first + "".join(joint + part for joint, part in zip(joints, others, strict=True))
