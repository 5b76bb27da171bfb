"""Parts of ``tidemill cluster`` that move data and leaderships: decommission, rebalance, elect."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TYPE_CHECKING

import click

from tidemill.cli import suggest
from tidemill.cli.cluster_options import broker_ids, cluster_options, local_cluster_options
from tidemill.cli.elections import elect, election_options
from tidemill.cli.manner import Manner, manner_options
from tidemill.cli.moves import Plan, assignment, is_agreed, print_plan, racks_of, read_partitions, text
from tidemill.cli.moving import FAILED, carry_out, elect_preferred, tell
from tidemill.cli.options import INT_MAX, JsonFile, Target, Whole
from tidemill.cli.output import counted, done, json_option

if TYPE_CHECKING:
    from tidemill.cli.local import LocalCluster
    from tidemill.client import Admin

ROUNDS_MAX = 5
"""How often it is looked whether new topics came to a broker that is emptied."""


@click.command(
    "decommission",
    epilog="""\b
Examples:
  tidemill cluster decommission 3
  tidemill cluster decommission 3 --throttle 50000000 --yes
  tidemill cluster decommission 3 --json > plan.json

The broker goes on until you stop it, and may be down already. Topics that are made meanwhile move, too.""",
)
@click.argument("broker", metavar="BROKER", type=Whole(0, INT_MAX), shell_complete=broker_ids)
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@manner_options()
@json_option
@local_cluster_options
def decommission(
    broker: int, yes: bool, manner: Manner, as_json: bool, target: Target, local: LocalCluster | None
) -> int:
    """Move everything away from BROKER: the plan first, then, when you agree, the moves.

    With --json the plan alone is printed, for 'tidemill reassign execute'.
    """
    from tidemill.client import Admin
    from tidemill.controller import balance

    def planned(current: Plan) -> Plan:
        return balance.decommission(current, racks, {broker}, random.Random())

    with Admin(target.bootstrap, target.config()) as admin:
        racks = racks_of(admin)
        current = assignment(admin)
        holders = {holder for replicas in current.values() for holder in replicas}
        if broker not in racks and broker not in holders:
            raise click.ClickException(
                f"there is no broker {broker}; those that live are {', '.join(map(str, sorted(racks)))}"
            )
        plan = planned(current)
        if as_json:
            click.echo(text(plan))
            return 0
        leaving = _leaving(admin, broker, current)
        if leaving:
            done(f"{counted(len(leaving), 'partition')} on the way from broker {broker} already")
        if plan:
            print_plan(admin, plan, current)
            if not is_agreed(f"Move everything away from broker {broker}?", yes):
                return FAILED
        if plan or leaving:
            plan = {**leaving, **plan}
            code = _until_empty(admin, planned, plan, current, manner)
            if code or not manner.wait:
                return code
    if broker not in racks:
        ending = "it is down, and can stay so"
    else:
        stop = f"'tidemill cluster stop {broker}{local.option}' ends it" if local is not None else None
        ending = stop or "it can be stopped"
    done(f"broker {broker} holds nothing{' any more' if plan else ''}: {ending}")
    return 0


def _leaving(admin: Admin, broker: int, current: Plan) -> Plan:
    """What is on the way from a broker, and there still: of an interrupted command, for instance."""
    moving = admin.list_reassignments()
    return {
        item: move.target
        for item, move in moving.items()
        if broker in move.replicas and broker not in current.get(item, [broker])
    }


def _until_empty(
    admin: Admin, planned: Callable[[Plan], Plan], plan: Plan, current: Plan, manner: Manner
) -> int:
    """Carries the plan out, and those for topics that were made meanwhile; the exit code."""
    for _ in range(ROUNDS_MAX):
        code = carry_out(admin, plan, current, manner)
        if code or not manner.wait:
            return code
        current = assignment(admin)
        plan = planned(current)
        if not plan:
            return 0
    click.echo(
        f"tidemill: topics are made on it again and again ({counted(len(plan), 'partition')} left): let "
        "nobody make any for a while, and try again",
        err=True,
    )
    return FAILED


@click.command(
    "rebalance",
    epilog="""\b
Examples:
  tidemill cluster rebalance                  the plan, and on a terminal a question
  tidemill cluster rebalance --yes --throttle 50000000
  tidemill cluster rebalance --json > plan.json

As little is moved as makes brokers hold, and preferably lead, as many partitions as each other; no partition
comes into fewer racks than it is in.""",
)
@click.option("-y", "--yes", "--execute", is_flag=True, help="Do not ask.")
@manner_options()
@json_option
@cluster_options
def rebalance(yes: bool, manner: Manner, as_json: bool, target: Target) -> int:
    """Spread partitions and leaderships evenly; gives a new broker its share.

    The plan comes first, and is carried out when you agree. With --json it is printed alone, for 'tidemill
    reassign execute'.
    """
    from tidemill.client import Admin
    from tidemill.controller import balance

    with Admin(target.bootstrap, target.config()) as admin:
        current = assignment(admin)
        plan = balance.spread(current, racks_of(admin), random.Random())
        if as_json:
            click.echo(text(plan))
            return 0
        code = 0
        moving = admin.list_reassignments() if not plan else {}
        if moving:
            done(
                f"nothing else has to move than the {counted(len(moving), 'partition')} that are on the way: "
                "'tidemill reassign list' shows how far"
            )
            return 0
        if not plan:
            done("nothing has to move: partitions are spread as evenly as can be")
        else:
            print_plan(admin, plan, current)
            if not is_agreed("Carry this out?", yes):
                return 0
            code = carry_out(admin, plan, current, manner)
        if not code and manner.wait and (yes or plan):
            code = tell(elect_preferred(admin, None))
    return code


@click.command(
    "elect",
    epilog="""\b
Examples:
  tidemill cluster elect                      preferred replicas lead, all over the cluster
  tidemill cluster elect orders -p 0 -p 3
  tidemill cluster elect --file election.json
  tidemill cluster elect orders --unclean     when nobody who has all can come back

FILE has the shape of Kafka's: {"partitions": [{"topic": "orders", "partition": 0}]}.""",
)
@click.argument("names", metavar="[TOPIC...]", nargs=-1, shell_complete=suggest.topics)
@click.option(
    "-f",
    "--file",
    "path",
    metavar="FILE",
    type=JsonFile("a file of partitions"),
    help="Partitions as JSON; - is standard input.",
)
@election_options
@cluster_options
def elect_(
    names: tuple[str, ...],
    numbers: tuple[int, ...],
    path: str | None,
    unclean: bool,
    yes: bool,
    as_json: bool,
    target: Target,
) -> int:
    """Have preferred replicas lead again: of TOPICs, or of all."""
    if path is not None and names:
        raise click.UsageError("give TOPICs or --file: one of them")
    listed = read_partitions(path) if path is not None else None
    return elect(target, names, numbers, listed, unclean, yes, as_json)
