"""Lists of replicas in settings: ``*`` for all of a topic, or pairs of partition and broker (``0:1,1:3``).

Source: Kafka's ``ThrottledReplicaListValidator`` and ``TopicConfigHandler`` (KIP-73).
"""

from __future__ import annotations

import re
from collections.abc import Sequence

REPLICAS = "replicas"
"""What a key that lists some is allowed, in the language of :class:`tidemill.model.configs.keys.Key`."""
REPLICAS_TEXT = "* for all replicas, or a list of partition:broker pairs as 0:1,0:2"

_PAIR = re.compile(r"([0-9]{1,10}):([0-9]{1,10})", re.ASCII)


def is_replica_list(members: Sequence[str]) -> bool:
    """Whether these members of a list, none empty, are all pairs, or one ``*``."""
    return list(members) == ["*"] or all(_PAIR.fullmatch(member) for member in members)


def partitions_on(members: Sequence[str], broker_id: int) -> frozenset[int] | None:
    """The partitions that the list names with this broker; None for ``*``, which is all."""
    if list(members) == ["*"]:
        return None
    pairs = (_PAIR.fullmatch(member) for member in members)
    return frozenset(int(pair[1]) for pair in pairs if pair is not None and int(pair[2]) == broker_id)
