"""``tidemill produce``: sends messages from standard input or files."""

from __future__ import annotations

import os
import sys
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import IO, TYPE_CHECKING, Any

import click

from tidemill.cli import name_completion
from tidemill.cli.options import Existing, Target, WholeNumber, target_options, unescape
from tidemill.cli.output import count_text, counted, on_terminal, print_interrupted
from tidemill.cli.record_text import BadInput, InputRecord, from_json
from tidemill.cli.wait_messages import stop_watching
from tidemill.client.errors import BrokerUnreachable, ClientError, RequestTimeout, topic_exists
from tidemill.model.errors import ErrorCode
from tidemill.model.similar_names import did_you_mean

if TYPE_CHECKING:
    from tidemill.client.producer import BulkDelivery, Producer

CHUNK_BYTES = 1024 * 1024
LINE_BYTES_MAX = 256 * 1024 * 1024
INTERRUPTED_S = 3.0
"""How long to wait, after ctrl-C, for the acknowledgements of messages that were sent."""

IN_FLIGHT_MAX = 256
"""Chunks of input without a result yet; above this the oldest is waited for."""


@click.command(
    "produce",
    epilog="""\b
Examples:
  echo 'good morning' | tidemill produce hello
  tidemill produce hello -K : < lines.txt             lines in the form  key:value
  tidemill produce hello -f day1.txt -f day2.txt -z zstd
  tidemill produce hello -k user7 -H source=cli -p 0
  tidemill consume hello --from-beginning --json -e | tidemill produce copy --json --create

A missing topic is created only with --create, or after confirmation on a terminal.""",
)
@click.argument("topic", shell_complete=name_completion.topics)
@click.option(
    "-f",
    "--file",
    "files",
    multiple=True,
    metavar="FILE",
    type=Existing("a file of messages", directory=False),
    help="Read messages from this file; can be repeated.",
)
@click.option(
    "-K",
    "--key-separator",
    metavar="TEXT",
    help="Separator of key and value in a line; \\t and \\x01 are accepted.",
)
@click.option("-k", "--key", metavar="TEXT", help="Key of every message.")
@click.option(
    "-H",
    "--header",
    "headers",
    multiple=True,
    metavar="NAME=VALUE",
    help="Header of every message; can be repeated.",
)
@click.option(
    "-p",
    "--partition",
    type=WholeNumber(min=0),
    help="Partition of every message; chosen by key when left out.",
)
@click.option(
    "-z",
    "--compression",
    type=click.Choice(["none", "gzip", "snappy", "lz4", "zstd"]),
    help="Compress batches.",
)
@click.option(
    "-a", "--acks", type=click.Choice(["all", "1", "0"]), help="Acknowledgements to wait for.  [all]"
)
@click.option("-Z", "--null", "null_marker", metavar="TEXT", help="Send a null value (a tombstone) for TEXT.")
@click.option("--json", "as_json", is_flag=True, help="Lines are JSON, as 'consume --json' prints them.")
@click.option(
    "--keep-place", is_flag=True, help="With --json: keep the partition and timestamp of each message."
)
@click.option(
    "--transactional-id",
    metavar="NAME",
    help="Send all messages in one transaction: it is committed at the end, and aborted after an error.",
)
@click.option("--create", is_flag=True, help="Create TOPIC if it does not exist.")
@click.option("-q", "--quiet", is_flag=True, help="Do not print how many messages were sent.")
@target_options
def command(
    topic: str,
    files: tuple[str, ...],
    key_separator: str | None,
    key: str | None,
    headers: tuple[str, ...],
    partition: int | None,
    compression: str | None,
    acks: str | None,
    null_marker: str | None,
    as_json: bool,
    keep_place: bool,
    transactional_id: str | None,
    create: bool,
    quiet: bool,
    target: Target,
) -> int:
    """Send each line of standard input, or of files, as a message to TOPIC.

    Exit code 0 means that every message was acknowledged. The command stops at the first invalid line; the
    messages before it are sent. After an error or ctrl-C it prints how many were sent and acknowledged.
    """
    if as_json and (key_separator is not None or key is not None):
        raise click.UsageError("--json lines contain their keys: leave --key and --key-separator out")
    if key is not None and key_separator is not None:
        raise click.UsageError(
            "--key sets the key of every message, --key-separator reads it from each line: give only one"
        )
    if keep_place and not as_json:
        raise click.UsageError("--keep-place needs --json: other lines have neither partition nor timestamp")
    separator = unescape(key_separator).encode() if key_separator is not None else None
    if separator == b"":
        raise click.UsageError("--key-separator is empty: give at least one character")
    from tidemill.client import Producer

    fixed = [_header(text) for text in headers]
    fixed_key = key.encode() if key is not None else None
    null_value = null_marker.encode() if null_marker is not None else None

    def read(line: bytes) -> InputRecord:
        if as_json:
            record = from_json(line, keep_place=keep_place)
            record.headers = [*record.headers, *fixed]
        else:
            record = InputRecord(line, fixed_key, fixed)
            if separator is not None:
                record.key, found, record.value = line.partition(separator)
                if not found:
                    raise BadInput(f"it has no {key_separator!r} between key and value")
            if record.value == null_value:
                record.value = None
        if partition is not None:
            record.partition = partition
        return record

    config = _config(target, acks, compression, transactional_id)
    with Producer(target.bootstrap, config) as producer:
        _find_topic(target, topic, create)
        with producer.transaction() if config.get("transactional.id") else nullcontext():
            sent = _send_and_report(producer, topic, files, read)
    if not quiet and (on_terminal() or sys.stderr.isatty()):
        click.secho(f"{counted(sent, 'message')} sent to {topic}", dim=True, err=True)
    return 0


