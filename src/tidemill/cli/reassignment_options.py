"""The options of the commands that move partitions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import click

from tidemill.cli.options import Duration, F, WholeNumber, with_options


class ReassignmentOptions(NamedTuple):
    """How to execute a plan: throttle, and whether and how long to wait."""

    throttle: int | None = None
    """Largest rate at which each broker copies, in bytes per second."""
    wait: bool = True
    timeout_s: float | None = None


def add_move_options(*, wait: bool = True) -> Callable[[F], F]:
    """Adds ``--throttle``, ``--wait`` (``wait`` is the default) and ``--timeout``, as ``move_options``."""
    timeout_option = click.option(
        "--timeout",
        "timeout_s",
        type=Duration(),
        metavar="DURATION",
        help="Stop waiting after this time; the moves continue.",
    )
    wait_option = click.option(
        "--wait/--no-wait", default=wait, show_default=True, help="Wait until all moves are complete."
    )
    throttle_option = click.option(
        "--throttle",
        type=WholeNumber(1),
        metavar="BYTES",
        help="Limit the copying of each broker to this many bytes per second, as a mean over the last 11 s: "
        "a short burst may exceed it.",
    )

    def add(function: F) -> F:
        def wrapped(
            *arguments: Any, throttle: int | None, wait: bool, timeout_s: float | None, **rest: Any
        ) -> Any:
            return function(*arguments, move_options=ReassignmentOptions(throttle, wait, timeout_s), **rest)

        return with_options(function, wrapped, timeout_option, wait_option, throttle_option)

    return add
