"""The records of a shard that wait for their append, and the batches that are being appended."""

from __future__ import annotations

import asyncio
from itertools import islice

from tidemill.coordinator_runtime.coordinator_effects import (
    AnyAppend,
    CoordinatorRecord,
    TransactionProducer,
)
from tidemill.model.event_loop_slices import ITEMS_PER_SLICE
from tidemill.records.builder import BatchBuilder


class Outgoing:
    """An append with records that are not in a batch yet."""

    __slots__ = ("_following", "_records", "effect")

    def __init__(self, effect: AnyAppend) -> None:
        self.effect = effect
        self._records = iter(effect.records)
        self._following = list(islice(self._records, 1))

    @property
    def has_records(self) -> bool:
        """Whether :meth:`take` returns further records."""
        return bool(self._following)

    def take(self) -> list[CoordinatorRecord]:
        """Returns the next records, up to a slice."""
        taken = [*self._following, *islice(self._records, ITEMS_PER_SLICE - 1)]
        self._following = list(islice(self._records, 1))
        return taken


class Write:
    """A batch to append: the records to replay, and the effects that complete with it."""

    __slots__ = (
        "batch",
        "builder",
        "continued",
        "deadline_ms",
        "ending",
        "producer",
        "records",
        "responded",
        "result",
    )

    def __init__(self, deadline_ms: int, producer: TransactionProducer | None = None) -> None:
        self.builder = BatchBuilder()
        self.producer = producer
        """The producer of the transaction that the batch belongs to."""
        self.batch = b""
        """The result of the builder, once the append has begun."""
        self.records: list[CoordinatorRecord] = []
        self.ending: list[AnyAppend] = []
        self.continued: AnyAppend | None = None
        """The effect whose records continue in the next batch: it fails when this batch fails."""
        self.deadline_ms = deadline_ms
        self.responded = False
        """Whether the clients already have an error response; the records are replayed once committed."""
        self.result: asyncio.Future[None] | None = None
        """Done once the batch is committed, or has failed."""
