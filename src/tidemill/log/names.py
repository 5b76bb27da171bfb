"""Names of the files and directories of a data directory.

============================  ===================================================================
name                          what it is
============================  ===================================================================
``<topic>-<partition>``       a partition's directory
``….<32 hex>-delete``         a partition that is being removed
``….<32 hex>-future``         a partition that is being moved here from another data directory
``….<32 hex>-stray``          a partition that the cluster no longer knows
``<20 digits>.log``           a segment, named by its base offset; beside it ``.index``,
                              ``.timeindex``, ``.txnindex``, and ``.snapshot`` (named by the end
                              offset of the producer state in it)
``….deleted``                 a file that is being removed
``….cleaned``, ``….swap``     what compaction had not finished
``….log.<position>.cut``      what a start cut from a segment that was damaged after a clean stop; it stays
============================  ===================================================================

Source: Apache Kafka, ``LogFileUtils.java``, ``UnifiedLog.scala``.
"""

from __future__ import annotations

import uuid
from typing import Final

from tidemill.model.errors import ErrorCode, KafkaError
from tidemill.model.types import TopicPartition

LOG: Final = ".log"
INDEX: Final = ".index"
TIME_INDEX: Final = ".timeindex"
TRANSACTION_INDEX: Final = ".txnindex"
SNAPSHOT: Final = ".snapshot"
DELETED: Final = ".deleted"
CLEANED: Final = ".cleaned"
SWAP: Final = ".swap"
CUT: Final = ".cut"

SEGMENT_SUFFIXES: Final = (LOG, INDEX, TIME_INDEX, TRANSACTION_INDEX)

DELETE_DIRECTORY: Final = "-delete"
FUTURE_DIRECTORY: Final = "-future"
STRAY_DIRECTORY: Final = "-stray"

METADATA_DIRECTORY: Final = "__cluster_metadata-0"
"""The log of a KRaft controller, in formats of its own: no partition of a topic."""

OFFSET_DIGITS: Final = 20
FILE_NAME_BYTES_MAX: Final = 255

LEADER_EPOCHS: Final = "leader-epoch-checkpoint"
PARTITION_METADATA: Final = "partition.metadata"
META_PROPERTIES: Final = "meta.properties"
RECOVERY_POINTS: Final = "recovery-point-offset-checkpoint"
HIGH_WATERMARKS: Final = "replication-offset-checkpoint"
LOG_STARTS: Final = "log-start-offset-checkpoint"
CLEANER_OFFSETS: Final = "cleaner-offset-checkpoint"
LOCK: Final = ".lock"
CLEAN_SHUTDOWN: Final = ".kafka_cleanshutdown"
BOOT: Final = ".tidemill-boot"
"""Which boot of the system the broker last ran in; Kafka has none such."""
START: Final = ".tidemill-start"
"""The number of the broker's last start with this data directory; Kafka has none such."""
MOVED_TO: Final = "moved-to"
"""In a partition's directory from when a move to another data directory was decided; Kafka has none such."""
RECORDS_LOST: Final = "records-lost"
"""In a partition's directory from before a start cuts what it finds damaged until the loss was heeded; Kafka
has none such."""

DANGLING: Final = "a link to what is not there"
"""How a name is told that is listed and cannot be looked into."""


def offset_name(offset: int, suffix: str) -> str:
    """The name of the file that begins (a snapshot: ends) at ``offset``."""
    return f"{offset:020d}{suffix}"


def offset_of(name: str, suffix: str) -> int:
    """The offset in a file's name, or -1 when the name is not ``<20 digits><suffix>``."""
    if len(name) != OFFSET_DIGITS + len(suffix) or not name.endswith(suffix):
        return -1
    digits = name[:OFFSET_DIGITS]
    return int(digits) if digits.isascii() and digits.isdigit() else -1


def partition_directory(topic_partition: TopicPartition) -> str:
    """The name of a partition's directory."""
    return f"{topic_partition.topic}-{topic_partition.partition}"


def parse_partition_directory(name: str) -> TopicPartition | None:
    """The partition whose directory has this name; None for every other name, ``-delete`` ones too."""
    topic, dash, number = name.rpartition("-")
    if not dash or not topic or not (number.isascii() and number.isdigit()) or len(number) > 10:
        return None
    return TopicPartition(topic, int(number))


def directory_to_delete(topic_partition: TopicPartition) -> str:
    """A new name for the directory of a partition that goes, unique so that the old name is free at once."""
    return _renamed(topic_partition, DELETE_DIRECTORY)


def stray_directory(topic_partition: TopicPartition) -> str:
    """The same for one that stays, of a topic that the cluster no longer knows."""
    return _renamed(topic_partition, STRAY_DIRECTORY)


def _renamed(topic_partition: TopicPartition, ending: str) -> str:
    suffix = f".{uuid.uuid4().hex}{ending}"
    name = partition_directory(topic_partition)
    return name[: FILE_NAME_BYTES_MAX - len(suffix)] + suffix


def future_directory(topic_partition: TopicPartition) -> str:
    """A new name for the directory of a partition that is being moved here.

    Raises KafkaError for a topic whose name leaves no room for the suffix, as Kafka does.
    """
    name = f"{partition_directory(topic_partition)}.{uuid.uuid4().hex}{FUTURE_DIRECTORY}"
    if len(name) > FILE_NAME_BYTES_MAX:
        raise KafkaError(
            f"the name of topic {topic_partition.topic} is too long for a move: its directory would be named "
            f"{name}, of {len(name)} bytes",
            ErrorCode.INVALID_TOPIC_EXCEPTION,
        )
    return name


def parse_future_directory(name: str) -> TopicPartition | None:
    """The partition that is being moved into the directory of this name; None for every other name."""
    if not name.endswith(FUTURE_DIRECTORY):
        return None
    partition, dot, number = name[: -len(FUTURE_DIRECTORY)].rpartition(".")
    return parse_partition_directory(partition) if dot and len(number) == 32 else None


def is_delete_directory(name: str) -> bool:
    """Whether a directory is what :func:`directory_to_delete` (or Kafka) renamed."""
    body = name[: -len(DELETE_DIRECTORY)]
    return name.endswith(DELETE_DIRECTORY) and "." in body and len(body.rpartition(".")[2]) == 32
