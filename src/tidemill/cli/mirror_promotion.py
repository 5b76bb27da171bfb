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


def promote(admin: Admin, reader: RangeReader, name: str, timeout_s: float) -> None:
    """Promotes one mirror. Raises ClickException for other topics, and if not all partitions end in time.

    Continues a promotion that was interrupted.
    """
    state = admin.topic_configs(name)
    if MIRROR_STATE not in state:
        raise click.ClickException(f"{name}: its cluster has no mirrors with the same offsets")
    value = state[MIRROR_STATE].value
    if value not in (ACTIVE, PROMOTING):
        raise click.ClickException(f"{name} is an ordinary topic: {MIRROR_STATE} is {value}")
    resource = ConfigResource(ResourceType.TOPIC, name)
    if value == ACTIVE:
        admin.alter_configs(resource, {MIRROR_STATE: PROMOTING})
    deadline = time.monotonic() + timeout_s
    description = admin.describe_topic(name)
    left = [TopicPartition(name, part.partition) for part in description.partitions]
    while left := [item for item in left if not _has_ended(reader, item, description.topic_id)]:
        if time.monotonic() >= deadline:
            raise click.ClickException(
                f"{name} is still being promoted: {', '.join(map(str, left))} have not ended within "
                f"{timeout_s:g} s. Check that they have leaders and enough in-sync replicas "
                f"('tidemill topic describe {name}'), and run the command again"
            )
        time.sleep(CHECK_S)
    admin.alter_configs(resource, remove=[MIRROR_STATE])


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
