"""``tidemill perf``: measures producing, consuming and latency against a running cluster."""

from __future__ import annotations

import itertools
import random
import sys
import time
from collections import deque
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import click

from tidemill.cli import name_completion
from tidemill.cli.options import Duration, Target, WholeNumber, target_options
from tidemill.cli.output import (
    bytes_text,
    count_text,
    counted,
    json_option,
    print_interrupted,
    print_json,
    print_table,
)
from tidemill.client.errors import ClientError, topic_exists

if TYPE_CHECKING:
    from tidemill.client import Admin
    from tidemill.client.producer import BulkDelivery, RecordMetadata

BULK = 1_000
"""Messages passed to the producer in one call."""
SAMPLE_EVERY = 1_000
"""One of this many messages is timed."""
VALUES = 512
"""Number of different values, sent in turn."""
VALUES_BYTES = 4_000_000
"""Total bytes of the values: there are fewer of large values, at least one."""
SIZE_MAX = 100_000_000
PERCENTILES = (50.0, 90.0, 95.0, 99.0, 99.9)
READ_BACK_S = 30.0
"""Limit of the time from the acknowledgement of a message until it is consumed, in seconds."""
ALPHABET = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789 "


@click.group("perf")
def command() -> None:
    """Measure producing, consuming and latency.

    The figures depend on this client and this machine as well as on the cluster.
    """


class Rates:
    """Prints throughput on stderr once a second, if that is a terminal.

    A context manager: its line is erased at the end of the block, and ctrl-C in it prints the figures so far.
    """

    def __init__(self, total: int) -> None:
        self._total = total
        self._shown = sys.stderr.isatty()
        self._last = self._began = time.perf_counter()
        self._last_count = 0
        self._last_bytes = 0
        self._count = self._bytes = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._shown:
            click.echo("\r\x1b[K", nl=False, err=True)
        if kind is KeyboardInterrupt:
            seconds = max(time.perf_counter() - self._began, 1e-9)
            figures = (
                f"{counted(self._count, 'message')} in {seconds:.3f} s, "
                f"{count_text(self._count / seconds)} messages/s, {bytes_text(self._bytes / seconds)}/s"
            )
            print_interrupted(figures)
            raise click.Abort

    def record(self, count: int, size_bytes: int) -> None:
        """Records the progress. Prints it at most once a second."""
        self._count, self._bytes = count, size_bytes
        if not self._shown:
            return
        now = time.perf_counter()
        passed = now - self._last
        if passed < 1.0:
            return
        rate = (count - self._last_count) / passed
        speed = (size_bytes - self._last_bytes) / passed
        share = f"{count / self._total:4.0%}" if self._total else ""
        line = (
            f"{share} {count_text(count):>14} messages  {count_text(rate):>12}/s  {bytes_text(speed):>10}/s"
        )
        click.echo(f"\r{line}\x1b[K", nl=False, err=True)
        self._last, self._last_count, self._last_bytes = now, count, size_bytes


