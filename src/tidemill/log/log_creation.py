"""Creates the log of a new partition in a new directory.

Nothing is read, because the directory is new, and no file stays open: one request may create thousands of
partitions. :mod:`tidemill.log.log_loader` opens what an interrupted creation leaves, like any directory.
"""

from __future__ import annotations

from tidemill.log.checkpoint_files import write_partition_metadata
from tidemill.log.delayed_file_removal import DelayedFileRemoval
from tidemill.log.file_names import LEADER_EPOCHS, PARTITION_METADATA
from tidemill.log.leader_epoch_file_cache import LeaderEpochFileCache
from tidemill.log.log import Log
from tidemill.log.log_config import LogConfig
from tidemill.log.log_segment import LogSegment
from tidemill.log.producer_state_manager import ProducerStateManager
from tidemill.model.system_interfaces import Files
from tidemill.model.types import ZERO_ID, TopicPartition


def make_log(
    files: Files,
    directory: str,
    topic_partition: TopicPartition,
    topic_id: bytes,
    config: LogConfig,
    removals: DelayedFileRemoval,
    now_ms: int,
) -> Log | None:
    """Creates an empty log at ``directory``. Returns None if the directory exists, which has to be opened.

    ``topic_id`` may be zeros: then ``partition.metadata`` is not written. Raises OSError.
    """
    if not files.make_new_directory(directory):
        return None
    if topic_id != ZERO_ID:
        write_partition_metadata(files, f"{directory}/{PARTITION_METADATA}", topic_id)
    log = _empty(files, directory, topic_partition, topic_id, config, removals, now_ms)
    log.active.create_closed(now_ms)
    return log


def offline_log(
    files: Files, directory: str, topic_partition: TopicPartition, config: LogConfig, topic_id: bytes
) -> Log:
    """A closed empty log that represents one whose directory is unusable. It accesses no file."""
    log = _empty(files, directory, topic_partition, topic_id, config, DelayedFileRemoval(), 0)
    log.closed = True
    return log


def _empty(
    files: Files,
    directory: str,
    topic_partition: TopicPartition,
    topic_id: bytes,
    config: LogConfig,
    removals: DelayedFileRemoval,
    now_ms: int,
) -> Log:
    """A log with one segment without files."""
    segment = LogSegment(files, directory, 0, 0, config.segment_index_bytes, config.index_interval_bytes)
    return Log(
        files,
        directory,
        topic_partition,
        topic_id=topic_id,
        config=config,
        segments=[segment],
        start_offset=0,
        end_offset=0,
        recovery_point=0,
        producers=ProducerStateManager(str(topic_partition)),
        leader_epochs=LeaderEpochFileCache(files, f"{directory}/{LEADER_EPOCHS}"),
        removals=removals,
        now_ms=now_ms,
    )
