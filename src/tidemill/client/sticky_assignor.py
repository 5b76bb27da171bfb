"""The sticky assignment: balanced first, then with the fewest moves.

Balanced means: no partition can move from a member to another member that subscribes to its topic and has at
least two fewer partitions. Nor can a chain of partitions, each moving to the next member, end at a member
that has at least two fewer than the first. If all members subscribe to the same topics, every member has n
or n + 1 partitions.

Chains are the reason why a cooperative rebalance ends after two rounds. An assignment that no chain makes
more even is as even as possible. The first round assigns such an assignment without the partitions that
move. The second round first uses free partitions alone. It therefore reaches an equally even assignment and
revokes nothing again.

Source for the chains: Harvey, Ladner, Lovász and Tamir, "Semi-matchings for bipartite graphs and load
balancing".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tidemill.model.types import TopicPartition

Share = dict[str, list[TopicPartition]]
"""A member's partitions by topic; the last added are last, and are the first to move."""

Step = tuple[int, str, int]
"""A move of a partition: the member that loses it, the topic, the member that gets it."""


def assign_sticky(
    partitions: Mapping[str, int],
    member_ids: Sequence[str],
    topics: Sequence[frozenset[str]],
    owned: Sequence[Sequence[TopicPartition]],
    generations: Sequence[int],
) -> dict[str, list[TopicPartition]]:
    """Returns the partitions of each member id; the arguments are parallel lists, whose order breaks ties."""
    kept = _still_owned(partitions, topics, owned, generations)
    if all(subscribed == topics[0] for subscribed in topics):
        shares = _assign_equal(partitions, topics[0] if topics else frozenset(), kept)
    else:
        shares = _assign_different(partitions, topics, kept)
    return {member_id: sorted(share) for member_id, share in zip(member_ids, shares, strict=True)}


def _still_owned(
    partitions: Mapping[str, int],
    topics: Sequence[frozenset[str]],
    owned: Sequence[Sequence[TopicPartition]],
    generations: Sequence[int],
) -> list[list[TopicPartition]]:
    """Returns the partitions that each member may keep.

    Such a partition exists, the member is subscribed to its topic, and no other member claims it with a later
    generation. Two claims of the same generation are both ignored: neither can be trusted.
    """
    claims: dict[TopicPartition, tuple[int, int | None]] = {}
    for i, items in enumerate(owned):
        for item in items:
            if item.topic not in topics[i] or not 0 <= item.partition < partitions.get(item.topic, 0):
                continue
            best = claims.get(item)
            if best is None or generations[i] > best[0]:
                claims[item] = (generations[i], i)
            elif generations[i] == best[0] and best[1] != i:
                claims[item] = (generations[i], None)
    kept: list[list[TopicPartition]] = [[] for _ in owned]
    for item, (_, holder) in claims.items():
        if holder is not None:
            kept[holder].append(item)
    for items in kept:
        items.sort()
    return kept


def _assign_equal(
    partitions: Mapping[str, int], topics: frozenset[str], kept: list[list[TopicPartition]]
) -> list[list[TopicPartition]]:
    """Equal subscriptions: assigns n or n + 1 partitions to each member; one with more loses the surplus."""
    every = [TopicPartition(t, p) for t in sorted(topics) for p in range(partitions.get(t, 0))]
    if not kept:
        return []
    least, more = divmod(len(every), len(kept))
    shares: list[list[TopicPartition]] = []
    for items in kept:
        quota = least
        if len(items) > least and more > 0:
            quota = least + 1
            more -= 1
        shares.append(items[:quota])
    assigned = {item for share in shares for item in share}
    free = [item for item in every if item not in assigned]
    free.reverse()
    # Assign one at a time to the emptiest member, so that adjacent partitions of a topic are spread.
    for size in range(least):
        for share in shares:
            if len(share) == size and free:
                share.append(free.pop())
    for share in shares:
        if len(share) == least and more > 0 and free:
            share.append(free.pop())
            more -= 1
    return shares


