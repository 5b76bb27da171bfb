"""``tidemill transaction``: shows transactions, and ends those that no coordinator will end."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import click

from tidemill.cli import name_completion
from tidemill.cli.options import Target, WholeNumber, parse_duration, target_options
from tidemill.cli.output import (
    done,
    json_option,
    print_json,
    print_table,
    report_failures,
    require_yes,
    time_text,
    yes_option,
)
from tidemill.client.errors import ClientError
from tidemill.model.errors import ErrorCode
from tidemill.model.transaction_types import NO_TIMEOUT_MS
from tidemill.model.types import TopicPartition

if TYPE_CHECKING:
    from tidemill.client.admin import Admin

STATES = ("Empty", "Ongoing", "PrepareCommit", "PrepareAbort", "CompleteCommit", "CompleteAbort", "Dead")

ENDED = ("Empty", "CompleteCommit", "CompleteAbort", "Dead")
"""The states without an open transaction."""
ID_MAX = (1 << 63) - 1


@click.group("transaction")
def command() -> None:
    """List, describe and abort transactions."""


@command.command(
    "list",
    epilog="""\b
Examples:
  tidemill transaction list --state Ongoing
  tidemill transaction list --running-for 10m --json""",
)
@click.option(
    "--state",
    "states",
    multiple=True,
    type=click.Choice(STATES, case_sensitive=False),
    metavar="STATE",
    help="List only transactional ids in this state, as Ongoing; can be repeated.",
)
@click.option(
    "--producer-id",
    "producer_ids",
    multiple=True,
    type=WholeNumber(min=0, max=ID_MAX),
    help="List only this producer id; can be repeated.",
)
@click.option(
    "--running-for", metavar="DURATION", help="List only transactions that are open for longer, as 10m."
)
@click.option(
    "--pattern", metavar="REGEX", help="List only names that this regular expression matches as a whole."
)
@json_option
@target_options
def list_(
    states: tuple[str, ...],
    producer_ids: tuple[int, ...],
    running_for: str | None,
    pattern: str | None,
    as_json: bool,
    target: Target,
) -> None:
    """List the transactional ids of all brokers."""
    running_for_ms = -1 if running_for is None else int(parse_duration(running_for) * 1000)
    if running_for_ms > ID_MAX:
        raise click.UsageError(f"--running-for {running_for} is too long")
    with target.admin() as admin:
        try:
            found = admin.list_transactions(
                states=states, producer_ids=producer_ids, running_for_ms=running_for_ms, pattern=pattern
            )
        except ClientError as problem:
            if problem.code is not ErrorCode.INVALID_REGULAR_EXPRESSION:
                raise
            raise click.UsageError(
                f"--pattern {pattern}: no valid regular expression{_fault_of(pattern or '')}; the broker"
                " accepts those of RE2"
            ) from None
    if as_json:
        print_json([one._asdict() for one in found])
        return
    rows = [[one.transactional_id, one.producer_id, one.state, one.coordinator] for one in found]
    print_table(
        ["transactional id", "producer id", "state", "coordinator"],
        rows,
        right=["producer id", "coordinator"],
        empty="no transactional ids",
    )


def _fault_of(pattern: str) -> str:
    """Returns why Python refuses a pattern, in brackets: brokers give no reason. Empty if it does not."""
    try:
        re.compile(pattern)
    except re.error as problem:
        return f" ({problem})"
    return ""


@command.command("describe", epilog="\b\nExamples:\n  tidemill transaction describe loader-1")
@click.argument("names", nargs=-1, required=True)
@json_option
@target_options
def describe(names: tuple[str, ...], as_json: bool, target: Target) -> int:
    """Show state, producer and partitions of transactional ids. Exit code 1 when one does not exist."""
    found = []
    missing: list[ClientError] = []
    with target.admin() as admin:
        for name in names:
            try:
                found.append(admin.describe_transaction(name))
            except ClientError as problem:
                missing.append(problem)
    if as_json:
        print_json([{**one._asdict(), "partitions": [str(item) for item in one.partitions]} for one in found])
        return report_failures(missing)
    for one in found:
        rows: list[list[object]] = [
            ["transactional id", one.transactional_id],
            ["state", one.state],
            ["producer id, epoch", f"{one.producer_id}, {one.producer_epoch}"],
            ["timeout, s", "none" if one.timeout_ms == NO_TIMEOUT_MS else f"{one.timeout_ms / 1000:g}"],
            ["began", "-" if one.start_ms < 0 else time_text(one.start_ms)],
            ["coordinator", one.coordinator],
            ["partitions", " ".join(map(str, one.partitions)) or "-"],
        ]
        print_table(["field", "value"], rows)
    return report_failures(missing)


@command.command(
    "find-hanging",
    epilog="""\b
