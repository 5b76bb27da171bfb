"""Options that several commands share, and the conversion of their texts to values."""

from __future__ import annotations

import os
import re
import socket
import time
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any, TypeVar, cast

import click
from click.core import ParameterSource

from tidemill.model.errors import ConfigError
from tidemill.model.secrets import HIDDEN, is_secret

if TYPE_CHECKING:
    from tidemill.client import Admin

    # Only newer versions of click have a type parameter for the result of a parameter type.
    FloatType = click.ParamType[float]
    WholeType = click.ParamType[int]
    TextType = click.ParamType[str]
else:
    FloatType = WholeType = TextType = click.ParamType

CONFIG_FILE_VARIABLE = "TIDEMILL_CONFIG"

F = TypeVar("F", bound=Callable[..., Any])

API_TIMEOUT_S = 15
"""Time limit of a command's calls to the cluster, in seconds, unless -X overrides it."""

LONG_MAX = 2**63 - 1
INT_MAX = 2**31 - 1
SHORT_MAX = 2**15 - 1
"""Largest values of the protocol's integer types."""

DIGITS_MAX = 19
"""The most decimal digits of a 64-bit integer."""

CONNECT_TIMEOUT_S = 3
"""Timeout of the first connection to a broker, in seconds. The client then retries."""

_UNITS_S = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}