def _config(
    target: Target, acks: str | None, compression: str | None, transactional_id: str | None
) -> dict[str, Any]:
    """Returns the producer's settings. Raises UsageError for two transactional ids, and for an empty one."""
    from tidemill.client.config_keys import KEYS

    if transactional_id == "":
        raise click.UsageError("--transactional-id is empty: name it, or leave it out")
    choices = {"acks": acks, "compression_type": compression, "transactional_id": transactional_id}
    config = target.config(**{name: text for name, text in choices.items() if text})
    if transactional_id not in (None, config.get("transactional.id")):
        raise click.UsageError(
            f"--transactional-id {transactional_id} and transactional.id={config['transactional.id']}: give"
            " only one"
        )
    # A send may wait for buffer space as long as the oldest message may wait for its delivery.
    config.setdefault("max.block.ms", config.get("delivery.timeout.ms", KEYS["delivery.timeout.ms"].default))
    return config


def _send_and_report(
    producer: Producer, topic: str, files: tuple[str, ...], read: Callable[[bytes], InputRecord]
) -> int:
    """Sends all lines as :func:`_send_all`; after ctrl-C or an error prints how many were sent."""
    try:
        try:
            return _send_all(producer, topic, files, read)
        except BadInput:
            raise
        except Exception as problem:
            stop_watching()
            producer.close()
            problem.add_note(_delivery_summary(producer))
            raise
    except KeyboardInterrupt:
        stop_watching()
        try:
            producer.close(INTERRUPTED_S)
        finally:
            print_interrupted(_delivery_summary(producer))
        raise click.Abort from None


def _delivery_summary(producer: Producer) -> str:
    """Returns how many messages were sent and acknowledged, in words."""
    counts = producer.counts()
    sent = f"{counted(counts.sent, 'message')} sent"
    if not counts.sent:
        return sent
    if producer.config.str("transactional.id"):
        return (
            f"{sent} in a transaction that is not committed: consumers of committed messages get none of them"
        )
    if producer.config.int("acks") == 0:
        return f"{sent}; with acks=0 there is no acknowledgement of their arrival"
    if counts.acknowledged == counts.sent:
        return f"{sent}, all acknowledged"
    parts = [f"{sent}, {count_text(counts.acknowledged)} acknowledged"]
    if counts.refused:
        parts.append(f"{count_text(counts.refused)} refused and not stored")
    if rest := counts.sent - counts.acknowledged - counts.refused:
        parts.append(f"{count_text(rest)} without acknowledgement may or may not be stored")
    return "; ".join(parts)


def _find_topic(target: Target, topic: str, create: bool) -> None:
    """Ensures that the topic exists. A missing one is created with --create, or after confirmation."""
    with target.admin() as admin:
        try:
            admin.describe_topics([topic])
            return
        except (BrokerUnreachable, RequestTimeout):
            raise
        except ClientError as problem:
            if problem.code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                return  # The producer gets the same error, and explains it.
        names = [topic.name for topic in admin.list_topics()]
        hint = did_you_mean(topic, names)
        question = f"topic {topic!r} does not exist{hint or '.'} Create {topic!r}?"
        if not create and not _confirmed(question):
            raise click.ClickException(
                f"topic {topic!r} does not exist: 'tidemill topic create {topic}' creates it, or --create of "
                f"this command{hint}"
            )
        try:
            admin.create_topic(topic)
        except ClientError as problem:
            if not topic_exists(problem):
                raise


def _confirmed(question: str) -> bool:
    """Asks for confirmation on the terminal itself, because standard input may contain the messages."""
    if not sys.stderr.isatty():
        return False
    try:
        with open("/dev/tty", encoding="utf-8", errors="replace") as terminal:
            click.echo(f"{question} [y/N]: ", nl=False, err=True)
            return terminal.readline().strip().lower() in ("y", "yes")
    except OSError:
        return False


