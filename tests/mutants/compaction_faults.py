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
        "newest-record-compacted",
        "log/clean_batch.py",
        "        return offset >= self.offsets.get_prepared(at)\n",
        "        return offset > self.offsets.get_prepared(at)\n",
        "Compaction keeps the newest record of each key.",
    ),
    Fault(
        "tombstone-removed-early",
        "log/clean_batch.py",
        "            return self.now_ms + self.delete_retention_ms\n",
        "            return self.now_ms\n",
        "A tombstone stays for delete.retention.ms after the first cleaning that keeps it.",
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
        "Compaction removes a record only for a newer committed record: the newer one may be truncated"
        " otherwise.",
    ),
    Fault(
        "cleaned-beyond-recovery-point",
        "log/log_cleaner_manager.py",
        ", int(log.active.base_offset), int(log.recovery_point))\n",
        ", int(log.active.base_offset))\n",
        "Compaction removes a record only for a newer record on the disk.",
    ),
    Fault(
        "cleaner-checkpoint-survives-truncation",
        "log/log.py",
        "        self.clean_end = min(self.clean_end, self.end_offset)\n",
        "",
        "Records after a truncation are dirty.",
        reason="Cleaned records are committed and flushed: a follower truncates them only after its"
        " partition has lost records.",
        test="log/test_log_compaction.py"
        "::test_a_deleted_key_stays_deleted_when_the_cleaned_section_is_truncated",
    ),
    Fault(
        "cleaner-checkpoint-survives-log-restart",
        "log/log.py",
        "        self.clean_end = min(self.clean_end, start_offset)\n",
        "",
        "Records after a restart of the log at a new offset are dirty.",
        reason="Cleaned records are committed and flushed: a follower restarts its log before them only"
        " after records are lost.",
        test="log/test_log_compaction.py"
        "::test_a_deleted_key_stays_deleted_when_the_cleaned_section_is_truncated",
    ),
    Fault(
        "cleaner-checkpoint-on-disk-survives-truncation",
        "log/log_manager.py",
        "        if any(map(directory.overstates_clean_end, logs)):\n",
        "        if False:\n",
        "Records after a truncation are dirty after a crash as well.",
        reason="Cleaned records are committed and flushed: a follower truncates them only after its"
        " partition has lost records.",
        test="log/test_log_log_manager.py::test_records_appended_after_a_truncation_are_not_counted_as_compacted",
    ),
    Fault(
        "cleaned-segment-not-flushed",
        "log/cleaned_segment.py",
        "        segment.close_indexes()\n        segment.file().sync()\n",
        "        segment.close_indexes()\n",
        "A cleaned segment is on the disk before the old segments are removed.",
    ),
    Fault(
        "old-segments-removed-before-swap",
        "log/segment_swap.py",
        _EXCHANGE,
        f"{_REST}{_FIRST}\n",
        "A crash during a segment swap leaves the old segments or the new segment.",
    ),
    Fault(
        "swap-not-flushed",
        "log/segment_swap.py",
        "            self._sync()\n            self.done = True\n",
        "            self.done = True\n",
        "A segment swap is on the disk before the cleaner checkpoint advances.",
    ),
    Fault(
        "interrupted-swap-not-completed",
        "log/interrupted_operations.py",
        '        if begun or name.endswith((DELETED, CLEANED, ".tmp")):\n',
        '        if begun or name.endswith((DELETED, CLEANED, SWAP, ".tmp")):\n',
        "A start completes an interrupted segment swap.",
        reason="Seed 74 finds it, and none of the first 20: the process must end between two renames of a"
        " segment swap.",
        test="log/test_log_recovery.py::test_an_interrupted_swap_is_completed",
    ),
    Fault(
        "interrupted-swap-leaves-old-segments",
        "log/interrupted_operations.py",
        "        bases = {base} | {one for one in (offset_of(other, LOG) for other in left)"
        " if base <= one < end}\n",
        "        bases = {base}\n",
        "A start that completes a segment swap removes all segments that the new segment replaces.",
        reason="Of the first 90 seeds only seed 74 finds it: a process that ends between two renames of a"
        " swap must leave old segments after the first.",
        test="log/test_log_recovery.py::test_an_interrupted_swap_is_completed",
    ),
    Fault(
        "cleaned-segment-into-truncated-log",
        "broker/log_cleaner.py",
        "        if one.closed or one.truncations != truncations:\n            return False\n",
        "        if one.closed:\n            return False\n",
        "A log that was truncated during a cleaning discards the cleaned segment.",
    ),
    Fault(
        "last-batch-of-producer-compacted",
        "log/cleaner_passes.py",
        "            return batch.last_offset == i64(last.last_offset)\n",
        "            return False\n",
        "Compaction keeps the last batch of a producer, with its sequence number.",
    ),
    Fault(
        "gap-treated-as-compacted",
        "log/log_loader.py",
        "        may_be_cleaned = self.config.compact and not self.cleaned_behind_checkpoint\n",
        "        may_be_cleaned = self.config.compact\n",
        "A start after a power failure truncates a compacted log at a gap that compaction did not leave.",
        reason="Seed 74 finds it, and none of the first 20: a power failure must leave a gap in a compacted"
        " log (see `gap-between-segments-kept`).",
        test="log/test_log_crash.py::test_a_power_cut_that_loses_the_end_of_a_segment_leaves_no_gap",
    ),
    Fault(
        "compacted-offsets-treated-as-gap",
        "broker/log_cleaner.py",
        "        checkpoint = self.logs.dirs.directory_of(one).recovery_points\n",
        "        if not one.closed:\n"
        "            return True\n"
        "        checkpoint = self.logs.dirs.directory_of(one).recovery_points\n",
        "Compacted records are below the recovery point, so that no start treats their gaps as lost records.",
    ),
    Fault(
        "log-truncated-since-selection",
        "broker/log_cleaner.py",
        "        if one.closed or one.truncations != chosen.truncations or self._is_moving(",
        "        if one.closed or self._is_moving(",
        "A log that was truncated since its selection is not compacted up to its former flushed offset.",
        reason="The cleaned segment is discarded (`cleaned-segment-into-truncated-log`): a log is cleaned"
        " without effect, or postponed for a wrong reason.",
        test="broker/test_log_cleaner.py::test_a_log_that_is_truncated_before_its_cleaning_is_cleaned_later",
    ),
)
