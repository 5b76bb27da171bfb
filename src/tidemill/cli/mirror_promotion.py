"""Promotes a mirror to an ordinary topic, and waits until all partitions have ended.

The brokers end each partition with a control record (:mod:`tidemill.records.mirror_end`). Once it is
committed in all partitions, the state is removed, and the topic accepts messages.
"""

from __future__ import annotations

import time

import click

from tidemill.client.admin import Admin
from tidemill.client.admin_types import ConfigResource, ResourceType
from tidemill.client.errors import ClientError
from tidemill.client.range_reader import RangeReader
from tidemill.model.mirror_state import ACTIVE, MIRROR_STATE, PROMOTING
from tidemill.model.types import TopicPartition
from tidemill.records.batch import CONTROL_FLAG, parse_batch, whole_batch_size
from tidemill.records.mirror_end import ended_mirror
from tidemill.wire.list_offset_timestamps import LATEST

CHECK_S = 0.2
WHOLE_BATCH_BYTES = 1
"""Brokers return at least one whole batch, however small the limit is."""


def is_left_to_promote(admin: Admin, reader: RangeReader, name: str) -> bool:
    """Whether a topic is a mirror; False after its promotion. Changes nothing.

    Raises ClickException for a topic that was not promoted, or has further messages in all partitions since:
    then nothing distinguishes it.
    """
    state = _state(admin, name)
    if state in (ACTIVE, PROMOTING):
        return True
    items, topic_id = _partitions(admin, name)
    if not any(_has_ended(reader, item, topic_id) for item in items):
        raise click.ClickException(
            f"{name} is an ordinary topic: it never was a mirror, or was promoted before its last messages."
            " Nothing was promoted"
        )
    return False


def promote(admin: Admin, reader: RangeReader, name: str, timeout_s: float) -> None:
    """Promotes one mirror. Raises ClickException if not all partitions end in time.

    Continues a promotion that was interrupted.
    """
    resource = ConfigResource(ResourceType.TOPIC, name)
    if _state(admin, name) == ACTIVE:
        admin.alter_configs(resource, {MIRROR_STATE: PROMOTING})
    deadline = time.monotonic() + timeout_s
    left, topic_id = _partitions(admin, name)
    while left := [item for item in left if not _has_ended(reader, item, topic_id)]:
        if time.monotonic() >= deadline:
            raise click.ClickException(
                f"{name} is still being promoted: {', '.join(map(str, left))} have not ended within "
                f"{timeout_s:g} s. Check that they have leaders and enough in-sync replicas "
                f"('tidemill topic describe {name}'), and run the command again"
            )
        time.sleep(CHECK_S)
    admin.alter_configs(resource, remove=[MIRROR_STATE])


def _state(admin: Admin, name: str) -> str | None:
    settings = admin.topic_configs(name)
    if MIRROR_STATE not in settings:
        raise click.ClickException(f"{name}: its cluster has no mirrors with the same offsets")
    return settings[MIRROR_STATE].value


def _partitions(admin: Admin, name: str) -> tuple[list[TopicPartition], bytes]:
    """Returns the partitions of a topic, and its id."""
    described = admin.describe_topic(name)
    return [TopicPartition(name, one.partition) for one in described.partitions], described.topic_id


def _has_ended(reader: RangeReader, item: TopicPartition, topic_id: bytes) -> bool:
    """Whether the last committed batch of a partition is the end of this mirror."""
    try:
        end = reader.list_offsets({item: LATEST})[item]
        if end == 0:
            return False
        for response in reader.fetch(
            item.topic, item.partition, end - 1, end, topic_id=topic_id, bytes_max=WHOLE_BATCH_BYTES
        ):
            if whole_batch_size(response.data, response.start, response.end) == 0:
                return False
            batch = parse_batch(response.data, response.start, response.end)
            return bool(batch.attributes & CONTROL_FLAG) and ended_mirror(batch) == topic_id
    except ClientError as problem:
        if not problem.retriable:
            raise
    return False
