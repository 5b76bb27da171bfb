"""The sticky assignment: balanced first, then as few moves as can be.

Balanced means: no partition could go from a member to another one that subscribes to its topic and has at
least two fewer; nor could a chain of them, each to the next member, end at one that has at least two fewer
than the first. Where all members subscribe to the same topics, that is every member having n or n + 1.

Chains are why a cooperative rebalance ends after two rounds. An assignment that no chain makes more even is
as even as any can be. The first round hands out a part of such a one, without what moves; so the second,
which looks first for what can be done with free partitions alone, comes to one that is as even, and takes
nothing away once more.

Source for the chains: Harvey, Ladner, Lovász and Tamir, "Semi-matchings for bipartite graphs and load
balancing".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tidemill.model.types import TopicPartition

Share = dict[str, list[TopicPartition]]
"""Partitions of a member by topic; those that came last are last, and go first."""

Step = tuple[int, str, int]
"""A member gives a partition of a topic to another."""


def stick(
    partitions: Mapping[str, int],
    member_ids: Sequence[str],
    topics: Sequence[frozenset[str]],
    owned: Sequence[Sequence[TopicPartition]],
    generations: Sequence[int],
) -> dict[str, list[TopicPartition]]:
    """The partitions of each member id; the lists run parallel, and order breaks ties."""
    kept = _still_owned(partitions, topics, owned, generations)
    if all(one == topics[0] for one in topics):
        shares = _even(partitions, topics[0] if topics else frozenset(), kept)
    else:
        shares = _uneven(partitions, topics, kept)
    return {member_id: sorted(share) for member_id, share in zip(member_ids, shares, strict=True)}


def _still_owned(
    partitions: Mapping[str, int],
    topics: Sequence[frozenset[str]],
    owned: Sequence[Sequence[TopicPartition]],
    generations: Sequence[int],
) -> list[list[TopicPartition]]:
    """What each member may keep: it exists, is subscribed, and nobody claims it since a later generation.

    Two claims of the same generation cancel out: neither can be believed.
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


def _even(
    partitions: Mapping[str, int], topics: frozenset[str], kept: list[list[TopicPartition]]
) -> list[list[TopicPartition]]:
    """All members may have everything: n or n + 1 each, and who has more gives the surplus."""
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
    taken = {item for share in shares for item in share}
    free = [item for item in every if item not in taken]
    free.reverse()
    # Dealt one at a time to the emptiest, so that neighbouring partitions of a topic spread over members.
    for size in range(least):
        for share in shares:
            if len(share) == size and free:
                share.append(free.pop())
    for share in shares:
        if len(share) == least and more > 0 and free:
            share.append(free.pop())
            more -= 1
    return shares


def _uneven(
    partitions: Mapping[str, int], topics: Sequence[frozenset[str]], kept: list[list[TopicPartition]]
) -> list[list[TopicPartition]]:
    """Members differ in what they may have: the hardest to place first, then moves while they help."""
    takers: dict[str, list[int]] = {
        topic: [i for i, wanted in enumerate(topics) if topic in wanted] for topic in sorted(partitions)
    }
    taken = {item for items in kept for item in items}
    free = [
        TopicPartition(topic, p)
        for topic in sorted(partitions, key=lambda t: (len(takers[t]), t))
        if takers[topic]
        for p in range(partitions[topic])
        if TopicPartition(topic, p) not in taken
    ]
    sizes = [len(items) for items in kept]
    shares: list[Share] = [{} for _ in kept]
    for item in free:
        to = min(takers[item.topic], key=lambda i: (sizes[i], i))
        _give(shares[to], item)
        sizes[to] += 1
    # Nobody gives up a partition for what those that are free can do.
    _level(shares, sizes, takers)
    for share, items in zip(shares, kept, strict=True):
        given = [item for some in share.values() for item in some]
        share.clear()
        for item in [*items, *given]:
            _give(share, item)
    _level(shares, sizes, takers)
    return [sorted(item for items in share.values() for item in items) for share in shares]


def _give(share: Share, item: TopicPartition) -> None:
    share.setdefault(item.topic, []).append(item)


def _level(shares: list[Share], sizes: list[int], takers: Mapping[str, Sequence[int]]) -> None:
    """Moves partitions of ``shares`` along chains until none makes ``sizes`` more even.

    ``sizes`` may count more than may move. Each chain lowers the sum of their squares, so that it ends.
    """
    left = set(range(len(shares)))
    while left:
        fullest = min(left, key=lambda i: (-sizes[i], i))
        chain, reached = _chain_from(fullest, shares, sizes, takers, left)
        for giver, topic, to in chain:
            _give(shares[to], shares[giver][topic].pop())
        if chain:
            sizes[fullest] -= 1
            sizes[chain[-1][2]] += 1
        else:
            # Those that it reaches have at most one fewer, and reach no others: no chain begins there.
            left -= reached


def _chain_from(
    first: int,
    shares: Sequence[Share],
    sizes: Sequence[int],
    takers: Mapping[str, Sequence[int]],
    left: set[int],
) -> tuple[list[Step], set[int]]:
    """The shortest chain from ``first`` to a member that has at least two fewer, the emptiest of them.

    No steps when there is none. Beside it the members that were reached.
    """
    came_by: dict[int, Step] = {first: (first, "", first)}
    topics_done: set[str] = set()
    row = [first]
    while row:
        row = _row_behind(row, shares, takers, left, came_by, topics_done)
        emptiest = min(row, key=lambda i: (sizes[i], i), default=first)
        if sizes[emptiest] + 1 < sizes[first]:
            return _steps_to(emptiest, came_by), set(came_by)
    return [], set(came_by)


def _row_behind(
    row: Sequence[int],
    shares: Sequence[Share],
    takers: Mapping[str, Sequence[int]],
    left: set[int],
    came_by: dict[int, Step],
    topics_done: set[str],
) -> list[int]:
    """Who was not reached before and can take a partition of one in ``row``."""
    following: list[int] = []
    for giver in row:
        for topic, items in shares[giver].items():
            if len(came_by) == len(left):
                return following
            if not items or topic in topics_done:
                continue
            topics_done.add(topic)
            for to in takers[topic]:
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
