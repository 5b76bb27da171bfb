"""``tidemill reassign``: what Kafka's reassignment tool does, with its files."""

from __future__ import annotations

import random
import re
import sys
from typing import TYPE_CHECKING, Any

import click

from tidemill.cli import suggest, throttles
from tidemill.cli.cluster_options import cluster_options
from tidemill.cli.manner import Manner, manner_options
from tidemill.cli.moves import (
    Places,
    Plan,
    assignment,
    copied_bytes,
    racks_of,
    read_placed,
    read_plan,
    read_topics,
    replica_sizes,
    text,
)
from tidemill.cli.moving import carry_out, elect_preferred, follow, tell
from tidemill.cli.options import Duration, JsonFile, Target, TextType
from tidemill.cli.output import (
    bytes_text,
    counted,
    done,
    json_option,
    on_terminal,
    print_json,
    print_table,
    require_yes,
)
from tidemill.model.errors import ErrorCode
from tidemill.model.types import TopicPartition

if TYPE_CHECKING:
    from tidemill.client import Admin

FAILED = 1
DONE, MOVING, ELSEWHERE, OTHERWISE, MISSING = (
    "done",
    "moving",
    "moving elsewhere",
    "not as planned",
    "missing",
)
"""How a partition of a plan can be."""


plan_argument = click.argument("plan", metavar="FILE", type=JsonFile("a plan"))


class BrokerIds(TextType):
    """``1,2,3``."""

    name = "broker ids"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not re.fullmatch(r"\d{1,9}(,\d{1,9})*", str(value)):
            self.fail(f"{value!r} is no list of broker ids: give it as 1,2,3", param, ctx)
        return str(value)


@click.group("reassign")
def command() -> None:
    """Move partitions between brokers, by plans in the JSON of Kafka's tools.

    \b
    tidemill reassign generate -t orders --brokers 2,3,4 > plan.json
    tidemill reassign execute plan.json --throttle 50000000
    tidemill reassign verify plan.json

    'tidemill cluster rebalance', 'cluster decommission' and 'topic alter --replication-factor' make
    their plans themselves.
    """


@command.command(
    "generate",
    epilog="""\b
Examples:
  tidemill reassign generate -t orders -t payments --brokers 2,3,4 > plan.json
  tidemill reassign generate topics.json --current before.json > plan.json

FILE names topics as Kafka's tool reads them: {"version": 1, "topics": [{"topic": "orders"}]}. The plan places
partitions as if their topics were made now; 'tidemill cluster rebalance --json' moves less.""",
)
@click.argument("topics_file", metavar="[FILE]", required=False, type=JsonFile("a file of topics"))
@click.option(
    "-t", "--topic", "topics", multiple=True, help="A topic to place.", shell_complete=suggest.topics
)
@click.option("--brokers", type=BrokerIds(), metavar="ID,ID", help="Where to place them.  [all that live]")
@click.option("--no-racks", is_flag=True, help="Do not mind racks.")
@click.option(
    "--current", metavar="FILE", type=click.Path(dir_okay=False), help="Write how it is now, to go back."
)
@cluster_options
def generate(
    topics_file: str | None,
    topics: tuple[str, ...],
    brokers: str | None,
    no_racks: bool,
    current: str | None,
    target: Target,
) -> None:
    """Print a plan that places topics anew, as JSON."""
    from tidemill.client import Admin
    from tidemill.controller import balance

    names = [*topics, *(read_topics(topics_file) if topics_file is not None else ())]
    if not names:
        raise click.UsageError("no topic is named: give --topic, or a FILE of topics")
    with Admin(target.bootstrap, target.config()) as admin:
        racks = racks_of(admin)
        if brokers is not None:
            wanted = {int(text) for text in brokers.split(",")}
            if wanted - racks.keys():
                raise click.ClickException(
                    f"--brokers {brokers}: no broker {shown(wanted - racks.keys())} lives; those that do are "
                    f"{shown(racks)}"
                )
            racks = {broker: racks[broker] for broker in wanted}
        now = assignment(admin, dict.fromkeys(names))
    for item, replicas in now.items():
        if brokers is not None and len(replicas) > len(racks):
            raise click.ClickException(
                f"--brokers {brokers}: {item.topic}-{item.partition} has {len(replicas)} replicas, each on a "
                f"broker of its own: name as many, or give {item.topic} fewer first ('tidemill topic alter "
                f"{item.topic} --replication-factor {len(racks)}')"
            )
    if no_racks:
        racks = dict.fromkeys(racks)
    plan = balance.generate(now, racks, random.Random())
    if current is not None:
        with open(current, "w", encoding="utf-8") as file:
            file.write(text(now) + "\n")
    click.echo(text(plan))
    if not plan:
        click.echo("tidemill: nothing has to be moved", err=True)


