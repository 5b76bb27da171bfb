"""The logs on disks: ``truncation``, ``reported-log-start``, ``reported-loss``, and the work of retention.

The state after a power failure is compared with the state that a broker reports, or has in memory, at the
time of the report: a power failure at exactly that time is rare.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable

from log_inspection import log_directory
from log_state_promise import headers_of, segments_of
from simulated_disk import SimulatedFiles

from tidemill.log.checkpoint_files import CheckpointDamaged, parse_checkpoint
from tidemill.log.file_names import (
    BOOT,
    CLEAN_SHUTDOWN,
    LOG,
    LOG_STARTS,
    RECORDS_LOST,
    offset_name,
    offset_of,
    parse_future_directory,
    parse_partition_directory,
)
from tidemill.log.log import Log
from tidemill.log.log_loader import LogLoader
from tidemill.log.log_manager import LogManager
from tidemill.model.types import TopicPartition
from tidemill.replication.partition import Partition

DATA = "/data"


def durable_start(files: SimulatedFiles, partition: str) -> int:
    """Returns the start offset of a partition's log (``t-0``) after a power failure; -1 without one."""
    directory = log_directory(files.durable_names, partition)
    bases = [base for name in files.durable_names(directory) if (base := offset_of(name, LOG)) >= 0]
    if not bases:
        return -1
    return max(min(bases), written_offset(files, LOG_STARTS, partition, directory.rpartition("/")[0]))


def written_offset(files: SimulatedFiles, checkpoint: str, partition: str, data: str = DATA) -> int:
    """Returns the offset of a partition, such as ``t-0``, in a checkpoint on the disk; 0 without one."""
    path = f"{data}/{checkpoint}"
    if checkpoint not in files.durable_names(data):
        return 0
    try:
        lines = parse_checkpoint(files.durable(path), 3, path)
    except CheckpointDamaged:
        return 0
    return next((int(offset) for topic, index, offset in lines if f"{topic}-{index}" == partition), 0)


def last_ms_of(log: Log, base_offset: int) -> int:
    """Returns the largest timestamp in a segment, or the modification time of its file."""
    assert isinstance(log.segment_list.files, SimulatedFiles)
    name = offset_name(base_offset, LOG)
    data = log.segment_list.files.stored(log.directory, lambda one: one == name).get(name, b"")
    last_ms = max((header.max_ms for header in headers_of(data)), default=-1)
    return last_ms if last_ms >= 0 else log.segment_list.files.modified_ms(f"{log.directory}/{name}")


