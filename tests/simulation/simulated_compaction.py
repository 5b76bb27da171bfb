"""Compaction in a simulated cluster: the cleaner without its process, and a check of all removed records.

The broker's own :class:`~tidemill.broker.log_cleaner.LogCleaner` selects, plans and replaces segments, and
the real :class:`~tidemill.log.cleaner.Cleaner` reads and writes, on the simulated disk: group by group, as a
thread's job in simulated time. Between two operations on its files the process, or the whole machine, may
end.
"""

from __future__ import annotations

import asyncio
from collections.abc import Generator, Mapping
from random import Random
from typing import TYPE_CHECKING

from compaction_promise import Raw
from disk_state_promise import written_offset
from log_inspection import end_on_disk, records_of, uncommitted_offsets
from log_state_promise import headers_of
from promises import PartitionKey, TopicSettings
from seed_variations import Variations
from simulated_disk import ALL_OPERATIONS, OLD_SEGMENTS, RENAMES, SimulatedFiles

from tidemill.broker.cleaner_process_client import PROCESS_EXITED, ReplaceSegments
from tidemill.log.cleaner import Cleaner
from tidemill.log.cleaner_messages import DAMAGED, FAULT, CleanCounts, CleanedGroup, CleanJob, Failure
from tidemill.log.cleaner_process import failure_of
from tidemill.log.file_names import (
    CLEANED,
    LOG,
    OFFSET_DIGITS,
    RECOVERY_POINTS,
    SWAP,
    offset_name,
    offset_of,
)
from tidemill.model.unpacked_limit import UNPACKED_BYTES_MAX
from tidemill.records.batch import CONTROL_FLAG
from tidemill.records.record_reader import iter_records
from tidemill.replication.partition import Partition

if TYPE_CHECKING:
    from full_cluster import FullCluster

    from simulation import Node

COMPACTED_SHARE = 0.4
"""Of the seeds have a compacted topic."""
GROUP_S_MEANS = (0.001, 0.02, 0.2)
"""How long a cleaning takes for one group of segments."""
DEATHS = 0.03
"""The share of groups in which the cleaner's process is killed."""
OPERATIONS_MAX = {ALL_OPERATIONS: 60, RENAMES: 20, OLD_SEGMENTS: 5}
"""A process that is to end within a cleaning does so before one of so many operations of a kind."""
HOLD_SHARE, HOLD_S, LOOK_S = 0.3, 4.0, 0.05
"""A slow cleaner keeps this share of the groups until their log is cut, and has gone on; or for so long."""
SLOW_BACKOFF_MS = "4000"
STOP_SHARE = 0.5
"""Of the exchanges of several segments end with their process, in seeds that have such stops."""
BACKOFFS_MS = ("100", "100", "2000")
COMPACTION_FAULTS = ("kill in a cleaning", "power cut in a cleaning")


class CompactedTopic:
    """Whether a seed's topic is compacted, and its settings."""

    def __init__(self, seed: int) -> None:
        # A separate stream, so that seeds without compaction stay unchanged.
        self.random = Random(f"compacted topic {seed}")
        self.is_compacted = self.random.random() < COMPACTED_SHARE
        self.deletes = self.random.random() < 0.3
        self.group_s_mean = self.random.choice(GROUP_S_MEANS)
        self._backoff_ms = self.random.choice(BACKOFFS_MS)

    def broker_settings(self, variations: Variations) -> dict[str, str]:
        """Returns the broker settings for compaction."""
        if not self.is_compacted:
            return {}
        backoff_ms = SLOW_BACKOFF_MS if variations.has_slow_checkpoint else self._backoff_ms
        return {"log.cleaner.enable": "true", "log.cleaner.backoff.ms": backoff_ms}

    def config(self, plain: dict[str, str]) -> dict[str, str]:
        """Returns the settings of the topic, based on those of a topic without compaction."""
        if not self.is_compacted:
            return plain
        choice = self.random.choice
        config = {
            **plain,
            "segment.bytes": choice(("1000", "1500", "3000")),
            "cleanup.policy": "compact,delete" if self.deletes else "compact",
            "min.cleanable.dirty.ratio": choice(("0.01", "0.2", "0.5")),
            "delete.retention.ms": choice(("0", "300", "2000", "20000")),
        }
        if self.random.random() < 0.3:
            config["min.compaction.lag.ms"] = "500"
        if not self.deletes:
            config.pop("retention.bytes", None)
            config.pop("retention.ms", None)
        return config

    def settings(self, plain: TopicSettings, config: dict[str, str]) -> TopicSettings:
        """Returns the settings for the promises."""
        if not self.is_compacted:
            return plain
        return plain._replace(compacts=True, delete_retention_ms=int(config["delete.retention.ms"]))


