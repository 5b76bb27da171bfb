"""The client's exceptions. Each names the broker, the subject, Kafka's error code and the next step."""

from __future__ import annotations

from tidemill.model.errors import ErrorCode, KafkaError, TidemillError

COORDINATOR_STEP = (
    "wait for an election; if it stays, start the brokers of its partition of __consumer_offsets (of a "
    "transactional id: __transaction_state), which 'tidemill topic describe' shows, or check their logs"
)
NEXT_STEP: dict[ErrorCode, str] = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: "create the topic, or check its name and its number of partitions",
    ErrorCode.UNKNOWN_TOPIC_ID: "the topic was deleted or recreated; refresh the metadata and start again",
    ErrorCode.LEADER_NOT_AVAILABLE: "wait for an election; if it stays, check its replicas' brokers",
    ErrorCode.NOT_LEADER_OR_FOLLOWER: "the leader moved; the request is sent again after a metadata refresh",
    ErrorCode.OFFSET_OUT_OF_RANGE: "set auto.offset.reset, or seek to an offset that the log has",
    ErrorCode.MESSAGE_TOO_LARGE: "send smaller messages, or raise max.message.bytes of the topic "
    "(message.max.bytes of the broker) and max.request.size of the producer",
    ErrorCode.RECORD_LIST_TOO_LARGE: "lower batch.size, or raise segment.bytes of the topic",
    ErrorCode.NOT_ENOUGH_REPLICAS: "bring replicas back, or lower min.insync.replicas",
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND: "bring replicas back, or lower min.insync.replicas",
    ErrorCode.INVALID_REQUIRED_ACKS: "use acks=0, 1 or all",
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: "ask for rights on the topic",
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: "ask for rights on the transactional id",
    ErrorCode.GROUP_AUTHORIZATION_FAILED: "ask for rights on the group",
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED: "ask for rights on the cluster",
    ErrorCode.UNSUPPORTED_VERSION: "use a newer broker, or omit the newer option",
    ErrorCode.TOPIC_ALREADY_EXISTS: "use the existing topic, or another name",
    ErrorCode.INVALID_TOPIC_EXCEPTION: "names have 1 to 249 of a-z A-Z 0-9 . _ -, and are not . or ..",
    ErrorCode.INVALID_PARTITIONS: "the number of partitions is at least 1 and can only grow",
    ErrorCode.INVALID_REPLICATION_FACTOR: "use at most as many replicas as there are live brokers",
    ErrorCode.INVALID_REPLICA_ASSIGNMENT: "name brokers that live, each once, "
    "and as many for every partition of a new topic",
    ErrorCode.LOG_DIR_NOT_FOUND: "name one of the broker's log.dirs by its absolute path",
    ErrorCode.NO_REASSIGNMENT_IN_PROGRESS: "no reassignment is to be stopped; 'tidemill reassign list' shows "
    "those in progress",
    ErrorCode.REASSIGNMENT_IN_PROGRESS: "wait for the end of the reassignment, or cancel it",
    ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE: "start the preferred replica's broker, and wait until the "
    "replica is in sync",
    ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE: "start a broker that has a replica",
    ErrorCode.ELECTION_NOT_NEEDED: "the right replica is the leader already",
    ErrorCode.INVALID_CONFIG: "correct the key or its value",
    ErrorCode.POLICY_VIOLATION: "a policy of the cluster refuses it; ask its operator",
    ErrorCode.NOT_COORDINATOR: COORDINATOR_STEP,
    ErrorCode.COORDINATOR_NOT_AVAILABLE: COORDINATOR_STEP,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS: "wait until the coordinator has read the offsets of its groups",
    ErrorCode.NON_EMPTY_GROUP: "stop the members of the group first",
    ErrorCode.GROUP_ID_NOT_FOUND: "check the group id; list the groups to see those that exist",
    ErrorCode.INVALID_GROUP_ID: "set group.id to a text that is not empty",
    ErrorCode.GROUP_MAX_SIZE_REACHED: "stop members, or raise group.max.size of the broker",
    ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC: "stop the members that subscribe to the topic first",
    ErrorCode.INCONSISTENT_GROUP_PROTOCOL: "give all members a common partition.assignment.strategy",
    ErrorCode.INVALID_SESSION_TIMEOUT: "keep session.timeout.ms within group.min.session.timeout.ms and "
    "group.max.session.timeout.ms of the broker",
    ErrorCode.FENCED_INSTANCE_ID: "another member runs with the same group.instance.id; stop one of them",
    ErrorCode.UNKNOWN_MEMBER_ID: "the group has removed this member; poll() joins again",
    ErrorCode.ILLEGAL_GENERATION: "the group has a later generation; poll() joins again",
    ErrorCode.REBALANCE_IN_PROGRESS: "call poll() to take part in the rebalance, then commit again",
    ErrorCode.OFFSET_METADATA_TOO_LARGE: "shorten the metadata, or raise offset.metadata.max.bytes",
    ErrorCode.UNSTABLE_OFFSET_COMMIT: "a transaction over these offsets is open; try again later",
    ErrorCode.UNSUPPORTED_COMPRESSION_TYPE: "use another compression.type, or a newer broker",
    ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT: "the topic keeps an older message format; "
    "write with enable.idempotence=false (-X of the command) and no headers; look up by time from v1 on",
    ErrorCode.INVALID_TIMESTAMP: "correct the timestamp, or change "
    "message.timestamp.{before,after}.max.ms of the topic",
    ErrorCode.INVALID_RECORD: "correct the messages and send them again",
    ErrorCode.KAFKA_STORAGE_ERROR: "check the broker's log: its disk or ZooKeeper fails",
    ErrorCode.THROTTLING_QUOTA_EXCEEDED: "slow down; a quota of the cluster is used up",
    ErrorCode.TOPIC_DELETION_DISABLED: "set delete.topic.enable=true on the brokers",
    ErrorCode.SASL_AUTHENTICATION_FAILED: "check user and password",
    ErrorCode.NOT_CONTROLLER: "the controller moved; the request is sent again after a metadata refresh",
    ErrorCode.UNKNOWN_SERVER_ERROR: "the broker's log has the reason",
}


