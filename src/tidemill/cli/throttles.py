"""Limits on how fast moves copy, by the settings that Kafka's reassignment tool uses (KIP-73).

A rate for each broker that takes part, and on each topic the replicas that it holds for: those that there are
as leaders, those that come as followers.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from tidemill.cli.moves import Plan, racks_of

if TYPE_CHECKING:
    from tidemill.client import Admin, ConfigResource

RATES = ("leader.replication.throttled.rate", "follower.replication.throttled.rate")
"""Keys of brokers, in bytes a second."""

REPLICAS = ("leader.replication.throttled.replicas", "follower.replication.throttled.replicas")
"""Keys of topics: partition:broker pairs."""


def limit(admin: Admin, plan: Plan, current: Plan, bytes_per_second: int) -> None:
    """Limits what the moves of ``plan`` copy on each broker, to be done before they begin."""
    from tidemill.client import ConfigResource, ResourceType

    pairs: dict[str, tuple[list[str], list[str]]] = {}
    brokers: set[int] = set()
    for (topic, number), replicas in sorted(plan.items()):
        before = current.get((topic, number), [])  # type: ignore[call-overload]
        leaders, followers = pairs.setdefault(topic, ([], []))
        leaders += [f"{number}:{broker}" for broker in before]
        followers += [f"{number}:{broker}" for broker in replicas if broker not in before]
        brokers.update(before, replicas)
    for broker in sorted(brokers & racks_of(admin).keys()):
        resource = ConfigResource(ResourceType.BROKER, str(broker))
        admin.alter_configs(resource, dict.fromkeys(RATES, str(bytes_per_second)))
    for topic, listed in pairs.items():
        values = {key: ",".join(one) for key, one in zip(REPLICAS, listed, strict=True) if one}
        admin.alter_configs(ConfigResource(ResourceType.TOPIC, topic), values)


def lift(admin: Admin, topics: Iterable[str]) -> bool:
    """Takes the limits away, from these topics and from all brokers that live; whether there were any."""
    from tidemill.client import ConfigResource, ResourceType

    found = [
        _lifted(admin, ConfigResource(ResourceType.TOPIC, topic), REPLICAS) for topic in sorted(set(topics))
    ]
    found += [
        _lifted(admin, ConfigResource(ResourceType.BROKER, str(broker)), RATES) for broker in racks_of(admin)
    ]
    return any(found)


def _lifted(admin: Admin, resource: ConfigResource, keys: tuple[str, ...]) -> bool:
    from tidemill.client import ClientError
    from tidemill.model.errors import ErrorCode

    own = resource.kind.name.lower()
    try:
        entries = admin.describe_configs(resource, keys)
    except ClientError as problem:
        if problem.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            return False
        raise
    given = [key for key, entry in entries.items() if entry.source == own]
    if given:
        admin.alter_configs(resource, remove=given)
    return bool(given)