class SimulatedCleaner:
    """The cleaner of a broker, which is a separate process in reality."""

    def __init__(self, simulation: FullCluster, node: Node, group_s_mean: float) -> None:
        self.simulation = simulation
        self.node = node
        self.group_s_mean = group_s_mean
        self._killed: list[Generator[CleanedGroup, None, None]] = []
        """Runs of processes that were killed: they must not be ended, which would tidy up."""

    async def clean(self, job: CleanJob, replace_segments: ReplaceSegments) -> CleanCounts | Failure | None:
        """See :class:`tidemill.broker.cleaner_process_client.CleanerWorker`."""
        simulation, random = self.simulation, self.simulation.random
        simulation.phases.moment("cleaning")
        look = CleaningCheck(simulation, self.node, job)
        cleaner = Cleaner(self.node.files, job, lambda count: None)
        run = cleaner.run()
        self._killed.append(run)
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        try:
            while True:
                await asyncio.sleep(random.expovariate(1 / self.group_s_mean))
                group = await loop.run_in_executor(None, next, run, None)
                if random.random() < DEATHS:
                    simulation.events.count("cleaner processes killed")
                    return Failure(PROCESS_EXITED, "the cleaner process ended by signal 9")
                if group is None:
                    look.ended(cleaner.counts)
                    break
                if simulation.variations.has_slow_cleaner and random.random() < HOLD_SHARE:
                    await self._hold(look, group)
                if len(group.old) > 1 and simulation.variations.has_stops and random.random() < STOP_SHARE:
                    simulation.stop_in_exchange(self.node)
                simulation.phases.moment("exchange of segments")
                if not await self._put_in_place(look, replace_segments, group):
                    simulation.events.count("cleanings ended by a change of the log")
                    run.close()
                    break
                look.exchanged(group)
        except Exception as problem:  # noqa: BLE001 - the broker is told
            return self._failed(failure_of(problem, job), look, began_s)
        self._killed.remove(run)
        return cleaner.counts if group is None else None

    async def _put_in_place(
        self, look: CleaningCheck, replace_segments: ReplaceSegments, group: CleanedGroup
    ) -> bool:
        """The broker replaces segments; returns False if the log has changed."""
        was_unchanged = look.is_unchanged()
        look.watch(group)
        try:
            is_placed = await replace_segments(group)
        finally:
            self.node.files.renamed = None
        look.placed(group, was_unchanged=was_unchanged, is_placed=is_placed)
        return is_placed

    async def _hold(self, look: CleaningCheck, group: CleanedGroup) -> None:
        """A large group takes long: its log may be truncated meanwhile, and get other records."""
        for _ in range(int(HOLD_S / LOOK_S)):
            if look.is_cut_and_goes_on(group):
                self.simulation.events.count("groups of segments cut while they were cleaned")
                return
            await asyncio.sleep(LOOK_S)

    def _failed(self, failure: Failure, look: CleaningCheck, began_s: float) -> Failure:
        """The job does not match a log that was truncated meanwhile: the broker ignores its failure."""
        files, events = self.node.files, self.simulation.events
        events.add(f"a cleaning fails: {failure.kind}: {failure.text}")
        events.count(f"cleanings failed: {failure.kind}")
        is_damaged = failure.kind == DAMAGED and not files.has_dropped and look.is_unchanged()
        if files.is_failing or files.refused_s >= began_s:
            self.simulation.failures_of_disks.append(failure)
        if failure.kind == FAULT or is_damaged:
            self.simulation.promises.broken("no-error", f"a cleaning fails: {failure.text}")
        return failure

    def set_bytes_per_second(self, bytes_per_second: float) -> None:
        """No-op: there is no limit."""

    async def release(self) -> None:
        """No-op: there is nothing to release."""