DELETION_STEP = "until then use another name"
"""The next step if a topic of that name is being deleted."""


class ClientError(KafkaError):
    """A failed call of the client.

    ``broker`` is the ``host:port`` of the broker that answered, if any. ``topic`` and ``partition`` are set
    if the error concerns one.
    """

    def __init__(
        self,
        message: str,
        code: ErrorCode | None = None,
        *,
        broker: str | None = None,
        topic: str | None = None,
        partition: int | None = None,
    ) -> None:
        super().__init__(message, code)
        self.broker = broker
        self.topic = topic
        self.partition = partition


class BrokerUnreachable(ClientError):
    """No connection, or a broken one. A later retry may succeed."""

    code = ErrorCode.NETWORK_EXCEPTION


class AuthenticationFailed(ClientError):
    """One end rejects the other's password, token or certificate. A retry does not help."""

    code = ErrorCode.SASL_AUTHENTICATION_FAILED


class ConnectionAttemptPending(BrokerUnreachable):
    """The timeout passed while connections were being opened; the next call continues the same attempts."""


class RequestTimeout(ClientError):
    """No response within the timeout."""

    code = ErrorCode.REQUEST_TIMED_OUT


class DeliveryTimeout(RequestTimeout):
    """A message was not acknowledged within ``delivery.timeout.ms``."""


class BufferFull(RequestTimeout):
    """``buffer.memory`` stayed full for ``max.block.ms``."""


class ClientClosed(ClientError):
    """The producer, consumer or admin was closed, or is used in a forked child."""


class AbortableTransactionError(ClientError):
    """The transaction can only be aborted. The producer can begin another one then."""


class FatalTransactionError(ClientError):
    """The producer can send nothing more: close it."""


class ProducerFenced(FatalTransactionError):
    """Another producer with the same transactional id has begun: close this one."""

    code = ErrorCode.PRODUCER_FENCED


class CommitFailed(ClientError):
    """The group rebalanced without this member: another member may own its partitions now."""

    code = ErrorCode.REBALANCE_IN_PROGRESS


class NoOffset(ClientError):
    """No committed offset, and ``auto.offset.reset=none``."""

    code = ErrorCode.OFFSET_OUT_OF_RANGE


class DataLoss(ClientError):
    """Requested records were removed (retention, deletion), or the log ends before them."""

    code = ErrorCode.OFFSET_OUT_OF_RANGE


class TopicRecreated(DataLoss):
    """The topic was deleted and recreated: its offsets mean other records."""

    code = ErrorCode.INCONSISTENT_TOPIC_ID


def as_client_error(problem: TidemillError) -> ClientError:
    """Returns the error itself, or AuthenticationFailed with its text: only a login raises other errors."""
    return problem if isinstance(problem, ClientError) else AuthenticationFailed(str(problem))


def text_of(code: ErrorCode) -> str:
    """Returns the name of a code, and the next step that the table has for it."""
    return f"{code.name}; {NEXT_STEP[code]}" if code in NEXT_STEP else code.name


def error_for(
    number: int,
    operation: str,
    *,
    detail: str | None = None,
    broker: str | None = None,
    topic: str | None = None,
    partition: int | None = None,
    step: str | None = None,
) -> ClientError:
    """Builds the exception for an error code in a response to ``operation`` ("create topic x").

    ``step`` replaces the next step that the table has for the code.
    """
    code = ErrorCode.of(number)
    name = ErrorCode.name_of(number)
    parts = [f"cannot {operation}: {name}"]
    if detail:
        parts.append(f" ({detail.rstrip('.').removesuffix(f' ({name})')})")
    if broker:
        parts.append(f", broker {broker}")
    if code == ErrorCode.TOPIC_ALREADY_EXISTS and _is_being_deleted(detail):
        step = step or DELETION_STEP
    step = step or NEXT_STEP.get(code)
    if step:
        parts.append(f"; {step}")
    return ClientError("".join(parts), code, broker=broker, topic=topic, partition=partition)


def _is_being_deleted(detail: str | None) -> bool:
    """Whether a topic of the name is being deleted, by the texts of Tidemill and Apache Kafka."""
    return detail is not None and ("is still being deleted" in detail or "is marked for deletion" in detail)


def topic_exists(problem: KafkaError) -> bool:
    """Whether a creation failed because a usable topic of that name exists."""
    return problem.code == ErrorCode.TOPIC_ALREADY_EXISTS and not _is_being_deleted(str(problem))


def check(
    number: int,
    operation: str,
    *,
    detail: str | None = None,
    broker: str | None = None,
    topic: str | None = None,
    partition: int | None = None,
) -> None:
    """Raises the error of :func:`error_for`, unless the code is 0."""
    if number:
        raise error_for(number, operation, detail=detail, broker=broker, topic=topic, partition=partition)