def _assign_different(
    partitions: Mapping[str, int], topics: Sequence[frozenset[str]], kept: list[list[TopicPartition]]
) -> list[list[TopicPartition]]:
    """Assigns to members with different subscriptions: first the topics with the fewest subscribers."""
    subscribers: dict[str, list[int]] = {
        topic: [i for i, wanted in enumerate(topics) if topic in wanted] for topic in sorted(partitions)
    }
    assigned = {item for items in kept for item in items}
    free = [
        TopicPartition(topic, p)
        for topic in sorted(partitions, key=lambda t: (len(subscribers[t]), t))
        if subscribers[topic]
        for p in range(partitions[topic])
        if TopicPartition(topic, p) not in assigned
    ]
    sizes = [len(items) for items in kept]
    shares: list[Share] = [{} for _ in kept]
    for item in free:
        to = min(subscribers[item.topic], key=lambda i: (sizes[i], i))
        _add_partition(shares[to], item)
        sizes[to] += 1
    # First balance with the free partitions alone, so that no member loses a partition without need.
    _balance(shares, sizes, subscribers)
    for share, items in zip(shares, kept, strict=True):
        given = [item for some in share.values() for item in some]
        share.clear()
        for item in [*items, *given]:
            _add_partition(share, item)
    _balance(shares, sizes, subscribers)
    return [sorted(item for items in share.values() for item in items) for share in shares]


def _add_partition(share: Share, item: TopicPartition) -> None:
    share.setdefault(item.topic, []).append(item)


def _balance(shares: list[Share], sizes: list[int], subscribers: Mapping[str, Sequence[int]]) -> None:
    """Moves partitions of ``shares`` along chains until no chain makes ``sizes`` more even.

    ``sizes`` may count partitions that may not move. Each chain lowers the sum of their squares, so the loop
    ends.
    """
    left = set(range(len(shares)))
    while left:
        fullest = min(left, key=lambda i: (-sizes[i], i))
        chain, reached = _chain_from(fullest, shares, sizes, subscribers, left)
        for giver, topic, to in chain:
            _add_partition(shares[to], shares[giver][topic].pop())
        if chain:
            sizes[fullest] -= 1
            sizes[chain[-1][2]] += 1
        else:
            # The reached members have at most one fewer, and reach no others: no chain starts there.
            left -= reached


def _chain_from(
    first: int,
    shares: Sequence[Share],
    sizes: Sequence[int],
    subscribers: Mapping[str, Sequence[int]],
    left: set[int],
) -> tuple[list[Step], set[int]]:
    """Finds the shortest chain from ``first`` to the emptiest member that has at least two fewer.

    Returns the chain (empty if there is none) and the members that were reached.
    """
    came_by: dict[int, Step] = {first: (first, "", first)}
    topics_done: set[str] = set()
    row = [first]
    while row:
        row = _next_row(row, shares, subscribers, left, came_by, topics_done)
        emptiest = min(row, key=lambda i: (sizes[i], i), default=first)
        if sizes[emptiest] + 1 < sizes[first]:
            return _steps_to(emptiest, came_by), set(came_by)
    return [], set(came_by)


def _next_row(
    row: Sequence[int],
    shares: Sequence[Share],
    subscribers: Mapping[str, Sequence[int]],
    left: set[int],
    came_by: dict[int, Step],
    topics_done: set[str],
) -> list[int]:
    """Returns the members not reached before that can take a partition of a member in ``row``."""
    following: list[int] = []
    for giver in row:
        for topic, items in shares[giver].items():
            if len(came_by) == len(left):
                return following
            if not items or topic in topics_done:
                continue
            topics_done.add(topic)
            for to in subscribers[topic]:
                if to in left and to not in came_by:
                    came_by[to] = giver, topic, to
                    following.append(to)
    return following


def _steps_to(last: int, came_by: Mapping[int, Step]) -> list[Step]:
    steps = []
    while came_by[last][0] != last:
        steps.append(came_by[last])
        last = came_by[last][0]
    return steps[::-1]
