"""``tidemill reassign``: the functions of Kafka's reassignment tool, with its file formats."""

from __future__ import annotations

import random
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tidemill.cli import name_completion, throttles
from tidemill.cli.cluster_options import cluster_options
from tidemill.cli.options import Duration, JsonFile, Target, TextType
from tidemill.cli.output import (
    FAILED,
    bytes_text,
    counted,
    done,
    json_option,
    on_terminal,
    print_json,
    print_table,
    require_yes,
    yes_option,
)
from tidemill.cli.reassignment_options import ReassignmentOptions, add_move_options
from tidemill.cli.reassignment_plans import (
    Plan,
    TargetDirectories,
    assignment,
    copied_bytes,
    racks_of,
    read_plan,
    read_topics,
    replica_sizes,
    text,
)
from tidemill.cli.reassignment_progress import await_moves, elect_preferred, execute_plan, report_problems
from tidemill.model.errors import ErrorCode
from tidemill.model.types import TopicPartition

if TYPE_CHECKING:
    from tidemill.client import Admin

DONE, MOVING, ELSEWHERE, OTHERWISE, MISSING = (
    "done",
    "moving",
    "moving elsewhere",
    "not as planned",
    "missing",
)
"""States of a partition of a plan."""


current_option = click.option(
    "--current",
    metavar="FILE",
    type=click.Path(dir_okay=False),
    help="Write the current assignment, to roll back.",
)
plan_argument = click.argument("plan", metavar="FILE", type=JsonFile("a plan"))


class BrokerIds(TextType):
    """A list of broker ids, as ``1,2,3``."""

    name = "broker ids"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not re.fullmatch(r"\d{1,9}(,\d{1,9})*", str(value)):
            self.fail(f"{value!r} is not a list of broker ids: give it as 1,2,3", param, ctx)
        return str(value)


@click.group("reassign")
def command() -> None:
    """Move partitions between brokers, with plans in the JSON format of Kafka's tools.

    \b
    tidemill reassign generate -t orders --brokers 2,3,4 > plan.json
    tidemill reassign execute plan.json --throttle 50000000
    tidemill reassign verify plan.json

    'tidemill cluster rebalance', 'cluster decommission' and 'topic alter --replication-factor' create
    their plans themselves.
    """


@command.command(
    "generate",
    epilog="""\b
Examples:
  tidemill reassign generate -t orders -t payments --brokers 2,3,4 > plan.json
  tidemill reassign generate topics.json --current before.json > plan.json

FILE names topics in the format of Kafka's tool: {"version": 1, "topics": [{"topic": "orders"}]}. The plan
places partitions as if their topics were new; 'tidemill cluster rebalance --json' moves less data.""",
)
@click.argument("topics_file", metavar="[FILE]", required=False, type=JsonFile("a file of topics"))
@click.option(
    "-t",
    "--topic",
    "topics",
    multiple=True,
    help="A topic to place; can be repeated.",
    shell_complete=name_completion.topics,
)
@click.option(
    "--brokers", type=BrokerIds(), metavar="ID,ID", help="Brokers to place them on.  [all live brokers]"
)
@click.option("--no-racks", is_flag=True, help="Ignore racks.")
@current_option
@cluster_options
def generate(
    topics_file: str | None,
    topics: tuple[str, ...],
    brokers: str | None,
    no_racks: bool,
    current: str | None,
    target: Target,
) -> None:
    """Print a plan with a new placement of topics, as JSON."""
    from tidemill.controller import reassignment_planner

    names = [*topics, *(read_topics(topics_file) if topics_file is not None else ())]
    if not names:
        raise click.UsageError("no topic given: give --topic, or a FILE of topics")
    with target.admin() as admin:
        racks = racks_of(admin)
        if brokers is not None:
            wanted = {int(text) for text in brokers.split(",")}
            if wanted - racks.keys():
                raise click.ClickException(
                    f"--brokers {brokers}: broker {shown(wanted - racks.keys())} is not live; live brokers: "
                    f"{shown(racks)}"
                )
            racks = {broker: racks[broker] for broker in wanted}
        now = assignment(admin, dict.fromkeys(names))
    for item, replicas in now.items():
        if brokers is not None and len(replicas) > len(racks):
            raise click.ClickException(
                f"--brokers {brokers}: {item.topic}-{item.partition} has {len(replicas)} replicas, each on a "
                "different broker: name as many brokers, or reduce its replicas first ('tidemill topic "
                f"alter {item.topic} --replication-factor {len(racks)}')"
            )
    if no_racks:
        racks = dict.fromkeys(racks)
    plan = reassignment_planner.generate(now, racks, random.Random())
    if current is not None:
        Path(current).write_text(text(now) + "\n", encoding="utf-8")
    click.echo(text(plan))
    if not plan:
        click.echo("tidemill: nothing has to move", err=True)