def shown(brokers: Any) -> str:
    """``1, 2, 3``."""
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
@click.option("--additional", is_flag=True, help="Also when others are on the move.")
@click.option(
    "--current", metavar="FILE", type=click.Path(dir_okay=False), help="Write how it is now, to go back."
)
@manner_options(wait=False)
@cluster_options
def execute(
    plan: str,
    additional: bool,
    current: str | None,
    manner: Manner,
    target: Target,
) -> int:
    """Begin the moves of the plan in FILE, and with --wait go with them to their end.

    Without, 'tidemill reassign verify' shows how far they are, and lifts throttles at the end.
    """
    from tidemill.client import Admin

    wanted, places = read_placed(plan)
    with Admin(target.bootstrap, target.config()) as admin:
        moving = admin.list_reassignments()
        if moving and not additional:
            raise click.ClickException(
                f"{counted(len(moving), 'partition')} on the move already ('tidemill reassign list'): wait "
                "until they are there, or give --additional"
            )
        now = assignment(admin, sorted({item.topic for item in wanted}))
        if current is not None:
            with open(current, "w", encoding="utf-8") as file:
                before = {item: replicas for item, replicas in now.items() if item in wanted}
                file.write(text(before) + "\n")
        code = _place(admin, places)
        return carry_out(admin, wanted, now, manner) or code


def _place(admin: Admin, places: Places) -> int:
    """Tells brokers in which directories replicas are to be, also those that come; the exit code."""
    problems: dict[TopicPartition, object] = {}
    for broker, directories in sorted(places.items()):
        for item, problem in admin.alter_replica_log_dirs(broker, directories).items():
            # It makes the replica there when that comes.
            if problem is not None and problem.code != ErrorCode.REPLICA_NOT_AVAILABLE:
                problems[item] = problem
    return tell(problems)


def _elsewhere(admin: Admin, places: Places) -> dict[TopicPartition, str]:
    """Those that are not, or not yet, in the directories where they are to be, and how they are."""
    found: dict[TopicPartition, str] = {}
    for broker, directories in places.items():
        (listed,) = admin.describe_log_dirs([broker]).values()
        lying: dict[TopicPartition, set[tuple[str, bool]]] = {}
        for one in listed:
            for replica in one.replicas:
                item = TopicPartition(replica.topic, replica.partition)
                lying.setdefault(item, set()).add((one.path, replica.future))
        for item, path in directories.items():
            if (path, False) not in lying.get(item, set()):
                found[item] = MOVING if (path, True) in lying.get(item, set()) else OTHERWISE
    return found