class Existing(click.Path):
    """A file or directory that exists. ``what`` describes the expected one in messages."""

    def __init__(self, what: str, *, directory: bool | None = None) -> None:
        super().__init__()
        self.what = what
        self.directory = directory
        """True: only a directory is accepted; False: no directory is accepted; None: both are."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        path = str(value)
        if not path:
            self.fail(f"the name is empty: name {self.what}", param, ctx)
        if not os.path.exists(path):
            how = "is a link to a missing file" if os.path.islink(path) else "does not exist"
            self.fail(f"{path} {how}: name {self.what}", param, ctx)
        if self.directory is not None and os.path.isdir(path) != self.directory:
            how = "is not a directory" if self.directory else "is a directory"
            self.fail(f"{path} {how}: name {self.what}", param, ctx)
        if not os.access(path, os.R_OK | (os.X_OK if os.path.isdir(path) else 0)):
            self.fail(f"{path} cannot be read: change its permissions, or name {self.what}", param, ctx)
        return path


class JsonFile(Existing):
    """A file, or ``-`` for standard input."""

    def __init__(self, what: str) -> None:
        super().__init__(f"{what}, or - for standard input", directory=False)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        return "-" if value == "-" else super().convert(value, param, ctx)


class Target:
    """The cluster that a command connects to, and the client configuration it uses."""

    def __init__(self, bootstrap: str, config: dict[str, Any]) -> None:
        self.bootstrap = bootstrap
        self._config = config

    def config(self, **defaults: Any) -> dict[str, Any]:
        """Returns a client's configuration: ``defaults`` (dots as underscores), overridden by the user's."""
        return {
            "default.api.timeout.ms": API_TIMEOUT_S * 1000,
            "client.id": "tidemill-cli",
            **{name.replace("_", "."): value for name, value in defaults.items()},
            **self._config,
        }

    def admin(self, **defaults: Any) -> Admin:
        """Returns an admin client with :meth:`config`, to be used in a ``with`` statement."""
        from tidemill.client import Admin

        return Admin(self.bootstrap, self.config(**defaults))

    def check_reachable(self) -> None:
        """Raises ClickException at once when no broker accepts connections; a client would keep trying."""
        from tidemill.client import wait_reasons
        from tidemill.client.config_keys import parse_address
        from tidemill.client.wait_reasons import Kind

        failures = []
        for text in self.bootstrap.split(","):
            try:
                host, port = parse_address(text.strip())
            except ConfigError as problem:
                raise click.UsageError(f"--bootstrap-server {self.bootstrap}: {problem}") from None
            try:
                with wait_reasons.waiting(Kind.CLUSTER, f"{text.strip()} has not accepted the connection"):
                    socket.create_connection((host, port), CONNECT_TIMEOUT_S).close()
            except TimeoutError:
                return
            except OSError as problem:
                failures.append(f"{text.strip()}: {problem.strerror or problem}")
            else:
                return
        raise click.ClickException(
            f"no broker can be reached ({'; '.join(failures)}): start one with 'tidemill serve', or name "
            "another with -b HOST:PORT"
        )


bootstrap_option = click.option(
    "-b",
    "--bootstrap-server",
    "bootstrap",
    envvar="TIDEMILL_BOOTSTRAP",
    default="localhost:9092",
    show_default=True,
    show_envvar=True,
    metavar="HOST:PORT",
    help="Brokers to connect to first, separated by commas.",
)
"""Option of every command that connects to a cluster. ``bootstrap.servers`` of its client keys overrides the
default."""


client_file_option = click.option(
    "--command-config",
    "client_file",
    envvar="TIDEMILL_COMMAND_CONFIG",
    show_envvar=True,
    metavar="FILE",
    type=Existing("a properties file of client keys", directory=False),
    help="Properties file of client keys, such as logins.",
)
"""Option of every command that connects to a cluster. A file keeps secrets out of the list of processes."""

config_file_option = click.option(
    "-c",
    "--config",
    "config_file",
    envvar=CONFIG_FILE_VARIABLE,
    show_envvar=True,
    metavar="FILE",
    type=Existing("a properties file", directory=False),
    help="Properties file of the broker, as Kafka's server.properties.",
)
"""Option of the commands that start a broker or check its configuration."""


def target_options(function: F) -> F:
    """Adds ``--bootstrap-server``, ``--command-config`` and ``-X``; the command gets ``target``."""

    def wrapped(
        *arguments: Any, bootstrap: str, client_file: str | None, client_sets: tuple[str, ...], **rest: Any
    ) -> Any:
        from tidemill.cli.wait_messages import watching

        settings = client_settings(client_file, client_sets)
        target = Target(brokers_of(click.get_current_context(), bootstrap, settings), settings)
        try:
            with watching():
                target.check_reachable()
                return function(*arguments, target=target, **rest)
        except ConfigError as problem:
            # Keys that contradict one another, which only the client itself checks.
            raise click.UsageError(str(problem)) from None

    more_sets = click.option(
        "-X",
        "client_sets",
        multiple=True,
        metavar="KEY=VALUE",
        help="Set a client key; can be repeated.",
    )
    return with_options(function, wrapped, more_sets, client_file_option, bootstrap_option)


def with_options(function: F, wrapped: Callable[..., Any], *options: Callable[[F], F]) -> F:
    """Gives ``wrapped`` the name, help and options of the command ``function``, and ``options``."""
    wrapped.__name__ = function.__name__
    wrapped.__doc__ = function.__doc__
    # The options that decorators below this one have added so far.
    wrapped.__click_params__ = getattr(function, "__click_params__", [])  # type: ignore[attr-defined]
    command = cast(F, wrapped)
    for option in options:
        command = option(command)
    return command


def client_settings(
    config_file: str | None, settings: tuple[str, ...], *, left_out: Collection[str] = ()
) -> dict[str, Any]:
    """Returns the client keys of a properties file, overridden by those of ``KEY=VALUE`` texts.

    The file may have the keys ``left_out``, which are not returned.
    """
    found: dict[str, Any] = {}
    if config_file is not None:
        from tidemill.client.config_keys import SERIALIZERS
        from tidemill.model.configs.properties import read_properties

        for line in read_properties(config_file):
            if line.key in SERIALIZERS or line.key in left_out:
                continue
            _check_client_setting(f"{config_file}:{line.line}", line.key, line.value)
            found[line.key] = line.value
    given = pairs("-X", settings)
    for name, value in given.items():
        _check_client_setting("-X", name, value)
    found.update(given)
    return found


def brokers_of(ctx: click.Context, bootstrap: str, settings: Mapping[str, Any]) -> str:
    """Returns the first brokers to connect to: ``bootstrap``, or by default those of the client keys."""
    if ctx.get_parameter_source("bootstrap") not in (None, ParameterSource.DEFAULT):
        return bootstrap
    found: str = settings.get("bootstrap.servers") or settings.get("metadata.broker.list") or bootstrap
    return found


def _check_client_setting(where: str, name: str, value: str) -> None:
    from tidemill.client.config_keys import check_setting

    try:
        check_setting(name, value)
    except ConfigError as problem:
        raise click.UsageError(f"{where}: {problem}") from None


def pairs(option: str, texts: tuple[str, ...]) -> dict[str, str]:
    """Returns ``("a=1", "b=2")`` as a mapping. Raises UsageError for a text without ``=``."""
    found = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key.strip():
            raise click.UsageError(f"{option} {HIDDEN if is_secret(text) else text}: it must be KEY=VALUE")
        found[key.strip()] = value
    return found


class WholeNumber(click.IntRange):
    """An integer within bounds. (The messages of click speak of an "integer range".)"""

    name = "integer"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            number = int(value)
        except ValueError:
            self.fail(f"{value!r} is not a whole number", param, ctx)
        low, high = self.min, self.max
        if (low is not None and number < low) or (high is not None and number > high):
            bounds = f"{low} to {high}" if high is not None else f"{low} or more"
            self.fail(f"{number} is out of range: it must be {bounds}", param, ctx)
        return number


class StateFile(click.Path):
    """A regular or new file in a directory that exists and is writable."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        path = str(value)
        folder = os.path.dirname(os.path.abspath(path))
        if os.path.isdir(path):
            self.fail(f"{path} is a directory: name a file in it", param, ctx)
        if not os.path.isdir(folder):
            self.fail(f"{folder} is not a directory: create it first, or name another file", param, ctx)
        if not os.access(path if os.path.exists(path) else folder, os.W_OK):
            self.fail(f"{path} cannot be written: name another file, or change the permissions", param, ctx)
        return path


