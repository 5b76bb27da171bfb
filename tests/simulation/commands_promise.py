"""The requests that brokers apply, and that controllers repeat: the promises ``commands`` and
``leader-epoch``.

A request that is applied wrongly does harm only if no other request follows it, which is rare in a run. So
each request that a broker has acknowledged is checked, and the queues of controllers: they contain the
requests without a response, and no others. Nothing here uses the random stream, or changes anything.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple
from unittest import mock

from log_inspection import has_line
from simulated_disk import SimulatedFiles

from tidemill.broker.apply_leader_and_isr import LeaderAndIsrApplier
from tidemill.broker.controller_channel_manager import ControllerChannel
from tidemill.broker.controller_request_batch import ControllerRequestBatch, ReplicaStop
from tidemill.broker.controller_request_handler import UNKNOWN_CONNECTION, ControllerRequestHandler
from tidemill.broker.controller_requests import DURING_DELETION, FULL_REQUEST
from tidemill.broker.handlers import list_offsets
from tidemill.coordination.topic_image import PartitionImage, TopicKey
from tidemill.model.errors import ErrorCode
from tidemill.model.types import TopicPartition
from tidemill.wire.messages.stop_replica import StopReplicaResponse

if TYPE_CHECKING:
    from tidemill.coordination.announcement import Announcement
    from tidemill.net.link import Link
    from tidemill.replication.partition import Partition

LEADER_AND_ISR, UPDATE_METADATA = (
    ControllerRequestHandler.leader_and_isr,
    ControllerRequestHandler.update_metadata,
)
STOP_REPLICA, STOP, CARRY_OUT = (
    ControllerRequestHandler.stop_replica,
    ControllerRequestHandler._stop,
    LeaderAndIsrApplier.apply_delta,
)
TELL, SEND, TAKE, END = (
    ControllerChannel.enqueue,
    ControllerChannel._send,
    ControllerChannel._handle_response,
    ControllerChannel.stop,
)
STOP_AGAIN = ControllerChannel._retry_stops
LOOK_UP = list_offsets.look_up

Replica = tuple[TopicKey, int]


class LatestRequest(NamedTuple):
    """The latest request that a process has applied."""

    controller_epoch: int = 0
    connection: int = UNKNOWN_CONNECTION


class UnansweredRequests:
    """The requests to a broker without a response."""

    def __init__(self) -> None:
        self.states: dict[Replica, PartitionImage] = {}
        self.metadata: dict[Replica, PartitionImage] = {}
        self.stops: dict[Replica, ReplicaStop] = {}
        self.gone: dict[TopicKey, None] = {}

    def tell(self, command: ControllerRequestBatch) -> None:
        """Adds a request."""
        self._tell(
            command.is_full,
            dict(_items(command.states)),
            dict(_items(command.metadata)),
            dict(_items(command.stops)),
            command.deleted_topics,
        )

    def add(self, newer: UnansweredRequests, *, whole: bool) -> None:
        """Adds later requests. ``whole``: one of them was a full state."""
        self._tell(whole, newer.states, newer.metadata, newer.stops, newer.gone)

    def _tell(
        self,
        whole: bool,
        states: dict[Replica, PartitionImage],
        metadata: dict[Replica, PartitionImage],
        stops: dict[Replica, ReplicaStop],
        gone: Iterable[TopicKey],
    ) -> None:
        if whole:
            self.states.clear()
            self.metadata.clear()
        for replica in stops:
            self.states.pop(replica, None)
        self.gone.update(dict.fromkeys(gone))
        for replica in [one for one in self.metadata if one[0] in gone]:
            del self.metadata[replica]
        self.states.update(states)
        self.metadata.update(metadata)
        self.stops.update(stops)


class Queue:
    """A channel of a controller, and its unacknowledged requests."""

    def __init__(self) -> None:
        self.unanswered = UnansweredRequests()
        self.has_whole = False
        """The requests since the last sent request include a full state."""
        self.sending: UnansweredRequests | None = None
        self.refused: dict[Replica, ReplicaStop] = {}
        """Replicas that the broker could not stop. The request is repeated after a pause, even if another
        request stopped them meanwhile. No topic of the name has been created since."""

    def refuse(self, stops: dict[Replica, ReplicaStop]) -> None:
        """The broker could not stop these replicas."""
        self.refused.update(stops)
        for later in (self.sending, self.unanswered):
            if later is not None:
                self._forget_refused(later.states, later.metadata)

    def tell(self, command: ControllerRequestBatch) -> None:
        """The broker has to receive a request."""
        self.unanswered.tell(command)
        self.has_whole = self.has_whole or command.is_full
        self._forget_refused(dict(_items(command.states)), dict(_items(command.metadata)))

    def _forget_refused(self, states: Iterable[Replica], metadata: Iterable[Replica]) -> None:
        """Replicas that the broker receives again are not to be stopped, nor those of another topic of the
        name.
        """
        ids = {name: topic_id for (name, topic_id), _ in metadata}
        for replica in [*self.refused]:
            (name, topic_id), _ = replica
            if replica in states or ids.get(name, topic_id) != topic_id:
                del self.refused[replica]


class CommandsPromise:
    """Checks the requests that brokers apply and controllers repeat."""

    def __init__(
        self, broken: Callable[[str, str], None], excused: Callable[[str], bool] = lambda name: True
    ) -> None:
        self._broken = broken
        self._excused = excused
        self.topic_gone: Callable[[Any, str, bytes], None] = lambda replicas, topic, topic_id: None
        """Called with the deletions that a broker has confirmed."""
        self._latest_requests: dict[LeaderAndIsrApplier, LatestRequest] = {}
        self._queues: dict[ControllerChannel, Queue] = {}

    def patches(self) -> list[Any]:
        """Returns the patches of the program by which the checker is notified."""
        return [
            mock.patch.object(
                ControllerRequestHandler, "leader_and_isr", lambda *of: self._leader_and_isr(*of)
            ),
            mock.patch.object(
                ControllerRequestHandler, "update_metadata", lambda *of: self._update_metadata(*of)
            ),
            mock.patch.object(ControllerRequestHandler, "stop_replica", lambda *of: self._stop_replica(*of)),
            mock.patch.object(ControllerRequestHandler, "_stop", lambda *of: self._stop(*of)),
            mock.patch.object(LeaderAndIsrApplier, "apply_delta", lambda *of: self._carry_out(*of)),
            mock.patch.object(ControllerChannel, "enqueue", lambda *of: self._tell(*of)),
            mock.patch.object(ControllerChannel, "_send", lambda *of: self._send(*of)),
            mock.patch.object(ControllerChannel, "_handle_response", lambda *of: self._take(*of)),
            mock.patch.object(ControllerChannel, "_retry_stops", lambda *of: self._stop_again(*of)),
            mock.patch.object(ControllerChannel, "stop", lambda *of: self._end(*of)),
            mock.patch.object(list_offsets, "look_up", lambda *of: self._look_up(*of)),
        ]

    # -- brokers

    async def _leader_and_isr(
        self, commands: ControllerRequestHandler, request: Any, connection: int = UNKNOWN_CONNECTION
    ) -> Any:
        registered = commands._applier.broker_epoch
        answer = await LEADER_AND_ISR(commands, request, connection)
        if answer.error_code == ErrorCode.NONE:
            self._accepted(commands, request, connection, registered)
            self._check_led(commands, request)
            self._check_taken(commands, request, answer)
        return answer

    async def _update_metadata(
        self, commands: ControllerRequestHandler, request: Any, connection: int = UNKNOWN_CONNECTION
    ) -> Any:
        registered, before = commands._applier.broker_epoch, commands._metadata_cache.image.topics
        answer = await UPDATE_METADATA(commands, request, connection)
        if answer.error_code == ErrorCode.NONE:
            self._accepted(commands, request, connection, registered)
            self._check_led(commands, request)
            self._check_metadata(commands, request)
            self._tell_gone(commands, request, before)
        return answer

    async def _stop_replica(
        self, commands: ControllerRequestHandler, request: Any, connection: int = UNKNOWN_CONNECTION
    ) -> Any:
        registered = commands._applier.broker_epoch
        answer = await STOP_REPLICA(commands, request, connection)
        if answer.error_code == ErrorCode.NONE:
            self._accepted(commands, request, connection, registered)
            self._check_stopped(commands, request, answer)
        return answer

    async def _carry_out(
        self, applier: LeaderAndIsrApplier, announcement: Announcement, *others: Any
    ) -> None:
        await CARRY_OUT(applier, announcement, *others)
        epoch, latest = (
            announcement.delta.image.controller_epoch,
            self._latest_requests.get(applier, LatestRequest()),
        )
        if epoch == applier.controller_epoch > latest.controller_epoch:
            self._latest_requests[applier] = LatestRequest(epoch)

    def _accepted(
        self, commands: ControllerRequestHandler, request: Any, connection: int, registered: int
    ) -> None:
        """A broker has applied a request. It was registered with this epoch on arrival."""
        latest = self._latest_requests.get(commands._applier, LatestRequest())
        if request.controller_epoch < latest.controller_epoch:
            self._broken_by(
                commands,
                f"applies a request of the controller of epoch {request.controller_epoch} after one of epoch"
                f" {latest.controller_epoch}",
            )
        elif -1 < request.broker_epoch < registered:
            self._broken_by(
                commands,
                f"applies a request for its epoch {request.broker_epoch}, and is registered with"
                f" {registered}",
            )
        elif request.controller_epoch > latest.controller_epoch:
            latest = LatestRequest(request.controller_epoch)
        elif UNKNOWN_CONNECTION < connection < latest.connection:
            self._broken_by(
                commands, f"applies a request over connection {connection} after {latest.connection}"
            )
        self._latest_requests[commands._applier] = latest._replace(
            connection=max(connection, latest.connection)
        )

    def _check_led(self, commands: ControllerRequestHandler, request: Any) -> None:
        """After a full LeaderAndIsr request a broker has only replicas that are assigned to it."""
        if request.type != FULL_REQUEST:
            return
        node = commands._node_id
        told = {
            (topic.topic_name, one.partition_index): one
            for topic in request.topic_states
            for one in topic.partition_states
        }
        for partition in commands._replica_manager.all():
            one = told.get((partition.topic, int(partition.index)))
            if one is None or node not in one.replicas:
                self._broken_by(
                    commands, f"keeps {partition.topic}-{partition.index}, which is not assigned to it"
                )
            elif not partition.is_leader or partition.is_offline:
                continue
            elif one.leader != node and one.leader_epoch > partition.leader_epoch:
                self._broken_by(
                    commands,
                    f"leads {partition.topic}-{partition.index} in epoch {partition.leader_epoch}, and"
                    f" {one.leader} leads in epoch {one.leader_epoch}",
                )

    def _check_taken(self, commands: ControllerRequestHandler, request: Any, answer: Any) -> None:
        """A broker leads and follows the acknowledged partitions, as in the request or a later one."""
        for topic, result in zip(request.topic_states, answer.topics, strict=True):
            for state, code in zip(topic.partition_states, result.partition_errors, strict=True):
                if code.error_code != ErrorCode.NONE:
                    continue
                partition = commands._replica_manager.find(topic.topic_name, state.partition_index)
                if partition is None or (partition.leader_epoch, partition.partition_epoch) < (
                    state.leader_epoch,
                    state.partition_epoch,
                ):
                    self._broken_by(
                        commands, f"confirms {state} of {topic.topic_name}, and has not applied it"
                    )

    def _check_metadata(self, commands: ControllerRequestHandler, request: Any) -> None:
        """A broker returns the metadata that it received."""
        image = commands._metadata_cache.image
        names = {topic.topic_name for topic in request.topic_states}
        if request.type == FULL_REQUEST and (others := sorted(image.topics.keys() - names)):
            self._broken_by(commands, f"returns {others}, and a full request has only {sorted(names)}")
        for topic in request.topic_states:
            known = image.topics.get(topic.topic_name)
            for one in topic.partition_states:
                if one.leader == DURING_DELETION:
                    if known is not None and known.topic_id == topic.topic_id:
                        self._broken_by(
                            commands, f"confirms that {topic.topic_name} is deleted, and returns it"
                        )
                    continue
                now = None
                if known is not None and known.topic_id == topic.topic_id:
                    now = known.partition(one.partition_index)
                if now is None or (now.leader, now.leader_epoch) != (one.leader, one.leader_epoch):
                    self._broken_by(commands, f"confirms {one} of {topic.topic_name}, and returns {now}")

    def _tell_gone(self, commands: ControllerRequestHandler, request: Any, before: Mapping[str, Any]) -> None:
        """Notifies the coordinator checker of a topic deletion that the broker has applied, if the broker had
        the topic.
        """
        for topic in request.topic_states:
            known = before.get(topic.topic_name)
            is_gone = any(one.leader == DURING_DELETION for one in topic.partition_states)
            if is_gone and known is not None and known.topic_id == topic.topic_id:
                self.topic_gone(commands._replica_manager, topic.topic_name, topic.topic_id)

    def _check_stopped(self, commands: ControllerRequestHandler, request: Any, answer: Any) -> None:
        """A broker has no replica whose stop it has acknowledged."""
        replicas = commands._replica_manager
        deletes = {
            (topic.topic_name, one.partition_index)
            for topic in request.topic_states
            for one in topic.partition_states
            if one.delete_partition
        }
        for one in answer.partition_errors:
            name, index = one.topic_name, one.partition_index
            if one.error_code != ErrorCode.NONE:
                continue
            has_log = (name, index) in deletes and replicas.logs.get(TopicPartition(name, index)) is not None
            if replicas.find(name, index) is not None or has_log:
                self._broken_by(commands, f"confirms that {name}-{index} is stopped, and has it")
            elif (name, index) in deletes:
                self._check_checkpoints(commands, TopicPartition(name, index))

    def _check_checkpoints(self, commands: ControllerRequestHandler, key: TopicPartition) -> None:
        """No checkpoint on the disk has a line of a replica whose deletion a broker has acknowledged.

        After a crash the line would apply to the next partition of the name.
        """
        logs = commands._replica_manager.logs
        if not isinstance(logs.files, SimulatedFiles):
            return
        for directory in logs.dirs.online:
            for one in (directory.recovery_points, directory.start_offsets, directory.high_watermarks):
                if not has_line(logs.files, one.path, key):
                    continue
                if not getattr(one, "_is_known", True):
                    self._excused("full-disk")
                    continue
                self._broken_by(commands, f"confirms that {key} is deleted, and {one.path} contains it")

    def _stop(self, commands: ControllerRequestHandler, topic: str, state: Any) -> ErrorCode:
        known = commands._replica_manager.find(topic, state.partition_index)
        epoch = int(known.leader_epoch) if known is not None else -1
        code = STOP(commands, topic, state)
        if code is ErrorCode.NONE and -1 < state.leader_epoch < epoch:
            self._broken_by(
                commands,
                f"stops {topic}-{state.partition_index} of epoch {state.leader_epoch}, and has a later"
                f" replica in epoch {epoch}",
            )
        return code

    def _broken_by(self, commands: ControllerRequestHandler, text: str) -> None:
        self._broken("commands", f"broker-{commands._node_id} {text}")

    def _look_up(self, partition: Partition, wanted: Any, request: Any, *others: Any) -> Any:
        """A leader returns its log start or end offset."""
        found = LOOK_UP(partition, wanted, request, *others)
        if request.replica_id >= 0 and wanted.current_leader_epoch != partition.leader_epoch:
            self._broken(
                "leader-epoch",
                f"{request.replica_id} requests of the leader of {partition.topic}-{partition.index} an"
                f" offset in leader epoch {wanted.current_leader_epoch}, and receives a response in"
                f" {partition.leader_epoch}",
            )
        return found

    # -- controllers

    def _tell(self, channel: ControllerChannel, command: ControllerRequestBatch) -> Any:
        self._queues.setdefault(channel, Queue()).tell(command)
        return TELL(channel, command)

    async def _send(self, channel: ControllerChannel, link: Link) -> None:
        if link.is_closed or not channel._pending.has_changes:
            await SEND(channel, link)
            return
        queue = self._queues.setdefault(channel, Queue())
        self.check(channel, queue)
        queue.sending, queue.unanswered, queue.has_whole = queue.unanswered, UnansweredRequests(), False
        try:
            await SEND(channel, link)
        except Exception:
            # Only replicas to be stopped have a response.
            queue.sending.add(queue.unanswered, whole=queue.has_whole)
            queue.unanswered, queue.sending = queue.sending, None
            self.check(channel, queue)
            raise
        queue.sending = None

    def _take(self, channel: ControllerChannel, command: ControllerRequestBatch, answer: Any) -> None:
        queue = self._queues.get(channel)
        if isinstance(answer, StopReplicaResponse) and queue is not None and queue.sending is not None:
            bad = {
                (one.topic_name, one.partition_index)
                for one in answer.partition_errors
                if one.error_code not in (ErrorCode.NONE, ErrorCode.FENCED_LEADER_EPOCH)
            }
            told = dict(_items(command.stops))
            queue.refuse({one: stop for one, stop in told.items() if (one[0][0], one[1]) in bad})
            queue.sending.stops.clear()
        TAKE(channel, command, answer)
        if isinstance(answer, StopReplicaResponse) and queue is not None:
            # The rest of the request may be lost: all its content is sent again.
            again = [one for one, _ in _items(command.stops)]
            if again:
                self._broken(
                    "commands",
                    f"broker {channel.broker.broker_id} has stopped {again}, and"
                    " would receive the request again",
                )

    def _stop_again(self, channel: ControllerChannel) -> None:
        queue = self._queues.setdefault(channel, Queue())
        for replica, _ in _items(channel._refused_stops.stops):
            if replica in queue.refused:
                queue.unanswered.stops.setdefault(replica, queue.refused[replica])
        STOP_AGAIN(channel)

    def _end(self, channel: ControllerChannel) -> None:
        self._queues.pop(channel, None)
        END(channel)

    def check(self, channel: ControllerChannel, queue: Queue) -> None:
        """The queue contains the unacknowledged requests."""
        pending, unanswered = channel._pending, queue.unanswered
        about = f"broker {channel.broker.broker_id}"
        stops = dict(_items(pending.stops))
        for replica in stops:
            if replica not in unanswered.stops:
                self._broken(
                    "commands", f"{about} receives a StopReplica for {replica} again after its response"
                )
                return
        lost: list[Any] = [one for one in unanswered.stops if one not in stops]
        lost += [one for one in unanswered.gone if one not in pending.deleted_topics]
        for told, waiting in ((unanswered.states, pending.states), (unanswered.metadata, pending.metadata)):
            there = dict(_items(waiting))
            lost += [one for one, image in told.items() if there.get(one) is not image]
            if too_many := [one for one in there if one not in told]:
                self._broken("commands", f"{about} receives outdated states {too_many}")
                return
        if lost:
            self._broken(
                "commands", f"{about} has no response to requests for {lost}, and they are not repeated"
            )


def _items(of: Any) -> Iterator[tuple[Replica, Any]]:
    for key, partitions in of.items():
        for index, one in partitions.items():
            yield (key, index), one