def make_values(size_bytes: int, seed: int = 1) -> list[bytes]:
    """Returns values of letters, the same in every run: they compress as text does, not as zeros do."""
    randomness = random.Random(seed)
    count = max(1, min(VALUES, VALUES_BYTES // max(1, size_bytes)))
    return [bytes(randomness.choices(ALPHABET, k=size_bytes)) for _ in range(count)]


def percentiles(seconds: Sequence[float]) -> dict[str, float]:
    """Returns mean, percentiles and maximum in milliseconds; empty for no times."""
    if not seconds:
        return {}
    ordered = sorted(seconds)
    found = {"mean": sum(ordered) / len(ordered)}
    for share in PERCENTILES:
        # The smallest time that at least this share of all stays at or below.
        rank = max(0, -(-len(ordered) * share // 100) - 1)
        found[f"p{share:g}"] = ordered[int(rank)]
    found["max"] = ordered[-1]
    return {name: round(value * 1000, 3) for name, value in found.items()}


def _report(result: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print_json(result)
        return
    rows: list[list[str]] = [
        ["messages", count_text(result["messages"])],
        ["seconds", f"{result['seconds']:.3f}"],
        ["messages/s", count_text(result["messages_per_second"])],
        ["throughput", f"{bytes_text(result['bytes_per_second'])}/s"],
    ]
    for title in ("latency_ms", "end_to_end_ms"):
        label = title.removesuffix("_ms").replace("_", " ")
        rows += [[f"{label} {name}", f"{value:.3f} ms"] for name, value in result.get(title, {}).items()]
    print_table(["what", "figure"], rows, right=["figure"])


def _result(count: int, size_bytes: int, seconds: float, **more: Any) -> dict[str, Any]:
    seconds = max(seconds, 1e-9)
    return {
        "messages": count,
        "bytes": size_bytes,
        "seconds": round(seconds, 6),
        "messages_per_second": round(count / seconds, 1),
        "bytes_per_second": round(size_bytes / seconds, 1),
        **more,
    }


def _ensure_topic(admin: Admin, topic: str, partitions: int) -> None:
    try:
        admin.create_topic(topic, partitions)
    except ClientError as problem:
        if not topic_exists(problem):
            raise


@command.command(
    "produce",
    epilog="""\b
Examples:
  tidemill perf produce bench -n 5000000 --size 100
  tidemill perf produce bench -n 1000000 --size 1024 -z zstd -X linger.ms=20
  tidemill perf produce bench -n 60000 --rate 1000 --json | jq .latency_ms.p99""",
)
@click.argument("topic", shell_complete=name_completion.topics)
@click.option("-n", "--messages", "count", type=WholeNumber(min=1), default=1_000_000, show_default=True)
@click.option(
    "--size", type=WholeNumber(0, SIZE_MAX), default=100, show_default=True, help="Bytes of each value."
)
@click.option(
    "--rate", type=WholeNumber(min=1), help="Messages per second; as fast as possible when left out."
)
@click.option(
    "-p",
    "--partitions",
    type=WholeNumber(min=1),
    default=1,
    show_default=True,
    help="Partitions of a new topic.",
)
@click.option(
    "-z",
    "--compression",
    type=click.Choice(["none", "gzip", "snappy", "lz4", "zstd"]),
    default="none",
    show_default=True,
    help="Compress batches.",
)
@click.option("-a", "--acks", type=click.Choice(["all", "1", "0"]), default="all", show_default=True)
@json_option
@target_options
def produce(
    topic: str,
    count: int,
    size: int,
    rate: int | None,
    partitions: int,
    compression: str,
    acks: str,
    as_json: bool,
    target: Target,
) -> None:
    """Send messages as fast as possible, or at a rate. Latency is from send() to the acknowledgement."""
    from tidemill.client import Producer

    with target.admin() as admin:
        _ensure_topic(admin, topic, partitions)
    values = make_values(size)
    latencies: list[float] = []
    failures: list[Exception] = []
    # Small steps where a rate is given: the messages of a second at once are not a steady rate.
    step = BULK if rate is None else max(1, min(BULK, rate // 100))
    config = target.config(compression_type=compression, acks=acks)
    with Producer(target.bootstrap, config) as producer, Rates(count) as rates:
        producer.partitions_for(topic)
        began = time.perf_counter()
        in_flight: deque[BulkDelivery] = deque()
        sent = acknowledged = 0
        for part in _parts(values, count, step):
            if rate is not None:
                time.sleep(max(0.0, began + sent / rate - time.perf_counter()))
            if rate is not None or sent % SAMPLE_EVERY < len(part):
                _send_timed(producer, topic, part[0], latencies, failures)
                part = part[1:]
                sent += 1
                acknowledged += 1
            if part:
                in_flight.append(producer.send_batch(topic, part))
                sent += len(part)
            while in_flight and in_flight[0].done():
                acknowledged += in_flight.popleft().result()
            rates.record(acknowledged, acknowledged * size)
        for delivery in in_flight:
            acknowledged += delivery.result()
        producer.flush()
        seconds = time.perf_counter() - began
    if failures:
        raise failures[0]
    _report(_result(count, count * size, seconds, latency_ms=percentiles(latencies)), as_json)


def _parts(values: list[bytes], count: int, step: int) -> Iterator[list[bytes]]:
    source = itertools.cycle(values)
    for first in range(0, count, step):
        yield list(itertools.islice(source, min(step, count - first)))


def _send_timed(
    producer: Any, topic: str, value: bytes, latencies: list[float], failures: list[Exception]
) -> None:
    began = time.perf_counter()

    def delivered(metadata: RecordMetadata | None, error: Exception | None) -> None:
        if error is None:
            latencies.append(time.perf_counter() - began)
        else:
            failures.append(error)

    producer.send(topic, value, on_delivery=delivered)


@command.command(
    "consume",
    epilog="""\b
Examples:
  tidemill perf consume bench
  tidemill perf consume bench --arrow --json""",
)
@click.argument("topics", nargs=-1, required=True, shell_complete=name_completion.topics)
@click.option("-n", "--messages", "count", type=WholeNumber(min=1), help="Number of messages to read.  [all]")
@click.option("--arrow", is_flag=True, help="Read Arrow tables, without an object per message.")
@click.option(
    "--timeout",
    type=Duration(),
    default="10s",
    show_default=True,
    help="Exit when no message comes for this long.",
)
@json_option
@target_options
def consume(
    topics: tuple[str, ...], count: int | None, arrow: bool, timeout: float, as_json: bool, target: Target
) -> None:
    """Read topics from the beginning as fast as possible. Exit code 1 when messages were missing."""
    from tidemill.client import Consumer

    if arrow:
        import pyarrow.compute  # noqa: F401 - its import is not part of the measurement

    config = target.config(enable_auto_commit=False, max_poll_records=10_000)
    config.pop("group.id", None)
    with Consumer(target.bootstrap, config) as consumer:
        partitions = [item for topic in topics for item in consumer.partitions_for(topic)]
        starts, ends = consumer.beginning_offsets(partitions), consumer.end_offsets(partitions)
        total = sum(ends[item] - starts[item] for item in partitions)
        wanted = total if count is None else min(count, total)
        consumer.assign(partitions)
        consumer.seek_to_beginning(*partitions)
        read = size_bytes = 0
        first = last = began = time.perf_counter()
        with Rates(wanted) as rates:
            while read < wanted:
                if arrow:
                    number, size = _poll_arrow(consumer)
                else:
                    number, size = _poll_records(consumer, min(10_000, wanted - read))
                now = time.perf_counter()
                if not number:
                    if now - last > timeout:
                        break
                    continue
                first = now if not read else first
                last = now
                read += number
                size_bytes += size
                rates.record(read, size_bytes)
        seconds = last - began
    waited = round((first - began) * 1000, 3)
    _report(_result(read, size_bytes, seconds, first_poll_ms=waited), as_json)
    expected = wanted if count is None else count
    if read < expected:
        raise click.ClickException(
            f"{read} of {expected} messages came, "
            + (f"there are {total}" if read == total else f"and then none within {timeout:g} s")
        )


def _poll_records(consumer: Any, most: int) -> tuple[int, int]:
    records = consumer.poll(1.0, max_records=most)
    size_bytes = 0
    for item in records.partitions():
        for record in records[item]:
            size_bytes += len(record.value or b"") + len(record.key or b"")
    return len(records), size_bytes


def _poll_arrow(consumer: Any) -> tuple[int, int]:
    import pyarrow.compute as compute

    table = consumer.poll_arrow(1.0)
    if table is None:
        return 0, 0
    size_bytes = sum(
        compute.sum(compute.binary_length(table[name])).as_py() or 0 for name in ("key", "value")
    )
    return table.num_rows, size_bytes


@command.command(
    "latency",
    epilog="""\b
Examples:
  tidemill perf latency bench
  tidemill perf latency bench -n 10000 --size 1024 --acks 1 --json""",
)
@click.argument("topic", shell_complete=name_completion.topics)
@click.option("-n", "--messages", "count", type=WholeNumber(min=1), default=1_000, show_default=True)
@click.option(
    "--size", type=WholeNumber(0, SIZE_MAX), default=100, show_default=True, help="Bytes of a value."
)
@click.option("-a", "--acks", type=click.Choice(["all", "1"]), default="all", show_default=True)
@json_option
@target_options
def latency(topic: str, count: int, size: int, acks: str, as_json: bool, target: Target) -> None:
    """Send messages one at a time, and measure their latency.

    Each message is acknowledged and read back before the next.

    "latency" is from send() to the acknowledgement, "end to end" from send() to the consumer.
    """
    from tidemill.client import Consumer, Producer, TopicPartition

    with target.admin() as admin:
        _ensure_topic(admin, topic, 1)
    values = make_values(size)
    produced: list[float] = []
    end_to_end: list[float] = []
    item = TopicPartition(topic, 0)
    reading = target.config(enable_auto_commit=False, fetch_max_wait_ms=1_000)
    reading.pop("group.id", None)
    with (
        Producer(target.bootstrap, target.config(acks=acks, linger_ms=0)) as producer,
        Consumer(target.bootstrap, reading) as consumer,
        Rates(count) as rates,
    ):
        consumer.assign([item])
        consumer.seek_to_end(item)
        position = consumer.position(item)
        began = time.perf_counter()
        for index in range(count):
            start = time.perf_counter()
            offset = producer.send(topic, values[index % len(values)], partition=0).result(30).offset
            produced.append(time.perf_counter() - start)
            while position <= offset:
                records = consumer.poll(READ_BACK_S)
                if not records:
                    raise click.ClickException(
                        f"message {offset} of {item} was acknowledged, and not read within {READ_BACK_S:g} s"
                    )
                position = records[item][-1].offset + 1
            end_to_end.append(time.perf_counter() - start)
            rates.record(index + 1, (index + 1) * size)
        seconds = time.perf_counter() - began
    result = _result(
        count, count * size, seconds, latency_ms=percentiles(produced), end_to_end_ms=percentiles(end_to_end)
    )
    _report(result, as_json)