class DiskStatePromise:
    """Compares disks with the reports of brokers."""

    def __init__(self, broken: Callable[[str, str], None]) -> None:
        self._broken = broken
        self._reported_starts: dict[tuple[Partition, int], int] = {}
        """The starts that leaders know of followers."""
        self._has_lost: dict[SimulatedFiles, set[TopicPartition]] = {}
        """Of each start that is under way, the logs that have lost records."""

    # -- cuts

    def shrunk(self, broker: str, files: SimulatedFiles, path: str) -> None:
        """A segment was truncated on the disk."""
        directory, _, name = path.rpartition("/")
        self._check_gone(broker, files, directory, offset_of(name, LOG))

    def _check_gone(self, broker: str, files: SimulatedFiles, directory: str, base: int) -> None:
        for name in files.durable_names(directory):
            if offset_of(name, LOG) > base >= 0 and not files.exists(f"{directory}/{name}"):
                self._broken(
                    "truncation",
                    f"{broker}: {directory} is truncated in the segment of {base} on the disk, and a power"
                    f" failure would restore {name}",
                )
                return

    # -- starts of processes

    def opened(self, broker: str, opening: LogLoader, log: Log, segments: Iterable[str]) -> None:
        """A process has opened a log that had these ``segments`` before."""
        files = opening.files
        assert isinstance(files, SimulatedFiles)
        directory = log.directory
        if int(log.start_offset) < opening.start_offset:
            self._broken(
                "log-start",
                f"{broker} opens {directory} at {log.start_offset}, and its log start offset is"
                f" {opening.start_offset}",
            )
        last = int(log.active.base_offset)
        if any(offset_of(name, LOG) > last and not files.exists(f"{directory}/{name}") for name in segments):
            self._check_gone(broker, files, directory, last)
        # Future replicas have no promise.
        if opening.has_lost and parse_partition_directory(directory.rpartition("/")[2]):
            self._has_lost.setdefault(files, set()).add(opening.topic_partition)
            if RECORDS_LOST not in files.durable_names(directory):
                self._broken(
                    "reported-loss",
                    f"{broker} opens {directory}, which has lost records, without a loss record",
                )

    def is_blank(self, files: SimulatedFiles, path: str) -> bool:
        """Whether no broker has used a data directory."""

        def is_of_a_broker(name: str) -> bool:
            return name == BOOT or bool(parse_partition_directory(name) or parse_future_directory(name))

        return not files.stored_names(path, is_of_a_broker)

    def loaded(self, broker: str, files: SimulatedFiles, logs: LogManager, blank: Collection[str]) -> None:
        """A process has opened all its logs; these data directories were ``blank``."""
        damaged = self._has_lost.pop(files, set())
        for directory in logs.dirs.online:
            if files.exists(directory.file(CLEAN_SHUTDOWN)):
                self._broken("restart", f"{broker} runs, and its disk has a clean shutdown file")
            if directory.path in blank and not directory.is_blank:
                self._broken("reported-loss", f"{broker} does not notice that {directory.path} is empty")
            is_distrusted = directory.meta is not None and directory.meta.directory_id in logs.dirs.distrusted
            if is_distrusted and not (directory.may_have_lost or directory.is_blank):
                self._broken("reported-loss", f"{broker} trusts {directory.path}, where a flush has failed")
            missing = {key for key in damaged if key in directory.logs} - logs.dirs.damaged
            if missing:
                self._broken(
                    "reported-loss", f"{broker} reports no loss of {sorted(missing)[0]}, which lost records"
                )

    # -- starts of logs

    def look(
        self, leader: str, partition: Partition, files_of: Callable[[int], SimulatedFiles | None]
    ) -> None:
        """Checks the log start offsets that a leader knows of its followers."""
        if partition.replication is None:
            return
        for broker, follower in partition.replication.followers.items():
            start = int(follower.start_offset)
            if start <= 0 or self._reported_starts.get((partition, broker)) == start:
                continue
            self._reported_starts[partition, broker] = start
            files = files_of(broker)
            if files is None:
                continue
            name = partition.log.directory.rpartition("/")[2]
            durable = durable_start(files, name)
            if 0 <= durable < start:
                self._broken(
                    "reported-log-start",
                    f"{broker} reported log start offset {start} of {name} to {leader}, and a power"
                    f" failure would leave {durable}",
                )

    # -- retention

    def expired(self, broker: str, log: Log, count: int, high_watermark: int, now_ms: int) -> None:
        """Retention has selected the first ``count`` segments of a log for removal."""
        config = log.config
        left = _committed_bytes(log, high_watermark)
        for at in range(count):
            one = log.segments[at]
            end = int(log.segments[at + 1].base_offset if at + 1 < len(log.segments) else log.end_offset)
            left -= int(one.size)
            if end > high_watermark:
                text = f"the segment of {one.base_offset} up to {end}, which is not committed"
            elif end > int(log.start_offset) and not (
                config.delete
                and (
                    0 <= config.retention_bytes <= left
                    or 0 <= config.retention_ms < now_ms - last_ms_of(log, int(one.base_offset))
                )
            ):
                text = f"the segment of {one.base_offset}, and {left} bytes are left"
            else:
                continue
            self._broken("retention", f"{broker} removes of {log.directory} {text}")
            return


def _committed_bytes(log: Log, high_watermark: int) -> int:
    """Returns the size of the batches before the high watermark."""
    count = 0
    for _, data in segments_of(log.segment_list.files, log.directory):
        count += max((one.end for one in headers_of(data) if one.last < high_watermark), default=0)
    return count
