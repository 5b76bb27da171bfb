"""The planted faults of compaction: the cleaner, the exchange of segments, the start after a crash."""

from __future__ import annotations

from typing import Final

from planting import Fault

_EXCHANGE: Final = """\
            self._rename(base, CLEANED, SWAP)
            for offset in self.old:
                suffixes = SEGMENT_SUFFIXES if offset == base else (*SEGMENT_SUFFIXES, SNAPSHOT)
                for suffix in suffixes:
                    self._rename_deleted(offset_name(offset, suffix))
"""
_FIRST, _, _REST = _EXCHANGE.partition("\n")

COMPACTION: Final = (
    Fault(
        "newest-record-cleaned-away",
        "log/clean_batch.py",
        "        return offset >= self.offsets.get_prepared(at)\n",
        "        return offset > self.offsets.get_prepared(at)\n",
        "The newest record of each key stays.",
    ),
    Fault(
        "tombstone-removed-early",
        "log/clean_batch.py",
        "            return self.now_ms + self.delete_retention_ms\n",
        "            return self.now_ms\n",
        "A tombstone stays for delete.retention.ms after the first cleaning that it came through.",
    ),
    Fault(
        "tombstones-not-in-map",
        "log/clean_batch.py",
        "                self._key_sizes[at] >= 0\n                and offset",
        "                self._key_sizes[at] >= 0\n                and self._value_sizes[at] >= 0\n"
        "                and offset",
        "A tombstone replaces the older records of its key.",
    ),
    Fault(
        "cleaned-beyond-high-watermark",
        "log/log_cleaner_manager.py",
        "min(int(log.last_stable_offset(high_watermark)), _first_recent_segment(log, first_dirty, now_ms))",
        "_first_recent_segment(log, first_dirty, now_ms)",
        "A record goes for a newer one only once that is committed: it may be cut off otherwise.",
    ),
    Fault(
        "cleaned-beyond-recovery-point",
        "log/log_cleaner_manager.py",
        ", int(log.active.base_offset), int(log.recovery_point))\n",
        ", int(log.active.base_offset))\n",
        "A record goes for a newer one only once that is on the disk.",
    ),
    Fault(
        "clean-end-survives-truncation",
        "log/log.py",
        "        self.clean_end = min(self.clean_end, self.end_offset)\n",
        "",
        "What comes after a truncation is dirty.",
        reason="What is clean is committed and synced: a follower cuts it only once its partition has"
        " lost records.",
        test="log/test_log_compaction.py"
        "::test_a_deleted_key_stays_deleted_when_the_cleaned_section_is_truncated",
    ),
    Fault(
        "clean-end-survives-new-begin",
        "log/log.py",
        "        self.clean_end = min(self.clean_end, start_offset)\n",
        "",
        "What comes after a log has begun anew is dirty.",
        reason="What is clean is committed and synced: a follower begins anew before it only once records"
        " are lost.",
        test="log/test_log_compaction.py"
        "::test_a_deleted_key_stays_deleted_when_the_cleaned_section_is_truncated",
    ),
    Fault(
        "written-clean-end-survives-truncation",
        "log/log_manager.py",
        "        if any(map(directory.overstates_clean_end, logs)):\n",
        "        if False:\n",
        "After a crash, too, what comes after a truncation is dirty.",
        reason="What is clean is committed and synced: a follower cuts it only once its partition has"
        " lost records.",
        test="log/test_log_log_manager.py::test_records_appended_after_a_truncation_are_not_counted_as_compacted",
    ),
    Fault(
        "cleaned-segment-not-synced",
        "log/cleaned_segment.py",
        "        segment.close_indexes()\n        segment.file().sync()\n",
        "        segment.close_indexes()\n",
        "A cleaned segment is on the disk before the old ones go.",
    ),
    Fault(
        "old-segments-go-before-new-one-counts",
        "log/segment_swap.py",
        _EXCHANGE,
        f"{_REST}{_FIRST}\n",
        "A crash in an exchange of segments leaves the old ones or the new one.",
    ),
    Fault(
        "exchange-not-synced",
        "log/segment_swap.py",
        "            self._sync()\n            self.done = True\n",
        "            self.done = True\n",
        "An exchange of segments is on the disk before the log counts as clean.",
    ),
    Fault(
        "begun-exchange-forgotten",
        "log/interrupted_operations.py",
        '        if begun or name.endswith((DELETED, CLEANED, ".tmp")):\n',
        '        if begun or name.endswith((DELETED, CLEANED, SWAP, ".tmp")):\n',
        "A start ends an exchange of segments that was begun.",
        reason="Seed 74 finds it, and none of the first 20: the process has to end between two renames of"
        " an exchange of segments.",
        test="log/test_log_recovery.py::test_an_interrupted_swap_is_completed",
    ),
    Fault(
        "begun-exchange-leaves-old-segments",
        "log/interrupted_operations.py",
        "        bases = {base} | {one for one in (offset_of(other, LOG) for other in left)"
        " if base <= one < end}\n",
        "        bases = {base}\n",
        "A start that ends an exchange removes all segments that the new one stands for.",
        reason="Of the first 90 seeds only seed 74 finds it: a process that ends between two renames of an"
        " exchange has to leave old segments behind the first.",
        test="log/test_log_recovery.py::test_an_interrupted_swap_is_completed",
    ),
    Fault(
        "cleaned-segment-into-cut-log",
        "broker/log_cleaner.py",
        "        if one.closed or one.truncations != truncations:\n            return False\n",
        "        if one.closed:\n            return False\n",
        "A log that was cut meanwhile takes no cleaned segment.",
    ),
    Fault(
        "last-batch-of-producer-cleaned-away",
        "log/cleaner_passes.py",
        "            return batch.last_offset == i64(last.last_offset)\n",
        "            return False\n",
        "The last batch of a producer stays, with its sequence number.",
        reason="A replica that copies the cleaned log has to lead, and to get a batch of that producer"
        " again, before that sends more.",
        test="log/test_log_compaction.py::test_the_last_batch_of_a_producer_is_kept_without_records",
    ),
    Fault(
        "hole-taken-for-compaction",
        "log/log_loader.py",
        "        may_be_cleaned = self.config.compact and not self.cleaned_behind_checkpoint\n",
        "        may_be_cleaned = self.config.compact\n",
        "A start after a power cut cuts a compacted log at a hole that compaction did not leave.",
        reason="Seed 74 finds it, and none of the first 20: a power cut has to leave a hole in a compacted"
        " log (see `hole-between-segments-kept`).",
        test="log/test_log_crash.py::test_a_power_cut_that_loses_the_end_of_a_segment_leaves_no_gap",
    ),
    Fault(
        "compaction-taken-for-hole",
        "broker/log_cleaner.py",
        "        checkpoint = self.logs.dirs.directory_of(one).recovery_points\n",
        "        if not one.closed:\n"
        "            return True\n"
        "        checkpoint = self.logs.dirs.directory_of(one).recovery_points\n",
        "What is compacted is known to be synced before, so that no start takes its gaps for holes.",
    ),
    Fault(
        "log-cut-since-it-was-chosen",
        "broker/log_cleaner.py",
        "        if one.closed or one.truncations != chosen.truncations:\n",
        "        if one.closed:\n",
        "A log that was cut since it was chosen is not compacted up to where it was synced then.",
        reason="Nothing that is cleaned then is put in its place (`cleaned-segment-into-cut-log`): a log"
        " is cleaned in vain, or put off for a reason that is not true.",
        test="broker/test_log_cleaner.py::test_a_log_that_is_truncated_before_its_cleaning_is_cleaned_later",
    ),
)
