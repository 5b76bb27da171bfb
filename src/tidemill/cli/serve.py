"""``tidemill serve``: runs a broker."""

from __future__ import annotations

import os

import click

from tidemill.cli.options import (
    Descriptor,
    StateFile,
    WholeNumber,
    config_file_option,
    pairs,
)
from tidemill.cli.setting_options import broker_settings_option


@click.command(
    "serve",
    epilog="""\b
Examples:
  tidemill serve
  tidemill serve --config server.properties
  tidemill serve --set listeners=PLAINTEXT://127.0.0.1:19092 --set log.dirs=/var/lib/tidemill
  TIDEMILL_NUM_PARTITIONS=6 tidemill serve --set tidemill.metrics.port=9404

Every key can be set in a file (Kafka's server.properties works), in the environment (TIDEMILL_LOG_DIRS is
log.dirs) and with --set, which takes precedence over both.
'tidemill config keys' lists the keys.""",
)
@config_file_option
@broker_settings_option
@click.option(
    "-p", "--port", type=WholeNumber(0, 65535), help="Port; short for --set listeners=PLAINTEXT://:PORT."
)
@click.option("-d", "--data", metavar="DIR", help="Data directory; short for --set log.dirs=DIR.")
@click.option(
    "--log-level", metavar="LEVEL", help="trace, debug, info, warning or error; or of one area: net=debug,..."
)
@click.option("-q", "--quiet", is_flag=True, help="Do not print hints at the start.")
@click.option(
    "--ready-file",
    type=StateFile(),
    metavar="FILE",
    help="Write a line of JSON to FILE once the broker serves; an old FILE is removed at the start.",
)
@click.option(
    "--ready-fd", type=Descriptor(0), metavar="N", help="Write the same line to this file descriptor."
)
@click.option("--until-eof", is_flag=True, help="Stop at the end of standard input.")
def command(
    config_file: str | None,
    sets: tuple[str, ...],
    port: int | None,
    data: str | None,
    log_level: str | None,
    quiet: bool,
    ready_file: str | None,
    ready_fd: int | None,
    until_eof: bool,
) -> int:
    """Run a broker until ctrl-C or SIGTERM.

    It listens on port 9092 and keeps its data in ./tidemill-data by default.
    """
    from tidemill.model.errors import ConfigError
    from tidemill.server.logging import parse_levels
    from tidemill.server.process import ServeOptions, serve

    pairs("--set", sets)
    try:
        parse_levels(log_level.split(",") if log_level else [], "--log-level")
    except ConfigError as problem:
        raise click.UsageError(str(problem)) from None
    if ready_file is not None and os.path.isfile(ready_file):
        # The file is of an earlier start: a process that waits for this start must not read it.
        os.remove(ready_file)
    shorts = []
    if port is not None:
        shorts.append(("-p/--port", f"listeners=PLAINTEXT://:{port}"))
    if data is not None:
        shorts.append(("-d/--data", f"log.dirs={data}"))
    return serve(
        ServeOptions(
            config_file=config_file,
            sets=sets,
            options=shorts,
            environment=os.environ,
            log_level=log_level,
            ready_file=ready_file,
            ready_descriptor=ready_fd,
            quiet=quiet,
            until_eof=until_eof,
        )
    )
