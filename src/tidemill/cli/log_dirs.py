"""``tidemill broker dirs`` and ``move``: data directories of brokers, and moves between them."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from tidemill.cli import name_completion
from tidemill.cli.options import Duration, Target, TextType, WholeNumber, target_options
from tidemill.cli.output import (
    FAILED,
    bytes_bar,
    bytes_text,
    counted,
    done,
    json_option,
    on_terminal,
    print_json,
    print_table,
)
from tidemill.model.types import TopicPartition

if TYPE_CHECKING:
    from tidemill.client import Admin
    from tidemill.client.admin_types import LogDirectory

PAUSE_S, PAUSE_MAX_S = 0.05, 1.0
Directories = Mapping[int, "list[LogDirectory]"]


class Replica(TextType):
    """A partition in the form of its directory name: ``TOPIC-PARTITION``."""

    name = "topic-partition"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if isinstance(value, TopicPartition):
            return value
        topic, dash, number = str(value).rpartition("-")
        if not (topic and dash and number.isascii() and number.isdigit() and len(number) <= 10):
            self.fail(f"{value!r} is not a partition: write TOPIC-PARTITION, as orders-0", param, ctx)
        return TopicPartition(topic, int(number))


class ReplicaLocation(NamedTuple):
    """Directory and bytes of a replica, and those of its copy while it moves to another directory."""

    path: str
    size: int
    copy_path: str | None = None
    copy_size: int = 0


@click.command(
    "dirs",
    epilog="""\b
Examples:
  tidemill broker dirs
  tidemill broker dirs 1 --json | jq '.[] | select(.error)'

Exit code 1 when a directory is offline.""",
)
@click.argument(
    "brokers", metavar="[BROKER...]", nargs=-1, type=WholeNumber(0), shell_complete=name_completion.broker_ids
)
@json_option
@target_options
def dirs(brokers: tuple[int, ...], as_json: bool, target: Target) -> int:
    """List data directories: partitions, sizes, space, failures."""
    with target.admin() as admin:
        found = admin.describe_log_dirs(_known(admin, brokers) if brokers else None)
    rows = [_document(broker, directory) for broker, listed in found.items() for directory in listed]
    code = FAILED if any(row["error"] for row in rows) else 0
    if as_json:
        print_json(rows)
        return code
    show = bytes_text if on_terminal() else str
    print_table(
        ["broker", "directory", "partitions", "size", "free", "total", "arriving", "state"],
        [
            [
                row["broker"],
                row["directory"],
                row["partitions"],
                show(row["size_bytes"]),
                "" if row["free_bytes"] is None else show(row["free_bytes"]),
                "" if row["total_bytes"] is None else show(row["total_bytes"]),
                row["arriving"] or "",
                "ok" if row["error"] is None else f"offline ({row['error']})",
            ]
            for row in rows
        ],
        right=["broker", "partitions", "size", "free", "total", "arriving"],
    )
    return code


def _document(broker: int, directory: LogDirectory) -> dict[str, Any]:
    settled = [replica for replica in directory.replicas if not replica.future]
    return {
        "broker": broker,
        "directory": directory.path,
        "partitions": len(settled),
        "size_bytes": sum(replica.size_bytes for replica in directory.replicas),
        "free_bytes": directory.usable_bytes if directory.usable_bytes >= 0 else None,
        "total_bytes": directory.total_bytes if directory.total_bytes >= 0 else None,
        "arriving": len(directory.replicas) - len(settled),
        "error": directory.error,
    }


def _known(admin: Admin, brokers: tuple[int, ...]) -> list[int]:
    living = [broker.broker_id for broker in admin.describe_cluster().brokers]
    for broker in brokers:
        if broker not in living:
            raise click.ClickException(
                f"there is no broker {broker}; there are {', '.join(map(str, living))}"
            )
    return list(dict.fromkeys(brokers))


@click.command(
    "move",
    epilog="""\b
Examples:
  tidemill broker move orders-0 --to /disk/b
  tidemill broker move orders-0 orders-1 --to /disk/b --broker 2 --no-wait

