"""``--set`` and ``--unset``, as ``alter`` has them for brokers and for topics."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import click

from tidemill.cli.options import pairs

F = TypeVar("F", bound=Callable[..., Any])


class Changes(NamedTuple):
    """Keys that get values, and those that go back to what holds without them."""

    wanted: dict[str, str]
    removed: tuple[str, ...]

    @property
    def told(self) -> list[str]:
        """Each in words."""
        return [
            *(f"{key}={value}" for key, value in self.wanted.items()),
            *(f"{key} unset" for key in self.removed),
        ]


def changes_of(settings: tuple[str, ...], removed: tuple[str, ...]) -> Changes:
    """What both options say; a usage error for a key without value, and for one that both name."""
    wanted = pairs("--set", settings)
    both = sorted(wanted.keys() & set(removed))
    if both:
        raise click.UsageError(f"--set and --unset both name {both[0]}: one of them")
    return Changes(wanted, removed)


def unset_option(back_to: str, keys: Callable[..., list[str]]) -> Callable[[F], F]:
    """Adds ``--unset`` (``removed``); ``keys`` are those that a shell is offered."""
    return click.option(
        "-u",
        "--unset",
        "removed",
        multiple=True,
        metavar="KEY",
        help=f"Back to {back_to}.",
        shell_complete=keys,
    )
