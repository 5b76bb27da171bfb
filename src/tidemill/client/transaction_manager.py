"""The transactions of a producer: its id and epoch, the partitions of the open transaction, and their end.

    begin ──► open ──► commit or abort ──► begin …
               │
               ├─ prepare ──► commit, abort, or complete, also by another producer
               └─ a message failed ──► only abort is possible

:data:`TRANSITIONS` has the states, by Kafka's names.

A broker with the feature ``transaction.version`` 2 adds partitions itself, and the epoch grows with each
transaction. Otherwise the producer adds a partition before it sends the first batch there.

A call that fails with a timeout may be repeated. Methods are for the threads that send, except those of the
sender thread at the end.

Source: KIP-98, KIP-360, KIP-447, KIP-890, KIP-939; Apache Kafka, ``TransactionManager.java``.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from enum import IntEnum
from typing import Final, NamedTuple, TypeVar

from tidemill.client.connection import Connection
from tidemill.client.errors import (
    AbortableTransactionError,
    ClientClosed,
    ClientError,
    FatalTransactionError,
    ProducerFenced,
    RequestTimeout,
    error_for,
)
from tidemill.client.group_offsets import OffsetAndMetadata
from tidemill.client.group_requests import COORDINATOR_MOVED, call_coordinator
from tidemill.client.network_client import TRANSACTION, NetworkClient
from tidemill.model.errors import ConfigError, ErrorCode, KafkaError
from tidemill.model.transaction_types import TRANSACTION_VERSION
from tidemill.model.transition_table import NONE, TransitionTable
from tidemill.model.types import TopicPartition, by_topic
from tidemill.wire.apis import ApiKey
from tidemill.wire.messages.add_offsets_to_txn import AddOffsetsToTxnRequest, AddOffsetsToTxnResponse
from tidemill.wire.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
)
from tidemill.wire.messages.end_txn import EndTxnRequest, EndTxnResponse
from tidemill.wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from tidemill.wire.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
    TxnOffsetCommitResponse,
)

logger = logging.getLogger(__name__)

ResultT = TypeVar("ResultT")

IMPLICIT_VERSION: Final = 2
"""The level of ``transaction.version`` from which on brokers add partitions themselves."""
CLIENT_ADDS_VERSION_MAX: Final = 3
"""Later versions of AddPartitionsToTxn are for brokers."""
PRODUCE_VERSION_MAX: Final = 11
"""The last version of Produce whose partitions the client has added before."""
OFFSETS_VERSION_MAX: Final = 4
"""The last version of TxnOffsetCommit before which the client has added the group."""
END_VERSION_MAX: Final = 4
"""The last version of EndTxn that keeps the epoch."""
EPOCH_FROM: Final = 3
"""From this version of InitProducerId on a producer continues with its id and the next epoch."""
TWO_PHASE_COMMIT_FROM: Final = 6
"""From this version of InitProducerId on transactions may have no timeout (KIP-939)."""
CONCURRENT_BACKOFF_S: Final = 0.02
"""The pause while the transaction before is still being ended."""

RETRIED: Final = COORDINATOR_MOVED | {ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
FENCED: Final = frozenset({ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH})
ABORTABLE: Final = frozenset(
    {
        ErrorCode.TRANSACTION_ABORTABLE,
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        ErrorCode.GROUP_AUTHORIZATION_FAILED,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.ILLEGAL_GENERATION,
        ErrorCode.FENCED_INSTANCE_ID,
        ErrorCode.OFFSET_METADATA_TOO_LARGE,
        ErrorCode.INVALID_COMMIT_OFFSET_SIZE,
        ErrorCode.UNKNOWN_PRODUCER_ID,
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
        ErrorCode.OPERATION_NOT_ATTEMPTED,
    }
)
"""Errors after which the transaction can only be aborted. Others, unless they are retried, are fatal."""


class ConsumerGroupMetadata(NamedTuple):
    """A member of a consumer group, on whose behalf a transaction commits offsets (KIP-447)."""

    group_id: str
    generation: int = -1
    member_id: str = ""
    instance_id: str | None = None


class PreparedTransaction(NamedTuple):
    """Identifies a prepared transaction of a transactional id; to be stored in the other system (KIP-939)."""

    producer_id: int
    epoch: int


def prepared_of(stored: object) -> PreparedTransaction:
    """Returns the prepared transaction that another system has stored, for example as a list of JSON.

    Raises ConfigError unless it is two integers: any other value would abort the transaction.
    """
    found = tuple(stored) if isinstance(stored, tuple | list) else ()
    if len(found) == 2 and all(isinstance(one, int) and not isinstance(one, bool) for one in found):
        return PreparedTransaction._make(found)
    raise ConfigError(
        f"prepared={stored!r}: it must be the producer id and the epoch that prepare() has returned, two"
        " integers, or None"
    )


class State(IntEnum):
    """The states of the producer."""

    UNINITIALIZED = 0
    """It has no producer id."""
    INITIALIZING = 1
    READY = 2
    IN_TRANSACTION = 3
    PREPARED_TRANSACTION = 4
    COMMITTING_TRANSACTION = 5
    ABORTING_TRANSACTION = 6
    ABORTABLE_ERROR = 7
    FATAL_ERROR = 8


STATE_TEXTS: Final = {
    State.UNINITIALIZED: "no transaction is open",
    State.INITIALIZING: "another thread begins",
    State.READY: "no transaction is open",
    State.IN_TRANSACTION: "a transaction is open",
    State.PREPARED_TRANSACTION: "a transaction is prepared",
    State.COMMITTING_TRANSACTION: "a commit was not confirmed yet: repeat it",
    State.ABORTING_TRANSACTION: "an abort was not confirmed yet: repeat it",
    State.ABORTABLE_ERROR: "the transaction can only be aborted",
    State.FATAL_ERROR: "the producer can only be closed",
}
"""The states in the errors of calls that they do not allow."""

FOLLOWING: Final = {
    # A failed InitProducerId may be repeated.
    State.UNINITIALIZED: {State.INITIALIZING},
    State.INITIALIZING: {
        State.UNINITIALIZED,
        State.READY,
        State.PREPARED_TRANSACTION,
        State.ABORTABLE_ERROR,
    },
    State.READY: {State.IN_TRANSACTION},
    State.IN_TRANSACTION: {
        State.PREPARED_TRANSACTION,
        State.COMMITTING_TRANSACTION,
        State.ABORTING_TRANSACTION,
        State.ABORTABLE_ERROR,
    },
    State.PREPARED_TRANSACTION: {State.COMMITTING_TRANSACTION, State.ABORTING_TRANSACTION},
    # A commit or an abort whose response was lost is repeated. It includes the InitProducerId that follows.
    State.COMMITTING_TRANSACTION: {
        State.COMMITTING_TRANSACTION,
        State.READY,
        State.ABORTABLE_ERROR,
    },
    # An abort that failed is repeated. Without a producer id there was no transaction to abort.
    State.ABORTING_TRANSACTION: {
        State.ABORTING_TRANSACTION,
        State.READY,
        State.UNINITIALIZED,
        State.ABORTABLE_ERROR,
    },
    State.ABORTABLE_ERROR: {State.ABORTING_TRANSACTION, State.ABORTABLE_ERROR},
    State.FATAL_ERROR: set(),
}
"""The states that may follow each state; FATAL_ERROR may follow each."""

TRANSITIONS: Final = TransitionTable(
    "producer",
    [state.name for state in State],
    [f"the change to {state.name}" for state in State],
    [
        [int(to) if to in FOLLOWING[state] or to is State.FATAL_ERROR else NONE for to in State]
        for state in State
    ],
)
"""An event is the next state. Source: Apache Kafka, ``TransactionManager.State.isTransitionValid``. There a
producer initializes again after a commit or an abort; here that is part of it.
"""


class TransactionManager:
    """The transactions of one producer."""

    def __init__(
        self,
        network_client: NetworkClient,
        transactional_id: str,
        timeout_ms: int,
        *,
        has_two_phase_commit: bool = False,
    ) -> None:
        self.transactional_id = transactional_id
        self._state = State.UNINITIALIZED
        self.producer_id = -1
        self.epoch = -1
        self.is_implicit = False
        """Whether brokers add partitions to the transaction."""
        self._network_client = network_client
        self._timeout_ms = timeout_ms
        self._has_two_phase_commit = has_two_phase_commit
        self._lock = threading.RLock()
        self._sends_offsets = threading.Lock()
        """Held while a thread sends offsets."""
        self._adds_partitions = threading.Lock()
        """Held while the sender's helper thread adds partitions."""
        self._has_group = False
        """Whether a group is part of the transaction."""
        self._missing_offsets: dict[str, set[TopicPartition]] = {}
        """By group: the offsets of the transaction that were not sent, or whose responses were lost."""
        self._error: ClientError | None = None
        """The error of the transaction, or of the producer."""
        self._added: set[TopicPartition] = set()
        """The partitions that are part of the transaction."""
        self._to_add: set[TopicPartition] = set()
        self._has_new_partitions = False
        self._is_used = False
        """Whether the coordinator may know of the transaction."""
        self._needs_epoch = False
        """Whether the next transaction needs another epoch: the sequence of a partition has a gap, a former
        producer has begun this transaction, or brokers add partitions from the next transaction on. Then a
        batch could otherwise arrive before the marker of this transaction, and become part of it.
        """
        self._prepared: PreparedTransaction | None = None
        """The prepared transaction, until its end is confirmed."""
        self._began_s = 0.0
        """When the transaction began, by the monotonic clock."""
        self._is_ending = False
        """Whether a thread commits or aborts the transaction, which gets no further messages."""

    @property
    def state(self) -> State:
        """The state; only :meth:`_change_state` changes it."""
        return self._state

    def _change_state(self, following: State) -> None:
        """Changes the state. Raises RuntimeError if :data:`TRANSITIONS` does not allow it."""
        with self._lock:
            self._state = State(TRANSITIONS.after(int(self._state), int(following)))

    # -- the application's calls ---------------------------------------------------------------------------

    def init(self, deadline: float) -> None:
        """Requests the id and the epoch, and so aborts the transaction of a former producer."""
        if self._state is State.UNINITIALIZED:
            self._initialize(deadline, keeps_prepared=False)

    def _initialize(self, deadline: float, *, keeps_prepared: bool) -> None:
        """Requests the id and the epoch. The state is UNINITIALIZED before, and again after a failure."""
        with self._lock:
            if self._state is not State.UNINITIALIZED:
                raise ClientError(f"cannot begin: {STATE_TEXTS[self._state]}")
            self._change_state(State.INITIALIZING)
        try:
            self._init_producer_id(deadline, keeps_prepared=keeps_prepared)
        except BaseException:
            with self._lock:
                if self.state is State.INITIALIZING:
                    self._change_state(State.UNINITIALIZED)
            raise
        self._change_state(State.READY if self._prepared is None else State.PREPARED_TRANSACTION)

    def begin(self, deadline: float) -> None:
        """Begins a transaction. Raises ClientError if one is open."""
        self.check_usable()
        self._check_may_begin()
        self.init(deadline)
        with self._lock:
            # Another thread may have begun meanwhile.
            self._check_may_begin()
            self._change_state(State.IN_TRANSACTION)
            self._began_s = time.monotonic()

    def _check_may_begin(self) -> None:
        state = self._state
        if state in (State.UNINITIALIZED, State.READY):
            return
        advice = "" if state is State.INITIALIZING else "; commit or abort it first"
        raise ClientError(f"cannot begin a transaction: {STATE_TEXTS[state]}{advice}")

    @property
    def is_open(self) -> bool:
        """Whether nothing but this producer ends the transaction before its timeout, and can abort it."""
        return self._state in (State.IN_TRANSACTION, State.ABORTABLE_ERROR, State.ABORTING_TRANSACTION)

    @property
    def is_ended(self) -> bool:
        """Whether no transaction is open, prepared, or being ended."""
        return self._state in (State.UNINITIALIZED, State.READY)

    def check_usable(self) -> None:
        """Raises the error after which the producer can only be closed."""
        if self._state is State.FATAL_ERROR and self._error is not None:
            raise self._error

    def check_open(self, refused: str = "no message can be sent") -> None:
        """Raises ClientError, with what is ``refused``, unless the transaction can get more messages."""
        if self._state is State.IN_TRANSACTION and not self._is_ending:
            return
        self.check_usable()
        if self._is_ending:
            raise ClientError(f"{refused}: another thread ends the transaction")
        if self._error is not None:
            raise self._error
        state = self._state
        advice = "call begin()" if state in (State.UNINITIALIZED, State.READY) else "commit or abort it"
        raise ClientError(f"{refused}: {STATE_TEXTS[state]}; {advice} first")

    def send_offsets(
        self,
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
        group: ConsumerGroupMetadata,
        deadline: float,
    ) -> None:
        """Commits the offsets of a group with the transaction."""
        with self._sends_offsets:
            self.check_open("no offsets can be sent")
            if offsets:
                self._send_offsets(offsets, group, deadline)

    def _send_offsets(
        self,
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
        group: ConsumerGroupMetadata,
        deadline: float,
    ) -> None:
        self._is_used = True
        missing = self._missing_offsets.setdefault(group.group_id, set())
        missing.update(offsets)
        if not self.is_implicit:
            self._call(
                deadline,
                f"add group {group.group_id!r} to the transaction",
                lambda connection: (
                    connection.call(
                        ApiKey.ADD_OFFSETS_TO_TXN,
                        AddOffsetsToTxnRequest(
                            transactional_id=self.transactional_id,
                            producer_id=self.producer_id,
                            producer_epoch=self.epoch,
                            group_id=group.group_id,
                        ),
                        AddOffsetsToTxnResponse,
                    ).error_code
                ),
            )
        self._has_group = True
        left = dict(offsets)
        self._retry(
            deadline,
            f"commit offsets of group {group.group_id!r} in the transaction",
            lambda: self._commit_offsets(left, group, deadline),
        )
        missing.difference_update(offsets)

    def _commit_offsets(
        self, left: dict[TopicPartition, OffsetAndMetadata], group: ConsumerGroupMetadata, deadline: float
    ) -> int:
        """Sends the offsets that are ``left``, and removes those that were written; returns an error."""
        request = TxnOffsetCommitRequest(
            transactional_id=self.transactional_id,
            group_id=group.group_id,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            generation_id=group.generation,
            member_id=group.member_id,
            group_instance_id=group.instance_id,
            topics=[
                TxnOffsetCommitRequestTopic(
                    name=topic,
                    partitions=[
                        TxnOffsetCommitRequestPartition(
                            partition_index=index,
                            committed_offset=left[TopicPartition(topic, index)].offset,
                            committed_leader_epoch=left[TopicPartition(topic, index)].leader_epoch,
                            committed_metadata=left[TopicPartition(topic, index)].metadata,
                        )
                        for index in indexes
                    ],
                )
                for topic, indexes in by_topic(left).items()
            ],
        )

        def send(connection: Connection) -> TxnOffsetCommitResponse:
            version = connection.version(ApiKey.TXN_OFFSET_COMMIT)
            if not self.is_implicit:
                version = min(version, OFFSETS_VERSION_MAX)
            return connection.call(
                ApiKey.TXN_OFFSET_COMMIT, request, TxnOffsetCommitResponse, version=version
            )

        response = call_coordinator(self._network_client, group.group_id, deadline, send)
        first = 0
        for topic in response.topics:
            for one in topic.partitions:
                if one.error_code:
                    first = first or one.error_code
                else:
                    left.pop(TopicPartition(topic.name, one.partition_index), None)
        return first

    @contextlib.contextmanager
    def ending(self, deadline: float) -> Iterator[None]:
        """Refuses further messages while the last ones are acknowledged and :meth:`end` is called.

        Raises ClientError while another thread does that: it may begin the next transaction meanwhile.
        """
        with self._lock:
            if self._is_ending:
                raise ClientError("another thread commits or aborts the transaction")
            self._is_ending = True
        try:
            # Offsets that another thread sends belong to the transaction as well.
            if not self._sends_offsets.acquire(timeout=max(0.0, deadline - time.monotonic())):
                raise RequestTimeout("another thread still sends offsets of the transaction")
            self._sends_offsets.release()
            yield
        finally:
            self._is_ending = False

    def check_two_phase_commit(self) -> None:
        """Raises ClientError unless the transactions of this producer may be prepared."""
        if not self._has_two_phase_commit:
            raise ClientError(
                "the transactions of this producer have a timeout: set transaction.two.phase.commit.enable"
            )

    def prepare(self) -> PreparedTransaction:
        """Prepares the transaction, whose messages were all acknowledged or have failed."""
        self.check_usable()
        with self._lock:
            self._check_no_error()
            if self._state is not State.IN_TRANSACTION:
                raise ClientError(f"cannot prepare: {STATE_TEXTS[self._state]}; call begin() first")
            self._check_offsets()
            self._change_state(State.PREPARED_TRANSACTION)
            self._prepared = PreparedTransaction(self.producer_id, self.epoch)
            return self._prepared

    def _check_no_error(self) -> None:
        """Raises the error after which the transaction can only be aborted."""
        if self._state is State.ABORTABLE_ERROR and self._error is not None:
            raise self._error

    def _check_offsets(self) -> None:
        """Raises AbortableTransactionError if offsets that were to be sent may lack in the transaction."""
        for group_id, missing in self._missing_offsets.items():
            if missing:
                raise AbortableTransactionError(
                    f"offsets of group {group_id!r} are not part of the transaction yet: send them again,"
                    " or abort the transaction"
                )

    def complete(self, prepared: PreparedTransaction | None, deadline: float) -> bool | None:
        """Commits the transaction if it is ``prepared``, otherwise aborts it.

        Returns whether it was committed; None if none was open. A producer that has not begun takes over the
        transaction of its transactional id.
        """
        self.check_usable()
        if self._state is State.UNINITIALIZED:
            self._initialize(deadline, keeps_prepared=True)
            if self._prepared is None:
                return None
        if self._prepared is None:
            raise ClientError(f"cannot complete a transaction: {STATE_TEXTS[self._state]}")
        is_commit = self._prepared == prepared
        self.end(is_commit, deadline)
        return is_commit

    def end(self, is_commit: bool, deadline: float) -> None:
        """Commits or aborts the transaction, whose messages were all acknowledged or have failed.

        After a RequestTimeout the outcome is unknown: the call must be repeated.
        """
        self.check_usable()
        if is_commit:
            self._check_no_error()
            self._check_offsets()
        following = State.COMMITTING_TRANSACTION if is_commit else State.ABORTING_TRANSACTION
        with self._lock:
            if following not in FOLLOWING[self._state]:
                raise ClientError(f"cannot {'commit' if is_commit else 'abort'}: {STATE_TEXTS[self._state]}")
            self._change_state(following)
        self._await_added_partitions(deadline)
        with self._lock:
            # The partitions may have been refused meanwhile.
            self.check_usable()
            if is_commit:
                self._check_no_error()
            self._change_state(following)
        before = (self.producer_id, self.epoch)
        if self._error is not None and self._error.code is ErrorCode.INVALID_PRODUCER_ID_MAPPING:
            # The coordinator has removed the transactional id, which was not used for long.
            self._is_used, self._needs_epoch = False, True
        if self._is_used:
            self._end_transaction(is_commit, deadline)
            # With the next epoch, this request could not be repeated.
            self._is_used = False
        if self._needs_epoch and (self.producer_id, self.epoch) == before:
            self._init_producer_id(deadline)
        with self._lock:
            self._added.clear()
            self._to_add.clear()
            self._missing_offsets.clear()
            self._is_used = self._needs_epoch = self._has_group = False
            self._error = self._prepared = None
            self._change_state(State.UNINITIALIZED if self.producer_id < 0 else State.READY)

    def _await_added_partitions(self, deadline: float) -> None:
        """Waits until no partition is being added: that would begin another transaction after the end."""
        with self._lock:
            self._to_add.clear()
        if not self._adds_partitions.acquire(timeout=max(0.0, deadline - time.monotonic())):
            raise RequestTimeout("partitions are still being added to the transaction")
        self._adds_partitions.release()

    def _end_transaction(self, is_commit: bool, deadline: float) -> None:
        request = EndTxnRequest(
            transactional_id=self.transactional_id,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            committed=is_commit,
        )
        # The request for its first partition has failed, or its response was lost.
        is_begun_in_vain = not (is_commit or self.is_implicit or self._added or self._has_group)

        def send(connection: Connection) -> int:
            version = connection.version(ApiKey.END_TXN)
            if not self.is_implicit:
                version = min(version, END_VERSION_MAX)
            response = connection.call(ApiKey.END_TXN, request, EndTxnResponse, version=version)
            if not response.error_code:
                if version > END_VERSION_MAX:
                    self.producer_id, self.epoch = response.producer_id, response.producer_epoch
                # The level may have changed, or the data has moved to brokers with another one.
                self._set_protocol(connection)
            elif response.error_code == ErrorCode.INVALID_TXN_STATE and is_begun_in_vain:
                return ErrorCode.NONE
            return response.error_code

        self._call(deadline, f"{'commit' if is_commit else 'abort'} the transaction", send)

    # -- requests -----------------------------------------------------------------------------------------

    def _init_producer_id(self, deadline: float, *, keeps_prepared: bool = False) -> None:
        request = InitProducerIdRequest(
            transactional_id=self.transactional_id,
            transaction_timeout_ms=self._timeout_ms,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            enable2_pc=self._has_two_phase_commit,
            keep_prepared_txn=keeps_prepared,
        )

        def send(connection: Connection) -> int:
            version = connection.version(ApiKey.INIT_PRODUCER_ID)
            if version < TWO_PHASE_COMMIT_FROM and self._has_two_phase_commit:
                raise ClientError(
                    f"broker {connection.address} has no transactions without timeout: leave"
                    " transaction.two.phase.commit.enable out",
                    ErrorCode.UNSUPPORTED_VERSION,
                )
            if version < EPOCH_FROM:
                request.producer_id = request.producer_epoch = -1
            response = connection.call(
                ApiKey.INIT_PRODUCER_ID, request, InitProducerIdResponse, version=version
            )
            if not response.error_code:
                self._set_protocol(connection)
                self.producer_id, self.epoch = response.producer_id, response.producer_epoch
                if response.ongoing_txn_producer_id >= 0:
                    self._prepared = PreparedTransaction(
                        response.ongoing_txn_producer_id, response.ongoing_txn_producer_epoch
                    )
                    self._is_used = self._needs_epoch = True
            return response.error_code

        operation = "complete the prepared transaction of" if keeps_prepared else "begin with"
        self._call(deadline, f"{operation} transactional id {self.transactional_id!r}", send)

    def _set_protocol(self, connection: Connection) -> None:
        """Chooses how partitions are added to the next transaction."""
        was_implicit = self.is_implicit
        self.is_implicit = connection.finalized_features.get(TRANSACTION_VERSION, 0) >= IMPLICIT_VERSION
        if self.is_implicit and not was_implicit and self.producer_id >= 0:
            self._needs_epoch = True

    def _call(self, deadline: float, operation: str, send: Callable[[Connection], int]) -> None:
        """Sends a request to the coordinator of the transactional id; retries it until ``deadline``."""
        self._retry(
            deadline,
            operation,
            lambda: call_coordinator(
                self._network_client, self.transactional_id, deadline, send, TRANSACTION
            ),
        )

    def _retry(self, deadline: float, operation: str, attempt: Callable[[], int]) -> None:
        """Repeats an attempt, which returns an error code, while its error is temporary.

        Raises RequestTimeout after ``deadline``, also if no broker is reachable: the caller may repeat it.
        """
        while True:
            try:
                code = attempt()
            except ClientError as problem:
                if problem.retriable and not isinstance(problem, RequestTimeout | ClientClosed):
                    raise RequestTimeout(f"{problem}; no success within the timeout") from problem
                raise
            if not code:
                return
            failure = error_for(code, operation)
            if failure.code not in RETRIED:
                raise self._failed(failure)
            if failure.code is ErrorCode.CONCURRENT_TRANSACTIONS and time.monotonic() < deadline:
                self._network_client.pause(CONCURRENT_BACKOFF_S)
            elif not self._network_client.wait_for_retry(deadline):
                raise RequestTimeout(f"{failure}; no success within the timeout")

    def _failed(self, failure: ClientError) -> ClientError:
        """Notes an error of the transaction or of the producer. Returns it in its class."""
        code = failure.code
        with self._lock:
            cause = self._possible_cause(code)
            reason = cause and f"; perhaps {cause}"
            if code in FENCED:
                user = f"another producer uses transactional id {self.transactional_id!r}"
                error: ClientError = ProducerFenced(
                    f"{failure}; {user}{cause and f', or {cause}'}: close this one", ErrorCode.PRODUCER_FENCED
                )
            elif code in ABORTABLE:
                error = AbortableTransactionError(f"{failure}{reason}; abort the transaction", code)
            else:
                error = FatalTransactionError(f"{failure}{reason}; close this producer", code)
            if self._state is not State.FATAL_ERROR:
                self._change_state(State.ABORTABLE_ERROR if code in ABORTABLE else State.FATAL_ERROR)
                self._error = error
        return error

    def _possible_cause(self, code: ErrorCode) -> str:
        """Returns the likely reason of an error, with the setting to look at; empty without any."""
        if code is ErrorCode.INVALID_TRANSACTION_TIMEOUT:
            return (
                f"transaction.timeout.ms={self._timeout_ms} is above the brokers' transaction.max.timeout.ms"
            )
        if code is ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED and self._has_two_phase_commit:
            return (
                "the brokers do not have transaction.two.phase.commit.enable=true, or the user does not have"
                " the operation TwoPhaseCommit on the transactional id. A prepared transaction stays open"
                " until another producer may complete it"
            )
        if code is ErrorCode.INVALID_PRODUCER_ID_MAPPING:
            return (
                f"transactional id {self.transactional_id!r} has expired: it was not used for longer than the"
                " brokers' transactional.id.expiration.ms"
            )
        if code in FENCED or code is ErrorCode.INVALID_TXN_STATE:
            if self._has_two_phase_commit:
                return "an administrator has ended the transaction"
            if time.monotonic() - self._began_s >= self._timeout_ms / 1000:
                return f"the transaction was open for longer than transaction.timeout.ms={self._timeout_ms}"
        return ""

    # -- the sender thread's calls -------------------------------------------------------------------------

    def may_send(self, partition: TopicPartition) -> bool:
        """Whether a batch may be sent to a partition; otherwise it is added to the transaction first.

        A message that another thread sent while a transaction ended waits for the next one.
        """
        if self._state is not State.IN_TRANSACTION:
            return False
        if self.is_implicit:
            self._is_used = True
            return True
        if partition in self._added:
            return True
        if partition not in self._to_add:
            self._to_add.add(partition)
            self._has_new_partitions = True
        return False

    @property
    def sending_error(self) -> ClientError | None:
        """The error that stops the sending of the transaction; None without an error."""
        return self._error if self._state in (State.ABORTABLE_ERROR, State.FATAL_ERROR) else None

    def take_new_partitions(self) -> bool:
        """Whether partitions to add were found since the last call."""
        found, self._has_new_partitions = self._has_new_partitions, False
        return found

    @property
    def has_partitions_to_add(self) -> bool:
        """Whether :meth:`add_partitions` has work."""
        return bool(self._to_add) and self._state is State.IN_TRANSACTION

    def add_partitions(self, deadline: float) -> None:
        """Adds the partitions of waiting batches to the transaction. Raises ClientError."""
        with self._adds_partitions:
            with self._lock:
                wanted = set(self._to_add)
                self._is_used = self._is_used or bool(wanted)
            if wanted:
                self._add_partitions(wanted, deadline)

    def _add_partitions(self, wanted: set[TopicPartition], deadline: float) -> None:
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self.transactional_id,
            v3_and_below_producer_id=self.producer_id,
            v3_and_below_producer_epoch=self.epoch,
            v3_and_below_topics=[
                AddPartitionsToTxnTopic(name=topic, partitions=list(indexes))
                for topic, indexes in by_topic(wanted).items()
            ],
        )

        def send(connection: Connection) -> int:
            version = connection.version(ApiKey.ADD_PARTITIONS_TO_TXN, CLIENT_ADDS_VERSION_MAX)
            response = connection.call(
                ApiKey.ADD_PARTITIONS_TO_TXN, request, AddPartitionsToTxnResponse, version=version
            )
            errors = [
                one.partition_error_code
                for topic in response.results_by_topic_v3_and_below
                for one in topic.results_by_partition
                if one.partition_error_code
            ]
            # The error of a partition says more than that the others were not added either.
            return next((code for code in errors if code != ErrorCode.OPERATION_NOT_ATTEMPTED), 0) or (
                errors[0] if errors else 0
            )

        self._call(deadline, "add partitions to the transaction", send)
        with self._lock:
            self._added |= wanted
            self._to_add -= wanted

    def batch_failed(self, problem: Exception) -> None:
        """Notes that a message of the transaction was not written: it can only be aborted."""
        with self._lock:
            self._needs_epoch = True
            if self._state not in (State.IN_TRANSACTION, State.COMMITTING_TRANSACTION):
                return
            if isinstance(problem, ClientClosed):
                return
            code = problem.code if isinstance(problem, KafkaError) else None
            cause = "" if code is None else self._possible_cause(code)
            if code in FENCED:
                # Only the coordinator distinguishes these.
                other = f"another producer with transactional id {self.transactional_id!r} has begun"
                cause = f"{other}, or {cause or 'an administrator has aborted the transaction'}"
            self._change_state(State.ABORTABLE_ERROR)
            self._error = AbortableTransactionError(
                f"a message of the transaction was not written: {problem}{cause and f'; perhaps {cause}'};"
                " abort the transaction",
                code,
            )