class CleaningCheck:
    """Compares a log before and after its compaction: detects wrongly removed and wrongly kept records."""

    def __init__(self, simulation: FullCluster, node: Node, job: CleanJob) -> None:
        self.simulation = simulation
        self.promises = simulation.promises
        self.node = node
        self.files: SimulatedFiles = node.files
        self.job = job
        name, _, index = job.name.rpartition("-")
        self.tp: PartitionKey = (name, int(index))
        self.before = {one.base_offset: self._segment(one.base_offset) for one in job.segments}
        records = [record for segment in self.before.values() for record in segment]
        partition = self._partition()
        self.log = None if partition is None else partition.log
        self.truncations = -1 if partition is None else int(partition.log.truncations)
        self._staying: set[int] = set()
        """The batches of the group that is exchanged."""
        self._going: dict[int, bytes] = {}
        """Its tombstones that go: their keys by offset."""
        self.start = 0 if partition is None else int(partition.log.start_offset)
        """Records before it are not readable."""
        high_watermark = -1 if partition is None else int(partition.high_watermark)
        data = b"" if partition is None else records_of(partition)
        self.aborted, open_offsets = uncommitted_offsets(data)
        """The records of aborted transactions: none of them is needed."""
        if partition is not None:
            simulation.cleaning_begins(self.tp, partition, data)
        self.newest = {
            record.key: record.offset
            for record in records
            if record.offset < high_watermark and record.offset not in self.aborted | open_offsets
        }
        """The newest committed record of each key."""
        self.removed: dict[int, bytes] = {}
        """Tombstones that are gone: their keys by offset."""
        self.headers = {
            header.base: header for one in job.segments for header in headers_of(self._data(one.base_offset))
        }
        if partition is not None:
            self._check_synced(int(partition.log.recovery_point))

    def _check_synced(self, recovery_point: int) -> None:
        """Compacted segments are on the disk, and the next start knows that: a gap in them is not a lost
        batch.
        """
        written = written_offset(self.files, RECOVERY_POINTS, self.job.name)
        if min(recovery_point, written) < self.job.upper_bound:
            self._broken(
                f"it is cleaned up to {self.job.upper_bound}, is flushed up to {recovery_point}, and a start"
                f" would treat it as flushed up to {written}"
            )

    # -- one exchange

    def watch(self, group: CleanedGroup) -> None:
        """An exchange begins: if the process ends during it, remaining records must not be lost."""
        base = group.old[0]
        name = offset_name(base, LOG) + CLEANED
        data = self.files.stored(self.job.directory, lambda one: one == name).get(name, b"")
        self._staying = {header.base for header in headers_of(data)}
        kept = {record.offset for record in _records(data)}
        self._going = {
            record.offset: record.key or b""
            for one in group.old
            for record in self.before.get(one, ())
            if record.value is None and record.offset not in kept
        }
        self.files.renamed = self._renamed

    def _renamed(self, old: str, new: str) -> None:
        # Only segments are compared: their indexes are replaced with them.
        if not old.startswith(self.job.directory + "/") or LOG not in old or not self.is_unchanged():
            return
        if new.endswith(LOG + SWAP):
            # From here on a start continues the exchange.
            self._report_removed(self._going)
        names = self.files.stored_names(self.job.directory, lambda name: True)
        unfinished = {name[:OFFSET_DIGITS] for name in names if name.endswith(CLEANED)}

        def counts(name: str) -> bool:
            if name.endswith(LOG + SWAP):
                return name[:OFFSET_DIGITS] not in unfinished
            return offset_of(name, LOG) >= 0

        found = self.files.stored(self.job.directory, counts)
        left = {header.base for data in found.values() for header in headers_of(data)}
        partition = self._partition()
        start = 0 if partition is None else int(partition.log.start_offset)
        # Records before the start of the log are deleted.
        lost = {base for base in self._staying - left if base >= start}
        if lost:
            self._broken(f"a process that ends after {old} is renamed loses {min(lost)}")
            self.files.renamed = None

    def placed(self, group: CleanedGroup, *, was_unchanged: bool, is_placed: bool) -> None:
        """The broker has replaced segments, or reports that the log has changed."""
        partition = self._partition()
        if partition is not None and is_placed and not was_unchanged:
            self._broken(f"the segments {group.old} were cleaned before a truncation, and are swapped")
        if partition is None or partition.is_offline or not was_unchanged or not self.is_unchanged():
            return
        # Retention and DeleteRecords remove segments at the log's start.
        are_there = set(group.old) <= {int(one.base_offset) for one in partition.log.segments[:-1]}
        if not is_placed and are_there and not self.files.is_failing:
            self._broken(f"the segments {group.old} are not swapped, and the log has the cleaned records")

    def _check_durable(self, group: CleanedGroup) -> None:
        names = self.files.durable_names(self.job.directory)
        back = [base for base in group.old[1:] if offset_name(base, LOG) in names]
        if back or not self.files.is_synced(f"{self.job.directory}/{offset_name(group.old[0], LOG)}"):
            self._broken(f"a power failure reverts the completed swap of {group.old}")

    def _check_batches(self, group: CleanedGroup, partition: Partition) -> None:
        """The last batch of each producer is kept, and tombstones get their deletion horizon."""
        after = list(headers_of(self._data(group.old[0])))
        first, end = group.old[0], max((header.last for header in self.headers.values()), default=-1)
        later = [base for base in (one.base_offset for one in self.job.segments) if base > group.old[-1]]
        end = min([end, *(base - 1 for base in later)])
        lasts = {header.last for header in after}
        were_there = {header.last for header in self.headers.values()}
        for producer_id, entry in partition.log.producer_state.entries.items():
            last = int(entry.last_offset)
            is_concerned = producer_id in self.job.producers and last in were_there and first <= last <= end
            if is_concerned and last not in lasts:
                self._broken(f"the last batch of producer {producer_id}, which ends at {last}, is gone")
        for header in after:
            before = self.headers.get(header.base)
            if header.horizon_ms < 0 or before is None:
                continue
            least_ms = before.horizon_ms
            if least_ms < 0:
                least_ms = self.job.now_ms + self.job.delete_retention_ms
            if header.horizon_ms < least_ms:
                self._broken(
                    f"tombstones of the batch at {header.base} are removed at {header.horizon_ms}, and must"
                    f" stay until {least_ms}"
                )
        self._check_markers({header.base for header in after}, first, end)

    def _check_markers(self, left: set[int], first: int, end: int) -> None:
        """A marker stays until its horizon, which it gets when the records of its transaction are gone.

        Its batch may stay longer, without a record and without a horizon: as the last one of its producer, or
        of a cleaned part.
        """
        for base, header in self.headers.items():
            is_marker = header.attributes & CONTROL_FLAG and header.records
            is_gone = is_marker and first <= base <= end and base not in left
            if is_gone and not 0 <= header.horizon_ms <= self.job.now_ms:
                self._broken(
                    f"the marker at {base} is removed at {self.job.now_ms}, and must stay until"
                    f" {header.horizon_ms}"
                )

    def _partition(self) -> Partition | None:
        for partition in self.node.all_partitions:
            if partition.log.directory == self.job.directory and not partition.log.closed:
                return partition
        return None

    def is_unchanged(self) -> bool:
        """Whether the log is the compacted one, without a truncation since. The next process opens another
        log in the same directory.
        """
        partition = self._partition()
        if partition is None or partition.log is not self.log:
            return False
        return bool(partition.log.truncations == self.truncations)

    def is_cut_and_goes_on(self, group: CleanedGroup) -> bool:
        """Whether the log was truncated, and has the segments of the group again."""
        partition = self._partition()
        if partition is None or self.is_unchanged():
            return False
        bases = [int(one.base_offset) for one in partition.log.segments[:-1]]
        return set(group.old) <= set(bases)

    def _segment(self, base_offset: int) -> list[Raw]:
        return _records(self._data(base_offset))

    def _data(self, base_offset: int) -> bytes:
        wanted = offset_name(base_offset, LOG)
        return self.files.stored(self.job.directory, lambda name: name == wanted).get(wanted, b"")

    def _broken(self, text: str) -> None:
        self.promises.broken("compaction", f"{self.job.name} on {self.node.name}: {text}")

    def exchanged(self, group: CleanedGroup) -> None:
        """A new segment has replaced some old ones."""
        partition = self._partition()
        if not self.is_unchanged() or partition is None:
            return
        self._check_durable(group)
        self._check_batches(group, partition)
        before = [record for base in group.old for record in self.before[base]]
        after = self._segment(group.old[0])
        known = {record.offset: record for record in before}
        for record in after:
            if known.get(record.offset) != record:
                self._broken(f"{record} comes out of a cleaning, and {known.get(record.offset)} was there")
                return
        if [record.offset for record in after] != sorted({record.offset for record in after}):
            self._broken(f"a cleaning changes the order: {[record.offset for record in after]}")
            return
        kept = {record.offset for record in after}
        durable = self._on_disk() if not self.files.has_dropped else None
        reported = set(self.removed)
        for record in reversed(before):
            # From the newest on: a tombstone and the records that it deletes may be removed together.
            is_needed = record.offset >= self.start and record.offset not in self.aborted
            if record.offset not in kept and is_needed:
                self._check_gone(record, durable)
        # At once: promises may be checked before the end of the compaction.
        self._report_removed({at: key for at, key in self.removed.items() if at not in reported})
        self.simulation.events.count("records removed by cleanings", len(before) - len(after))

    def _check_gone(self, record: Raw, durable: set[int] | None) -> None:
        newer = self.newest.get(record.key, -1)
        if newer <= record.offset:
            if record.value is not None:
                self._broken(f"{record} is gone, and no committed record of its key is newer")
            else:
                self._check_tombstone(record)
        elif durable is not None and newer not in durable and newer not in self.removed:
            self._broken(f"{record} is gone, and the newer offset {newer} is not on the disk")

    def _check_tombstone(self, record: Raw) -> None:
        horizon_ms = next(
            (one.horizon_ms for one in self.headers.values() if one.base <= record.offset <= one.last), -1
        )
        if not 0 <= horizon_ms <= self.job.now_ms:
            self._broken(
                f"the tombstone {record} is removed at {self.job.now_ms}, and must stay until {horizon_ms}"
            )
        least_ms = self.job.delete_retention_ms
        if not self.promises.is_tombstone_over(record.timestamp, least_ms):
            age_ms = self.node.clock.wall_ms() - record.timestamp
            self._broken(f"the tombstone {record} is removed after {age_ms} ms, and must stay {least_ms} ms")
        self.removed[record.offset] = record.key or b""
        self.simulation.events.count("tombstones removed")

    def _on_disk(self) -> set[int]:
        """Returns the offsets of the log after a power failure."""
        found: set[int] = set()
        for name in self.files.durable_names(self.job.directory):
            if name.endswith(LOG):
                data = self.files.durable(f"{self.job.directory}/{name}")
                found.update(record.offset for record in _records(data))
        return found

    def ended(self, counts: CleanCounts) -> None:
        """All segments are replaced: one record of each key is left before the clean end."""
        partition = self._partition()
        if not self.is_unchanged() or partition is None:
            return
        self.simulation.events.count("cleanings done")
        if self.simulation.is_disturbed:
            self.simulation.events.count("cleanings done while faults last")
        records = [record for one in partition.log.segments for record in self._segment(int(one.base_offset))]
        seen: dict[bytes | None, int] = {}
        for record in records:
            if record.offset >= counts.end_offset:
                break
            if record.offset < partition.log.start_offset:
                continue
            if record.offset in self.aborted:
                self._broken(f"{record} of an aborted transaction is left below {counts.end_offset}")
                return
            if record.key in seen:
                self._broken(
                    f"it is clean up to offset {counts.end_offset}, and holds {record.key!r} at"
                    f" {seen[record.key]} and at {record.offset}"
                )
                return
            if record.key is not None:
                seen[record.key] = record.offset
        for offset, key in self.removed.items():
            if partition.log.start_offset <= seen.get(key, offset) < offset:
                self._broken(f"the tombstone of offset {offset} is gone, and what it stood for is not")
                return

    def _report_removed(self, tombstones: Mapping[int, bytes]) -> None:
        """Other replicas may not have the tombstones yet."""
        if not tombstones:
            return
        known = self.promises.partitions.get(self.tp)
        if known is None:
            return
        ends = {
            broker: end_on_disk(self.simulation.node(broker).files, self.job.name)
            for broker in known.replicas
        }
        self.promises.compaction.tombstones_removed(self.tp, tombstones, ends)


def _records(data: bytes) -> list[Raw]:
    return [Raw.of(record) for record in iter_records(data, unpacked_bytes_max=UNPACKED_BYTES_MAX)]


def raw_records(data: bytes, start: int) -> list[Raw]:
    """Returns the records of a log from ``start`` on."""
    return [record for record in _records(data) if record.offset >= start]
