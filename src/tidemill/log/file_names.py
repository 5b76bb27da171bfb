"""Names of the files and directories of a data directory.

============================  ===================================================================
name                          content
============================  ===================================================================
``<topic>-<partition>``       a partition's directory
``….<32 hex>-delete``         a partition to be removed
``….<32 hex>-future``         the future replica of a partition in another data directory
``….<32 hex>-stray``          a partition that does not belong to the cluster any more
``<20 digits>.log``           a segment, named by its base offset; beside it ``.index``,
                              ``.timeindex``, ``.txnindex``, and ``.snapshot`` (named by the end
                              offset of the producer state in it)
``….deleted``                 a file to be removed
``….cleaned``, ``….swap``     files of an unfinished compaction
``….log.<position>.cut``      bytes truncated from a damaged segment, with records that had been written
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
"""The log of a KRaft controller, which has its own formats and is no partition of a topic."""
METADATA_SNAPSHOT: Final = ".checkpoint"
"""The suffix of a KRaft metadata snapshot, which contains batches, like a log."""

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
"""The boot of the system in which the broker last ran. Kafka has no such file."""
START: Final = ".tidemill-start"
"""The number of the broker's last start with this data directory. Kafka has no such file."""
MOVED_TO: Final = "moved-to"
"""In a partition's directory while it is being replaced by its future replica. Kafka has no such file."""
RECORDS_LOST: Final = "records-lost"
"""In a partition's directory from the start that cuts damaged records until the loss was reported. Kafka has
no such file.
"""

DANGLING: Final = "a link to a missing file"
"""Describes a directory entry that is a broken link."""


def offset_name(offset: int, suffix: str) -> str:
    """The name of the file that begins (a snapshot: ends) at ``offset``."""
    return f"{offset:020d}{suffix}"


def offset_of(name: str, suffix: str) -> int:
    """The offset in a file's name, or -1 if the name is not ``<20 digits><suffix>``."""
    if len(name) != OFFSET_DIGITS + len(suffix) or not name.endswith(suffix):
        return -1
    digits = name[:OFFSET_DIGITS]
    return int(digits) if digits.isascii() and digits.isdigit() else -1


def partition_directory(topic_partition: TopicPartition) -> str:
    """The name of a partition's directory."""
    return f"{topic_partition.topic}-{topic_partition.partition}"


def parse_partition_directory(name: str) -> TopicPartition | None:
    """The partition whose directory has this name; None for any other name, including ``-delete`` ones."""
    topic, dash, number = name.rpartition("-")
    if not dash or not topic or not (number.isascii() and number.isdigit()) or len(number) > 10:
        return None
    return TopicPartition(topic, int(number))


def directory_to_delete(topic_partition: TopicPartition) -> str:
    """A new unique name for the directory of a partition to be removed, so that its name is free at once."""
    return _renamed(topic_partition, DELETE_DIRECTORY)


def stray_directory(topic_partition: TopicPartition) -> str:
    """A new unique name for the directory of a stray partition, which is kept."""
    return _renamed(topic_partition, STRAY_DIRECTORY)


def _renamed(topic_partition: TopicPartition, ending: str) -> str:
    suffix = f".{uuid.uuid4().hex}{ending}"
    name = partition_directory(topic_partition)
    return name[: FILE_NAME_BYTES_MAX - len(suffix)] + suffix


def future_directory(topic_partition: TopicPartition) -> str:
    """A new name for the directory of a future replica.

    Raises KafkaError if the topic's name leaves no space for the suffix, like Kafka.
    """
    name = f"{partition_directory(topic_partition)}.{uuid.uuid4().hex}{FUTURE_DIRECTORY}"
    if len(name) > FILE_NAME_BYTES_MAX:
        raise KafkaError(
            f"the name of topic {topic_partition.topic} is too long for a future replica: its directory "
            f"would be named {name}, of {len(name)} bytes",
            ErrorCode.INVALID_TOPIC_EXCEPTION,
        )
    return name


def parse_future_directory(name: str) -> TopicPartition | None:
    """The partition whose future replica has a directory of this name; None for any other name."""
    if not name.endswith(FUTURE_DIRECTORY):
        return None
    partition, dot, number = name[: -len(FUTURE_DIRECTORY)].rpartition(".")
    return parse_partition_directory(partition) if dot and len(number) == 32 else None


def is_delete_directory(name: str) -> bool:
    """Whether a directory was renamed by :func:`directory_to_delete` or by Kafka to be removed."""
    body = name[: -len(DELETE_DIRECTORY)]
    return name.endswith(DELETE_DIRECTORY) and "." in body and len(body.rpartition(".")[2]) == 32
