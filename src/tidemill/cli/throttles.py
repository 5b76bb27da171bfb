"""Limits on how fast moves copy, by the settings that Kafka's reassignment tool uses (KIP-73).

A rate for each broker that takes part, and on each topic the replicas that it holds for: those that there are
as leaders, those that come as followers.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

import click

from tidemill.cli.moves import Plan, racks_of

if TYPE_CHECKING:
    from tidemill.client import Admin, ConfigResource

RATES = ("leader.replication.throttled.rate", "follower.replication.throttled.rate")
"""Keys of brokers, in bytes a second."""

REPLICAS = ("leader.replication.throttled.replicas", "follower.replication.throttled.replicas")
"""Keys of topics: partition:broker pairs."""

PAUSE_S = 0.05
HEARD_S = 10.0
"""The longest wait for all brokers to apply a throttle, in seconds."""


def limit(admin: Admin, plan: Plan, current: Plan, bytes_per_second: int) -> None:
    """Limits what the moves of ``plan`` copy on each broker, to be done before they begin.

    What is limited on its topics already stays so: other partitions of them may be on the move. Returns once
    every broker has applied the throttle: before that a move would begin without a limit, and the next
    command would read old settings from a broker.
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
    if not pairs:
        return
    live = sorted(racks_of(admin))
    for broker in sorted(brokers.intersection(live)):
        resource = ConfigResource(ResourceType.BROKER, str(broker))
        admin.alter_configs(resource, dict.fromkeys(RATES, str(bytes_per_second)))
    for topic, listed in pairs.items():
        resource = ConfigResource(ResourceType.TOPIC, topic)
        entries = _given(admin, resource, REPLICAS)
        held = [entries[key].split(",") if entries.get(key) else [] for key in REPLICAS]
        together = [dict.fromkeys([*old, *new]) for old, new in zip(held, listed, strict=True)]
        values = {key: ",".join(one) for key, one in zip(REPLICAS, together, strict=True) if one}
        admin.alter_configs(resource, values)
    # A broker applies changes of settings in the order of their writes: the last one comes after all others.
    late = _late(admin, live, resource, values)
    if late:
        named = ", ".join(map(str, late))
        click.echo(
            f"tidemill: broker {named} has not applied the throttle settings after {HEARD_S:g} s, and may "
            "copy without a throttle at first: 'tidemill reassign list' shows how far moves are",
            err=True,
        )


def _late(
    admin: Admin, brokers: Iterable[int], resource: ConfigResource, values: Mapping[str, str]
) -> list[int]:
    """The brokers that do not know these settings of a topic after :data:`HEARD_S` seconds."""
    deadline = time.monotonic() + HEARD_S
    late = list(brokers)
    while late := [one for one in late if not _knows(admin, one, resource, values)]:
        if time.monotonic() > deadline:
            break
        time.sleep(PAUSE_S)
    return late


def _knows(admin: Admin, broker: int, resource: ConfigResource, values: Mapping[str, str]) -> bool:
    """Whether a broker knows these settings of a topic; not, if it does not answer."""
    from tidemill.client import ClientError

    try:
        return _given(admin, resource, REPLICAS, broker=broker) == values
    except ClientError:
        return False


def lift(admin: Admin, topics: Iterable[str]) -> bool:
    """Takes the limits away, from these topics and from all brokers that live; whether there were any.

    Those that moves under way may need stay: of their topics, and of all brokers as long as anything moves.
    """
    from tidemill.client import ConfigResource, ResourceType

    moving = {item.topic for item in admin.list_reassignments()}
    found = [
        _lifted(admin, ConfigResource(ResourceType.TOPIC, topic), REPLICAS)
        for topic in sorted(set(topics) - moving)
    ]
    found += [
        _lifted(admin, ConfigResource(ResourceType.BROKER, str(broker)), RATES)
        for broker in (racks_of(admin) if not moving else ())
    ]
    return any(found)


def _lifted(admin: Admin, resource: ConfigResource, keys: tuple[str, ...]) -> bool:
    given = _given(admin, resource, keys)
    if given:
        admin.alter_configs(resource, remove=list(given))
    return bool(given)


def _given(
    admin: Admin, resource: ConfigResource, keys: tuple[str, ...], *, broker: int | None = None
) -> dict[str, str]:
    """What is set of these keys, as ``broker`` knows it; nothing of a topic that is not there."""
    from tidemill.client import ClientError
    from tidemill.model.errors import ErrorCode

    own = resource.kind.name.lower()
    try:
        entries = admin.describe_configs(resource, keys, broker=broker)
    except ClientError as problem:
        if problem.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            return {}
        raise
    return {key: entry.value or "" for key, entry in entries.items() if entry.source == own}
