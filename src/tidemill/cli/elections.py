"""``tidemill cluster elect`` and ``tidemill topic elect``: preferred replicas lead again."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import click

from tidemill.cli import suggest
from tidemill.cli.cluster_options import cluster_options
from tidemill.cli.moves import is_agreed, read_partitions
from tidemill.cli.moving import FAILED, tell
from tidemill.cli.options import INT_MAX, Target, Whole, target_options
from tidemill.cli.output import counted, done, json_option, print_json
from tidemill.cli.reassign import JsonFile
from tidemill.model.errors import ErrorCode
from tidemill.model.types import TopicPartition

if TYPE_CHECKING:
    from tidemill.cli.local import LocalCluster
    from tidemill.client import Admin

unclean_option = click.option(
    "--unclean",
    is_flag=True,
    help="Where nobody leads, any replica that lives: messages that it does not have are lost.",
)
partitions_option = click.option(
    "-p",
    "--partition",
    "numbers",
    type=Whole(0, INT_MAX),
    multiple=True,
    help="Only this partition of TOPIC.",
)
yes_option = click.option("-y", "--yes", is_flag=True, help="Do not ask before an unclean election.")


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
@partitions_option
@click.option(
    "-f",
    "--file",
    "path",
    metavar="FILE",
    type=JsonFile("a file of partitions, or -", directory=False),
    help="Partitions as JSON; - is standard input.",
)
@unclean_option
@yes_option
@json_option
@cluster_options
def cluster_elect(
    names: tuple[str, ...],
    numbers: tuple[int, ...],
    path: str | None,
    unclean: bool,
    yes: bool,
    as_json: bool,
    target: Target,
    local: LocalCluster | None,
) -> int:
    """Have preferred replicas lead again: of TOPICs, or of all."""
    if path is not None and names:
        raise click.UsageError("give TOPICs or --file: one of them")
    listed = read_partitions(path) if path is not None else None
    return _elect(target, names, numbers, listed, unclean, yes, as_json)


@click.command(
    "elect",
    epilog="\b\nExamples:\n  tidemill topic elect orders\n  tidemill topic elect orders -p 0 --unclean",
)
@click.argument("names", metavar="TOPIC...", nargs=-1, required=True, shell_complete=suggest.topics)
@partitions_option
@unclean_option
@yes_option
@json_option
@target_options
def topic_elect(
    names: tuple[str, ...], numbers: tuple[int, ...], unclean: bool, yes: bool, as_json: bool, target: Target
) -> int:
    """Have preferred replicas lead again."""
    return _elect(target, names, numbers, None, unclean, yes, as_json)


def _elect(
    target: Target,
    names: tuple[str, ...],
    numbers: tuple[int, ...],
    listed: Iterable[TopicPartition] | None,
    unclean: bool,
    yes: bool,
    as_json: bool,
) -> int:
    from tidemill.client import Admin

    if numbers and len(names) != 1:
        raise click.UsageError("--partition needs one TOPIC that it is of")
    if unclean and not is_agreed("Messages may be lost that were acknowledged. Elect?", yes):
        return FAILED
    with Admin(target.bootstrap, target.config()) as admin:
        if names:
            listed = _partitions(admin, names, numbers)
        outcomes = admin.elect_leaders(listed, unclean=unclean)
    elected = sorted(item for item, problem in outcomes.items() if problem is None)
    problems = {
        item: problem
        for item, problem in sorted(outcomes.items())
        if problem is not None and problem.code != ErrorCode.ELECTION_NOT_NEEDED
    }
    if as_json:
        print_json(
            {
                "elected": [item._asdict() for item in elected],
                "failed": [
                    {**item._asdict(), "error": problem.code.name} for item, problem in problems.items()
                ],
            }
        )
    elif elected:
        done(f"elected leaders of {counted(len(elected), 'partition')}")
    elif not problems:
        done("no election was needed")
    return tell(problems)


def _partitions(admin: Admin, names: tuple[str, ...], numbers: tuple[int, ...]) -> list[TopicPartition]:
    if numbers:
        return [TopicPartition(names[0], number) for number in numbers]
    found = admin.describe_topics(dict.fromkeys(names))
    return [TopicPartition(name, one.partition) for name, topic in found.items() for one in topic.partitions]
