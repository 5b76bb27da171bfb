"""Splits a batch that is too large for its topic.

The halves keep the sequences and the callbacks of their messages. Their numbers sort them into the place of
the whole batch; the numbers of adjacent batches leave space for that.
"""

from __future__ import annotations

from tidemill.client.record_accumulator import SEQUENCE_MASK, ProducerBatch
from tidemill.model.configs.config_def import INT_MAX
from tidemill.records.builder import BatchBuilder
from tidemill.records.record_reader import iter_records


def split(batch: ProducerBatch) -> list[ProducerBatch]:
    """Returns two batches that replace ``batch``, which must have at least two messages and is done then."""
    count = int(batch.builder.count)
    data = batch.builder.build()
    half = (count + 1) // 2
    parts: list[ProducerBatch] = []
    for _ in range(2):
        part = ProducerBatch(
            batch.queue, batch.number, batch.created, batch.builder.codec, batch.builder.level
        )
        part.span = batch.span // 2
        part.full = part.urgent = True
        part.attempts, part.refusals = batch.attempts, batch.refusals
        parts.append(part)
    # The producer's own batch needs no limit: its uncompressed records were in memory before.
    for i, record in enumerate(iter_records(data, unpacked_bytes_max=INT_MAX)):
        builder: BatchBuilder = parts[0 if i < half else 1].builder
        builder.append(record.timestamp, record.key, record.value, record.headers or None)
    for index, on_index, callback in batch.callbacks or ():
        part = parts[0 if index < half else 1]
        part.callbacks = part.callbacks or []
        part.callbacks.append((index if index < half else index - half, on_index, callback))
    batch.callbacks = None
    if batch.sequence >= 0:
        for part, ahead in zip(parts, (0, half), strict=True):
            part.producer_id, part.producer_epoch = batch.producer_id, batch.producer_epoch
            part.sequence = (batch.sequence + ahead) & SEQUENCE_MASK
    parts[1].number += parts[1].span
    share = batch.bytes // 2
    parts[0].bytes, parts[1].bytes = share, batch.bytes - share
    # A thread that waits for the whole batch continues to wait for the part with its message.
    batch.parts, batch.part_starts = parts, [0, half]
    batch.done = True
    return parts
