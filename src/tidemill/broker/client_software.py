"""What is known of the programs that clients are: which of them need an answer of their own.

A client says its name and version in ApiVersions 3 and later (KIP-511). Programs that stand on librdkafka put
its version into theirs, in one of these ways:

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

A program that gives a name and version of its own, and librdkafka's in neither (ClickHouse, zig-kafka), is
not recognised.

librdkafka 2.5.0 to 2.15 reads records of message formats v0 and v1 in a response of Fetch 12 and later
as nothing, or as messages without key and value (its issues 5504 and 5549). By Fetch 11 it reads them, so it
is told of no later version. Release 2.6.0 does not heed that, and fetches by version 12 at least (its issue
4870).
"""

from __future__ import annotations

import logging
import re
from typing import Final

from tidemill.broker.context import Peer
from tidemill.model.log_lines import cut_short

log = logging.getLogger("tidemill.broker")

Version = tuple[int, int, int]

FETCH_OLD_FORMATS_MAX: Final = 11
"""The last version of Fetch by which the affected releases of librdkafka read message formats v0 and v1."""
AFFECTED_FROM: Final[Version] = (2, 5, 0)
MENDED_IN: Final[Version] = (2, 16, 0)
HEEDS_NOTHING: Final[Version] = (2, 6, 0)

OWN_VERSION: Final = frozenset({"librdkafka", "confluent-kafka-go", "confluent-kafka-dotnet"})
"""Programs that give the version of librdkafka as their own."""
VERSION: Final = re.compile(r"v?(\d{1,4})\.(\d{1,4})\.(\d{1,4})(?!\d)")
PART: Final = re.compile(r"(?:^|-)(?:lib)?rdkafka-" + VERSION.pattern)

NAME_CHARACTERS_MAX: Final = 100
TOLD_MAX: Final = 1000
"""Clients that are remembered as told of."""


def librdkafka_version(name: str, version: str) -> Version | None:
    """The version of librdkafka in a client; None where it is another client, or does not tell."""
    found = PART.search(version)
    if found is None and name in OWN_VERSION:
        found = VERSION.match(version)
    if found is None:
        return None
    major, minor, patch = (int(part) for part in found.groups())
    return major, minor, patch


def misreads_old_formats(version: Version | None) -> bool:
    """Whether this librdkafka cannot read message formats v0 and v1 by Fetch 12 and later."""
    return version is not None and AFFECTED_FROM <= version < MENDED_IN


class ClientSoftware:
    """Recognises clients by name and version, and logs once of each that gets an answer of its own."""

    def __init__(self) -> None:
        self._told: set[tuple[str, str, str, str]] = set()

    def fetch_version_max(self, peer: Peer, client_id: str | None, version_max: int) -> int:
        """The last version of Fetch to announce to the client at the other end.

        It is ``version_max``, the last one that is served, for all but those that misread old formats by it.
        """
        version = librdkafka_version(peer.software_name, peer.software_version)
        if version is None or not misreads_old_formats(version):
            return version_max
        self._tell(peer, client_id or "", version)
        return min(version_max, FETCH_OLD_FORMATS_MAX)

    def _tell(self, peer: Peer, client_id: str, version: Version) -> None:
        names = (client_id, peer.software_name, peer.software_version)
        client_id, name, own_version = (cut_short(one, NAME_CHARACTERS_MAX) for one in names)
        who = (peer.address, client_id, name, own_version)
        if who in self._told or len(self._told) > TOLD_MAX:
            return
        self._told.add(who)
        if len(self._told) > TOLD_MAX:
            log.info("further clients with a librdkafka of 2.5.0 to 2.15 are not named in the log")
            return
        release = ".".join(map(str, version))
        if version == HEEDS_NOTHING:
            log.warning(
                "client %r at %s (%s %s) stands on librdkafka %s, which fetches by version 12 or later "
                "whatever a broker announces, and then reads messages of formats v0 and v1 without their "
                "keys and values: use another release for topics in these formats, best 2.16.0 or later",
                client_id,
                peer.address,
                name,
                own_version,
                release,
            )
            return
        log.info(
            "client %r at %s (%s %s) stands on librdkafka %s, which cannot read message formats v0 and v1 by "
            "Fetch 12 and later: it is told of Fetch up to version %d. librdkafka 2.16.0 can",
            client_id,
            peer.address,
            name,
            own_version,
            release,
            FETCH_OLD_FORMATS_MAX,
        )
