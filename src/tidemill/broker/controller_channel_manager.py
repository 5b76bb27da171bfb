"""The channels of the controller: a queue and a connection for each other broker.

A queue has the newest state of each partition that the broker has not acknowledged. As soon as the connection
is free, all of them are sent: StopReplica, LeaderAndIsr and UpdateMetadata, in this order, and a second
LeaderAndIsr for new followers. The requests are repeated, over new connections if necessary, until the broker
acknowledges them or leaves the cluster. Stops of replicas that the broker could not stop are sent again after
a pause.

The connection also shows that the process of the broker has ended: see
:mod:`tidemill.broker.connect_retries`.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence

from tidemill.broker.connect_retries import REFUSALS_OF_ENDED_BROKER, RETRY_S, connect_with_retries
from tidemill.broker.controller_request_batch import (
    ControllerRequestBatch,
    batch_for,
    confirmed_deletions,
    failed_partitions,
    refused_stops,
    replicas_back_online,
    request_builders,
)
from tidemill.broker.handlers import leader_and_isr, stop_replica, update_metadata
from tidemill.coordination.cluster_image import BrokerImage, ClusterImage, Delta, registered_epoch
from tidemill.coordination.topic_image import TopicKey
from tidemill.model.backoff import Backoff
from tidemill.model.errors import ErrorCode
from tidemill.model.event_loop_slices import run_in_slices
from tidemill.net.link import Link, LinkError
from tidemill.wire.apis import ApiKey
from tidemill.wire.messages.leader_and_isr import LeaderAndIsrResponse
from tidemill.wire.messages.stop_replica import StopReplicaRequest, StopReplicaResponse
from tidemill.wire.messages.update_metadata import UpdateMetadataResponse
from tidemill.wire.schema import Struct, release_in_slices

logger = logging.getLogger("tidemill.controller")

VERSIONS = {api.key: api.versions for api in (leader_and_isr.API, stop_replica.API, update_metadata.API)}
RESPONSE_TYPES: dict[ApiKey, type[LeaderAndIsrResponse | StopReplicaResponse | UpdateMetadataResponse]] = {
    ApiKey.LEADER_AND_ISR: LeaderAndIsrResponse,
    ApiKey.STOP_REPLICA: StopReplicaResponse,
    ApiKey.UPDATE_METADATA: UpdateMetadataResponse,
}

NOT_ADDRESSEE_ERRORS = frozenset({ErrorCode.STALE_BROKER_EPOCH, ErrorCode.NOT_CONTROLLER})
"""Errors of a broker with another registration, or that does not know the controller epoch yet."""

STOP_RETRY_S, STOP_RETRY_S_MAX = 1.0, 30.0
"""The first and the longest pause before the stops that have failed are sent again."""

EARLIER_REFUSALS_VALID_S = 5.0
"""How long connections that were refused before this broker became the controller count for its channel."""

Connect = Callable[[BrokerImage], Awaitable[Link]]


class BrokerStateListener(ABC):
    """Receives broker state changes from the controller's channels."""

    @abstractmethod
    def is_stopping(self, broker_id: int, *, broker_epoch: int) -> bool:
        """Whether the broker has sent ControlledShutdown in the registration with ``broker_epoch``."""

    @abstractmethod
    def broker_dead(self, broker_id: int, *, broker_epoch: int) -> None:
        """The process of the broker has ended. Its registration may still exist."""

    @abstractmethod
    def broker_connected(self, broker_id: int) -> None:
        """The channel has connected to the broker."""

    @abstractmethod
    def replicas_deleted(self, broker_id: int, topics: Sequence[TopicKey]) -> None:
        """The broker has deleted all replicas of these topics."""

    @abstractmethod
    def replicas_failed(
        self, broker_id: int, partitions: Sequence[tuple[bytes, int]], *, broker_epoch: int
    ) -> None:
        """The broker with ``broker_epoch`` cannot read or write these partitions (by topic id)."""

    @abstractmethod
    def replicas_served(
        self, broker_id: int, partitions: Sequence[tuple[bytes, int]], *, broker_epoch: int
    ) -> None:
        """The broker with ``broker_epoch`` serves these partitions (by topic id), which were offline."""

    @abstractmethod
    def controller_moved(self) -> None:
        """A broker knows a later controller epoch."""


