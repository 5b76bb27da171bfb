"""How moves are to be carried out: the options that commands share which move partitions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import click

from tidemill.cli.options import Duration, Whole

F = TypeVar("F", bound=Callable[..., Any])


class Manner(NamedTuple):
    """How moves are to be carried out."""

    throttle: int | None = None
    """Bytes a second that each broker copies at most."""
    wait: bool = True
    timeout_s: float | None = None


def manner_options(*, wait: bool = True) -> Callable[[F], F]:
    """Adds ``--throttle``, ``--wait`` (or not: ``wait`` is the default) and ``--timeout``, as ``manner``."""

    def add(function: F) -> F:
        return _with_manner(function, wait)

    return add


def _with_manner(function: F, waits: bool) -> F:
    def made(*arguments: Any, throttle: int | None, wait: bool, timeout_s: float | None, **rest: Any) -> Any:
        return function(*arguments, manner=Manner(throttle, wait, timeout_s), **rest)

    made.__name__ = function.__name__
    made.__doc__ = function.__doc__
    made.__click_params__ = getattr(function, "__click_params__", [])  # type: ignore[attr-defined]
    for option in (
        click.option(
            "--timeout",
            "timeout_s",
            type=Duration(),
            metavar="DURATION",
            help="Wait so long at most; the moves go on.",
        ),
        click.option(
            "--wait/--no-wait", default=waits, show_default=True, help="Wait until all is moved, with a bar."
        ),
        throttle_option,
    ):
        made = option(made)
    return made  # type: ignore[return-value]


throttle_option = click.option(
    "--throttle",
    type=Whole(1),
    metavar="BYTES",
    help="Copy at most so many bytes a second on each broker, as a mean over the last 11 s: for a moment it "
    "may be more.",
)
"""The same wherever data moves."""
