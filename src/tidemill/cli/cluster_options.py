"""Options that select the cluster of a command: the one in a directory of this machine, or any other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click
from click.core import ParameterSource

from tidemill.cli import name_completion
from tidemill.cli.local_cluster import DIRECTORY, DIRECTORY_VARIABLE, LocalCluster
from tidemill.cli.options import F, brokers_of, client_settings, target_options, with_options

directory_option = click.option(
    "-d",
    "--directory",
    envvar=DIRECTORY_VARIABLE,
    show_envvar=True,
    default=DIRECTORY,
    show_default=True,
    metavar="DIR",
    type=click.Path(file_okay=False),
    help="Directory of the cluster of 'cluster up'.",
)
"""Option of every command that starts and stops processes of this machine."""


def cluster_options(function: F) -> F:
    """Adds :func:`target_options`; the default brokers are those of the cluster in ``--directory``."""
    return _with_directory(function, lambda local: {})


def local_cluster_options(function: F) -> F:
    """As :func:`cluster_options`, with ``local``: the cluster in the directory, if it is the target."""
    return _with_directory(function, lambda local: {"local": local})


def _with_directory(function: F, more: Callable[[LocalCluster | None], dict[str, Any]]) -> F:
    targeted = target_options(function)

    def wrapped(*arguments: Any, directory: str, bootstrap: str, **rest: Any) -> Any:
        ctx = click.get_current_context()
        source = ctx.get_parameter_source
        brokers = brokers_of(ctx, bootstrap, client_settings(rest["client_file"], rest["client_sets"]))
        given = ParameterSource.COMMANDLINE
        local: LocalCluster | None
        if source("directory") == given and source("bootstrap") != given:
            # A directory on the command line overrides another cluster in the environment.
            local = LocalCluster.existing(directory)
        else:
            local = LocalCluster.load(directory)
            named = source("bootstrap") != ParameterSource.DEFAULT or brokers != bootstrap
            if local is not None and named:
                known = local.bootstrap.split(",")
                local = None if set(brokers.split(",")).isdisjoint(known) else local
        if local is not None and local.ports:
            bootstrap = local.bootstrap
            rest["client_sets"] = (*rest["client_sets"], f"bootstrap.servers={bootstrap}")
            if not any(name.isdigit() for name in local.running()):
                raise click.ClickException(
                    f"no broker of the cluster in {directory} is running: 'tidemill cluster "
                    f"up{local.option}' starts them"
                )
        return targeted(*arguments, bootstrap=bootstrap, **more(local), **rest)

    return with_options(targeted, wrapped, directory_option)


def broker_ids(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Completes broker ids: those of the directory, or else those of the target cluster."""
    found = [name for name in names_of(ctx, param, incomplete) if name.isdigit()]
    return found or name_completion.broker_ids(ctx, param, incomplete)


def names_of(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Completes the names of processes in the directory."""
    try:
        local = LocalCluster.load(str(ctx.params.get("directory") or DIRECTORY))
    except click.ClickException:
        return []
    return name_completion.matching(local.names if local is not None else (), incomplete)