class ControllerChannel:
    """The queue and the connection for one registration of a broker."""

    def __init__(
        self,
        broker: BrokerImage,
        listener: str,
        connect: Connect,
        state_listener: BrokerStateListener,
        request_timeout_s: float,
        refused: int = 0,
    ) -> None:
        """``refused``: the number of connections that the broker has refused just before.

        A timeout ends the connection only. The session of a broker that hangs expires in the store.
        """
        self.broker = broker
        self._earlier_refusals = refused
        self._request_timeout_s = request_timeout_s
        self.is_dead = False
        """Whether the process of the broker has ended. The channel continues to connect."""
        self._listener = listener
        self._connect = connect
        self._state_listener = state_listener
        self._pending = ControllerRequestBatch()
        self._last_image = self._pending.image
        """The image of the latest change, with the controller and its epoch."""
        self._unacknowledged: list[asyncio.Future[None]] = []
        self._unsent: asyncio.Future[None] | None = None
        """The last of them, for all pending changes: one future, however long the broker does not respond."""
        self._wakeup = asyncio.Event()
        self._refused_stops = ControllerRequestBatch()
        """The stops that have failed. Only :attr:`ControllerRequestBatch.stops` and
        :attr:`ControllerRequestBatch.deleted_topics` are used."""
        self._stop_backoff = Backoff(STOP_RETRY_S, STOP_RETRY_S_MAX)
        self._stop_retry_timer: asyncio.TimerHandle | None = None
        self._link: Link | None = None
        self._task = asyncio.get_running_loop().create_task(self._run())

    def enqueue(self, batch: ControllerRequestBatch) -> asyncio.Future[None]:
        """Queues changes for the broker. The future is done after the broker has applied them.

        It is done before the LeaderAndIsr for new followers is acknowledged. It is cancelled if the channel
        ends.
        """
        self._pending.add(batch)
        self._last_image = self._pending.image
        if self._refused_stops.stops:
            self._drop_outdated_stops(batch)
        if self._unsent is None:
            self._unsent = asyncio.get_running_loop().create_future()
            self._unacknowledged.append(self._unsent)
        self._wakeup.set()
        return self._unsent

    def stop(self) -> None:
        """Ends the channel."""
        self._task.cancel()
        if self._stop_retry_timer is not None:
            self._stop_retry_timer.cancel()
        if self._link is not None:
            self._link.close("the channel of the controller has ended")
        for one in self._unacknowledged:
            one.cancel()
        self._unacknowledged.clear()

    async def _run(self) -> None:
        failures = 0
        while True:
            try:
                if self._link is None or self._link.is_closed:
                    self._link = await self._connect_to_broker()
                await self._wakeup.wait()
                await self._send(self._link)
                failures = 0
            except LinkError as problem:
                if self._is_stopping():
                    logger.info("%s: the broker is shutting down", problem)
                else:
                    logger.warning("%s; the pending requests are kept", problem)
                failures += 1
                if failures > 1:
                    # The broker accepts connections and closes them, for instance while its store is silent.
                    await asyncio.sleep(RETRY_S)
            except Exception:
                logger.exception("the channel to broker %d failed; it continues", self.broker.broker_id)
                await asyncio.sleep(RETRY_S)

    async def _connect_to_broker(self) -> Link:
        refused, self._earlier_refusals = self._earlier_refusals, 0
        link = await connect_with_retries(
            lambda: self._connect(self.broker), self._on_ended, self._is_stopping, refused
        )
        try:
            if self.is_dead and not await self._has_same_registration(link):
                raise LinkError(f"{link.name}: another broker has its address")
        except BaseException:
            link.close("the connection is not used")
            raise
        link.on_close = lambda reason: self._wakeup.set()
        self.is_dead = False
        self._state_listener.broker_connected(self.broker.broker_id)
        return link

    async def _has_same_registration(self, link: Link) -> bool:
        """Whether the connected broker still has this registration. An empty StopReplica request shows it."""
        request = StopReplicaRequest(
            controller_id=self._last_image.controller_id,
            controller_epoch=self._last_image.controller_epoch,
            broker_epoch=self.broker.epoch,
            topic_states=[],
        )
        version = link.version_of(ApiKey.STOP_REPLICA, *VERSIONS[ApiKey.STOP_REPLICA])
        response = await link.request(
            ApiKey.STOP_REPLICA, version, request, StopReplicaResponse, self._request_timeout_s
        )
        return response.error_code not in NOT_ADDRESSEE_ERRORS

    def _is_stopping(self) -> bool:
        return self._state_listener.is_stopping(self.broker.broker_id, broker_epoch=self.broker.epoch)

    def _on_ended(self) -> None:
        self.is_dead = True
        self._state_listener.broker_dead(self.broker.broker_id, broker_epoch=self.broker.epoch)

    async def _send(self, link: Link) -> None:
        """Sends the pending changes, and handles the responses.

        All are pending again if it raises LinkError.
        """
        if link.is_closed:
            # With pending changes, _run sends them as soon as it has the next connection.
            if not self._pending.has_changes:
                self._wakeup.clear()
            raise LinkError(f"{link.name}: {link.close_reason}")
        self._wakeup.clear()
        if not self._pending.has_changes:
            return  # The end of the former connection has set the event.
        batch, self._pending = self._pending, ControllerRequestBatch()
        unacknowledged, self._unacknowledged, self._unsent = self._unacknowledged, [], None
        try:
            for key, builder in request_builders(batch, self.broker, self._listener):
                request = await run_in_slices(builder)
                response = await link.request(
                    key,
                    link.version_of(key, *VERSIONS[key]),
                    request,
                    RESPONSE_TYPES[key],
                    self._request_timeout_s,
                )
                if response.error_code == ErrorCode.STALE_CONTROLLER_EPOCH:
                    self._state_listener.controller_moved()
                elif response.error_code in NOT_ADDRESSEE_ERRORS:
                    # The broker has restarted, or another broker has its address. Or the broker's connection
                    # to the store has not shown it this controller yet.
                    link.close("the broker has another registration")
                    raise LinkError(
                        f"{link.name}: the broker has another registration than {self.broker.epoch}"
                    )
                elif response.error_code != 0:
                    logger.error(
                        "%s returns error %d for %s", link.name, response.error_code, ApiKey(key).name
                    )
                else:
                    self._handle_response(batch, response)
                if key == ApiKey.UPDATE_METADATA:
                    # No client waits for the requests behind it, which are for new followers.
                    _complete(unacknowledged)
                # Freeing thousands of objects at once would block the event loop.
                await run_in_slices(release_in_slices(request))
                await run_in_slices(release_in_slices(response))
        except asyncio.CancelledError:  # The channel ends.
            for one in unacknowledged:
                one.cancel()
            raise
        except Exception:
            newer, self._pending = self._pending, batch
            self._pending.add(newer)
            self._unacknowledged = [*(one for one in unacknowledged if not one.done()), *self._unacknowledged]
            self._unsent = self._unacknowledged[-1] if self._unacknowledged else None
            self._wakeup.set()
            raise
        _complete(unacknowledged)

    def _handle_response(self, batch: ControllerRequestBatch, response: Struct) -> None:
        broker_id = self.broker.broker_id
        if isinstance(response, StopReplicaResponse):
            deleted = confirmed_deletions(batch, response)
            self._schedule_stop_retry(batch, response)
            # If a later request of the batch is lost, the batch is sent again. The stops must not be: they
            # could stop replicas of a new topic with the same name.
            batch.stops.clear()
            if deleted:
                self._state_listener.replicas_deleted(broker_id, deleted)
        elif isinstance(response, LeaderAndIsrResponse):
            failed = failed_partitions(response)
            if failed:
                self._state_listener.replicas_failed(broker_id, failed, broker_epoch=self.broker.epoch)
            served = replicas_back_online(batch, broker_id, response)
            if served:
                self._state_listener.replicas_served(broker_id, served, broker_epoch=self.broker.epoch)

    def _schedule_stop_retry(self, batch: ControllerRequestBatch, response: StopReplicaResponse) -> None:
        refused = refused_stops(batch, response)
        if not refused:
            self._stop_backoff.reset()
            return
        for key, stops in refused.items():
            self._refused_stops.stops.setdefault(key, {}).update(stops)
            if key in batch.deleted_topics:
                self._refused_stops.deleted_topics[key] = None
        for later in (batch, self._pending):
            self._drop_outdated_stops(later)
        if self._stop_retry_timer is None:
            pause_s = self._stop_backoff.next_s()
            logger.warning(
                "broker %d could not stop or delete replicas of %d topics; StopReplica is sent again in %g s",
                self.broker.broker_id,
                len(refused),
                pause_s,
            )
            self._stop_retry_timer = asyncio.get_running_loop().call_later(pause_s, self._retry_stops)

    def _retry_stops(self) -> None:
        """Queues the stops that have failed, before all newer changes."""
        self._stop_retry_timer = None
        again, self._refused_stops = self._refused_stops, ControllerRequestBatch()
        if not again.stops:
            return
        again.image, again.has_changes = self._last_image, True
        newer, self._pending = self._pending, again
        self._pending.add(newer)
        self._wakeup.set()

    def _drop_outdated_stops(self, batch: ControllerRequestBatch) -> None:
        """Removes stops of replicas that are assigned again, and of topics whose name a new topic has."""
        ids = {key[0]: key[1] for key in batch.metadata}
        for key, stops in list(self._refused_stops.stops.items()):
            name, topic_id = key
            if ids.get(name, topic_id) != topic_id:
                stops.clear()
            for index in batch.states.get(key) or ():
                stops.pop(index, None)
            if not stops:
                del self._refused_stops.stops[key]
                self._refused_stops.deleted_topics.pop(key, None)


