"""Executes moves: starts them, waits for their end with a progress bar, and cleans up."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from tidemill.cli import throttles
from tidemill.cli.output import FAILED, bytes_bar, counted, done, first_of, on_terminal, report_failures
from tidemill.cli.reassignment_options import ReassignmentOptions
from tidemill.cli.reassignment_plans import (
    Plan,
    Sizes,
    assignment,
    copied_bytes,
    print_plan,
    racks_of,
    replica_sizes,
)
from tidemill.model.errors import ErrorCode
from tidemill.model.types import TopicPartition

if TYPE_CHECKING:
    from tidemill.client import Admin, ClientError

PAUSE_S, PAUSE_MAX_S = 0.1, 1.0
ARRIVED_S = 3.0
"""How long a broker may take to learn that a move has ended."""
NAMED_MAX = 10
"""Largest number of partitions named of those that could not be moved."""


def execute_plan(admin: Admin, plan: Plan, current: Plan, move_options: ReassignmentOptions) -> int:
    """Starts the moves of ``plan``, and waits for their end if the options say so. Returns the exit code.

    At the end throttles are removed, and preferred leaders elected.
    """
    if move_options.throttle is not None:
        throttles.set_throttles(admin, plan, current, move_options.throttle)
    outcomes = admin.alter_reassignments(plan)
    started = {item: replicas for item, replicas in plan.items() if outcomes.get(item) is None}
    code = report_problems({item: problem for item, problem in outcomes.items() if problem is not None})
    if started:
        _warn_leaderless(admin, started)
    if started and move_options.wait:
        began = time.monotonic()
        left = await_moves(admin, started, current, move_options.timeout_s)
        if left:
            click.echo(
                f"tidemill: {counted(len(left), 'partition')} still moving after {move_options.timeout_s:g} "
                "s: 'tidemill reassign list' shows them",
                err=True,
            )
            return FAILED
        elect_preferred(admin, started)
        done(f"reassigned {counted(len(started), 'partition')} in {time.monotonic() - began:.1f} s")
        code = check_arrived(admin, started) or code
    elif started:
        _print_started(len(started), len(admin.list_reassignments(started)))
    if move_options.throttle is not None and (move_options.wait or not started):
        throttles.remove_throttles(admin, {item.topic for item in plan})
    return code


def _warn_leaderless(admin: Admin, plan: Plan) -> None:
    """Warns of partitions without a leader: they move once a broker with their records is back."""
    topics = admin.describe_topics(sorted({item.topic for item in plan}))
    leaderless = {
        TopicPartition(name, partition.partition)
        for name, topic in topics.items()
        for partition in topic.partitions
        if partition.leader < 0
    }
    lost = sorted(leaderless & plan.keys())
    if lost:
        click.echo(
            f"tidemill: no leader for {first_of(lost, NAMED_MAX)}: a partition without a live in-sync "
            "replica moves once a broker that has its records is back ('tidemill topic describe' shows the "
            "brokers)",
            err=True,
        )


def _print_started(wanted: int, moving: int) -> None:
    there = f"{counted(wanted - moving, 'partition')} as planned already" if moving < wanted else ""
    way = f"{counted(moving, 'partition')} moving: 'tidemill reassign list' shows the progress"
    done("; ".join(part for part in (there, way if moving else "") if part))


def change_factor(
    admin: Admin, topic: str, factor: int, move_options: ReassignmentOptions, *, dry_run: bool = False
) -> int:
    """Gives each partition of a topic ``factor`` replicas, or with ``dry_run`` prints the plan; exit code."""
    import random

    from tidemill.controller import reassignment_planner

    current = assignment(admin, [topic])
    plan = reassignment_planner.change_factor(current, racks_of(admin), factor, random.Random())
    copies = counted(factor, "replica")
    if not plan:
        done(f"{topic}: every partition already has {copies}")
        return 0
    if dry_run:
        print_plan(admin, plan, current)
        return 0
    code = execute_plan(admin, plan, current, move_options)
    if not code and move_options.wait:
        done(f"{topic}: every partition has {copies}")
    return code


def report_problems(problems: Mapping[TopicPartition, object]) -> int:
    """Prints the errors of partitions. Returns the exit code."""
    code = report_failures(list(problems.values())[:NAMED_MAX])
    if len(problems) > NAMED_MAX:
        click.echo(f"tidemill: and {len(problems) - NAMED_MAX} other partitions", err=True)
    return code


def await_moves(admin: Admin, plan: Plan, current: Plan, timeout_s: float | None) -> set[TopicPartition]:
    """Waits until no partition of ``plan`` moves. Returns those that still move after ``timeout_s``."""
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    pause = PAUSE_S
    try:
        with _bar(admin, plan, current) as update:
            while True:
                left = set(admin.list_reassignments(plan))
                update(left)
                if not left or (deadline is not None and time.monotonic() + pause > deadline):
                    return left
                time.sleep(pause)
                pause = min(1.5 * pause, PAUSE_MAX_S)
    except KeyboardInterrupt:
        click.echo(
            "tidemill: the moves continue; 'tidemill reassign list' shows them, and 'tidemill reassign "
            "cancel --all' cancels them and removes throttles, also after the moves have ended",
            err=True,
        )
        raise


@contextmanager
def _bar(admin: Admin, plan: Plan, current: Plan) -> Iterator[Callable[[set[TopicPartition]], None]]:
    """Yields a function that updates a bar on stderr, on a terminal, from the partitions still moving."""
    if not on_terminal():
        yield lambda left: None
        return
    total = copied_bytes(plan, current, replica_sizes(admin)).total()
    with bytes_bar("moving", "{task.fields[parts]} of " + counted(len(plan), "partition")) as bar:
        task = bar.add_task("moving", total=max(total, 1), parts=0)

        def update(left: set[TopicPartition]) -> None:
            copied = _copied(plan, current, left, replica_sizes(admin)) if left else total
            bar.update(task, completed=min(copied, total), parts=len(plan) - len(left))

        yield update


def _copied(plan: Plan, current: Plan, left: set[TopicPartition], sizes: Sizes) -> int:
    """Returns the bytes that have arrived at their target brokers."""
    copied = 0
    for item, replicas in plan.items():
        held = sizes.get(item, {})
        whole = max(held.values(), default=0)
        new = [broker for broker in replicas if broker not in current.get(item, ())]
        copied += sum(min(held.get(broker, 0), whole) if item in left else whole for broker in new)
    return copied


def elect_preferred(admin: Admin, partitions: Plan | None) -> dict[TopicPartition, ClientError]:
    """Elects preferred leaders, of these partitions or of all. Returns the failures."""
    found = admin.elect_leaders(partitions)
    return {
        item: problem
        for item, problem in found.items()
        if problem is not None and problem.code != ErrorCode.ELECTION_NOT_NEEDED
    }


def check_arrived(admin: Admin, plan: Plan) -> int:
    """Reports partitions whose replicas differ from the plan because of another change; the exit code.

    A broker may learn the new replicas after the controller has removed the move: it has ``ARRIVED_S``.
    """
    deadline = time.monotonic() + ARRIVED_S
    topics = sorted({item.topic for item in plan})
    now = assignment(admin, topics)
    while any(now.get(item) != replicas for item, replicas in plan.items()) and time.monotonic() < deadline:
        now = assignment(admin, topics)
    return report_problems(
        {
            item: f"{item} is on {now.get(item)}, and not on {replicas}: another change interfered; "
            "check 'tidemill topic describe', and try again"
            for item, replicas in plan.items()
            if now.get(item) != replicas
        }
    )
