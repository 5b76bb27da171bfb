"""``tidemill serve``: run a broker."""

from __future__ import annotations

import os

import click

from tidemill.cli.options import (
    Descriptor,
    StateFile,
    Whole,
    broker_settings_option,
    config_file_option,
    pairs,
)


@click.command(
    "serve",
    epilog="""\b
Examples:
  tidemill serve
  tidemill serve --config server.properties
  tidemill serve --set listeners=PLAINTEXT://127.0.0.1:19092 --set log.dirs=/var/lib/tidemill
  TIDEMILL_NUM_PARTITIONS=6 tidemill serve --set tidemill.metrics.port=9404

Every key can come from a file (Kafka's server.properties works), from the environment
(TIDEMILL_LOG_DIRS is log.dirs) and from --set, which goes before both.
'tidemill config keys' lists them.""",
)
@config_file_option
@broker_settings_option
@click.option("-p", "--port", type=Whole(0, 65535), help="Port; short for --set listeners=PLAINTEXT://:PORT.")
@click.option("-d", "--data", metavar="DIR", help="Data directory; short for --set log.dirs=DIR.")
@click.option("--log-level", metavar="LEVEL", help="trace, debug, info, warning or error; also net=debug,...")
@click.option("-q", "--quiet", is_flag=True, help="Leave out the hints at the start.")
@click.option(
    "--ready-file",
    type=StateFile(),
    metavar="FILE",
    help="Write a line of JSON there once the broker serves; removed at the start.",
)
@click.option("--ready-fd", type=Descriptor(0), metavar="N", help="Write it to this descriptor.")
@click.option("--until-eof", is_flag=True, help="Stop when standard input ends.")
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

    It listens on port 9092 and keeps its data in ./tidemill-data, unless told otherwise.
    """
    from tidemill.server.process import Start, serve

    pairs("--set", sets)
    if ready_file is not None and os.path.isfile(ready_file):
        # It tells of another start: whoever waits for this one must not believe it.
        os.remove(ready_file)
    shorts = []
    if port is not None:
        shorts.append(("-p/--port", f"listeners=PLAINTEXT://:{port}"))
    if data is not None:
        shorts.append(("-d/--data", f"log.dirs={data}"))
    return serve(
        Start(
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
