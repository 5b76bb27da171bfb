"""``--set`` of keys of brokers and topics, and ``--unset`` of the ``alter`` commands."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import click

from tidemill.cli import name_completion
from tidemill.cli.options import F, pairs

broker_settings_option = click.option(
    "-s",
    "--set",
    "sets",
    multiple=True,
    metavar="KEY=VALUE",
    help="Set a key; can be repeated.",
    shell_complete=name_completion.broker_settings,
)

topic_settings_option = click.option(
    "-s",
    "--set",
    "settings",
    multiple=True,
    metavar="KEY=VALUE",
    help="Set a topic key; can be repeated.",
    shell_complete=name_completion.topic_settings,
)


class SettingChanges(NamedTuple):
    """Keys to set with their values, and keys to remove."""

    wanted: dict[str, str]
    removed: tuple[str, ...]

    @property
    def descriptions(self) -> list[str]:
        """Descriptions of the changes, one per key."""
        return [
            *(f"{key}={value}" for key, value in self.wanted.items()),
            *(f"{key} unset" for key in self.removed),
        ]


def changes_of(settings: tuple[str, ...], removed: tuple[str, ...]) -> SettingChanges:
    """Returns the changes of both options. Raises UsageError for a bad pair, or a key that both name."""
    wanted = pairs("--set", settings)
    both = sorted(wanted.keys() & set(removed))
    if both:
        raise click.UsageError(f"--set and --unset both name {both[0]}: give only one of them")
    return SettingChanges(wanted, removed)


def unset_option(back_to: str, keys: Callable[..., list[str]]) -> Callable[[F], F]:
    """Adds ``--unset`` (``removed``); ``keys`` completes its value in a shell."""
    return click.option(
        "-u",
        "--unset",
        "removed",
        multiple=True,
        metavar="KEY",
        help=f"Reset a key to {back_to}; can be repeated.",
        shell_complete=keys,
    )
