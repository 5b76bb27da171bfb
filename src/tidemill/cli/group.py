"""``tidemill group``: shows consumer groups, their lag and their offsets, and changes their offsets."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from tidemill.cli import name_completion
from tidemill.cli.options import Moment, Target, WholeNumber, target_options
from tidemill.cli.output import (
    count_text,
    done,
    fits,
    json_option,
    on_terminal,
    print_json,
    print_table,
    report_failures,
    require_yes,
    yes_option,
)
from tidemill.client.errors import ClientError
from tidemill.model.types import TopicPartition

if TYPE_CHECKING:
    from tidemill.client.admin_types import GroupDescription, PartitionLag


STATES = (
    *("Empty", "Stable", "PreparingRebalance", "CompletingRebalance", "Dead"),
    *("Assigning", "Reconciling", "NotReady", "Unknown"),
)
"""Names of the states of groups, as brokers use them; the last ones are of newer kinds of groups."""


@click.group("group")
def command() -> None:
    """List, describe, reset and delete consumer groups."""


@command.command(
    "list", epilog="\b\nExamples:\n  tidemill group list\n  tidemill group list --state Empty --json"
)
@click.option(
    "--state",
    "states",
    multiple=True,
    type=click.Choice(STATES, case_sensitive=False),
    metavar="STATE",
    help="List only groups in this state, as Stable or Empty; can be repeated.",
)
@json_option
@target_options
def list_(states: tuple[str, ...], as_json: bool, target: Target) -> None:
    """List consumer groups."""
    with target.admin() as admin:
        groups = admin.list_groups(states=states)
    if as_json:
        print_json([group._asdict() for group in groups])
        return
    rows = [[g.group_id, g.state, g.protocol_type, g.type, g.coordinator] for g in groups]
    print_table(
        ["group", "state", "protocol", "type", "coordinator"], rows, right=["coordinator"], empty="no groups"
    )


@command.command(
    "describe",
    epilog="""\b
Examples:
  tidemill group describe readers
  tidemill group describe readers --members
  tidemill group describe readers --json | jq '.[].lag'""",
)
@click.argument("names", nargs=-1, required=True, shell_complete=name_completion.groups)
@click.option(
    "--members", "by_member", is_flag=True, help="Print a row per member instead of a row per partition."
)
@json_option
@target_options
def describe(names: tuple[str, ...], by_member: bool, as_json: bool, target: Target) -> int:
    """Show state, members and lag of groups. Exit code 1 when a group could not be described."""
    found = []
    missing: list[ClientError] = []
    with target.admin() as admin:
        for name in names:
            try:
                found.append((admin.describe_group(name), admin.group_lag(name)))
            except ClientError as problem:
                missing.append(problem)
    if as_json:
        print_json([as_object(group, lags) for group, lags in found])
    else:
        for group, lags in found:
            _print_group(group, lags, by_member)
    return report_failures(missing)


def as_object(group: GroupDescription, lags: list[PartitionLag]) -> dict[str, Any]:
    """Returns a group as JSON output shows it."""
    return {
        "group": group.group_id,
        "state": group.state,
        "protocol_type": group.protocol_type,
        "assignor": group.assignor,
        "coordinator": group.coordinator,
        "lag": sum(row.lag or 0 for row in lags),
        "members": [
            {**member._asdict(), "partitions": [str(item) for item in member.partitions]}
            for member in group.members
        ],
        "partitions": [row._asdict() for row in lags],
    }


def _print_group(group: GroupDescription, lags: list[PartitionLag], by_member: bool) -> None:
    terminal = on_terminal()
    number = count_text if terminal else str
    total = sum(row.lag or 0 for row in lags)
    if terminal:
        count = len(group.members)
        assignor = f", {group.assignor}" if group.assignor else ""
        click.echo(
            f"{click.style(group.group_id, bold=True)}  {group.state}{assignor}, "
            f"{count} {'member' if count == 1 else 'members'}, lag {count_text(total)}"
        )
    names = {member.member_id: member.instance_id or member.member_id for member in group.members}
    if by_member:
        lag_of: dict[str, int] = {}
        for row in lags:
            lag_of[row.member_id] = lag_of.get(row.member_id, 0) + (row.lag or 0)
        rows: list[list[Any]] = [
            [
                names[member.member_id],
                member.client_id,
                member.host,
                len(member.partitions),
                number(lag_of.get(member.member_id, 0)),
                " ".join(map(str, member.partitions)),
            ]
            for member in group.members
        ]
        columns = ["member", "client", "host", "partitions", "lag", "reads"]
        right = ["partitions", "lag"]
        empty = "no members"
    else:
        rows = [
            [
                row.topic,
                row.partition,
                "-" if row.committed is None else row.committed,
                "-" if row.start is None else row.start,
                "-" if row.end is None else row.end,
                "-" if row.lag is None else number(row.lag),
                names.get(row.member_id, "-"),
                row.host or "-",
            ]
            for row in lags
        ]
        columns = ["topic", "partition", "committed", "start", "end", "lag", "member", "host"]
        right = ["partition", "committed", "start", "end", "lag"]
        empty = "no committed offsets, and no partition is read"
    if not terminal:
        columns = ["group", *columns]
        rows = [[group.group_id, *row] for row in rows]
    if by_member or not terminal or fits(columns, rows):
        print_table(columns, rows, right=right, empty=empty)
        return
    # The names of members are long: the table shows numbers, and a second table maps them to names.
    hosts = {row.member_id: row.host or "" for row in lags if row.member_id in names}
    numbers = {member_id: str(number) for number, member_id in enumerate(sorted(hosts), 1)}
    short = [[*row[:6], numbers.get(lag.member_id, "-")] for row, lag in zip(rows, lags, strict=True)]
    print_table(columns[:-1], short, right=right)
    if numbers:
        click.echo()
        whose = [[number, names[member_id], hosts[member_id]] for member_id, number in numbers.items()]
        print_table(["member", "name", "host"], whose)


@command.command(
    "reset",
    epilog="""\b