def _header(text: str) -> tuple[str, bytes | None]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise click.UsageError(f"--header {text}: it must be NAME=VALUE")
    return name, value.encode()


def _send_all(
    producer: Producer, topic: str, files: tuple[str, ...], read: Callable[[bytes], InputRecord]
) -> int:
    """Sends all lines. Returns how many were acknowledged. Raises BadInput for an invalid line."""
    from tidemill.client.record_accumulator import RECORD_OVERHEAD_BYTES

    sent = 0
    in_flight: deque[BulkDelivery] = deque()
    stopped: BadInput | None = None
    size_max = min(producer.config.int("max.request.size"), producer.config.int("buffer.memory"))

    def checked(line: bytes) -> InputRecord:
        record = read(line)
        # The size as the producer counts it; the producer's own error would not name the line.
        size = RECORD_OVERHEAD_BYTES + len(record.key or b"") + len(record.value or b"")
        for name, value in record.headers:
            size += 10 + len(name) + len(value or b"")
        if size > size_max:
            raise BadInput(
                f"a message of about {size} bytes exceeds max.request.size={size_max}; send smaller "
                f"messages, or raise it with -X max.request.size={2 * size}, and max.message.bytes of the "
                "topic"
            )
        return record

    try:
        for source, number, lines in _chunks(files):
            records, stopped = _records(lines, checked, source, number)
            if records:
                in_flight.append(_send(producer, topic, records))
            if stopped is not None:
                break
            while in_flight and (len(in_flight) > IN_FLIGHT_MAX or in_flight[0].done()):
                sent += in_flight.popleft().result()
    except BadInput as problem:
        stopped = problem
    while in_flight:
        sent += in_flight.popleft().result()
    if stopped is not None:
        outcome = "aborted with the transaction" if producer.config.str("transactional.id") else "sent"
        raise BadInput(f"{stopped} ({counted(sent, 'message')} before it {outcome}, nothing after it)")
    return sent


def _records(
    lines: list[bytes], read: Callable[[bytes], InputRecord], source: str, first_line: int
) -> tuple[list[InputRecord], BadInput | None]:
    """Returns the records of the lines up to the first invalid line, and the error of that line."""
    records: list[InputRecord] = []
    for line in lines:
        try:
            record = read(line)
            if records and (record.partition is None) != (records[0].partition is None):
                raise BadInput(
                    "some lines have a partition and others do not: give --partition, or "
                    "leave --keep-place out"
                )
        except BadInput as problem:
            return records, BadInput(f"{source}line {first_line + len(records)}: {problem}")
        records.append(record)
    return records, None


def _send(producer: Producer, topic: str, records: list[InputRecord]) -> BulkDelivery:
    placed = records[0].partition is not None
    return producer.send_batch(
        topic,
        [record.value for record in records],
        [record.key for record in records],
        headers=[record.headers for record in records],
        timestamps_ms=[record.timestamp_ms for record in records],
        partitions=[record.partition or 0 for record in records] if placed else None,
    )


def _chunks(files: tuple[str, ...]) -> Iterator[tuple[str, int, list[bytes]]]:
    """Yields lines as they become available, with their file (for messages) and first line number."""
    if not files:
        if sys.stdin.isatty():
            click.secho("One message per line; ctrl-D ends the input.", dim=True, err=True)
        for number, lines in _lines_of(sys.stdin.buffer):
            yield "", number, lines
        return
    for name in files:
        with open(name, "rb") as file:
            try:
                for number, lines in _lines_of(file):
                    yield f"{name}, ", number, lines
            except BadInput as problem:
                raise BadInput(f"{name}, {problem}") from None


def _lines_of(file: IO[bytes]) -> Iterator[tuple[int, list[bytes]]]:
    descriptor = file.fileno()
    rest: list[bytes] = []
    rest_bytes = 0
    number = 1
    while True:
        # os.read returns available data: a line typed or piped slowly is sent at once, not with the next
        # ones.
        data = os.read(descriptor, CHUNK_BYTES)
        if not data:
            break
        end = data.rfind(b"\n")
        if end >= 0:
            lines = b"".join([*rest, data[:end]]).split(b"\n")
            yield number, lines
            number += len(lines)
            rest, rest_bytes = [], 0
            data = data[end + 1 :]
        rest.append(data)
        rest_bytes += len(data)
        if rest_bytes > LINE_BYTES_MAX:
            raise BadInput(f"line {number} is longer than {LINE_BYTES_MAX} bytes")
    if rest_bytes:
        yield number, [b"".join(rest)]
