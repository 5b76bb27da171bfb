"""``tidemill produce``: messages from standard input or files."""

from __future__ import annotations

import os
import sys
from collections import deque
from collections.abc import Callable, Iterator
from typing import IO, TYPE_CHECKING

import click

from tidemill.cli import suggest
from tidemill.cli.options import Existing, Target, Whole, target_options, unescape
from tidemill.cli.output import after_interrupt, count_text, counted, on_terminal
from tidemill.cli.records import BadInput, InputRecord, from_json
from tidemill.cli.waiting import say_no_more
from tidemill.model.configs.topic import near

if TYPE_CHECKING:
    from tidemill.client.producer import BulkDelivery, Producer

CHUNK_BYTES = 1024 * 1024
LINE_BYTES_MAX = 256 * 1024 * 1024
INTERRUPTED_S = 3.0
"""How long after ctrl-C the acknowledgements are waited for of what was sent."""

UNDER_WAY_MAX = 256
"""Chunks of input whose fate is not known yet; the oldest is waited for."""


@click.command(
    "produce",
    epilog="""\b
Examples:
  echo 'good morning' | tidemill produce hello
  tidemill produce hello -K : < lines.txt             lines such as  key:value
  tidemill produce hello -f day1.txt -f day2.txt -z zstd
  tidemill produce hello -k user7 -H source=cli -p 0
  tidemill consume hello --from-beginning --json -e | tidemill produce copy --json --create

A topic that is not there is created with --create only; on a terminal it asks.""",
)
@click.argument("topic", shell_complete=suggest.topics)
@click.option(
    "-f",
    "--file",
    "files",
    multiple=True,
    metavar="FILE",
    type=Existing("a file of messages", directory=False),
    help="Read this file; can be repeated.",
)
@click.option(
    "-K", "--key-separator", metavar="TEXT", help="A line's key ends here (\\t, \\x01 are understood)."
)
@click.option("-k", "--key", metavar="TEXT", help="Key of every message.")
@click.option(
    "-H", "--header", "headers", multiple=True, metavar="NAME=VALUE", help="Header of every message."
)
@click.option("-p", "--partition", type=Whole(min=0), help="Partition; by the key when left out.")
@click.option(
    "-z",
    "--compression",
    type=click.Choice(["none", "gzip", "snappy", "lz4", "zstd"]),
    help="Compress batches.",
)
@click.option(
    "-a", "--acks", type=click.Choice(["all", "1", "0"]), help="Acknowledgements to wait for.  [all]"
)
@click.option(
    "-Z", "--null", "null_marker", metavar="TEXT", help="A value of TEXT is no value (a tombstone)."
)
@click.option("--json", "as_json", is_flag=True, help="Lines are JSON, as 'consume --json' prints them.")
@click.option("--keep-place", is_flag=True, help="With --json: keep partition and timestamp.")
@click.option("--create", is_flag=True, help="Create TOPIC when it is not there.")
@click.option("-q", "--quiet", is_flag=True, help="Do not say how many messages were sent.")
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
    create: bool,
    quiet: bool,
    target: Target,
) -> int:
    """Send each line of standard input, or of files, as a message to TOPIC.

    Exit code 0 means that every message was acknowledged. It stops at the first line that is no message:
    those before it are sent. After an error, and after ctrl-C, it says how many were sent and acknowledged.
    """
    if as_json and (key_separator is not None or key is not None):
        raise click.UsageError("--json lines carry their keys: leave --key and --key-separator out")
    if key is not None and key_separator is not None:
        raise click.UsageError(
            "--key is for every message, --key-separator finds a key in each: leave one out"
        )
    if keep_place and not as_json:
        raise click.UsageError("--keep-place is for --json: other lines have neither partition nor timestamp")
    separator = unescape(key_separator).encode() if key_separator is not None else None
    if separator == b"":
        raise click.UsageError("--key-separator is empty: no key can end there")
    from tidemill.client import Producer
    from tidemill.client.config import KEYS

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
                    raise BadInput(f"there is no {key_separator!r} after which its value would begin")
            if record.value == null_value:
                record.value = None
        if partition is not None:
            record.partition = partition
        return record

    choices = {"acks": acks, "compression_type": compression}
    config = target.config(**{name: text for name, text in choices.items() if text})
    # The buffer may be full as long as its oldest message may wait.
    config.setdefault("max.block.ms", config.get("delivery.timeout.ms", KEYS["delivery.timeout.ms"].default))
    with Producer(target.bootstrap, config) as producer:
        _find_topic(target, topic, create)
        sent = _send_and_tell(producer, topic, files, read)
    if not quiet and (on_terminal() or sys.stderr.isatty()):
        click.secho(f"{counted(sent, 'message')} sent to {topic}", dim=True, err=True)
    return 0


