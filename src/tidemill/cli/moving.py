"""Moves on their way: begun, followed to their end with a bar, and what is left to do then."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from tidemill.cli import throttles
from tidemill.cli.manner import Manner
from tidemill.cli.moves import Plan, Sizes, assignment, copied_bytes, print_plan, racks_of, replica_sizes
from tidemill.cli.output import bytes_bar, counted, done, on_terminal
from tidemill.model.errors import ErrorCode
from tidemill.model.types import TopicPartition

if TYPE_CHECKING:
    from tidemill.client import Admin, ClientError

PAUSE_S, PAUSE_MAX_S = 0.1, 1.0
ARRIVED_S = 3.0
"""How long a broker may take to learn that a move has ended."""
FAILED = 1
NAMED_MAX = 10
"""Partitions that are named, of those that could not be moved."""


def carry_out(admin: Admin, plan: Plan, current: Plan, manner: Manner) -> int:
    """Begins the moves of ``plan``, and goes with them to their end if ``manner`` says so; the exit code.

    At the end throttles are lifted, and preferred replicas lead.
    """
    if manner.throttle is not None:
        throttles.limit(admin, plan, current, manner.throttle)
    outcomes = admin.alter_reassignments(plan)
    begun = {item: replicas for item, replicas in plan.items() if outcomes.get(item) is None}
    code = tell({item: problem for item, problem in outcomes.items() if problem is not None})
    if begun:
        _warn_of_lost(admin, begun)
    if begun and manner.wait:
        began = time.monotonic()
        left = follow(admin, begun, current, manner.timeout_s)
        if left:
            click.echo(
                f"tidemill: {counted(len(left), 'partition')} still on the way after {manner.timeout_s:g} s: "
                "'tidemill reassign list' shows them",
                err=True,
            )
            return FAILED
        elect_preferred(admin, begun)
        done(f"moved {counted(len(begun), 'partition')} in {time.monotonic() - began:.1f} s")
        code = check_arrived(admin, begun) or code
    elif begun:
        _tell_begun(len(begun), len(admin.list_reassignments(begun)))
    if manner.throttle is not None and (manner.wait or not begun):
        throttles.lift(admin, {item.topic for item in plan})
    return code


def _warn_of_lost(admin: Admin, plan: Plan) -> None:
    """Says of which partitions nobody who lives has the records: these move when such a broker is back."""
    topics = admin.describe_topics(sorted({item.topic for item in plan}))
    leaderless = {
        TopicPartition(name, one.partition)
        for name, topic in topics.items()
        for one in topic.partitions
        if one.leader < 0
    }
    lost = sorted(leaderless & plan.keys())
    if lost:
        named = ", ".join(map(str, lost[:NAMED_MAX]))
        more = f" and {len(lost) - NAMED_MAX} more" if len(lost) > NAMED_MAX else ""
        click.echo(
            f"tidemill: nobody leads {named}{more}: what has no replica that lives and is in sync moves once "
            "a broker that has its records is back ('tidemill topic describe' names them)",
            err=True,
        )


def _tell_begun(wanted: int, moving: int) -> None:
    there = f"{counted(wanted - moving, 'partition')} as planned already" if moving < wanted else ""
    way = f"{counted(moving, 'partition')} on the way: 'tidemill reassign list' shows how far they are"
    done("; ".join(part for part in (there, way if moving else "") if part))


def change_factor(admin: Admin, topic: str, factor: int, manner: Manner, *, dry_run: bool = False) -> int:
    """Gives every partition of a topic ``factor`` replicas, or with ``dry_run`` says how; the exit code."""
    import random

    from tidemill.controller import balance

    current = assignment(admin, [topic])
    plan = balance.change_factor(current, racks_of(admin), factor, random.Random())
    copies = counted(factor, "replica")
    if not plan:
        done(f"{topic}: every partition has {copies} already")
        return 0
    if dry_run:
        print_plan(admin, plan, current)
        return 0
    code = carry_out(admin, plan, current, manner)
    if not code and manner.wait:
        done(f"{topic}: every partition has {copies}")
    return code


def tell(problems: Mapping[TopicPartition, object]) -> int:
    """Says what went wrong, of some partitions; the exit code."""
    for problem in list(problems.values())[:NAMED_MAX]:
        click.echo(f"tidemill: {problem}", err=True)
    if len(problems) > NAMED_MAX:
        click.echo(f"tidemill: and {len(problems) - NAMED_MAX} other partitions", err=True)
    return FAILED if problems else 0


def follow(admin: Admin, plan: Plan, current: Plan, timeout_s: float | None) -> set[TopicPartition]:
    """Waits until nothing of ``plan`` moves any more; what still does after ``timeout_s``."""
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    pause = PAUSE_S
    try:
        with _bar(admin, plan, current) as told:
            while True:
                left = set(admin.list_reassignments(plan))
                told(left)
                if not left or (deadline is not None and time.monotonic() + pause > deadline):
                    return left
                time.sleep(pause)
                pause = min(1.5 * pause, PAUSE_MAX_S)
    except KeyboardInterrupt:
        click.echo(
            "tidemill: the moves go on; 'tidemill reassign list' shows them, and 'tidemill reassign cancel "
            "--all' stops them and lifts throttles, also once they have ended",
            err=True,
        )
        raise


@contextmanager
def _bar(admin: Admin, plan: Plan, current: Plan) -> Iterator[Callable[[set[TopicPartition]], None]]:
    """A bar on stderr, where a person looks on; gives what is to be told which partitions are left."""
    if not on_terminal():
        yield lambda left: None
        return
    total = copied_bytes(plan, current, replica_sizes(admin)).total()
    with bytes_bar("moving", "{task.fields[parts]} of " + counted(len(plan), "partition")) as bar:
        task = bar.add_task("moving", total=max(total, 1), parts=0)

        def told(left: set[TopicPartition]) -> None:
            copied = _copied(plan, current, left, replica_sizes(admin)) if left else total
            bar.update(task, completed=min(copied, total), parts=len(plan) - len(left))

        yield told


def _copied(plan: Plan, current: Plan, left: set[TopicPartition], sizes: Sizes) -> int:
    """Bytes that are where they shall be."""
    copied = 0
    for item, replicas in plan.items():
        held = sizes.get(item, {})
        whole = max(held.values(), default=0)
        new = [broker for broker in replicas if broker not in current.get(item, ())]
        copied += sum(min(held.get(broker, 0), whole) if item in left else whole for broker in new)
    return copied


def elect_preferred(admin: Admin, partitions: Plan | None) -> dict[TopicPartition, ClientError]:
    """Has preferred replicas lead, of these partitions or of all; why some do not."""
    found = admin.elect_leaders(partitions)
    return {
        item: problem
        for item, problem in found.items()
        if problem is not None and problem.code != ErrorCode.ELECTION_NOT_NEEDED
    }


def check_arrived(admin: Admin, plan: Plan) -> int:
    """Names the partitions that another change keeps from their planned replicas; the exit code.

    A broker may learn the new replicas after the controller lists the move no more: it has ``ARRIVED_S``.
    """
    deadline = time.monotonic() + ARRIVED_S
    topics = sorted({item.topic for item in plan})
    now = assignment(admin, topics)
    while any(now.get(item) != replicas for item, replicas in plan.items()) and time.monotonic() < deadline:
        now = assignment(admin, topics)
    return tell(
        {
            item: f"{item} is on {now.get(item)}, and not on {replicas}: another change came between; "
            "look at 'tidemill topic describe', and try again"
            for item, replicas in plan.items()
            if now.get(item) != replicas
        }
    )
