"""The number of in-sync replicas that a commit needs. The broker and the controller use the same."""

from __future__ import annotations


def effective_min_isr(min_insync_replicas: int, replicas: int, adding: int) -> int:
    """``min.insync.replicas``, or all replicas if there are fewer.

    The replicas that a reassignment adds do not count: a topic of one replica that gets two more stays
    writable while they catch up. Without other replicas, ``min_insync_replicas`` applies.
    ``replicas`` is the number of all replicas, ``adding`` the number of those that are added.
    """
    count = replicas - adding
    return count if 0 < count < min_insync_replicas else min_insync_replicas