def shown(brokers: Any) -> str:
    """Formats broker ids as ``1, 2, 3``."""
    return ", ".join(map(str, sorted(brokers)))


@command.command(
    "execute",
    epilog="""\b
Examples:
  tidemill reassign execute plan.json --throttle 50000000
  tidemill reassign execute plan.json --wait
  tidemill reassign execute - --current before.json < plan.json""",
)
@plan_argument
@click.option("--additional", is_flag=True, help="Add these moves to others in progress.")
@current_option
@add_move_options(wait=False)
@cluster_options
def execute(
    plan: str,
    additional: bool,
    current: str | None,
    move_options: ReassignmentOptions,
    target: Target,
) -> int:
    """Start the moves of the plan in FILE.

    With --wait, waits until they are complete. Without it, 'tidemill reassign verify' shows the progress, and
    removes throttles at the end.
    """

    wanted, directories = read_plan(plan)
    with target.admin() as admin:
        moving = admin.list_reassignments()
        if moving and not additional:
            raise click.ClickException(
                f"{counted(len(moving), 'partition')} moving already ('tidemill reassign list'): wait until "
                "the moves are complete, or give --additional"
            )
        now = assignment(admin, sorted({item.topic for item in wanted}))
        if current is not None:
            before = {item: replicas for item, replicas in now.items() if item in wanted}
            Path(current).write_text(text(before) + "\n", encoding="utf-8")
        code = _move_to_directories(admin, directories)
        return execute_plan(admin, wanted, now, move_options) or code


def _move_to_directories(admin: Admin, directories: TargetDirectories) -> int:
    """Sets the target directories of replicas, including replicas to be created. Returns the exit code."""
    problems: dict[TopicPartition, object] = {}
    for broker, paths in sorted(directories.items()):
        # The broker creates a missing replica in that directory.
        problems |= {
            item: problem
            for item, problem in admin.alter_replica_log_dirs(broker, paths).items()
            if problem is not None and problem.code != ErrorCode.REPLICA_NOT_AVAILABLE
        }
    return report_problems(problems)


def _misplaced_replicas(admin: Admin, directories: TargetDirectories) -> dict[TopicPartition, str]:
    """Returns the replicas that are not in their planned directories yet, with their state."""
    found: dict[TopicPartition, str] = {}
    for broker, paths in directories.items():
        (listed,) = admin.describe_log_dirs([broker]).values()
        located: dict[TopicPartition, set[tuple[str, bool]]] = {}
        for directory in listed:
            for replica in directory.replicas:
                item = TopicPartition(replica.topic, replica.partition)
                located.setdefault(item, set()).add((directory.path, replica.future))
        for item, path in paths.items():
            if (path, False) not in located.get(item, set()):
                found[item] = MOVING if (path, True) in located.get(item, set()) else OTHERWISE
    return found


@command.command(
    "verify",
    epilog="""\b
Examples:
  tidemill reassign verify plan.json
  tidemill reassign verify plan.json --wait --json""",
)
@plan_argument
@click.option("--wait", is_flag=True, help="Wait until the moves are complete, with a progress bar.")
@click.option(
    "--timeout", "timeout_s", type=Duration(), metavar="DURATION", help="Stop waiting after this time."
)
@click.option("--keep-throttle", is_flag=True, help="Do not remove throttles.")
@json_option
@cluster_options
def verify(
    plan: str,
    wait: bool,
    timeout_s: float | None,
    keep_throttle: bool,
    as_json: bool,
    target: Target,
) -> int:
    """Show the progress of the plan in FILE. Exit code 1 unless the plan is complete.

    Once none of its moves is in progress, throttles that no other move needs are removed.
    """

    wanted, directories = read_plan(plan)
    with target.admin() as admin:
        if wait:
            await_moves(admin, wanted, assignment(admin, _existing_topics(admin, wanted)), timeout_s)
            elect_preferred(
                admin,
                {item: wanted[item] for item in wanted if item.topic in _existing_topics(admin, wanted)},
            )
        states = _states(admin, wanted)
        if set(states.values()) == {DONE}:
            states.update(_misplaced_replicas(admin, directories))
        are_removed = False
        if not keep_throttle and not {MOVING, ELSEWHERE} & set(states.values()):
            are_removed = throttles.remove_throttles(admin, {item.topic for item in wanted})
    if as_json:
        partitions = [
            {"topic": item.topic, "partition": item.partition, "replicas": wanted[item], "state": state}
            for item, state in sorted(states.items())
        ]
        print_json({"partitions": partitions, "throttles_lifted": are_removed})
    else:
        print_table(
            ["partition", "planned", "state"],
            [[item, ",".join(map(str, wanted[item])), state] for item, state in sorted(states.items())],
        )
        if are_removed:
            done("throttles removed")
    return 0 if set(states.values()) == {DONE} else FAILED


