"""The producers of transactions, the ends of these, and constants that clients and brokers share."""

from __future__ import annotations

from typing import Final, NamedTuple

TRANSACTION_VERSION: Final = "transaction.version"
"""The feature of the cluster whose level is the protocol of transactions, 0 to 2 (KIP-890)."""
NO_TIMEOUT_MS: Final = 2**31 - 1
"""The timeout of a two-phase commit (KIP-939): another system decides on its end."""


class ProducerIdAndEpoch(NamedTuple):
    """Identifies a producer: an older epoch of its id is fenced."""

    producer_id: int
    epoch: int


class MarkerToWrite(NamedTuple):
    """The end of a producer's transaction, as its coordinator has decided."""

    producer: ProducerIdAndEpoch
    is_commit: bool
    coordinator_epoch: int
    version: int
    """The transaction version of the client; 0 if it is unknown."""
