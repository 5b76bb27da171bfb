"""``tidemill consume``: prints the messages of topics."""

from __future__ import annotations

import re
import select
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from tidemill.cli import name_completion
from tidemill.cli.options import Duration, Moment, Target, WholeNumber, target_options, unescape
from tidemill.cli.output import counted, on_terminal, print_interrupted, time_text
from tidemill.cli.record_text import as_text, for_terminal, to_json
from tidemill.cli.wait_messages import stop_watching
from tidemill.client.errors import BrokerUnreachable, ClientError, RequestTimeout
from tidemill.model.errors import ErrorCode
from tidemill.model.similar_names import did_you_mean

if TYPE_CHECKING:
    from tidemill.client import Consumer
    from tidemill.client.completed_fetch import ConsumerRecord
    from tidemill.model.types import TopicPartition


class Start(NamedTuple):
    """The start position of a command: at most one of these."""

    beginning: bool
    offset: int | None
    since_ms: int | None

    @property
    def is_given(self) -> bool:
        """Returns whether the user gave a start position."""
        return self.beginning or self.offset is not None or self.since_ms is not None

    @property
    def is_looked_up(self) -> bool:
        """Returns whether the position is inside a partition, not its log start or log end offset."""
        return self.offset is not None or self.since_ms is not None

    def offsets(self, consumer: Consumer, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        """Returns the first offset to read of each partition."""
        starts = consumer.beginning_offsets(partitions)
        if self.beginning:
            return starts
        ends = consumer.end_offsets(partitions)
        if self.since_ms is not None:
            found = consumer.offsets_for_times(dict.fromkeys(partitions, self.since_ms))
            times = {item: at.offset if at is not None else ends[item] for item, at in found.items()}
            return {item: times.get(item, ends[item]) for item in partitions}
        if self.offset is None:
            return ends
        if self.offset < 0:
            return {item: max(starts[item], ends[item] + self.offset) for item in partitions}
        at = {item: min(max(starts[item], self.offset), ends[item]) for item in partitions}
        elsewhere = [item for item in partitions if at[item] != self.offset]
        if elsewhere:
            first, more = elsewhere[0], len(elsewhere) - 1
            others = f"; {counted(more, 'other partition')} too" if more else ""
            click.echo(
                f"tidemill: offset {self.offset} is out of range in {first}, which has {starts[first]} to "
                f"{ends[first]}: reading starts at {at[first]}{others}",
                err=True,
            )
        return at


UNCOMMITTED, COMMITTED = "read_uncommitted", "read_committed"
HEARTBEAT_MS = 1_000
UNREADABLE_S_MAX = 60.0
"""How long to wait for the log end offset of a partition that cannot be read."""


def check_readable(consumer: Consumer) -> bool:
    """Returns whether a partition is unreadable. Raises ClickException after ``UNREADABLE_S_MAX``."""
    found = consumer.partition_errors()
    for item, (error, seconds) in found.items():
        if seconds >= UNREADABLE_S_MAX:
            raise click.ClickException(f"{item} cannot be read for {seconds:.0f} s: {error}")
    return bool(found)


class Format:
    """Prints records in one format."""

    def __init__(
        self, kind: str, show: set[str], separator: str, write: Callable[[bytes], Any], terminal: bool
    ) -> None:
        self.kind = kind
        self.show = show
        self.separator = separator
        self._write = write
        self._terminal = terminal
        self.count = 0
        """Number of records printed."""

    def print(self, record: ConsumerRecord) -> None:
        """Prints one record on one line."""
        self._print(record)
        self.count += 1

    def _print(self, record: ConsumerRecord) -> None:
        if self.kind == "json":
            self._write(to_json(record).encode("utf-8", "surrogatepass") + b"\n")
            return
        if self.kind == "plain" and not self.show and not self._terminal:
            self._write((record.value or b"") + b"\n")
            return
        head = self._head(record)
        text = self.separator.join([*head, self._data(record.value, "null")])
        if self._terminal and head:
            dim = click.style(self.separator.join(head) + self.separator, fg="cyan")
            text = dim + self._data(record.value, click.style("null", dim=True))
        self._write(text.encode("utf-8", "surrogateescape") + b"\n")

    def _head(self, record: ConsumerRecord) -> list[str]:
        head = []
        if "topic" in self.show:
            head.append(record.topic)
        if "partition" in self.show:
            head.append(str(record.partition))
        if "offset" in self.show:
            head.append(str(record.offset))
        if "timestamp" in self.show:
            head.append(time_text(record.timestamp))
        if "headers" in self.show:
            shown = for_terminal if self._terminal else str
            head.append(
                ",".join(f"{shown(name)}={self._data(data, 'null')}" for name, data in record.headers)
            )
        if "key" in self.show:
            head.append(self._data(record.key, "null"))
        return head

    def _data(self, data: bytes | None, null: str) -> str:
        if data is None:
            return null
        if self.kind == "hex":
            return data.hex(" ")
        if not self._terminal:
            return data.decode("utf-8", "surrogateescape")
        text, _ = as_text(data)
        return for_terminal(text) if text is not None else repr(data)[2:-1]


@click.command(
    "consume",
    epilog="""\b
Examples:
  tidemill consume hello --from-beginning
  tidemill consume hello --offset -10 --show key,offset        the last ten of each partition
  tidemill consume hello --since 15m --json | jq .value
  tidemill consume hello -g readers                            as a member of a group
  tidemill consume --pattern 'orders\\..*' -v
  tidemill consume hello -n 1 --timeout 5s                     exit code 1 if no message comes

Without a start position it prints new messages; a group resumes at its committed offsets.""",
)
@click.argument("topics", nargs=-1, shell_complete=name_completion.topics)
@click.option("--pattern", metavar="REGEX", help="Read topics whose whole name matches.")
@click.option("--from-beginning", is_flag=True, help="Start at the oldest message.")
@click.option(
    "--offset", type=int, metavar="N", help="Start at offset N; -N: at the last N messages of each partition."
)
@click.option(
    "--since", type=Moment(), metavar="TIME", help="Start at a time: 2026-03-01T12:00, or 10m (ago)."
)
@click.option(
    "-p",
    "--partition",
    "partitions",
    type=WholeNumber(min=0),
    multiple=True,
    help="Read only this partition; can be repeated.",
)
@click.option(
    "-g",
    "--group",
    metavar="NAME",
    help="Join this consumer group, and commit its offsets.",
    shell_complete=name_completion.groups,
)
@click.option("-n", "--max-messages", type=WholeNumber(min=1), metavar="N", help="Exit after N messages.")
@click.option(
    "--timeout", type=Duration(), metavar="TIME", help="Exit when no message comes for this long (5s, 1m)."
)
@click.option("-e", "--exit-at-end", is_flag=True, help="Exit at the current end of the partitions.")
@click.option(
    "-o", "--format", "kind", type=click.Choice(["plain", "json", "hex"]), default="plain", show_default=True
)
@click.option("--json", "as_json", is_flag=True, help="Short for --format json.")
@click.option(
    "--show",
    default="",
    metavar="FIELDS",
    help="Also print: topic, partition, offset, timestamp, headers, key.",
)
@click.option("-v", "--verbose", is_flag=True, help="Print all fields.")
@click.option(
    "--separator", default="\\t", show_default=True, metavar="TEXT", help="Separator of the fields."
)
@click.option(
    "--isolation-level",
    type=click.Choice([UNCOMMITTED, COMMITTED]),
    help=f"{COMMITTED} skips messages of open and aborted transactions.  [default: {UNCOMMITTED}]",
)
@click.option("--read-committed", is_flag=True, help=f"The same as --isolation-level {COMMITTED}.")
@target_options
def command(
    topics: tuple[str, ...],
    pattern: str | None,
    from_beginning: bool,
    offset: int | None,
    since: int | None,
    partitions: tuple[int, ...],
    group: str | None,
    max_messages: int | None,
    timeout: float | None,
    exit_at_end: bool,
    kind: str,
    as_json: bool,
    show: str,
    verbose: bool,
    separator: str,
    isolation_level: str | None,
    read_committed: bool,
    target: Target,
) -> None:
    """Print the messages of TOPICS, one per line.

    Exit code 1 when fewer than --max-messages came before --timeout or the end.
    """
    if bool(topics) == (pattern is not None):
        raise click.UsageError("give either TOPICS or --pattern")
    if pattern is not None:
        try:
            re.compile(pattern)
        except (re.error, OverflowError, RecursionError) as problem:
            raise click.UsageError(f"--pattern {pattern}: not a regular expression: {problem}") from None
    if group == "":
        raise click.UsageError("--group is empty: name a group, or leave it out")
    if group is not None and partitions:
        raise click.UsageError("a group assigns partitions itself: leave --partition or --group out")
    from tidemill.client import Consumer

    if sum((from_beginning, offset is not None, since is not None)) > 1:
        raise click.UsageError("give at most one of --from-beginning, --offset and --since")
    start = Start(from_beginning, offset, since)
    shown = Format(
        "json" if as_json else kind,
        _fields(show, verbose),
        unescape(separator),
        sys.stdout.buffer.write,
        on_terminal(),
    )
    config = target.config(
        group_id=group,
        auto_offset_reset="earliest" if from_beginning else "latest",
        isolation_level=_isolation(isolation_level, read_committed, target),
        # A coordinator that does not respond is noticed soon.
        heartbeat_interval_ms=HEARTBEAT_MS,
        # A misspelt name would become a topic.
        allow_auto_create_topics=False,
    )
    if group is None:
        config.pop("group.id", None)
        config["enable.auto.commit"] = False
    with Consumer(target.bootstrap, config) as consumer:
        _find_topics(consumer, topics)
        if group is not None:
            _subscribe(consumer, topics, pattern, start)
        else:
            _assign(consumer, topics, pattern, partitions, start)
        with _report_count(shown):
            _print_all(consumer, shown, max_messages, timeout, exit_at_end)
    if max_messages is not None and shown.count < max_messages:
        why = "and the end was reached" if exit_at_end else f"and then none within {timeout:g} s"
        raise click.ClickException(f"{shown.count} of {max_messages} messages came, {why}")


@contextmanager
def _report_count(shown: Format) -> Iterator[None]:
    """Prints how many messages were read, when ctrl-C or an error ended the block."""
    try:
        yield
    except KeyboardInterrupt:
        print_interrupted(f"{counted(shown.count, 'message')} read")
        raise click.Abort from None
    except BrokenPipeError:
        raise
    except Exception as problem:
        problem.add_note(f"{counted(shown.count, 'message')} read")
        raise
    finally:
        stop_watching()


def _isolation(level: str | None, read_committed: bool, target: Target) -> str:
    """Returns the isolation level. Raises UsageError for options that contradict each other."""
    key = target.config().get("isolation.level")
    given = {
        f"--isolation-level {level}": level,
        "--read-committed": COMMITTED if read_committed else None,
        f"the client key isolation.level={key}": key,
    }
    wanted = {value: name for name, value in given.items() if value is not None}
    if len(wanted) > 1:
        raise click.UsageError(f"{' and '.join(sorted(wanted.values()))} contradict each other: give one")
    return next(iter(wanted), UNCOMMITTED)


FIELDS = ("topic", "partition", "offset", "timestamp", "headers", "key")


def _fields(show: str, verbose: bool) -> set[str]:
    if verbose:
        return set(FIELDS)
    wanted = {part.strip() for part in show.split(",") if part.strip()}
    unknown = wanted - {*FIELDS, "value"}
    if unknown:
        raise click.UsageError(f"--show {show}: {', '.join(sorted(unknown))} is none of {', '.join(FIELDS)}")
    return wanted - {"value"}


def _find_topics(consumer: Consumer, topics: Sequence[str]) -> None:
    """Raises ClickException for topics that do not exist: a group would wait for them silently."""
    for topic in topics:
        try:
            consumer.partitions_for(topic)
        except (BrokerUnreachable, RequestTimeout):
            raise
        except ClientError as problem:
            if problem.code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                return  # The consumer gets the same error, and explains it.
            raise click.ClickException(
                f"topic {topic!r} does not exist: 'tidemill topic create {topic}' creates it, 'tidemill "
                f"topic list' shows the topics{did_you_mean(topic, consumer.topics())}"
            ) from None


def _assign(
    consumer: Consumer,
    topics: tuple[str, ...],
    pattern: str | None,
    partitions: tuple[int, ...],
    start: Start,
) -> None:
    names = list(topics)
    if pattern is not None:
        compiled = re.compile(pattern)
        names = [name for name in consumer.topics() if compiled.fullmatch(name)]
        if not names:
            raise click.ClickException(
                f"no topic matches {pattern!r}; 'tidemill topic list' shows the topics"
            )
    chosen = [
        item
        for name in names
        for item in consumer.partitions_for(name)
        if not partitions or item.partition in partitions
    ]
    missing = set(partitions) - {item.partition for item in chosen}
    if missing:
        last = max(item.partition for name in names for item in consumer.partitions_for(name))
        there = f"0 to {last}" if last else "only 0"
        raise click.ClickException(
            f"{', '.join(names)}: there is no partition {min(missing)}; there is {there}"
        )
    consumer.assign(chosen)
    bad = consumer.partition_errors()
    # A partition without a leader starts at its start or end by auto.offset.reset, once it has a leader.
    now = chosen if start.is_looked_up else [item for item in chosen if item not in bad]
    for item, at in start.offsets(consumer, now).items():
        consumer.seek(item, at)


def _subscribe(consumer: Consumer, topics: tuple[str, ...], pattern: str | None, start: Start) -> None:
    class Seek:
        """Seeks newly assigned partitions to the start position."""

        def on_assigned(self, partitions: Sequence[TopicPartition]) -> None:
            if start.is_given and partitions:
                for item, at in start.offsets(consumer, partitions).items():
                    consumer.seek(item, at)

        def on_revoked(self, partitions: Sequence[TopicPartition]) -> None:
            pass

        def on_lost(self, partitions: Sequence[TopicPartition]) -> None:
            pass

    consumer.subscribe(topics, pattern=pattern, listener=Seek())


def _print_all(
    consumer: Consumer, shown: Format, max_messages: int | None, timeout: float | None, exit_at_end: bool
) -> None:
    last = time.monotonic()
    ends: dict[TopicPartition, int] | None = None
    reader = select.poll()
    reader.register(sys.stdout.fileno(), 0)
    while True:
        if any(events & select.POLLERR for _, events in reader.poll(0)):
            raise BrokenPipeError(
                "the reader of standard output has gone, and no message comes whose write would fail"
            )
        if exit_at_end:
            assigned = consumer.assignment()
            is_whole = not check_readable(consumer)
            if assigned and is_whole and (ends is None or set(ends) != assigned):
                ends = consumer.end_offsets(assigned)
            if ends is not None and all(consumer.position(item) >= end for item, end in ends.items()):
                return
        wait = 1.0 if timeout is None else max(0.0, min(1.0, last + timeout - time.monotonic()))
        most = None if max_messages is None else min(500, max_messages - shown.count)
        records = consumer.poll(wait, max_records=most)
        for record in records:
            shown.print(record)
        if records:
            last = time.monotonic()
            sys.stdout.buffer.flush()
        if max_messages is not None and shown.count >= max_messages:
            return
        if timeout is not None and time.monotonic() - last >= timeout:
            return