Partitions stay readable and writable during the move. Moves between brokers: tidemill reassign, topic
alter.""",
)
@click.argument("partitions", metavar="TOPIC-PARTITION...", nargs=-1, required=True, type=Replica())
@click.option("--to", "path", required=True, metavar="DIR", help="Target data directory of the broker.")
@click.option("--broker", type=WholeNumber(0), help="Broker of the replicas.  [the broker that has DIR]")
@click.option("--wait/--no-wait", default=True, show_default=True, help="Wait until all moves are complete.")
@click.option("--timeout", "timeout_s", type=Duration(), help="Stop waiting after this time; moves continue.")
@json_option
@target_options
def move(
    partitions: tuple[TopicPartition, ...],
    path: str,
    broker: int | None,
    wait: bool,
    timeout_s: float | None,
    as_json: bool,
    target: Target,
) -> int:
    """Move replicas of one broker to another of its data directories.

    Exit code 1 when a replica could not be moved, or did not arrive before --timeout.
    """
    with target.admin() as admin:
        found = admin.describe_log_dirs(_known(admin, (broker,)) if broker is not None else None)
        number, path = _target(found, path)
        locations = _locations(found[number])
        for item in partitions:
            if item not in locations:
                raise click.ClickException(
                    f"broker {number} has no replica of {item}; 'tidemill topic describe {item.topic}' shows "
                    "the brokers that have one"
                )
        outcomes = admin.alter_replica_log_dirs(number, dict.fromkeys(partitions, path))
        for item, problem in outcomes.items():
            if problem is not None:
                click.echo(f"tidemill: {item}: {problem}", err=True)
        begun = [item for item in dict.fromkeys(partitions) if outcomes.get(item) is None]
        left = _await_moves(admin, number, begun, path, timeout_s) if wait else begun
    if as_json:
        moved = [str(item) for item in begun if item not in left]
        document = {"broker": number, "directory": path, "moved": moved}
        print_json({**document, "on_the_way": [str(item) for item in left]})
    elif len(left) < len(begun):
        done(f"moved {counted(len(begun) - len(left), 'partition')} to {path} of broker {number}")
    if left and not as_json:
        click.echo(
            f"{counted(len(left), 'partition')} still moving: 'tidemill broker dirs {number}' shows the "
            "progress",
            err=wait,
        )
    return FAILED if len(begun) < len(outcomes) or (wait and left) else 0


def _target(found: Directories, path: str) -> tuple[int, str]:
    """Returns the broker and the path of the target directory."""
    wanted = {path, path.rstrip("/") or "/", os.path.abspath(path)}
    at = [
        (broker, directory)
        for broker, listed in found.items()
        for directory in listed
        if directory.path in wanted
    ]
    if not at:
        there = ", ".join(
            f"{directory.path} ({broker})" for broker, listed in found.items() for directory in listed
        )
        raise click.ClickException(f"--to {path} is not a data directory; there are (with broker) {there}")
    if len(at) > 1:
        ids = ", ".join(str(broker) for broker, _ in at)
        raise click.UsageError(f"brokers {ids} have a directory {path}: name one with --broker")
    ((broker, directory),) = at
    if directory.error is not None:
        raise click.ClickException(f"{directory.path} of broker {broker} is offline: {directory.error}")
    return broker, directory.path


def _locations(listed: list[LogDirectory]) -> dict[TopicPartition, ReplicaLocation]:
    found: dict[TopicPartition, ReplicaLocation] = {}
    copies: dict[TopicPartition, tuple[str, int]] = {}
    for directory in listed:
        for replica in directory.replicas:
            item = TopicPartition(replica.topic, replica.partition)
            if replica.future:
                copies[item] = (directory.path, replica.size_bytes)
            else:
                found[item] = ReplicaLocation(directory.path, replica.size_bytes)
    return {
        item: at._replace(copy_path=c[0], copy_size=c[1]) if (c := copies.get(item)) else at
        for item, at in found.items()
    }


def _await_moves(
    admin: Admin, broker: int, items: list[TopicPartition], path: str, timeout_s: float | None
) -> list[TopicPartition]:
    """Waits until the replicas are in the directory. Returns those that are not after ``timeout_s``."""
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    pause = PAUSE_S
    with _bar() as show:
        while items:
            locations = _locations(admin.describe_log_dirs([broker])[broker])
            left = [item for item in items if item not in locations or locations[item].path != path]
            gone = [item for item in left if item in locations and locations[item].copy_path is None]
            for item in gone:
                # The copy may have replaced the replica between two requests; otherwise the move was
                # abandoned.
                if _locations(admin.describe_log_dirs([broker])[broker])[item].path != path:
                    raise click.ClickException(
                        f"the move of {item} was abandoned; the log of broker {broker} has the reason"
                    )
            whole = sum(locations[item].size for item in items if item in locations)
            arrived = sum(
                locations[item].copy_size if item in left else locations[item].size
                for item in items
                if item in locations
            )
            show(min(arrived, whole), whole)
            if not left or (deadline is not None and time.monotonic() >= deadline):
                return left
            time.sleep(pause)
            pause = min(2 * pause, PAUSE_MAX_S)
    return []


@contextmanager
def _bar() -> Iterator[Any]:
    """Yields a function that updates a bar of bytes, on a terminal, from arrived and total bytes."""
    if not on_terminal():
        yield lambda arrived, whole: None
        return
    with bytes_bar("moving") as bar:
        task = bar.add_task("moving", total=None)
        yield lambda arrived, whole: bar.update(task, completed=arrived, total=whole)