Examples:
  tidemill group reset readers --to earliest -t hello --dry-run
  tidemill group reset readers --to-time 2026-03-01T12:00
  tidemill group reset readers --shift-by -100 -t hello:0
  tidemill group reset readers --to-offset 42 -t hello:1

Without --topic all partitions with a committed offset are reset. The group must have no members.""",
)
@click.argument("name", shell_complete=name_completion.groups)
@click.option(
    "-t",
    "--topic",
    "topics",
    multiple=True,
    metavar="TOPIC[:PARTITION]",
    help="Reset only this topic or partition; can be repeated.",
    shell_complete=name_completion.topics,
)
@click.option(
    "--to", type=click.Choice(["earliest", "latest"]), help="Reset to the log start or to the log end."
)
@click.option("--to-offset", type=WholeNumber(min=0), metavar="N", help="Reset to this offset.")
@click.option("--to-time", type=Moment(), metavar="TIME", help="Reset to the first message at or after TIME.")
@click.option("--shift-by", type=int, metavar="N", help="Move forward by N messages, or back when negative.")
@click.option("--dry-run", is_flag=True, help="Show the changes, but do not apply them.")
@json_option
@target_options
def reset(
    name: str,
    topics: tuple[str, ...],
    to: str | None,
    to_offset: int | None,
    to_time: int | None,
    shift_by: int | None,
    dry_run: bool,
    as_json: bool,
    target: Target,
) -> None:
    """Reset the committed offsets of a group."""
    given = [way for way in (to, to_offset, to_time, shift_by) if way is not None]
    if len(given) != 1:
        raise click.UsageError("give exactly one of --to, --to-offset, --to-time and --shift-by")

    whole, single = _parse_partitions(topics)
    where: str | int = to if to is not None else to_offset if to_offset is not None else "earliest"
    with target.admin() as admin:
        plan = admin.reset_group_offsets(
            name,
            whole or None,
            to=where,
            timestamp_ms=to_time,
            shift_by=shift_by,
            partitions=single or None,
            dry_run=dry_run,
        )
    if as_json:
        print_json(
            [
                {
                    "topic": item.topic,
                    "partition": item.partition,
                    "from": old,
                    "to": new,
                    "done": not dry_run,
                }
                for item, (old, new) in plan.items()
            ]
        )
        return
    if not plan:
        raise click.ClickException(f"group {name!r} has no committed offsets: name topics with --topic")
    rows = [
        [item.topic, item.partition, "-" if old is None else old, new] for item, (old, new) in plan.items()
    ]
    print_table(["topic", "partition", "from", "to"], rows, right=["partition", "from", "to"])
    if dry_run and on_terminal():
        click.secho("Nothing was changed; leave --dry-run out to apply it.", dim=True)


def _parse_partitions(texts: tuple[str, ...]) -> tuple[list[str], list[TopicPartition]]:
    whole, single = [], []
    for text in texts:
        topic, colon, partition = text.rpartition(":")
        if not colon:
            whole.append(text)
        elif topic and partition.isascii() and partition.isdigit():
            single.append(TopicPartition(topic, int(partition)))
        else:
            raise click.UsageError(f"--topic {text}: it must be TOPIC or TOPIC:PARTITION")
    return whole, single


@command.command("delete")
@click.argument("names", nargs=-1, required=True, shell_complete=name_completion.groups)
@yes_option
@target_options
def delete(names: tuple[str, ...], yes: bool, target: Target) -> int:
    """Delete groups without members, and their offsets. Asks for confirmation on a terminal."""
    require_yes(f"Delete {', '.join(names)} and the committed offsets?", yes)
    failures = []
    with target.admin() as admin:
        for name in names:
            try:
                admin.delete_group(name)
            except ClientError as problem:
                failures.append(problem)
            else:
                done(f"deleted {name}")
    return report_failures(failures)
