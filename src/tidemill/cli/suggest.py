"""What a shell offers where a topic, a group or a key is typed. Silent where nobody answers soon."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from tidemill.client import Admin

PATIENCE_MS = 1_000
"""How long a shell's user waits for names; after that the shell offers none."""


def topics(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Topics; the cluster's own ones where an underscore was typed."""
    internal = incomplete.startswith("_")
    return _asked(
        ctx, incomplete, lambda admin: [t.name for t in admin.list_topics(include_internal=internal)]
    )


def groups(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Consumer groups."""
    return _asked(ctx, incomplete, lambda admin: [group.group_id for group in admin.list_groups()])


def topic_keys(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Keys of a topic, for ``--unset``."""
    from tidemill.model.configs import TOPIC_KEYS

    return those(TOPIC_KEYS, incomplete)


def topic_settings(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Keys of a topic with their equals sign, for ``--set``."""
    return [f"{name}=" for name in topic_keys(ctx, param, incomplete)]


def broker_ids(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Brokers by their ids."""
    return [name for name in brokers(ctx, param, incomplete) if name.isdigit()]


def brokers(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Brokers by their ids, and what stands for all of them."""
    ids = _asked(ctx, incomplete, lambda admin: [str(b.broker_id) for b in admin.describe_cluster().brokers])
    return [*ids, *those(["default"], incomplete)]


def run_time_keys(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Keys of a broker that can change while it runs, for ``--unset``."""
    from tidemill.model.configs import BROKER_KEYS
    from tidemill.model.configs.keys import READ_ONLY

    return those((name for name, key in BROKER_KEYS.items() if key.dynamic != READ_ONLY), incomplete)


def run_time_settings(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """The same with their equals sign, for ``--set``."""
    return [f"{name}=" for name in run_time_keys(ctx, param, incomplete)]


def broker_settings(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Keys of a broker with their equals sign, for ``--set``."""
    from tidemill.model.configs import BROKER_KEYS

    return [f"{name}=" for name in those(BROKER_KEYS, incomplete)]


def those(names: Iterable[str], incomplete: str) -> list[str]:
    """The names that go on from what was typed, in order."""
    return sorted(name for name in names if name.startswith(incomplete))


def _asked(ctx: click.Context, incomplete: str, ask: Callable[[Admin], Iterable[str]]) -> list[str]:
    """The names that the cluster of the line so far gives; none when anything goes wrong."""
    # A shell shows what is printed here in the middle of the line that is being typed.
    with contextlib.suppress(Exception):
        from tidemill.cli.options import Target, brokers_of, client_settings
        from tidemill.client import Admin

        given = client_settings(ctx.params.get("client_file"), ctx.params.get("client_sets") or ())
        bootstrap = brokers_of(ctx, ctx.params.get("bootstrap") or "localhost:9092", given)
        limits = {
            "default_api_timeout_ms": PATIENCE_MS,
            "request_timeout_ms": PATIENCE_MS,
            "socket_connection_setup_timeout_ms": PATIENCE_MS // 2,
        }
        with Admin(bootstrap, Target(bootstrap, given).config(**limits)) as admin:
            return those(ask(admin), incomplete)
    return []
