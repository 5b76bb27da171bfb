"""Which cluster the commands of ``tidemill cluster`` and its like mean: one of this machine, or any other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click
from click.core import ParameterSource

from tidemill.cli import suggest
from tidemill.cli.local import DIRECTORY, DIRECTORY_VARIABLE, LocalCluster
from tidemill.cli.options import brokers_of, client_settings, target_options

F = TypeVar("F", bound=Callable[..., Any])

directory_option = click.option(
    "-d",
    "--directory",
    envvar=DIRECTORY_VARIABLE,
    show_envvar=True,
    default=DIRECTORY,
    show_default=True,
    metavar="DIR",
    type=click.Path(file_okay=False),
    help="Where 'cluster up' keeps its cluster.",
)
"""The same for every command that starts and ends processes of this machine."""


def cluster_options(function: F) -> F:
    """As :func:`target_options`, with the brokers of ``--directory`` unless others are named."""
    return _with_directory(function, lambda local: {})


def local_cluster_options(function: F) -> F:
    """The same; the command also gets ``local``, the cluster of the directory when that is the one asked."""
    return _with_directory(function, lambda local: {"local": local})


def _with_directory(function: F, more: Callable[[LocalCluster | None], dict[str, Any]]) -> F:
    targeted = target_options(function)

    def made(*arguments: Any, directory: str, bootstrap: str, **rest: Any) -> Any:
        ctx = click.get_current_context()
        source = ctx.get_parameter_source
        brokers = brokers_of(ctx, bootstrap, client_settings(rest["client_file"], rest["client_sets"]))
        given = ParameterSource.COMMANDLINE
        local: LocalCluster | None
        if source("directory") == given and source("bootstrap") != given:
            # Whoever names a directory means it, whatever the environment says of another cluster.
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
                    f"no broker of the cluster in {directory} runs: 'tidemill cluster up{local.option}' "
                    "starts them"
                )
        return targeted(*arguments, bootstrap=bootstrap, **more(local), **rest)

    made.__name__ = function.__name__
    made.__doc__ = function.__doc__
    made.__click_params__ = getattr(targeted, "__click_params__", [])  # type: ignore[attr-defined]
    return directory_option(made)  # type: ignore[return-value]


def broker_ids(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Brokers of the directory, or else of the cluster that is named, for a shell."""
    found = [name for name in names_of(ctx, param, incomplete) if name.isdigit()]
    return found or suggest.broker_ids(ctx, param, incomplete)


def names_of(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """What runs, or could, in the directory, for a shell."""
    try:
        local = LocalCluster.load(str(ctx.params.get("directory") or DIRECTORY))
    except click.ClickException:
        return []
    return suggest.those(local.names if local is not None else (), incomplete)
