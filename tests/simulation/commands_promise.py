"""What brokers carry out, and what controllers repeat: the promises ``commands`` and ``leader-epoch``.

A command that is obeyed and should not be does harm only when another one does not come after it, which few
runs meet. So each command that a broker has confirmed is looked at, as are the queues of controllers: what
a broker has not answered is in them, and nothing that it has answered.

Nothing here draws from the random stream, or changes anything.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple
from unittest import mock

from log_inspection import has_line
from simulated_disk import SimulatedFiles

from tidemill.broker.channels import Channel
from tidemill.broker.commanding import Command, Stop
from tidemill.broker.commands import DURING_DELETION, UNNUMBERED, WHOLE_IMAGE, Commands, Key
from tidemill.broker.handlers import list_offsets
from tidemill.coordination.image import PartitionImage
from tidemill.model.errors import ErrorCode
from tidemill.model.types import TopicPartition
from tidemill.wire.apis import ApiKey

if TYPE_CHECKING:
    from tidemill.broker.metadata import Delta
    from tidemill.net.link import Link
    from tidemill.replication.partition import Partition

LEADER_AND_ISR, UPDATE_METADATA = Commands.leader_and_isr, Commands.update_metadata
STOP_REPLICA, STOP, CARRY_OUT = Commands.stop_replica, Commands._stop, Commands.carry_out
TELL, SEND, TAKE, END = Channel.tell, Channel._send, Channel._take, Channel.stop
STOP_AGAIN = Channel._stop_again
LOOK_UP = list_offsets.look_up

Replica = tuple[Key, int]


class Heard(NamedTuple):
    """The latest command that a process has carried out."""

    controller_epoch: int = 0
    connection: int = UNNUMBERED


class Owed:
    """What a broker was told, and has not answered."""

    def __init__(self) -> None:
        self.states: dict[Replica, PartitionImage] = {}
        self.metadata: dict[Replica, PartitionImage] = {}
        self.stops: dict[Replica, Stop] = {}
        self.gone: dict[Key, None] = {}

    def tell(self, command: Command) -> None:
        """A command comes to what is owed."""
        self._tell(
            command.whole,
            dict(_items(command.states)),
            dict(_items(command.metadata)),
            dict(_items(command.stops)),
            command.gone,
        )

    def add(self, newer: Owed, *, whole: bool) -> None:
        """What was told later. ``whole``: a full state was among it."""
        self._tell(whole, newer.states, newer.metadata, newer.stops, newer.gone)

    def _tell(
        self,
        whole: bool,
        states: dict[Replica, PartitionImage],
        metadata: dict[Replica, PartitionImage],
        stops: dict[Replica, Stop],
        gone: Iterable[Key],
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
    """A channel of a controller, and what is owed over it."""

    def __init__(self) -> None:
        self.owed = Owed()
        self.has_whole = False
        """A full state is among what was told since the last request was sent."""
        self.sending: Owed | None = None
        self.refused: dict[Replica, Stop] = {}
        """Replicas that the broker could not stop: it is told once more after a pause, also where it was told
        by another command meanwhile. Nothing of the name has been made since."""

    def refuse(self, stops: dict[Replica, Stop]) -> None:
        """The broker could not stop these replicas."""
        self.refused.update(stops)
        for later in (self.sending, self.owed):
            if later is not None:
                self._forget_refused(later.states, later.metadata)

    def tell(self, command: Command) -> None:
        """The broker has to know of a command."""
        self.owed.tell(command)
        self.has_whole = self.has_whole or command.whole
        self._forget_refused(dict(_items(command.states)), dict(_items(command.metadata)))

    def _forget_refused(self, states: Iterable[Replica], metadata: Iterable[Replica]) -> None:
        """What the broker is given again is not to be stopped, nor what another topic of the name has."""
        ids = {name: topic_id for (name, topic_id), _ in metadata}
        for replica in [*self.refused]:
            (name, topic_id), _ = replica
            if replica in states or ids.get(name, topic_id) != topic_id:
                del self.refused[replica]


class CommandsPromise:
    """Looks at what brokers carry out, and at what controllers repeat."""

    def __init__(
        self, broken: Callable[[str, str], None], excused: Callable[[str], bool] = lambda name: True
    ) -> None:
        self._broken = broken
        self._excused = excused
        self.topic_gone: Callable[[Any, str, bytes], None] = lambda broker, topic, topic_id: None
        """Told of deletions that a broker has confirmed."""
        self._heard: dict[Commands, Heard] = {}
        self._queues: dict[Channel, Queue] = {}

    def patches(self) -> list[Any]:
        """What has to be replaced in the program, so that this hears of it."""
        return [
            mock.patch.object(Commands, "leader_and_isr", lambda *of: self._leader_and_isr(*of)),
            mock.patch.object(Commands, "update_metadata", lambda *of: self._update_metadata(*of)),
            mock.patch.object(Commands, "stop_replica", lambda *of: self._stop_replica(*of)),
            mock.patch.object(Commands, "_stop", lambda *of: self._stop(*of)),
            mock.patch.object(Commands, "carry_out", lambda *of: self._carry_out(*of)),
            mock.patch.object(Channel, "tell", lambda *of: self._tell(*of)),
            mock.patch.object(Channel, "_send", lambda *of: self._send(*of)),
            mock.patch.object(Channel, "_take", lambda *of: self._take(*of)),
            mock.patch.object(Channel, "_stop_again", lambda *of: self._stop_again(*of)),
            mock.patch.object(Channel, "stop", lambda *of: self._end(*of)),
            mock.patch.object(list_offsets, "look_up", lambda *of: self._look_up(*of)),
        ]

    # -- brokers

    async def _leader_and_isr(self, commands: Commands, request: Any, connection: int = UNNUMBERED) -> Any:
        registered = commands.broker_epoch
        answer = await LEADER_AND_ISR(commands, request, connection)
        if answer.error_code == ErrorCode.NONE:
            self._accepted(commands, request, connection, registered)
            self._check_led(commands, request)
            self._check_taken(commands, request, answer)
        return answer

    async def _update_metadata(self, commands: Commands, request: Any, connection: int = UNNUMBERED) -> Any:
        registered, before = commands.broker_epoch, commands._broker.metadata.image.topics
        answer = await UPDATE_METADATA(commands, request, connection)
        if answer.error_code == ErrorCode.NONE:
            self._accepted(commands, request, connection, registered)
            self._check_led(commands, request)
            self._check_metadata(commands, request)
            self._tell_gone(commands, request, before)
        return answer

    async def _stop_replica(self, commands: Commands, request: Any, connection: int = UNNUMBERED) -> Any:
        registered = commands.broker_epoch
        answer = await STOP_REPLICA(commands, request, connection)
        if answer.error_code == ErrorCode.NONE:
            self._accepted(commands, request, connection, registered)
            self._check_stopped(commands, request, answer)
        return answer

    async def _carry_out(self, commands: Commands, delta: Delta, *others: Any) -> None:
        await CARRY_OUT(commands, delta, *others)
        epoch, heard = delta.image.controller_epoch, self._heard.get(commands, Heard())
        if epoch == commands.controller_epoch > heard.controller_epoch:
            self._heard[commands] = Heard(epoch)

    def _accepted(self, commands: Commands, request: Any, connection: int, registered: int) -> None:
        """A broker has carried a command out. It was registered with this epoch when that came."""
        heard = self._heard.get(commands, Heard())
        if request.controller_epoch < heard.controller_epoch:
            self._tell_of(
                commands,
                f"obeys the controller of epoch {request.controller_epoch}, and has obeyed that of epoch"
                f" {heard.controller_epoch} before",
            )
        elif -1 < request.broker_epoch < registered:
            self._tell_of(
                commands,
                f"obeys a command for epoch {request.broker_epoch} of it, and is registered with"
                f" {registered}",
            )
        elif request.controller_epoch > heard.controller_epoch:
            heard = Heard(request.controller_epoch)
        elif UNNUMBERED < connection < heard.connection:
            self._tell_of(
                commands, f"obeys what comes over connection {connection}, after {heard.connection}"
            )
        self._heard[commands] = heard._replace(connection=max(connection, heard.connection))

    def _check_led(self, commands: Commands, request: Any) -> None:
        """After a full LeaderAndIsr request a broker has no replica that is not assigned to it."""
        if request.type != WHOLE_IMAGE:
            return
        node = commands._broker.node_id
        told = {
            (topic.topic_name, one.partition_index): one
            for topic in request.topic_states
            for one in topic.partition_states
        }
        for partition in commands._broker.partitions.all():
            one = told.get((partition.topic, int(partition.index)))
            if one is None or node not in one.replicas:
                self._tell_of(
                    commands, f"keeps {partition.topic}-{partition.index}, which is not assigned to it"
                )
            elif not partition.is_leader or partition.failed:
                continue
            elif one.leader != node and one.leader_epoch > partition.leader_epoch:
                self._tell_of(
                    commands,
                    f"leads {partition.topic}-{partition.index} in epoch {partition.leader_epoch}, and was"
                    f" told that {one.leader} does in epoch {one.leader_epoch}",
                )

    def _check_taken(self, commands: Commands, request: Any, answer: Any) -> None:
        """A broker leads and follows what it has confirmed, as it was told or as it was told later."""
        for topic, result in zip(request.topic_states, answer.topics, strict=True):
            for state, code in zip(topic.partition_states, result.partition_errors, strict=True):
                if code.error_code != ErrorCode.NONE:
                    continue
                partition = commands._broker.partitions.find(topic.topic_name, state.partition_index)
                if partition is None or (partition.leader_epoch, partition.partition_epoch) < (
                    state.leader_epoch,
                    state.partition_epoch,
                ):
                    self._tell_of(commands, f"confirms {state} of {topic.topic_name}, and has not taken it")

    def _check_metadata(self, commands: Commands, request: Any) -> None:
        """A broker tells clients what it was told."""
        image = commands._broker.metadata.image
        names = {topic.topic_name for topic in request.topic_states}
        if request.type == WHOLE_IMAGE and (others := sorted(image.topics.keys() - names)):
            self._tell_of(
                commands, f"tells of {others}, and was told that there are none but {sorted(names)}"
            )
        for topic in request.topic_states:
            known = image.topics.get(topic.topic_name)
            for one in topic.partition_states:
                if one.leader == DURING_DELETION:
                    if known is not None and known.topic_id == topic.topic_id:
                        self._tell_of(commands, f"confirms that {topic.topic_name} is gone, and tells of it")
                    continue
                now = None
                if known is not None and known.topic_id == topic.topic_id:
                    now = known.partition(one.partition_index)
                if now is None or (now.leader, now.leader_epoch) != (one.leader, one.leader_epoch):
                    self._tell_of(commands, f"confirms {one} of {topic.topic_name}, and tells {now}")

    def _tell_gone(self, commands: Commands, request: Any, before: Mapping[str, Any]) -> None:
        """Notifies the coordinator checker of a topic deletion that the broker has applied, if the broker had
        the topic.
        """
        for topic in request.topic_states:
            known = before.get(topic.topic_name)
            is_gone = any(one.leader == DURING_DELETION for one in topic.partition_states)
            if is_gone and known is not None and known.topic_id == topic.topic_id:
                self.topic_gone(commands._broker, topic.topic_name, topic.topic_id)

    def _check_stopped(self, commands: Commands, request: Any, answer: Any) -> None:
        """A broker has no replica that it has confirmed to have let go."""
        broker = commands._broker
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
            has_log = (name, index) in deletes and broker.logs.get(TopicPartition(name, index)) is not None
            if broker.partitions.find(name, index) is not None or has_log:
                self._tell_of(commands, f"confirms that {name}-{index} is let go, and has it")
            elif (name, index) in deletes:
                self._check_checkpoints(commands, TopicPartition(name, index))

    def _check_checkpoints(self, commands: Commands, key: TopicPartition) -> None:
        """No checkpoint on the disk has a line of a replica whose deletion a broker has confirmed.

        After a crash it would count for the next partition of the name.
        """
        logs = commands._broker.logs
        if not isinstance(logs.files, SimulatedFiles):
            return
        for directory in logs.working:
            for one in (directory.recovery_points, directory.start_offsets, directory.high_watermarks):
                if not has_line(logs.files, one.path, key):
                    continue
                if not getattr(one, "_is_known", True):
                    self._excused("full-disk")
                    continue
                self._tell_of(commands, f"confirms that {key} is deleted, and {one.path} has a line of it")

    def _stop(self, commands: Commands, topic: str, state: Any) -> ErrorCode:
        known = commands._broker.partitions.find(topic, state.partition_index)
        epoch = int(known.leader_epoch) if known is not None else -1
        code = STOP(commands, topic, state)
        if code is ErrorCode.NONE and -1 < state.leader_epoch < epoch:
            self._tell_of(
                commands,
                f"lets {topic}-{state.partition_index} go as in epoch {state.leader_epoch}, and has it anew"
                f" in epoch {epoch}",
            )
        return code

    def _tell_of(self, commands: Commands, text: str) -> None:
        self._broken("commands", f"broker-{commands._broker.node_id} {text}")

    def _look_up(self, partition: Partition, wanted: Any, request: Any, *others: Any) -> Any:
        """A leader answers where its log begins or ends."""
        found = LOOK_UP(partition, wanted, request, *others)
        if request.replica_id >= 0 and wanted.current_leader_epoch != partition.leader_epoch:
            self._broken(
                "leader-epoch",
                f"{request.replica_id} asks the leader of {partition.topic}-{partition.index} for an"
                f" offset in leader epoch {wanted.current_leader_epoch}, and is answered in"
                f" {partition.leader_epoch}",
            )
        return found

    # -- controllers

    def _tell(self, channel: Channel, command: Command) -> Any:
        self._queues.setdefault(channel, Queue()).tell(command)
        return TELL(channel, command)

    async def _send(self, channel: Channel, link: Link) -> None:
        if link.closed or not channel._pending.has_news:
            await SEND(channel, link)
            return
        queue = self._queues.setdefault(channel, Queue())
        self.check(channel, queue)
        queue.sending, queue.owed, queue.has_whole = queue.owed, Owed(), False
        try:
            await SEND(channel, link)
        except Exception:
            # Nothing was answered but what has to be stopped.
            queue.sending.add(queue.owed, whole=queue.has_whole)
            queue.owed, queue.sending = queue.sending, None
            self.check(channel, queue)
            raise
        queue.sending = None

    def _take(self, channel: Channel, command: Command, key: ApiKey, answer: Any) -> None:
        queue = self._queues.get(channel)
        if key == ApiKey.STOP_REPLICA and queue is not None and queue.sending is not None:
            bad = {
                (one.topic_name, one.partition_index)
                for one in answer.partition_errors
                if one.error_code not in (ErrorCode.NONE, ErrorCode.FENCED_LEADER_EPOCH)
            }
            told = dict(_items(command.stops))
            queue.refuse({one: stop for one, stop in told.items() if (one[0][0], one[1]) in bad})
            queue.sending.stops.clear()
        TAKE(channel, command, key, answer)
        if key == ApiKey.STOP_REPLICA and queue is not None:
            # The rest of the command may be lost: all that is in it then is sent again.
            again = [one for one, _ in _items(command.stops)]
            if again:
                self._broken(
                    "commands",
                    f"broker {channel.to.broker_id} has stopped {again}, and would be told so again",
                )

    def _stop_again(self, channel: Channel) -> None:
        queue = self._queues.setdefault(channel, Queue())
        for replica, _ in _items(channel._refused.stops):
            if replica in queue.refused:
                queue.owed.stops.setdefault(replica, queue.refused[replica])
        STOP_AGAIN(channel)

    def _end(self, channel: Channel) -> None:
        self._queues.pop(channel, None)
        END(channel)

    def check(self, channel: Channel, queue: Queue) -> None:
        """What waits to be sent is what was told and not answered."""
        pending, owed = channel._pending, queue.owed
        about = f"broker {channel.to.broker_id}"
        stops = dict(_items(pending.stops))
        for replica in stops:
            if replica not in owed.stops:
                self._broken("commands", f"{about} is told again to stop {replica}, which it has answered")
                return
        lost: list[Any] = [one for one in owed.stops if one not in stops]
        lost += [one for one in owed.gone if one not in pending.gone]
        for told, waiting in ((owed.states, pending.states), (owed.metadata, pending.metadata)):
            there = dict(_items(waiting))
            lost += [one for one, image in told.items() if there.get(one) is not image]
            if too_many := [one for one in there if one not in told]:
                self._broken("commands", f"{about} is told {too_many}, which is not so any more")
                return
        if lost:
            self._broken(
                "commands", f"{about} has not answered what it was told of {lost}, and is not told again"
            )


def _items(of: Any) -> Iterator[tuple[Replica, Any]]:
    for key, partitions in of.items():
        for index, one in partitions.items():
            yield (key, index), one
