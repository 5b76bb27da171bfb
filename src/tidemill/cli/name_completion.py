"""Shell completion of topics, groups, brokers and keys. Offers nothing when the cluster responds late."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import click

from tidemill.cli.options import Target, brokers_of, client_settings

if TYPE_CHECKING:
    from tidemill.client import Admin

TIMEOUT_MS = 1_000
"""Longest wait for names of the cluster, in milliseconds."""


def topics(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Completes topics; internal ones after an underscore."""
    internal = incomplete.startswith("_")
    return _from_cluster(
        ctx, incomplete, lambda admin: [t.name for t in admin.list_topics(include_internal=internal)]
    )


def groups(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Completes consumer groups."""
    return _from_cluster(ctx, incomplete, lambda admin: [group.group_id for group in admin.list_groups()])


def topic_keys(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Completes keys of a topic, for ``--unset``."""
    from tidemill.model.configs import TOPIC_KEYS

    return matching(TOPIC_KEYS, incomplete)


def topic_settings(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Completes keys of a topic with their equals sign, for ``--set``."""
    return [f"{name}=" for name in topic_keys(ctx, param, incomplete)]


def broker_ids(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Completes broker ids."""
    return [name for name in brokers(ctx, param, incomplete) if name.isdigit()]


def brokers(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Completes broker ids, and ``default`` for all brokers."""
    ids = _from_cluster(
        ctx, incomplete, lambda admin: [str(b.broker_id) for b in admin.describe_cluster().brokers]
    )
    return [*ids, *matching(["default"], incomplete)]


def run_time_keys(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Completes keys of a broker that can change while it runs, for ``--unset``."""
    from tidemill.model.configs import BROKER_KEYS
    from tidemill.model.configs.config_def import READ_ONLY

    return matching((name for name, key in BROKER_KEYS.items() if key.dynamic != READ_ONLY), incomplete)


def run_time_settings(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Completes the same keys with their equals sign, for ``--set``."""
    return [f"{name}=" for name in run_time_keys(ctx, param, incomplete)]


def broker_settings(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Completes keys of a broker with their equals sign, for ``--set``."""
    from tidemill.model.configs import BROKER_KEYS

    return [f"{name}=" for name in matching(BROKER_KEYS, incomplete)]


def matching(names: Iterable[str], incomplete: str) -> list[str]:
    """Returns the names that start with ``incomplete``, sorted."""
    return sorted(name for name in names if name.startswith(incomplete))


def _from_cluster(ctx: click.Context, incomplete: str, ask: Callable[[Admin], Iterable[str]]) -> list[str]:
    """Returns matching names from the cluster of the command line so far; none after any error."""
    # A shell would print an error in the middle of the line that is being typed.
    with contextlib.suppress(Exception):
        given = client_settings(ctx.params.get("client_file"), ctx.params.get("client_sets") or ())
        bootstrap = brokers_of(ctx, ctx.params.get("bootstrap") or "localhost:9092", given)
        limits = {
            "default_api_timeout_ms": TIMEOUT_MS,
            "request_timeout_ms": TIMEOUT_MS,
            "socket_connection_setup_timeout_ms": TIMEOUT_MS // 2,
        }
        with Target(bootstrap, given).admin(**limits) as admin:
            return matching(ask(admin), incomplete)
    return []
