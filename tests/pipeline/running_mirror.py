"""A mirror that runs while a test changes its clusters."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from tidemill.model.types import TopicPartition
from tidemill.pipeline.mirror.mirror_job import SourceProgress, mirror
from tidemill.pipeline.mirror.mirror_lag import MirrorLag, MirrorMetrics
from tidemill.pipeline.mirror.mirror_settings import MirrorJob

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Mirrored(Protocol):
    """Two clusters, and the jobs that mirror one into the other."""

    spark: SparkSession

    def job(self, **more: Any) -> MirrorJob:
        """Returns a job with some settings of its own."""
        ...


class Running:
    """A mirror that runs in a thread until the end of a ``with`` block."""

    def __init__(self, mirrored: Mirrored, metrics: MirrorMetrics | None = None, **more: Any) -> None:
        self._stopping = threading.Event()
        self.progress: list[SourceProgress] = []
        self.failure: BaseException | None = None
        self._lag: MirrorLag | None = None
        self._measurements = 0
        job = mirrored.job(trigger="0 seconds", **more)

        def run() -> None:
            try:
                mirror(mirrored.spark, job, self._note, metrics, self._stopping)
            except BaseException as problem:  # noqa: BLE001 - the test examines it
                self.failure = problem

        self._thread = threading.Thread(target=run)

    def _note(self, progress: Sequence[SourceProgress]) -> None:
        lag = progress[0].lag
        self._measurements += lag is not None and lag is not self._lag
        self._lag = lag
        self.progress = list(progress)

    def __enter__(self) -> Running:
        self._thread.start()
        return self

    def __exit__(self, *details: object) -> None:
        self._stopping.set()
        self._thread.join()

    def wait_for(self, condition: Callable[[], bool], timeout_s: float = 120.0) -> None:
        """Waits until a condition is true. Fails if the mirror ends."""
        deadline = time.monotonic() + timeout_s
        while not condition():
            assert self.failure is None, self.failure
            assert time.monotonic() < deadline, self.progress
            time.sleep(0.1)

    def is_up_to_date(self) -> bool:
        """Whether partitions are mirrored, and none is behind."""
        lag = self.progress[0].lag if self.progress else None
        return lag is not None and bool(lag.messages) and not lag.total

    def held_back(self) -> set[TopicPartition]:
        """Returns the partitions that the last measurement has found held back."""
        lag = self.progress[0].lag if self.progress else None
        return set() if lag is None else set(lag.held_back)

    def wait_for_copies(self, partitions: Collection[TopicPartition]) -> None:
        """Waits until the mirror has what partitions of the source have now."""
        # The measurement that is in progress may have read the source before.
        begun = self._measurements + 2

        def are_copied() -> bool:
            lag = self.progress[0].lag if self.progress else None
            return (
                lag is not None
                and self._measurements >= begun
                and all(lag.messages.get(item) == 0 for item in partitions)
            )

        self.wait_for(are_copied)

    def lag_of(self, messages: int) -> bool:
        """Whether the last measured lag is so many messages, and has an age if there are any."""
        lag = self.progress[0].lag if self.progress else None
        return lag is not None and lag.total == messages and (lag.seconds_max > 0) == (messages > 0)

    def has_copied(self, records: int) -> bool:
        """Whether so many records were written since the start, and nothing waits."""
        if not self.progress or self.progress[0].lag is None:
            return False
        return self.progress[0].records >= records and not self.progress[0].lag.total
