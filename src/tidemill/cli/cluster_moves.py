"""Commands of ``tidemill cluster`` that move data and leaderships: decommission, rebalance, elect."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TYPE_CHECKING

import click

from tidemill.cli import name_completion
from tidemill.cli.cluster_options import broker_ids, cluster_options, local_cluster_options
from tidemill.cli.leader_elections import elect, election_options
from tidemill.cli.options import INT_MAX, JsonFile, Target, WholeNumber
from tidemill.cli.output import FAILED, counted, done, json_option, required_yes_option
from tidemill.cli.reassignment_options import ReassignmentOptions, add_move_options
from tidemill.cli.reassignment_plans import (
    Plan,
    assignment,
    print_plan,
    racks_of,
    read_partitions,
    require_confirmation,
    text,
)
from tidemill.cli.reassignment_progress import elect_preferred, execute_plan, report_problems

if TYPE_CHECKING:
    from tidemill.cli.local_cluster import LocalCluster
    from tidemill.client import Admin

ROUNDS_MAX = 5
"""How often the broker is checked for new replicas, of topics created while it is emptied."""


@click.command(
    "decommission",
    epilog="""\b
Examples:
  tidemill cluster decommission 3
  tidemill cluster decommission 3 --throttle 50000000 --yes
  tidemill cluster decommission 3 --json > plan.json

The broker keeps running until you stop it; it may also be down already. Topics created meanwhile move,
too.""",
)
@click.argument("broker", metavar="BROKER", type=WholeNumber(0, INT_MAX), shell_complete=broker_ids)
@required_yes_option()
@add_move_options()
@json_option
@local_cluster_options
def decommission(
    broker: int,
    yes: bool,
    move_options: ReassignmentOptions,
    as_json: bool,
    target: Target,
    local: LocalCluster | None,
) -> int:
    """Move all replicas off BROKER.

    Shows the plan, and executes it after confirmation on a terminal or with --yes; otherwise the exit code is
    1. With --json only the plan is printed, for 'tidemill reassign execute'.
    """
    from tidemill.controller import reassignment_planner

    def planned(current: Plan) -> Plan:
        return reassignment_planner.decommission(current, racks, {broker}, random.Random())

    with target.admin() as admin:
        racks = racks_of(admin)
        current = assignment(admin)
        holders = {holder for replicas in current.values() for holder in replicas}
        if broker not in racks and broker not in holders:
            raise click.ClickException(
                f"there is no broker {broker}; live brokers: {', '.join(map(str, sorted(racks)))}"
            )
        plan = planned(current)
        if as_json:
            click.echo(text(plan))
            return 0
        leaving = _moves_off(admin, broker, current)
        if leaving:
            done(f"{counted(len(leaving), 'partition')} already moving off broker {broker}")
        if plan:
            print_plan(admin, plan, current)
            require_confirmation(f"Move all replicas off broker {broker}?", yes)
        if plan or leaving:
            plan = {**leaving, **plan}
            code = _execute_until_empty(admin, planned, plan, current, move_options)
            if code or not move_options.wait:
                return code
    if broker not in racks:
        ending = "it is down, and can stay down"
    else:
        stop = f"'tidemill cluster stop {broker}{local.option}' stops it" if local is not None else None
        ending = stop or "it can be stopped"
    done(f"broker {broker} holds no replicas{' any more' if plan else ''}: {ending}")
    return 0


def _moves_off(admin: Admin, broker: int, current: Plan) -> Plan:
    """Returns the moves off a broker that are in progress, for instance of an interrupted command."""
    moving = admin.list_reassignments()
    return {
        item: move.target
        for item, move in moving.items()
        if broker in move.replicas and broker not in current.get(item, [broker])
    }


def _execute_until_empty(
    admin: Admin,
    planned: Callable[[Plan], Plan],
    plan: Plan,
    current: Plan,
    move_options: ReassignmentOptions,
) -> int:
    """Executes the plan, and plans for topics created meanwhile. Returns the exit code."""
    for _ in range(ROUNDS_MAX):
        code = execute_plan(admin, plan, current, move_options)
        if code or not move_options.wait:
            return code
        current = assignment(admin)
        plan = planned(current)
        if not plan:
            return 0
    click.echo(
        f"tidemill: new topics keep being placed on the broker ({counted(len(plan), 'partition')} left): "
        "create no topics for a while, and try again",
        err=True,
    )
    return FAILED


@click.command(
    "rebalance",
    epilog="""\b
Examples:
  tidemill cluster rebalance                  show the plan, and ask for confirmation
  tidemill cluster rebalance --yes --throttle 50000000
  tidemill cluster rebalance --json > plan.json

As little data moves as makes brokers hold, and preferably lead, equal numbers of partitions; no partition is
spread over fewer racks than before.""",
)
@required_yes_option("--execute")
@add_move_options()
@json_option
@cluster_options
def rebalance(yes: bool, move_options: ReassignmentOptions, as_json: bool, target: Target) -> int:
    """Spread partitions and leaderships evenly over brokers.

    Run it after a broker was added. Shows the plan, and executes it after confirmation on a terminal or with
    --yes; otherwise the exit code is 1. With --json only the plan is printed, for 'tidemill reassign
    execute'.
    """
    from tidemill.controller import reassignment_planner

    with target.admin() as admin:
        current = assignment(admin)
        plan = reassignment_planner.spread(current, racks_of(admin), random.Random())
        if as_json:
            click.echo(text(plan))
            return 0
        code = 0
        moving = admin.list_reassignments() if not plan else {}
        if moving:
            done(
                f"nothing has to move but the {counted(len(moving), 'partition')} that are moving already: "
                "'tidemill reassign list' shows the progress"
            )
            return 0
        if not plan:
            done("nothing has to move: partitions are spread as evenly as possible")
        else:
            print_plan(admin, plan, current)
            require_confirmation("Execute this plan?", yes)
            code = execute_plan(admin, plan, current, move_options)
        if not code and move_options.wait and (yes or plan):
            code = report_problems(elect_preferred(admin, None))
    return code


@click.command(
    "elect",
    epilog="""\b
Examples:
  tidemill cluster elect                      preferred leaders of all partitions
  tidemill cluster elect orders -p 0 -p 3
  tidemill cluster elect --file election.json
  tidemill cluster elect orders --unclean     when no in-sync replica will return

FILE has the format of Kafka's election tool: {"partitions": [{"topic": "orders", "partition": 0}]}.""",
)
@click.argument("names", metavar="[TOPIC...]", nargs=-1, shell_complete=name_completion.topics)
@click.option(
    "-f",
    "--file",
    "path",
    metavar="FILE",
    type=JsonFile("a file of partitions"),
    help="Partitions in a JSON file; - is standard input.",
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
    """Elect the preferred leaders of TOPICs, or of all topics."""
    if path is not None and names:
        raise click.UsageError("give either TOPICs or --file")
    listed = read_partitions(path) if path is not None else None
    return elect(target, names, numbers, listed, unclean, yes, as_json)
