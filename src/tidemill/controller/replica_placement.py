"""Assigns replicas of new partitions to brokers.

Brokers are used in order. The first replica of partition p is on broker ``(start + p) mod n``. Its other
replicas follow at a distance, the shift, which grows by one after each round over all brokers, so that all
other brokers share the partitions of a failed one. Start and shift are random.

With racks, the brokers are ordered so that neighbours are in different racks. A broker is skipped if its rack
already has a replica while another rack has none. Source: KIP-36.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping, Sequence
from functools import lru_cache
from random import Random
from typing import Final, NamedTuple

from tidemill.model.errors import ErrorCode, KafkaError

PARTITIONS_PER_SLICE: Final = 100
"""Partitions of one topic that are placed without a pause, at some ten microseconds each."""


class _Layout(NamedTuple):
    """The brokers in placement order, and their racks if these are considered."""

    order: Sequence[int]
    rack_of: Mapping[int, str]
    rack_count: int
    is_aware: bool


@lru_cache(maxsize=4)
def _layout(racks: tuple[tuple[int, str | None], ...]) -> _Layout:
    """The layout of brokers with their racks, lowest id first. One request may create thousands of topics."""
    by_rack: dict[str, list[int]] = {}
    for broker, rack in racks:
        if rack is not None:
            by_rack.setdefault(rack, []).append(broker)
    is_aware = all(rack is not None for _, rack in racks)
    rack_of = {broker: rack for rack, brokers in by_rack.items() for broker in brokers}
    order = alternate_racks(by_rack) if is_aware else [broker for broker, _ in racks]
    return _Layout(order, rack_of, len(by_rack), is_aware)


def place_replicas_in_slices(
    racks: Mapping[int, str | None],
    partition_count: int,
    replication_factor: int,
    random: Random,
    first_partition: int = 0,
    start: int | None = None,
) -> Generator[None, None, list[list[int]]]:
    """The replicas of ``partition_count`` partitions from ``first_partition`` on, preferred leader first.

    Pauses between many partitions. ``racks`` are the live brokers with their racks, which are considered only
    if every broker has one. ``start`` replaces the random start and shift. Raises INVALID_REPLICATION_FACTOR
    if there are too few brokers.
    """
    count = len(racks)
    if replication_factor > count:
        raise KafkaError(
            f"{replication_factor} replicas need as many brokers, and {count} are live. Start more "
            f"brokers, or use {count} replica(s) or fewer.",
            ErrorCode.INVALID_REPLICATION_FACTOR,
        )
    layout = _layout(tuple(sorted(racks.items())))
    if start is None:
        start = random.randrange(count)
        shift = random.randrange(count)
    else:
        shift = start
    placed = []
    for partition in range(first_partition, first_partition + partition_count):
        if partition > 0 and partition % count == 0:
            shift += 1
        first = (start + partition) % count
        if layout.is_aware:
            placed.append(_across_racks(layout, first, shift, replication_factor))
        else:
            placed.append(_at_distances(layout.order, first, shift, replication_factor))
        if len(placed) % PARTITIONS_PER_SLICE == 0:
            yield
    return placed


def alternate_racks(brokers_by_rack: Mapping[str, Iterable[int]]) -> list[int]:
    """All brokers, one of each rack in turn, so that neighbours are in different racks."""
    queues = [sorted(brokers) for _, brokers in sorted(brokers_by_rack.items())]
    order = []
    for place in range(max((len(queue) for queue in queues), default=0)):
        order += [queue[place] for queue in queues if place < len(queue)]
    return order


def _distance(shift: int, place: int, count: int) -> int:
    """The distance from the first replica to replica ``place`` of the others, counted from 0; never 0."""
    return 1 + (shift + place) % (count - 1)


def _at_distances(order: Sequence[int], first: int, shift: int, replication_factor: int) -> list[int]:
    count = len(order)
    others = (
        order[(first + _distance(shift, place, count)) % count] for place in range(replication_factor - 1)
    )
    return [order[first], *others]


def _across_racks(layout: _Layout, first: int, shift: int, replication_factor: int) -> list[int]:
    order, racks, rack_count, _ = layout
    count = len(order)
    replicas = [order[first]]
    racks_used = {racks[order[first]]}
    place = 0
    while len(replicas) < replication_factor:
        broker = order[(first + _distance(shift * rack_count, place, count)) % count]
        place += 1
        if broker in replicas or (racks[broker] in racks_used and len(racks_used) < rack_count):
            continue
        replicas.append(broker)
        racks_used.add(racks[broker])
    return replicas
