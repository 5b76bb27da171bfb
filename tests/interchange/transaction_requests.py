"""Single requests of a transactional producer, which continue its transaction without the producer."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from tidemill.client.config import PRODUCER, config_of
from tidemill.client.connection import Connection
from tidemill.client.group_requests import call_coordinator
from tidemill.client.network_client import TRANSACTION, NetworkClient
from tidemill.model.errors import ErrorCode
from tidemill.model.transaction_types import TRANSACTION_VERSION
from tidemill.wire.apis import ApiKey
from tidemill.wire.messages.end_txn import EndTxnRequest, EndTxnResponse

TIMEOUT_S = 60
T = TypeVar("T")


@contextmanager
def coordinator_calls(bootstrap: str, name: str) -> Iterator[Callable[[Callable[[Connection], T]], T]]:
    """Yields a function that calls its argument with a connection to the coordinator of ``name``."""
    network = NetworkClient(config_of(PRODUCER, bootstrap, None, {}))
    deadline = time.monotonic() + TIMEOUT_S
    try:
        yield lambda send: call_coordinator(network, name, deadline, send, TRANSACTION)
    finally:
        network.close()


def transaction_version(bootstrap: str) -> int:
    """Returns the level of ``transaction.version`` that the coordinator announces to clients."""
    with coordinator_calls(bootstrap, "any") as call:
        return call(lambda connection: connection.finalized_features.get(TRANSACTION_VERSION, 0))


def end_transaction(
    bootstrap: str, name: str, producer_id: int, epoch: int, *, is_commit: bool, version: int
) -> EndTxnResponse:
    """Sends EndTxn to the coordinator of ``name``, and repeats it while the coordinator is busy."""
    request = EndTxnRequest(
        transactional_id=name, producer_id=producer_id, producer_epoch=epoch, committed=is_commit
    )
    deadline = time.monotonic() + TIMEOUT_S
    with coordinator_calls(bootstrap, name) as call:
        while True:
            response = call(
                lambda connection: connection.call(ApiKey.END_TXN, request, EndTxnResponse, version=version)
            )
            if response.error_code != ErrorCode.CONCURRENT_TRANSACTIONS:
                return response
            assert time.monotonic() < deadline, f"the coordinator of {name} stays busy"
            time.sleep(0.1)