def _send_and_tell(
    producer: Producer, topic: str, files: tuple[str, ...], read: Callable[[bytes], InputRecord]
) -> int:
    """As :func:`_send_all`; at ctrl-C and at errors it says how far it has come."""
    try:
        try:
            return _send_all(producer, topic, files, read)
        except BadInput:
            raise
        except Exception as problem:
            say_no_more()
            producer.close()
            problem.add_note(_fate(producer))
            raise
    except KeyboardInterrupt:
        say_no_more()
        try:
            producer.close(INTERRUPTED_S)
        finally:
            click.echo(after_interrupt(_fate(producer)), err=True)
        raise


def _fate(producer: Producer) -> str:
    """How many messages were sent, and what is known of them."""
    counts = producer.counts()
    sent = f"{counted(counts.sent, 'message')} sent"
    if not counts.sent:
        return sent
    if producer.config.int("acks") == 0:
        return f"{sent}; with acks=0 nobody says which of them have arrived"
    if counts.acknowledged == counts.sent:
        return f"{sent}, all acknowledged"
    rest = counts.sent - counts.acknowledged
    return (
        f"{sent}, {count_text(counts.acknowledged)} acknowledged; of the other {count_text(rest)} it is not "
        "known whether the topic has them"
    )


def _find_topic(target: Target, topic: str, create: bool) -> None:
    """Makes sure that the topic is there. A new one is created when that is asked for, or a user says yes."""
    from tidemill.client import Admin, ClientError
    from tidemill.client.errors import BrokerUnreachable, RequestTimeout, is_there
    from tidemill.model.errors import ErrorCode

    with Admin(target.bootstrap, target.config()) as admin:
        try:
            admin.describe_topics([topic])
            return
        except (BrokerUnreachable, RequestTimeout):
            raise
        except ClientError as problem:
            if problem.code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                return  # The producer meets it too, and says what it means.
        names = [one.name for one in admin.list_topics()]
        hint = near(topic, names)
        question = f"topic {topic!r} is not there{hint or '.'} Create {topic!r}?"
        if not create and not _asked(question):
            raise click.ClickException(
                f"topic {topic!r} is not there: 'tidemill topic create {topic}' creates it, or --create of "
                f"this command{hint}"
            )
        try:
            admin.create_topic(topic)
        except ClientError as problem:
            if not is_there(problem):
                raise


def _asked(question: str) -> bool:
    """What a user on a terminal says. Standard input may be the messages, so the terminal itself is asked."""
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
    """Sends all lines; how many were acknowledged. BadInput when it stopped before their end."""
    from tidemill.client.accumulator import RECORD_OVERHEAD_BYTES

    sent = 0
    under_way: deque[BulkDelivery] = deque()
    stopped: BadInput | None = None
    size_max = min(producer.config.int("max.request.size"), producer.config.int("buffer.memory"))

    def checked(line: bytes) -> InputRecord:
        record = read(line)
        # As the producer counts, which does not know of lines.
        size = RECORD_OVERHEAD_BYTES + len(record.key or b"") + len(record.value or b"")
        for name, value in record.headers:
            size += 10 + len(name) + len(value or b"")
        if size > size_max:
            raise BadInput(
                f"a message of about {size} bytes is over max.request.size={size_max}; send smaller ones, or "
                f"raise it with -X max.request.size={2 * size}, and max.message.bytes of the topic"
            )
        return record

    try:
        for source, number, lines in _chunks(files):
            records, stopped = _records(lines, checked, source, number)
            if records:
                under_way.append(_send(producer, topic, records))
            if stopped is not None:
                break
            while under_way and (len(under_way) > UNDER_WAY_MAX or under_way[0].done()):
                sent += under_way.popleft().result()
    except BadInput as problem:
        stopped = problem
    while under_way:
        sent += under_way.popleft().result()
    if stopped is not None:
        raise BadInput(f"{stopped} ({counted(sent, 'message')} before it sent, nothing after it)")
    return sent


def _records(
    lines: list[bytes], read: Callable[[bytes], InputRecord], source: str, first_line: int
) -> tuple[list[InputRecord], BadInput | None]:
    """The records of the lines up to the first that is none, and what is wrong with that one."""
    records: list[InputRecord] = []
    for line in lines:
        try:
            record = read(line)
            if records and (record.partition is None) != (records[0].partition is None):
                raise BadInput(
                    "it names a partition and others do not, or the other way about: give --partition, or "
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
    """Lines as they become available, with the file (for messages) and the number of the first one."""
    if not files:
        if sys.stdin.isatty():
            click.secho("One message a line; ctrl-D ends.", dim=True, err=True)
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
        # os.read gives what is there: a line typed or piped slowly is sent at once, not with the next ones.
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