class Descriptor(WholeNumber):
    """A file descriptor that is open for writing."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        number = super().convert(value, param, ctx)
        import fcntl

        try:
            mode = fcntl.fcntl(number, fcntl.F_GETFL) & os.O_ACCMODE
        except (OSError, OverflowError):
            self.fail(f"descriptor {number} is not open; a shell opens it with {number}>FILE", param, ctx)
        if mode == os.O_RDONLY:
            self.fail(f"descriptor {number} is open for reading only", param, ctx)
        return number


def parse_duration(text: str) -> float:
    """Returns the seconds in ``500ms``, ``90s``, ``10m``, ``2h``, ``7d``, ``1w``; the default unit is s."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d|w)?", text.strip())
    if match is None:
        raise ConfigError(f"{text!r} is not a duration: use 500ms, 90s, 10m, 2h, 7d or 1w")
    return float(match[1]) * _UNITS_S[match[2] or "s"]


def parse_moment(text: str) -> int:
    """Returns the milliseconds since 1970 of a moment.

    ``2026-03-01``, ``2026-03-01T12:00`` (local time, unless it names a zone), ``10m`` (that long ago), or
    milliseconds as a number of at least 11 digits.
    """
    from datetime import datetime

    text = text.strip()
    if text.isascii() and text.isdigit() and 11 <= len(text) <= DIGITS_MAX:
        return min(int(text), LONG_MAX)
    if text == "now":
        return int(time.time() * 1000)
    try:
        if re.fullmatch(r"\d+(?:\.\d+)?\s*(ms|s|m|h|d|w)", text):
            return max(0, int((time.time() - parse_duration(text)) * 1000))
        # A broker would interpret a moment before 1970 differently.
        return max(0, int(datetime.fromisoformat(text).timestamp() * 1000))
    except (ValueError, OverflowError):
        raise ConfigError(
            f"{text!r} is not a point in time: use 2026-03-01T12:00 (local time, or with a zone as +01:00), "
            "10m for ten minutes ago, or milliseconds since 1970"
        ) from None


class Duration(FloatType):
    """A duration in seconds, as an option type."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if isinstance(value, float | int):
            return float(value)
        try:
            return parse_duration(value)
        except ConfigError as problem:
            self.fail(str(problem), param, ctx)


class Moment(WholeType):
    """A point in time in milliseconds since 1970, as an option type."""

    name = "moment"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        try:
            return parse_moment(value)
        except ConfigError as problem:
            self.fail(str(problem), param, ctx)


def unescape(text: str) -> str:
    """Replaces ``\\t``, ``\\n``, ``\\0``, ``\\xNN`` and ``\\\\`` in a separator, which are hard to type."""
    names = {"t": "\t", "n": "\n", "r": "\r", "0": "\0", "\\": "\\"}

    def replaced(match: re.Match[str]) -> str:
        if match[2]:
            return chr(int(match[2], 16))
        return names[match[1]]

    return re.sub(r"\\(?:([tnr0\\])|x([0-9a-fA-F]{2}))", replaced, text)