def _existing_topics(admin: Admin, plan: Plan) -> list[str]:
    there = {topic.name for topic in admin.list_topics(include_internal=True)}
    return sorted({item.topic for item in plan} & there)


def _states(admin: Admin, plan: Plan) -> dict[TopicPartition, str]:
    moving = admin.list_reassignments(plan)
    found = admin.describe_topics(_existing_topics(admin, plan))
    now = {
        TopicPartition(name, partition.partition): partition.replicas
        for name, topic in found.items()
        for partition in topic.partitions
    }
    states = {}
    for item, replicas in plan.items():
        if item not in now:
            states[item] = MISSING
        elif item in moving:
            states[item] = MOVING if moving[item].target == replicas else ELSEWHERE
        else:
            states[item] = DONE if now[item] == replicas else OTHERWISE
    return states


@command.command(
    "list",
    epilog="\b\nExamples:\n  tidemill reassign list\n  tidemill reassign list --json | jq length",
)
@json_option
@cluster_options
def list_(as_json: bool, target: Target) -> None:
    """List the partitions that are moving, and the progress of each."""
    with target.admin() as admin:
        moving = admin.list_reassignments()
        sizes = replica_sizes(admin) if moving else {}
    rows: list[dict[str, Any]] = []
    for item, move in sorted(moving.items()):
        held = sizes.get(item, {})
        before = [broker for broker in move.replicas if broker not in move.adding]
        whole = copied_bytes({item: move.replicas}, {item: before}, sizes).total()
        rows.append(
            {
                "topic": item.topic,
                "partition": item.partition,
                "replicas": move.replicas,
                "adding": move.adding,
                "removing": move.removing,
                "copied_bytes": min(sum(held.get(broker, 0) for broker in move.adding), whole),
                "total_bytes": whole,
            }
        )
    if as_json:
        print_json(rows)
        return
    print_table(
        ["topic", "partition", "replicas", "adding", "removing", "copied", "of"],
        [
            [
                *(row["topic"], row["partition"]),
                *(",".join(map(str, row[name])) for name in ("replicas", "adding", "removing")),
                *(
                    bytes_text(row[name]) if on_terminal() else row[name]
                    for name in ("copied_bytes", "total_bytes")
                ),
            ]
            for row in rows
        ],
        right=("partition", "copied", "of"),
        empty="no moves in progress",
    )


@command.command(
    "cancel",
    epilog="\b\nExamples:\n  tidemill reassign cancel plan.json\n  tidemill reassign cancel --all --yes",
)
@click.argument(
    "plan",
    metavar="[FILE]",
    required=False,
    type=JsonFile("a plan"),
)
@click.option("--all", "every", is_flag=True, help="Cancel all moves of the cluster.")
@yes_option
@click.option("--keep-throttle", is_flag=True, help="Do not remove throttles.")
@cluster_options
def cancel(plan: str | None, every: bool, yes: bool, keep_throttle: bool, target: Target) -> int:
    """Cancel the moves of the plan in FILE, or all moves.

    The partitions get their previous replicas again. Moves that are complete are not undone. Throttles that
    no other move needs are removed.
    """

    if (plan is None) != every:
        raise click.UsageError("give either a FILE or --all")
    wanted = read_plan(plan)[0] if plan is not None else None
    with target.admin() as admin:
        moving = admin.list_reassignments(wanted)
        if every and moving:
            require_yes(f"Cancel the moves of {counted(len(moving), 'partition')}?", yes)
        outcomes = admin.alter_reassignments(dict.fromkeys(moving)) if moving else {}
        # Moves that have ended since they were listed need no cancellation.
        outcomes = {
            item: problem
            for item, problem in outcomes.items()
            if problem is None or problem.code != ErrorCode.NO_REASSIGNMENT_IN_PROGRESS
        }
        problems = {item: problem for item, problem in outcomes.items() if problem is not None}
        are_removed = False
        if not keep_throttle:
            # The topics of moves that have ended are not known any more.
            every_topic = (topic.name for topic in admin.list_topics(include_internal=True))
            topics = every_topic if wanted is None else {item.topic for item in wanted}
            are_removed = throttles.remove_throttles(admin, topics)
    done(
        f"cancelled {counted(len(outcomes) - len(problems), 'move')}" if outcomes else "no moves in progress"
    )
    if are_removed:
        done("throttles removed")
    return report_problems(problems)
