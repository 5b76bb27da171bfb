"""Writes the rows of a task into a transaction, and leaves it open.

With two-phase commit the transaction has no timeout (KIP-939). Where the cluster does not allow that, the
broker aborts it after ``transaction.timeout.ms``: here 15 minutes, the most that brokers allow by default.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from tidemill.client.arrow import columns_of
from tidemill.client.config import TRANSACTION_TIMEOUT, TWO_PHASE_COMMIT
from tidemill.client.config_keys import KEYS
from tidemill.client.errors import ClientError
from tidemill.model.errors import ErrorCode
from tidemill.pipeline.exactly_once.control_records import Place, Transaction
from tidemill.pipeline.exactly_once.requests import TransactionRows
from tidemill.pipeline.exactly_once.row_checksum import RowChecksum
from tidemill.pipeline.process_local import ProcessLocal

if TYPE_CHECKING:
    import pyarrow as pa

    from tidemill.client import Producer
    from tidemill.client.producer import BulkDelivery

TIMEOUT_MS: Final = 900_000
UNACKNOWLEDGED_MAX: Final = 64
"""The maximum number of unacknowledged slices of rows before the task waits for the first."""
NO_TWO_PHASE_COMMIT: Final = (
    ErrorCode.UNSUPPORTED_VERSION,
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
)
"""The errors of a cluster without two-phase commit, or that does not allow it."""

_refusals: ProcessLocal[set[str]] = ProcessLocal(set)
"""The bootstrap servers of clusters that have refused a two-phase commit to this process."""


def write_in_transaction(
    client: Mapping[str, str],
    transactional_id: str,
    parts: Iterable[tuple[str, pa.RecordBatch]],
) -> TransactionRows:
    """Sends the rows of each topic in a new transaction, and waits for the acknowledgements.

    Raises the first error; then the transaction is aborted. Raises ValueError without rows.
    """
    with _begun(client, transactional_id) as producer:
        checksum = RowChecksum()
        unacknowledged: deque[BulkDelivery] = deque()
        sample: Place | None = None
        for sent in _sent(producer, parts, checksum):
            unacknowledged.append(sent)
            while unacknowledged and (len(unacknowledged) > UNACKNOWLEDGED_MAX or unacknowledged[0].done()):
                sample = sample or _sample(unacknowledged[0])
                unacknowledged.popleft().result()
        producer.flush()
        for sent in unacknowledged:
            sent.result()
            sample = sample or _sample(sent)
        if sample is None:
            raise ValueError("a transaction needs rows")
        prepared = producer.prepare(may_time_out=True)
    transaction = Transaction(transactional_id, prepared.producer_id, prepared.epoch)
    return TransactionRows(transaction, checksum.row_set, sample)


def _sent(
    producer: Producer, parts: Iterable[tuple[str, pa.RecordBatch]], checksum: RowChecksum
) -> Iterator[BulkDelivery]:
    for topic, part in parts:
        for columns in columns_of(part):
            checksum.add(topic, *columns)
            yield producer.send_columns(topic, columns)


def _sample(sent: BulkDelivery) -> Place:
    metadata = sent.sample()
    return Place(metadata.topic, metadata.partition, metadata.offset)


def _begun(client: Mapping[str, str], transactional_id: str) -> Producer:
    """Returns a producer with an open transaction: without timeout, if the cluster allows that."""
    servers, refusals = client["bootstrap.servers"], _refusals.value
    without_timeout = {key: value for key, value in client.items() if key != TRANSACTION_TIMEOUT}
    if KEYS[TWO_PHASE_COMMIT].parse(client.get(TWO_PHASE_COMMIT, "true")) and servers not in refusals:
        try:
            return _opened(without_timeout, transactional_id, {TWO_PHASE_COMMIT: "true"})
        except ClientError as problem:
            if problem.code not in NO_TWO_PHASE_COMMIT:
                raise
            refusals.add(servers)
    timeout_ms = client.get(TRANSACTION_TIMEOUT, str(TIMEOUT_MS))
    return _opened(client, transactional_id, {TWO_PHASE_COMMIT: "false", TRANSACTION_TIMEOUT: timeout_ms})


def _opened(client: Mapping[str, str], transactional_id: str, more: Mapping[str, str]) -> Producer:
    from tidemill.client import Producer

    config: dict[str, Any] = {"linger.ms": "20", **client, "transactional.id": transactional_id, **more}
    producer = Producer(None, config)
    try:
        producer.begin()
    except BaseException:
        producer.close()
        raise
    return producer