class ControllerChannelManager:
    """The channels of this broker to all others while it is the controller."""

    def __init__(
        self,
        own_id: int,
        listener: str,
        connect: Connect,
        state_listener: BrokerStateListener,
        request_timeout_s: float = 30.0,
    ) -> None:
        """``request_timeout_s``: ``controller.socket.timeout.ms``."""
        self._request_timeout_s = request_timeout_s
        self._own_id = own_id
        self._listener = listener
        self._connect = connect
        self._state_listener = state_listener
        self._channels: dict[int, ControllerChannel] = {}
        self._earlier_refusals: dict[int, float] = {}
        """The brokers that have refused connections, with the time until which that counts."""
        self._is_active = False

    def connection_refused(self, broker_id: int) -> None:
        """Notes that a broker has refused connections as often as one that has ended.

        If this broker becomes the controller, one more refusal shows that the process of the other has ended.
        """
        self._earlier_refusals[broker_id] = asyncio.get_running_loop().time() + EARLIER_REFUSALS_VALID_S

    def _refusals(self, broker_id: int) -> int:
        until = self._earlier_refusals.pop(broker_id, 0.0)
        return REFUSALS_OF_ENDED_BROKER - 1 if asyncio.get_running_loop().time() < until else 0

    def start(self) -> None:
        """This broker has become the controller."""
        self._is_active = True

    def send_changes(self, delta: Delta) -> list[asyncio.Future[None]]:
        """Queues a change for all other live brokers.

        Returns futures that are done after they have applied it.

        Does nothing if this broker is not the controller any more: the next controller sends what was written
        before. Kept until this broker is the controller again, the change would be outdated.
        """
        if not self._is_active:
            return []
        self._update_channels(delta.image)
        futures = []
        for broker_id in delta.image.brokers:
            channel = self._channels.get(broker_id)
            if channel is not None:
                is_full = channel.broker.epoch != registered_epoch(delta.before.brokers, broker_id)
                batch = batch_for(delta, broker_id, is_full=is_full)
                if batch is not None:
                    futures.append(channel.enqueue(batch))
        return futures

    def resend_full_state(self, image: ClusterImage, broker_id: int) -> None:
        """Queues the full state for a broker. Its response to LeaderAndIsr shows which replicas it serves."""
        channel = self._channels.get(broker_id)
        batch = batch_for(Delta(image, image), broker_id, is_full=True)
        if channel is not None and batch is not None:
            channel.enqueue(batch)

    def _update_channels(self, image: ClusterImage) -> None:
        """Opens channels to new brokers, and ends those to brokers that have left."""
        for broker_id, channel in list(self._channels.items()):
            now = image.brokers.get(broker_id)
            if now is None and channel.is_dead:
                continue  # The channel connects until the registration has ended: see remove_unregistered.
            if now is None or now.epoch != channel.broker.epoch:
                del self._channels[broker_id]
                channel.stop()
        for broker_id, broker in image.brokers.items():
            if broker_id == self._own_id:
                continue
            known = self._channels.get(broker_id)
            if known is None:
                self._channels[broker_id] = ControllerChannel(
                    broker,
                    self._listener,
                    self._connect,
                    self._state_listener,
                    self._request_timeout_s,
                    self._refusals(broker_id),
                )
            else:
                known.broker = broker

    def remove_unregistered(self, brokers: Mapping[int, BrokerImage]) -> None:
        """Ends the channels to dead brokers whose registration has ended."""
        for broker_id, channel in list(self._channels.items()):
            if channel.is_dead and registered_epoch(brokers, broker_id) != channel.broker.epoch:
                del self._channels[broker_id]
                channel.stop()

    def stop(self) -> None:
        """Ends all channels: this broker is not the controller any more."""
        self._is_active = False
        for channel in self._channels.values():
            channel.stop()
        self._channels.clear()


def _complete(unacknowledged: Sequence[asyncio.Future[None]]) -> None:
    for one in unacknowledged:
        if not one.done():
            one.set_result(None)
