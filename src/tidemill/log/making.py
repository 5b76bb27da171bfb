"""Makes the log of a new partition, in a directory that is not there yet.

Nothing of it is read, as nothing can be there, and no file stays open: thousands of partitions may be made in
one command. What a stop in the middle leaves is opened by :mod:`tidemill.log.recovery`, as any directory is.
"""

from __future__ import annotations

from tidemill.log.checkpoints import write_partition_metadata
from tidemill.log.config import LogConfig
from tidemill.log.leader_epochs import LeaderEpochs
from tidemill.log.log import Log
from tidemill.log.names import LEADER_EPOCHS, PARTITION_METADATA
from tidemill.log.producer_state import ProducerState
from tidemill.log.removals import Removals
from tidemill.log.segment import Segment
from tidemill.model.ports import Files
from tidemill.model.types import ZERO_ID, TopicPartition


def make_log(
    files: Files,
    directory: str,
    topic_partition: TopicPartition,
    topic_id: bytes,
    config: LogConfig,
    removals: Removals,
    now_ms: int,
) -> Log | None:
    """An empty log at ``directory``; None where something is already, which is to be opened.

    ``topic_id`` may be zeros: then ``partition.metadata`` is not written. Raises OSError.
    """
    if not files.make_new_directory(directory):
        return None
    if topic_id != ZERO_ID:
        write_partition_metadata(files, f"{directory}/{PARTITION_METADATA}", topic_id)
    segment = Segment(files, directory, 0, 0, config.segment_index_bytes, config.index_interval_bytes)
    segment.create_closed(now_ms)
    return _empty(files, directory, topic_partition, topic_id, config, segment, removals, now_ms)


def offline_log(
    files: Files, directory: str, topic_partition: TopicPartition, config: LogConfig, topic_id: bytes
) -> Log:
    """An empty log that stands for one whose directory cannot be used: it is closed, and touches no file."""
    segment = Segment(files, directory, 0, 0, config.segment_index_bytes, config.index_interval_bytes)
    log = _empty(files, directory, topic_partition, topic_id, config, segment, Removals(), 0)
    log.closed = True
    return log


def _empty(
    files: Files,
    directory: str,
    topic_partition: TopicPartition,
    topic_id: bytes,
    config: LogConfig,
    segment: Segment,
    removals: Removals,
    now_ms: int,
) -> Log:
    return Log(
        files,
        directory,
        topic_partition,
        topic_id,
        config,
        [segment],
        0,
        0,
        0,
        ProducerState(str(topic_partition)),
        LeaderEpochs(files, f"{directory}/{LEADER_EPOCHS}"),
        removals,
        now_ms,
    )
