"""The logs of a restarted broker: see the promise ``restart``.

The content of a log is recorded at the end of its process, as the system has it, and compared with the log
that the next process opens. A killed process loses nothing. A power failure, or pages that the system drops
after a failed sync, may lose the end of a log: no records stay after a missing one, else a leader would
continue after a gap. They may also restore recently truncated records, in place of later ones. A compacted
log may lack records that compaction has removed: a start completes an interrupted segment swap.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from log_inspection import uncommitted_offsets, whole_batches
from simulated_disk import SimulatedFiles

from tidemill.log.file_names import LOG, PARTITION_METADATA, SWAP, offset_of
from tidemill.log.log import Log
from tidemill.model.unpacked_limit import UNPACKED_BYTES_MAX
from tidemill.records.record_reader import iter_records

DATA = "/data"


class RecordedLog(NamedTuple):
    """The segments of a log at the end of its process. ``may_lose``: unsynced data may be lost."""

    files: dict[str, bytes]
    may_lose: bool


class RestartPromise:
    """Compares the logs of all brokers before and after each restart."""

    def __init__(
        self,
        broken: Callable[[str, str], None],
        excused: Callable[[str], bool],
        is_tombstone_over: Callable[[int, int], bool],
    ) -> None:
        """``is_tombstone_over`` returns, for a timestamp and ``delete.retention.ms``, whether a tombstone may
        be removed.
        """
        self._broken = broken
        self._excused = excused
        self._is_tombstone_over = is_tombstone_over
        self._before: dict[tuple[SimulatedFiles, str], RecordedLog] = {}

    def process_ends(self, files: SimulatedFiles, *, may_lose: bool) -> None:
        """A process is about to end, or a machine without one is about to lose its power."""
        for directory in files.directories(DATA):
            if not directory.rpartition("-")[2].isdigit():
                continue
            key = (files, directory)
            before = self._before.get(key)
            now = files.stored(f"{DATA}/{directory}", is_compared)
            if before is not None:
                # No process has opened it since: only the next start truncates the log after a power cut.
                may_lose = may_lose or before.may_lose
            if before is not None and is_same_log(before.files, now):
                # Its content at that time counts.
                now = before.files
            self._before[key] = RecordedLog(now, may_lose)

    def power_lost(self, files: SimulatedFiles) -> None:
        """Drops the logs whose directories were not synced."""
        left = set(files.directories(DATA))
        for one, directory in list(self._before):
            if one is files and directory not in left:
                del self._before[one, directory]

    def opened(self, files: SimulatedFiles, log: Log) -> None:
        """A process has opened a log, and has not served it yet."""
        directory = log.directory.rpartition("/")[2]
        before = self._before.pop((files, directory), None)
        now = files.stored(log.directory, is_compared)
        if before is None or before.files == now or not is_same_log(before.files, now):
            return
        start, end = int(log.start_offset), int(log.end_offset)
        after = dict(batches_of(now))
        gone = {
            base: data
            for base, data in batches_of(before.files)
            if base >= start and base not in after and (base < end or not before.may_lose)
        }
        if before.may_lose:
            gone = self._without_brought_back(gone, now)
        if not gone:
            return
        unexplained = list(gone)
        if log.config.compact:
            # A start completes an interrupted exchange, and removes no other records.
            replaced = exchanged(before.files)
            begun = {base: data for base, data in gone.items() if base in replaced}
            unexplained = [base for base in gone if base not in begun]
            unexplained += self._unexplained(
                dict(batches_of(before.files)) | after, set(after), begun, log.config.delete_retention_ms
            )
        if unexplained:
            self._broken(
                "restart",
                f"{directory} held offset {unexplained[0]} when its process ended, and not when it was"
                f" opened: there it begins at {start}, and ends at {end}",
            )

    def _without_brought_back(self, gone: Mapping[int, bytes], now: Mapping[str, bytes]) -> dict[int, bytes]:
        """Returns the batches without a replacement: formerly truncated batches may exist again."""
        spans = sorted((base, last) for base, last, _ in whole_batches_of(now))
        left = {}
        for base, data in gone.items():
            at = bisect_right(spans, (base, base)) - 1
            if at >= 0 and spans[at][1] >= base:
                self._excused("unflushed-truncation")
            else:
                left[base] = data
        return left

    def _unexplained(
        self, batches: Mapping[int, bytes], left: set[int], gone: Mapping[int, bytes], retention_ms: int
    ) -> list[int]:
        """Returns the missing batches that compaction cannot have removed.

        ``batches``: all former batches. ``retention_ms`` is ``delete.retention.ms`` of the log.
        """
        aborted, open_offsets = uncommitted_offsets(b"".join(data for _, data in sorted(batches.items())))
        newest: dict[bytes | None, tuple[int, int]] = {}
        newest_left: dict[bytes | None, int] = {}
        for base, data in sorted(batches.items()):
            for key, tombstone_ms in keys_of(data) if base not in aborted | open_offsets else ():
                newest[key] = (base, tombstone_ms)
                if base in left:
                    newest_left[key] = base
        unexplained = []
        for base, data in gone.items():
            if base in aborted:
                self._excused("aborted-removed")
                continue
            for key, _ in keys_of(data):
                _, tombstone_ms = newest.get(key, (-1, -1))
                if newest_left.get(key, -1) > base:
                    self._excused("compacted")
                elif tombstone_ms >= 0 and self._is_tombstone_over(tombstone_ms, retention_ms):
                    self._excused("tombstone-expired")
                else:
                    unexplained.append(base)
        return unexplained


def is_compared(name: str) -> bool:
    """Whether a file of this name is a segment, or has the topic id of the log."""
    return name == PARTITION_METADATA or offset_of(name, LOG) >= 0 or is_swap(name)


def is_swap(name: str) -> bool:
    """Whether a file of this name is a cleaned segment in an interrupted exchange."""
    return name.endswith(LOG + SWAP)


def exchanged(files: Mapping[str, bytes]) -> set[int]:
    """Returns the batches, by base offset, that an interrupted exchange of segments removes."""
    new = {name: data for name, data in files.items() if is_swap(name)}
    taken: set[int] = set()
    for name, data in new.items():
        end = max((last for _, last, _ in whole_batches(data)), default=-1) + 1
        base = offset_of(name.removesuffix(SWAP), LOG)
        span = range(base, max(end, base + 1))  # No batch of its first segment may be left.
        old = {one: held for one, held in files.items() if offset_of(one, LOG) in span}
        taken.update(base for base, _ in batches_of(old))
    return taken - {base for base, _ in batches_of(new)}


def is_same_log(one: Mapping[str, bytes], other: Mapping[str, bytes]) -> bool:
    """Whether both have the same topic id: a recreated topic may use a directory of the same name."""
    return one.get(PARTITION_METADATA) == other.get(PARTITION_METADATA)


def whole_batches_of(files: Mapping[str, bytes]) -> Iterator[tuple[int, int, bytes]]:
    """Returns the whole batches in the segments of a log, with their first and last offsets."""
    for name, data in files.items():
        if offset_of(name.removesuffix(SWAP), LOG) >= 0:
            yield from whole_batches(data)


def batches_of(files: Mapping[str, bytes]) -> Iterator[tuple[int, bytes]]:
    """Returns the batches by their first offsets."""
    return ((base, batch) for base, _, batch in whole_batches_of(files))


def keys_of(batch: bytes) -> Iterator[tuple[bytes | None, int]]:
    """Returns the keys in a batch, each with the timestamp of its tombstone (ms); -1 with a value."""
    for record in iter_records(batch, unpacked_bytes_max=UNPACKED_BYTES_MAX):
        yield record.key, int(record.timestamp) if record.value is None else -1
