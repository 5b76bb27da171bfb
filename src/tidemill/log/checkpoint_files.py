"""The small text files of a data directory and of its partitions.

==================================== ======================================================================
file                                 content
==================================== ======================================================================
``recovery-point-offset-checkpoint`` per partition: the recovery point
``replication-offset-checkpoint``    per partition: the high watermark
``log-start-offset-checkpoint``      per partition: the log start offset, if records were deleted by request
``cleaner-offset-checkpoint``        per partition: the end offset of the last compaction
``leader-epoch-checkpoint``          in a partition's directory, see :mod:`.leader_epoch_file_cache`
``partition.metadata``               in a partition's directory: its topic id
``meta.properties``                  the cluster and the broker of the directory
``.kafka_cleanshutdown``             exists after a clean shutdown until the next start
==================================== ======================================================================

A checkpoint is text, one line each: the version ``0``, the number of entries, then the entries:
``<topic> <partition> <offset>``. It is replaced whole: a new file is written, synced, and renamed over it.

``partition.metadata`` is ``version: 0`` and ``topic_id: <22 characters>``, the id in base64 for URLs,
without padding. The clean-shutdown file is empty, or JSON with a version and a broker epoch; only its
existence matters.

Source: Apache Kafka, ``CheckpointFile.java``, ``OffsetCheckpointFile.java``, ``PartitionMetadataFile.java``,
``CleanShutdownFileHandler.java``.
"""

from __future__ import annotations

import binascii
import contextlib
import json
from typing import Final

from tidemill.model.errors import StorageError
from tidemill.model.ids import decode_id, encode_id
from tidemill.model.os_error_texts import fault_of
from tidemill.model.system_interfaces import Files
from tidemill.model.types import ZERO_ID, TopicPartition

CHECKPOINT_VERSION: Final = 0
METADATA_VERSION: Final = 0


class CheckpointDamaged(StorageError):
    """A checkpoint file that is damaged. Its content is recovered from the logs."""


def render_checkpoint(lines: list[str]) -> bytes:
    """The content of a checkpoint file with these entries."""
    return "\n".join([str(CHECKPOINT_VERSION), str(len(lines)), *lines, ""]).encode()


def parse_checkpoint(data: bytes, fields: int, path: str) -> list[list[str]]:
    """The entries of a checkpoint file, each split into ``fields`` fields, the last two of them numbers.

    Raises CheckpointDamaged for any other content, also for an empty file, which a power failure may leave.
    """
    try:
        lines = data.decode().split("\n")
        if int(lines[0]) != CHECKPOINT_VERSION:
            raise CheckpointDamaged(f"{path}: version {lines[0]} is unknown, expected {CHECKPOINT_VERSION}")
        count = int(lines[1])
        entries = [line.split(" ") for line in lines[2 : 2 + count]]
        complete = len(entries) == count and not any(lines[2 + count :])
        for entry in entries:
            complete = complete and len(entry) == fields and int(entry[-1]) >= -1 and int(entry[-2]) >= -1
    except (ValueError, IndexError) as problem:
        raise CheckpointDamaged(f"{path} is not a checkpoint file: {fault_of(problem)}") from None
    if not complete:
        raise CheckpointDamaged(f"{path} does not have {count} entries of {fields} fields")
    return entries


def read_existing(files: Files, path: str) -> bytes:
    """The content of a file; empty if there is none. Raises OSError."""
    try:
        return files.read(path)
    except FileNotFoundError:
        return b""


def read_offsets(files: Files, path: str) -> dict[TopicPartition, int]:
    """The offsets of a checkpoint file; none if it is missing or empty, as Kafka creates it first.

    Raises CheckpointDamaged.
    """
    data = read_existing(files, path)
    if not data:
        return {}
    return {
        TopicPartition(topic, int(partition)): int(offset)
        for topic, partition, offset in parse_checkpoint(data, 3, path)
    }


def write_offsets(files: Files, path: str, offsets: dict[TopicPartition, int]) -> None:
    """Replaces a checkpoint file durably."""
    lines = [f"{key.topic} {key.partition} {offset}" for key, offset in sorted(offsets.items())]
    files.replace(path, render_checkpoint(lines))


def read_partition_metadata(files: Files, path: str) -> bytes:
    """The topic id in ``partition.metadata``; zeros if the file is missing or empty after a power failure.

    Raises CheckpointDamaged for other content.
    """
    data = read_existing(files, path)
    if not data.strip(b"\0 \n"):
        return ZERO_ID
    try:
        values = dict(line.split(": ", 1) for line in data.decode().split("\n") if line.strip())
        if int(values["version"]) != METADATA_VERSION:
            raise CheckpointDamaged(
                f"{path}: version {values['version']} is unknown, expected {METADATA_VERSION}"
            )
        return decode_id(values["topic_id"].strip())
    except (ValueError, KeyError, binascii.Error) as problem:
        raise CheckpointDamaged(f"{path} is not a partition.metadata file: {fault_of(problem)}") from None


def write_partition_metadata(files: Files, path: str, topic_id: bytes) -> None:
    """Writes ``partition.metadata``. The next flush of the log syncs it: see ``Durability.id_changed``."""
    files.write_unsynced(path, f"version: {METADATA_VERSION}\ntopic_id: {encode_id(topic_id)}".encode())


def write_clean_shutdown(files: Files, path: str) -> None:
    """Records that every log in this data directory was closed cleanly."""
    files.replace(path, json.dumps({"version": 0, "brokerEpoch": -1}, separators=(",", ":")).encode())


def remove_clean_shutdown(files: Files, path: str, directory: str) -> None:
    """Removes the mark of a clean shutdown durably, before anything is written."""
    with contextlib.suppress(FileNotFoundError):
        files.remove(path)
        files.sync_directory(directory)
