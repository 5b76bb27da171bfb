"""Replication throttles of moves, in the settings that Kafka's reassignment tool uses (KIP-73).

Each participating broker gets a rate, and each topic the replicas that the rate applies to: the existing ones
as leaders, the new ones as followers.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

import click

from tidemill.cli.reassignment_plans import Plan, racks_of
from tidemill.client.errors import ClientError
from tidemill.model.errors import ErrorCode

if TYPE_CHECKING:
    from tidemill.client import Admin, ConfigResource

RATES = ("leader.replication.throttled.rate", "follower.replication.throttled.rate")
"""Broker keys, in bytes per second."""

REPLICAS = ("leader.replication.throttled.replicas", "follower.replication.throttled.replicas")
"""Topic keys: partition:broker pairs."""

PAUSE_S = 0.05
APPLY_TIMEOUT_S = 10.0
"""The longest wait for all brokers to apply a throttle, in seconds."""


def set_throttles(admin: Admin, plan: Plan, current: Plan, bytes_per_second: int) -> None:
    """Throttles the moves of ``plan``, which is not empty, on each broker. To be called before they start.

    Throttled replicas already set on its topics are kept: other partitions of them may be moving. Returns
    once every broker has applied the throttle: before that a move would start without a throttle, and the
    next command would read old settings from a broker.
    """
    from tidemill.client import ConfigResource, ResourceType

    pairs: dict[str, tuple[list[str], list[str]]] = {}
    brokers: set[int] = set()
    for (topic, number), replicas in sorted(plan.items()):
        before = current.get((topic, number), [])  # type: ignore[call-overload]
        leaders, followers = pairs.setdefault(topic, ([], []))
        leaders += [f"{number}:{broker}" for broker in before]
        followers += [f"{number}:{broker}" for broker in replicas if broker not in before]
        brokers.update(before, replicas)
    live = sorted(racks_of(admin))
    for broker in sorted(brokers.intersection(live)):
        resource = ConfigResource(ResourceType.BROKER, str(broker))
        admin.alter_configs(resource, dict.fromkeys(RATES, str(bytes_per_second)))
    for topic, listed in pairs.items():
        resource = ConfigResource(ResourceType.TOPIC, topic)
        entries = _own_settings(admin, resource, REPLICAS)
        held = [entries[key].split(",") if entries.get(key) else [] for key in REPLICAS]
        together = [dict.fromkeys([*old, *new]) for old, new in zip(held, listed, strict=True)]
        values = {key: ",".join(members) for key, members in zip(REPLICAS, together, strict=True) if members}
        admin.alter_configs(resource, values)
    # A broker applies setting changes in the order of their writes: the last one follows all others.
    pending = _without_settings(admin, live, resource, values)
    if pending:
        named = ", ".join(map(str, pending))
        click.echo(
            f"tidemill: broker {named} has not applied the throttle settings after {APPLY_TIMEOUT_S:g} s, "
            "and may copy without a throttle at first: 'tidemill reassign list' shows the progress",
            err=True,
        )


def _without_settings(
    admin: Admin, brokers: Iterable[int], resource: ConfigResource, values: Mapping[str, str]
) -> list[int]:
    """Returns the brokers that have not applied these settings of a topic after :data:`APPLY_TIMEOUT_S`."""
    deadline = time.monotonic() + APPLY_TIMEOUT_S
    pending = list(brokers)
    while pending := [broker for broker in pending if not _has_settings(admin, broker, resource, values)]:
        if time.monotonic() > deadline:
            break
        time.sleep(PAUSE_S)
    return pending


def _has_settings(admin: Admin, broker: int, resource: ConfigResource, values: Mapping[str, str]) -> bool:
    """Returns whether a broker has applied these settings of a topic; False if it does not respond."""
    try:
        return _own_settings(admin, resource, REPLICAS, broker=broker) == values
    except ClientError:
        return False


def remove_throttles(admin: Admin, topics: Iterable[str]) -> bool:
    """Removes the throttles of these topics and of all live brokers. Returns whether there were any.

    Throttles that moves in progress may need are kept: those of their topics, and of all brokers during any
    move.
    """
    from tidemill.client import ConfigResource, ResourceType

    moving = {item.topic for item in admin.list_reassignments()}
    found = [
        _remove_settings(admin, ConfigResource(ResourceType.TOPIC, topic), REPLICAS)
        for topic in sorted(set(topics) - moving)
    ]
    found += [
        _remove_settings(admin, ConfigResource(ResourceType.BROKER, str(broker)), RATES)
        for broker in (racks_of(admin) if not moving else ())
    ]
    return any(found)


def _remove_settings(admin: Admin, resource: ConfigResource, keys: tuple[str, ...]) -> bool:
    given = _own_settings(admin, resource, keys)
    if given:
        admin.alter_configs(resource, remove=list(given))
    return bool(given)


def _own_settings(
    admin: Admin, resource: ConfigResource, keys: tuple[str, ...], *, broker: int | None = None
) -> dict[str, str]:
    """Returns the values set for these keys, as ``broker`` has them; none for a topic that does not exist."""
    own = resource.kind.name.lower()
    try:
        entries = admin.describe_configs(resource, keys, broker=broker)
    except ClientError as problem:
        if problem.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            return {}
        raise
    return {key: entry.value or "" for key, entry in entries.items() if entry.source == own}