Examples:
  tidemill transaction find-hanging
  tidemill transaction find-hanging --topic orders --idle-for 15m""",
)
@click.option("--topic", "topics", multiple=True, metavar="TOPIC", help="Search this topic; can be repeated.")
@click.option(
    "--idle-for",
    metavar="DURATION",
    default="15m",
    show_default=True,
    help="Time since the last record: at least transaction.max.timeout.ms of the brokers.",
)
@json_option
@target_options
def find_hanging(topics: tuple[str, ...], idle_for: str, as_json: bool, target: Target) -> int:
    """Find open transactions that no coordinator will end. Exit code 1 when there are some.

    Consumers of committed records do not read past them. 'transaction abort' ends them.
    """
    with target.admin() as admin:
        found = admin.find_hanging_transactions(
            _partitions_of(admin, topics), idle_for_ms=int(parse_duration(idle_for) * 1000)
        )
    if as_json:
        print_json([{**one._asdict(), "partition": str(one.partition)} for one in found])
        return int(bool(found))
    rows = [
        [
            str(one.partition),
            one.producer_id,
            one.producer_epoch,
            one.start_offset,
            time_text(one.last_timestamp_ms),
        ]
        for one in found
    ]
    print_table(
        ["partition", "producer id", "epoch", "first offset", "last record"],
        rows,
        right=["producer id", "epoch", "first offset"],
        empty="no hanging transactions",
    )
    return int(bool(found))


@command.command(
    "abort",
    epilog="""\b
Examples:
  tidemill transaction abort --topic orders --partition 3 --first-offset 1042
  tidemill transaction abort --force loader-1            two-phase commits included""",
)
@click.argument("name", required=False)
@click.option(
    "--topic", metavar="TOPIC", help="Topic of a hanging transaction.", shell_complete=name_completion.topics
)
@click.option("--partition", type=WholeNumber(min=0), help="Its partition.")
@click.option("--first-offset", type=WholeNumber(min=0), help="Its first offset, as find-hanging prints it.")
@click.option(
    "--force",
    is_flag=True,
    help="Abort the transaction of a transactional id, and fence its producer.",
)
@yes_option
@target_options
def abort(
    name: str | None,
    topic: str | None,
    partition: int | None,
    first_offset: int | None,
    force: bool,
    yes: bool,
    target: Target,
) -> int:
    """Abort a hanging transaction in its partition, or with --force that of a transactional id."""
    if force:
        if name is None or topic is not None:
            raise click.UsageError("--force needs the transactional id, and no --topic")
        with target.admin() as admin:
            state = admin.describe_transaction(name).state
            if state in ENDED:
                raise ClientError(
                    f"no transaction of {name} is open: its state is {state}", ErrorCode.INVALID_TXN_STATE
                )
            require_yes(f"Abort the transaction of {name}, and fence its producer?", yes)
            admin.fence_producer(name)
        done(f"aborted the transaction of {name}")
        return 0
    if name is not None or topic is None or partition is None or first_offset is None:
        raise click.UsageError("give --topic, --partition and --first-offset, or --force and an id")
    _abort_hanging(target, TopicPartition(topic, partition), first_offset, yes)
    return 0


def _abort_hanging(target: Target, where: TopicPartition, first_offset: int, yes: bool) -> None:
    """Aborts a transaction in its partition. Raises ClientError unless it is open, and has no coordinator."""
    with target.admin() as admin:
        found = [one for one in admin.open_transactions([where]) if one.start_offset == first_offset]
        if not found:
            raise ClientError(
                f"no transaction that began at offset {first_offset} is open in {where}; see find-hanging",
                ErrorCode.TRANSACTIONAL_ID_NOT_FOUND,
            )
        if admin.is_mirror(where.topic):
            raise ClientError(
                f"the transaction from offset {first_offset} on in {where} was copied from the source of this"
                " mirror: the marker of the source ends it once that is copied; 'tidemill topic promote"
                f" {where.topic}' ends the mirror, and aborts it",
                ErrorCode.INVALID_TXN_STATE,
            )
        if not admin.hanging_among(found):
            names = [
                one.transactional_id for one in admin.list_transactions(producer_ids=[found[0].producer_id])
            ]
            raise ClientError(
                f"the transaction from offset {first_offset} on in {where} is not hanging: its coordinator"
                f" will end it. 'tidemill transaction abort --force {' '.join(names)}' aborts it everywhere",
                ErrorCode.INVALID_TXN_STATE,
            )
        require_yes(f"Abort the transaction of producer {found[0].producer_id} in {where}?", yes)
        admin.abort_open_transaction(found[0])
    done(f"aborted the transaction from offset {first_offset} on in {where}")


def _partitions_of(admin: Admin, topics: tuple[str, ...]) -> list[TopicPartition]:
    """Returns the partitions of ``topics``, or of all topics."""
    names = topics or tuple(topic.name for topic in admin.list_topics(include_internal=True))
    described = admin.describe_topics(names)
    return [TopicPartition(name, one.partition) for name in names for one in described[name].partitions]
