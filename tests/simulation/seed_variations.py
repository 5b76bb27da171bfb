"""Properties of only some seeds: drawn from a separate stream, so that other seeds stay unchanged."""

from __future__ import annotations

from random import Random

OPERATOR_SHARE = 0.5
"""The share of seeds with an operator who elects leaders for partitions that wait for one."""
SLOW_CLEANER_SHARE = 0.5
"""The share of seeds with cleaners that may take seconds for a group of segments."""
SLOW_CHECKPOINT_SHARE = 0.5
"""The share of seeds with long pauses of cleaners, which write cleaner checkpoints late."""
STORE_CUTS_SHARE = 0.4
"""The share of seeds with brokers that are isolated from the store beyond a session timeout."""
STOPS_SHARE = 0.5
"""The share of seeds with processes that end during a swap of several segments."""
MIN_INSYNC_CHANGES_SHARE = 0.4
"""The share of seeds with an administrator who changes ``min.insync.replicas``."""
FULL_DISKS_SHARE = 0.3
"""The share of seeds with disks that are full for a time."""
REFUSED_DELETIONS_SHARE = 0.5
"""The share of seeds with disks that reject the rename of deleted partition directories for a time."""
DIRECTORY_MOVES_SHARE = 0.3
"""The share of replication seeds with two data directories, between which partitions move."""
DELETION_BURSTS_SHARE = 0.4
"""The share of seeds with concurrent deletions and creations of a topic."""

LATE_STORE_SHARE = 0.4
"""The share of seeds with delayed responses and events of the store."""
LOST_ANSWERS_SHARE = 0.4
"""The share of seeds with sessions that end at the write of a registration with fewer losses."""
LOST_ISR_ANSWERS_SHARE = 0.3
"""The share of seeds with lost responses to the write of a larger ISR."""
FULL_STARTS_SHARE = 0.5
"""The share of seeds with full disks that start on a full disk after a power failure."""
FAILING_STOPS_SHARE = 0.4
"""The share of seeds with shutdown requests during a hanging fsync that fails."""
PASSING_POSITIONS_SHARE = 0.5
"""The share of seeds with bursts of deletions and a group that commits offsets in the deleted topic."""


class Variations:
    """The variations of one seed."""

    def __init__(self, seed: int) -> None:
        random = Random(f"variations {seed}")
        self.has_operator = random.random() < OPERATOR_SHARE
        self.has_slow_cleaner = random.random() < SLOW_CLEANER_SHARE
        self.has_slow_checkpoint = random.random() < SLOW_CHECKPOINT_SHARE
        self.has_store_cuts = random.random() < STORE_CUTS_SHARE
        self.has_stops = random.random() < STOPS_SHARE
        self.has_min_insync_changes = random.random() < MIN_INSYNC_CHANGES_SHARE
        self.has_full_disks = random.random() < FULL_DISKS_SHARE
        self.has_directory_moves = random.random() < DIRECTORY_MOVES_SHARE
        self.has_refused_deletions = random.random() < REFUSED_DELETIONS_SHARE
        self.has_deletion_bursts = random.random() < DELETION_BURSTS_SHARE
        self.has_late_store = random.random() < LATE_STORE_SHARE
        self.has_lost_answers = random.random() < LOST_ANSWERS_SHARE
        self.has_full_starts = random.random() < FULL_STARTS_SHARE and self.has_full_disks
        self.has_failing_stops = random.random() < FAILING_STOPS_SHARE
        self.has_lost_isr_answers = random.random() < LOST_ISR_ANSWERS_SHARE
        self.has_passing_positions = random.random() < PASSING_POSITIONS_SHARE and self.has_deletion_bursts
