"""Columns and results of the sink, without Spark and without a broker."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import BinaryType, IntegerType, StringType, StructType

import tidemill.client
from tidemill.model.errors import ConfigError
from tidemill.pipeline.at_least_once import UNACKNOWLEDGED_MAX, Sent, send_batches, summary
from tidemill.pipeline.sink_columns import checked_columns
from tidemill.pipeline.sink_options import parse_sink_options

TOPIC = {"kafka.bootstrap.servers": "nowhere:9092", "topic": "t"}
KINDS = {"key": StringType, "value": BinaryType, "topic": StringType, "partition": IntegerType}


def schema_of(*names: str) -> StructType:
    schema = StructType()
    for name in names:
        schema.add(name, KINDS[name]())
    return schema


@pytest.mark.parametrize("names", [("value",), ("key", "value"), ("value", "partition", "key")])
def test_columns_are_written_in_their_order(names: tuple[str, ...]) -> None:
    assert checked_columns(parse_sink_options(TOPIC, streaming=True), schema_of(*names)) == names


def test_a_message_needs_a_value() -> None:
    with pytest.raises(ConfigError, match="there is no column value, only key, partition"):
        checked_columns(parse_sink_options(TOPIC, streaming=True), schema_of("key", "partition"))


@pytest.mark.parametrize(
    ("rows", "tasks", "text"),
    [
        ([], 0, "0 messages to no topic"),
        ([3, 4], 2, "7 messages to t"),
        ([3, 4], 3, "7 messages to t (1 of 3 tasks failed)"),
        ([3], 4, "3 messages to t (3 of 4 tasks failed)"),
        ([], 2, "0 messages to no topic (2 of 2 tasks failed)"),
    ],
)
def test_a_summary_counts_the_tasks_that_failed(rows: list[int], tasks: int, text: str) -> None:
    done: list[Sent | None] = [Sent(count, ["t"]) for count in rows]
    assert summary([*done, *[None] * (tasks - len(rows))]) == text


class SlowProducer:
    """Acknowledges a batch only when a caller waits for it, or all batches at its flush."""

    def __init__(self) -> None:
        self.open: list[Future[None]] = []
        self.open_max = 0

    def __call__(self, *_: Any) -> SlowProducer:
        return self

    def __enter__(self) -> SlowProducer:
        return self

    def __exit__(self, *_: object) -> None:
        assert not self.open

    def send_arrow(self, topic: str, part: pa.RecordBatch) -> Future[None]:
        producer = self

        class Acknowledgement(Future[None]):
            def result(self, timeout: float | None = None) -> None:
                if not self.done():
                    producer.open.remove(self)
                    self.set_result(None)
                super().result(timeout)

        made = Acknowledgement()
        self.open.append(made)
        self.open_max = max(self.open_max, len(self.open))
        return made

    def flush(self) -> None:
        for one in list(self.open):
            one.result()


@pytest.mark.parametrize("batches", [1, UNACKNOWLEDGED_MAX, 3 * UNACKNOWLEDGED_MAX])
def test_the_number_of_unacknowledged_batches_is_limited(
    monkeypatch: pytest.MonkeyPatch, batches: int
) -> None:
    producer = SlowProducer()
    monkeypatch.setattr(tidemill.client, "Producer", producer)
    batch = pa.RecordBatch.from_pydict({"value": [b"a", b"b"]})
    sent = send_batches(parse_sink_options(TOPIC, streaming=True), ("value",), [batch] * batches)
    assert (sent.rows, sent.topics) == (2 * batches, ("t",))
    assert producer.open_max == min(batches, UNACKNOWLEDGED_MAX + 1)


def test_a_batch_without_rows_sends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    producer = SlowProducer()
    monkeypatch.setattr(tidemill.client, "Producer", producer)
    batch = pa.RecordBatch.from_pydict({"value": pa.array([], pa.binary())})
    sent = send_batches(parse_sink_options(TOPIC, streaming=True), ("value",), [batch])
    assert (sent.rows, sent.topics, producer.open_max) == (0, (), 0)