@command.command(
    "verify",
    epilog="""\b
Examples:
  tidemill reassign verify plan.json
  tidemill reassign verify plan.json --wait --json""",
)
@plan_argument
@click.option("--wait", is_flag=True, help="Wait until nothing of it moves any more, with a bar.")
@click.option("--timeout", "timeout_s", type=Duration(), metavar="DURATION", help="Wait so long at most.")
@click.option("--keep-throttle", is_flag=True, help="Leave throttles as they are.")
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
    """Show how far the plan in FILE is; exit code 1 unless all of it is done.

    Once nothing of it moves any more, throttles are lifted that no other move needs.
    """
    from tidemill.client import Admin

    wanted, places = read_placed(plan)
    with Admin(target.bootstrap, target.config()) as admin:
        if wait:
            follow(admin, wanted, assignment(admin, _there(admin, wanted)), timeout_s)
            elect_preferred(
                admin, {item: wanted[item] for item in wanted if item.topic in _there(admin, wanted)}
            )
        states = _states(admin, wanted)
        if set(states.values()) == {DONE}:
            states.update(_elsewhere(admin, places))
        is_lifted = False
        if not keep_throttle and not {MOVING, ELSEWHERE} & set(states.values()):
            is_lifted = throttles.lift(admin, {item.topic for item in wanted})
    if as_json:
        partitions = [
            {"topic": item.topic, "partition": item.partition, "replicas": wanted[item], "state": state}
            for item, state in sorted(states.items())
        ]
        print_json({"partitions": partitions, "throttles_lifted": is_lifted})
    else:
        print_table(
            ["partition", "planned", "state"],
            [[item, ",".join(map(str, wanted[item])), state] for item, state in sorted(states.items())],
        )
        if is_lifted:
            done("throttles are lifted")
    return 0 if set(states.values()) == {DONE} else FAILED


def _there(admin: Admin, plan: Plan) -> list[str]:
    there = {topic.name for topic in admin.list_topics(include_internal=True)}
    return sorted({item.topic for item in plan} & there)


def _states(admin: Admin, plan: Plan) -> dict[TopicPartition, str]:
    moving = admin.list_reassignments(plan)
    found = admin.describe_topics(_there(admin, plan))
    now = {
        TopicPartition(name, one.partition): one.replicas
        for name, topic in found.items()
        for one in topic.partitions
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
    """List the partitions that are on the move, and how far each is."""
    from tidemill.client import Admin

    with Admin(target.bootstrap, target.config()) as admin:
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
        empty="nothing moves",
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
@click.option("--all", "every", is_flag=True, help="All moves of the cluster.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@click.option("--keep-throttle", is_flag=True, help="Leave throttles as they are.")
@cluster_options
def cancel(plan: str | None, every: bool, yes: bool, keep_throttle: bool, target: Target) -> int:
    """Stop the moves of the plan in FILE, or all: partitions are again where they were before.

    What does not move is left alone: it may be there already. Throttles are lifted that no other
    move needs.
    """
    from tidemill.client import Admin

    if (plan is None) != every:
        raise click.UsageError("give a FILE, or --all: one of them")
    wanted = read_plan(plan) if plan is not None else None
    with Admin(target.bootstrap, target.config()) as admin:
        moving = admin.list_reassignments(wanted)
        if every and moving and not yes and sys.stdin.isatty() and sys.stdout.isatty():
            require_yes(f"Stop the moves of {counted(len(moving), 'partition')}?")
        outcomes = admin.alter_reassignments(dict.fromkeys(moving)) if moving else {}
        # What has ended since it was listed does not move any more.
        outcomes = {
            item: problem
            for item, problem in outcomes.items()
            if problem is None or problem.code != ErrorCode.NO_REASSIGNMENT_IN_PROGRESS
        }
        problems = {item: problem for item, problem in outcomes.items() if problem is not None}
        is_lifted = False
        if not keep_throttle:
            # Of moves that have ended nobody knows the topics any more.
            every_topic = (one.name for one in admin.list_topics(include_internal=True))
            topics = every_topic if wanted is None else {item.topic for item in wanted}
            is_lifted = throttles.lift(admin, topics)
    done(f"stopped {counted(len(outcomes) - len(problems), 'move')}" if outcomes else "nothing moves")
    if is_lifted:
        done("throttles are lifted")
    return tell(problems)
