"""Recognises client software by name and version. Limits the Fetch versions for librdkafka with a bug.

A client sends its name and version in ApiVersions 3 and later (KIP-511). A client that is built on librdkafka
includes the version of librdkafka in one of these ways:

===========================  =======================================================
name                         version
===========================  =======================================================
librdkafka                   ``2.8.0``, also of programs that set no name (Rust, PHP)
confluent-kafka-python       ``2.8.2-rdkafka-2.8.2``
confluent-kafka-javascript   ``1.0.0-librdkafka-2.8.0``; so kcat and others
karafka                      ``v2.4.0-rdkafka-ruby-v0.19.0-librdkafka-v2.8.0``
confluent-kafka-go           ``2.8.0``, which is librdkafka's
confluent-kafka-dotnet       ``2.8.0``, which is librdkafka's
===========================  =======================================================

A client whose name and version do not include librdkafka's (ClickHouse, zig-kafka) is not recognised.

librdkafka 2.5.0 to 2.15 reads records of message formats v0 and v1 in a response of Fetch 12 and later as
nothing, or as messages without key and value (its issues 5504 and 5549). It reads them correctly in a
response of Fetch 11, so the broker announces Fetch up to version 11 to it. Release 2.6.0 ignores that, and
sends Fetch 12 or later (its issue 4870).
"""

from __future__ import annotations

import logging
import re
from typing import Final

from tidemill.model.log_lines import cut_short
from tidemill.net.peer import Peer

logger = logging.getLogger("tidemill.broker")

Version = tuple[int, int, int]

FETCH_OLD_FORMATS_MAX: Final = 11
"""The last version of Fetch in whose responses all releases of librdkafka read message formats v0 and v1."""
AFFECTED_FROM: Final[Version] = (2, 5, 0)
FIXED_IN: Final[Version] = (2, 16, 0)
IGNORES_ANNOUNCED_VERSIONS: Final[Version] = (2, 6, 0)

NAMES_WITH_LIBRDKAFKA_VERSION: Final = frozenset(
    {"librdkafka", "confluent-kafka-go", "confluent-kafka-dotnet"}
)
"""The clients whose version is that of librdkafka."""
VERSION: Final = re.compile(r"v?(\d{1,4})\.(\d{1,4})\.(\d{1,4})(?!\d)")
EMBEDDED_VERSION: Final = re.compile(r"(?:^|-)(?:lib)?rdkafka-" + VERSION.pattern)

NAME_CHARACTERS_MAX: Final = 100
LOGGED_CLIENTS_MAX: Final = 1000
"""The number of clients that are logged. More are not."""


def librdkafka_version(name: str, version: str) -> Version | None:
    """Returns the version of librdkafka in a client; None if name and version do not show it."""
    found = EMBEDDED_VERSION.search(version)
    if found is None and name in NAMES_WITH_LIBRDKAFKA_VERSION:
        found = VERSION.match(version)
    if found is None:
        return None
    major, minor, patch = (int(part) for part in found.groups())
    return major, minor, patch


def misreads_old_formats(version: Version) -> bool:
    """Whether this librdkafka cannot read message formats v0 and v1 in responses of Fetch 12 and later."""
    return AFFECTED_FROM <= version < FIXED_IN


class ClientSoftware:
    """Selects the Fetch versions that are announced to a client, and logs each affected client once."""

    def __init__(self) -> None:
        self._logged: set[tuple[str, str, str, str]] = set()

    def fetch_version_max(self, peer: Peer, client_id: str | None, version_max: int) -> int:
        """Returns the last version of Fetch to announce to the client.

        It is ``version_max``, the last one that this broker handles, unless the client misreads old formats.
        """
        version = librdkafka_version(peer.software_name, peer.software_version)
        if version is None or not misreads_old_formats(version):
            return version_max
        self._log_affected(peer, client_id or "", version)
        return min(version_max, FETCH_OLD_FORMATS_MAX)

    def _log_affected(self, peer: Peer, client_id: str, version: Version) -> None:
        names = (client_id, peer.software_name, peer.software_version)
        client_id, name, own_version = (cut_short(one, NAME_CHARACTERS_MAX) for one in names)
        client = (peer.address, client_id, name, own_version)
        if client in self._logged or len(self._logged) > LOGGED_CLIENTS_MAX:
            return
        self._logged.add(client)
        if len(self._logged) > LOGGED_CLIENTS_MAX:
            logger.info("further clients with a librdkafka of 2.5.0 to 2.15 are not named in the log")
            return
        release = ".".join(map(str, version))
        if version == IGNORES_ANNOUNCED_VERSIONS:
            logger.warning(
                "client %r at %s (%s %s) uses librdkafka %s, which sends Fetch 12 or later whatever the "
                "broker announces, and then reads messages of formats v0 and v1 without their keys and "
                "values: use another release for topics in these formats, preferably 2.16.0 or later",
                client_id,
                peer.address,
                name,
                own_version,
                release,
            )
            return
        logger.info(
            "client %r at %s (%s %s) uses librdkafka %s, which cannot read message formats v0 and v1 in "
            "responses of Fetch 12 and later: Fetch up to version %d is announced to it. librdkafka 2.16.0 "
            "has the fix",
            client_id,
            peer.address,
            name,
            own_version,
            release,
            FETCH_OLD_FORMATS_MAX,
        )
