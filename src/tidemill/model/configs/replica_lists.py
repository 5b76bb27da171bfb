"""Lists of replicas in settings: ``*`` for all of a topic, or pairs of partition and broker (``0:1,1:3``).

Source: Kafka's ``ThrottledReplicaListValidator`` and ``TopicConfigHandler`` (KIP-73).
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from tidemill.model.configs.config_def import Validator

_PAIR = re.compile(r"([0-9]{1,10}):([0-9]{1,10})", re.ASCII)


def is_replica_list(members: Sequence[str]) -> bool:
    """Returns whether these list members, none of them empty, are all pairs, or a single ``*``."""
    return list(members) == ["*"] or all(_PAIR.fullmatch(member) for member in members)


REPLICAS = Validator(is_replica_list, "* for all replicas, or a list of partition:broker pairs as 0:1,0:2")
"""The allowed values of a replica list key."""


def partitions_on(members: Sequence[str], broker_id: int) -> frozenset[int] | None:
    """Returns the partitions that the list names with this broker; None for ``*``, which means all."""
    if list(members) == ["*"]:
        return None
    pairs = (_PAIR.fullmatch(member) for member in members)
    return frozenset(int(pair[1]) for pair in pairs if pair is not None and int(pair[2]) == broker_id)
