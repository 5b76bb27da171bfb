"""Preferred and unclean leader elections, shared by ``tidemill cluster elect`` and ``topic elect``."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import click

from tidemill.cli.options import INT_MAX, F, Target, WholeNumber
from tidemill.cli.output import counted, done, json_option, print_json, required_yes_option
from tidemill.model.errors import ErrorCode
from tidemill.model.types import TopicPartition

if TYPE_CHECKING:
    from tidemill.client import Admin


_unclean = click.option(
    "--unclean",
    is_flag=True,
    help="For a partition without a leader, elect the live replica with the longest log: records it lacks "
    "are lost.",
)
_partition = click.option(
    "-p",
    "--partition",
    "numbers",
    type=WholeNumber(0, INT_MAX),
    multiple=True,
    help="Elect only for this partition of TOPIC; can be repeated.",
)
_yes = required_yes_option(action=" of an unclean election")


def election_options(function: F) -> F:
    """Adds ``--partition`` (``numbers``), ``--unclean``, ``--yes`` and ``--json`` (``as_json``)."""
    return _partition(_unclean(_yes(json_option(function))))


def elect(
    target: Target,
    names: tuple[str, ...],
    numbers: tuple[int, ...],
    listed: Iterable[TopicPartition] | None,
    unclean: bool,
    yes: bool,
    as_json: bool,
) -> int:
    """Elects leaders of topics, of partitions of one topic, of those listed, or of all; the exit code."""
    from tidemill.cli.reassignment_plans import require_confirmation
    from tidemill.cli.reassignment_progress import report_problems

    if numbers and len(names) != 1:
        raise click.UsageError("--partition needs exactly one TOPIC")
    if unclean:
        require_confirmation("Acknowledged messages may be lost. Elect?", yes)
    with target.admin() as admin:
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
    return report_problems(problems)


def _partitions(admin: Admin, names: tuple[str, ...], numbers: tuple[int, ...]) -> list[TopicPartition]:
    if numbers:
        return [TopicPartition(names[0], number) for number in numbers]
    found = admin.describe_topics(dict.fromkeys(names))
    return [
        TopicPartition(name, partition.partition)
        for name, topic in found.items()
        for partition in topic.partitions
    ]
