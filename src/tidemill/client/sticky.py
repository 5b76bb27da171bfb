"""The sticky assignment: balanced first, then as few moves as can be.

Balanced means: no partition could go from a member to another one that subscribes to its topic and has at
least two fewer. Where all members subscribe to the same topics, that is every member having n or n + 1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tidemill.model.types import TopicPartition


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
    shares = [set(items) for items in kept]
    takers: dict[str, list[int]] = {
        topic: [i for i, wanted in enumerate(topics) if topic in wanted] for topic in sorted(partitions)
    }
    taken = {item for share in shares for item in share}
    free = [
        TopicPartition(topic, p)
        for topic in sorted(partitions, key=lambda t: (len(takers[t]), t))
        if takers[topic]
        for p in range(partitions[topic])
        if TopicPartition(topic, p) not in taken
    ]
    for item in free:
        shares[min(takers[item.topic], key=lambda i: (len(shares[i]), i))].add(item)
    _level(shares, takers)
    return [sorted(share) for share in shares]


def _level(shares: list[set[TopicPartition]], takers: Mapping[str, list[int]]) -> None:
    """Moves partitions from the fullest members until no move makes the difference smaller.

    Each move lowers the sum of the squares of the sizes, so that it ends.
    """
    moved = True
    while moved:
        moved = False
        for i in sorted(range(len(shares)), key=lambda i: (-len(shares[i]), i)):
            for item in sorted(shares[i]):
                to = min(takers[item.topic], key=lambda j: (len(shares[j]), j))
                if len(shares[to]) + 1 < len(shares[i]):
                    shares[i].remove(item)
                    shares[to].add(item)
                    moved = True
