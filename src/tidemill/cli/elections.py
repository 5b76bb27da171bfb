"""What ``tidemill cluster elect`` and ``tidemill topic elect`` share: preferred replicas lead again."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from tidemill.cli.options import INT_MAX, Target, Whole
from tidemill.cli.output import counted, done, json_option, print_json
from tidemill.model.errors import ErrorCode
from tidemill.model.types import TopicPartition

if TYPE_CHECKING:
    from tidemill.client import Admin

F = TypeVar("F", bound=Callable[..., Any])

_unclean = click.option(
    "--unclean",
    is_flag=True,
    help="Without a leader elect the longest log of the live replicas: records that it lacks are lost.",
)
_partition = click.option(
    "-p",
    "--partition",
    "numbers",
    type=Whole(0, INT_MAX),
    multiple=True,
    help="Only this partition of TOPIC.",
)
_yes = click.option("-y", "--yes", is_flag=True, help="Do not ask before an unclean election.")


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
    """Elects leaders of topics, of some partitions of one, of those listed, or of all; the exit code."""
    from tidemill.cli.moves import is_agreed
    from tidemill.cli.moving import FAILED, tell
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
