"""Properties of only some seeds: drawn from a separate stream, so that other seeds stay unchanged."""

from __future__ import annotations

from random import Random

OPERATOR_SHARE = 0.5
"""Of the seeds have an operator who looks after partitions that wait for one."""
SLOW_CLEANER_SHARE = 0.5
"""Of the seeds have cleaners that may take seconds for a group of segments."""
SLOW_CHECKPOINT_SHARE = 0.5
"""Of the seeds have cleaners that rest for long, and so write late up to where logs are clean."""
STORE_CUTS_SHARE = 0.4
"""Of the seeds have brokers that are cut from the store for longer than a session lives."""
STOPS_SHARE = 0.5
"""Of the seeds have processes that end in the middle of an exchange of several segments."""
MIN_INSYNC_CHANGES_SHARE = 0.4
"""Of the seeds have an administrator who changes ``min.insync.replicas`` now and then."""
FULL_DISKS_SHARE = 0.3
"""Of the seeds have disks that are full for a while."""
REFUSED_DELETIONS_SHARE = 0.5
"""Of the seeds have disks that refuse to rename the directory of a partition that is deleted, for a while."""
DIRECTORY_MOVES_SHARE = 0.3
"""Of the seeds of replication have brokers with two data directories, between which partitions move."""
DELETION_BURSTS_SHARE = 0.4
"""Of the seeds have an administrator who deletes a topic in several ways, and makes it, all at once."""

LATE_STORE_SHARE = 0.4
"""Of the seeds have times at which the store's answers and events come late to a broker."""
LOST_ANSWERS_SHARE = 0.4
"""Of the seeds have sessions that end as the store takes a registration that tells of fewer losses."""
LOST_ISR_ANSWERS_SHARE = 0.3
"""Of the seeds have leaders that do not hear that a larger in-sync set is written."""
FULL_STARTS_SHARE = 0.5
"""Of the seeds with full disks have starts after power cuts that find a disk full."""
FAILING_STOPS_SHARE = 0.4
"""Of the seeds have brokers that are told to stop while a sync hangs that will fail."""
PASSING_POSITIONS_SHARE = 0.5
"""Of the seeds with bursts of deletions have a group that commits positions in the topic that is deleted."""


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
