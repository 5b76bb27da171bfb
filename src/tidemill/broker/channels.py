"""The controller's channels: to each other broker one queue, over one connection.

What a broker has to know is kept by partition, the newest state of each. What is there when the connection
is free goes out together: StopReplica, LeaderAndIsr, UpdateMetadata, in this order, and LeaderAndIsr again
for new replicas that only follow. It stays until it is answered, over as many connections as that takes, or
until the broker is gone. A StopReplica that the broker refuses is sent again after a pause.

A broker that has ended is noticed by its connection, see :mod:`tidemill.broker.reaching`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from tidemill.broker.commanding import (
    Command,
    commands_for,
    deleted_topics,
    failed_partitions,
    making_requests,
    refused_stops,
    served_again,
)
from tidemill.broker.commands import Key
from tidemill.broker.reaching import REFUSED_TIMES, RETRY_S, reach
from tidemill.coordination.image import BrokerImage, ClusterImage, Delta
from tidemill.model.errors import ErrorCode
from tidemill.model.slices import with_pauses
from tidemill.net.link import Link, LinkError
from tidemill.wire.apis import ApiKey
from tidemill.wire.messages.stop_replica import StopReplicaRequest
from tidemill.wire.schema import let_go_in_slices

log = logging.getLogger("tidemill.controller")

VERSIONS = {
    ApiKey.LEADER_AND_ISR: (5, 7),
    ApiKey.STOP_REPLICA: (3, 4),
    ApiKey.UPDATE_METADATA: (7, 8),
}

ELSEWHERE = frozenset({ErrorCode.STALE_BROKER_EPOCH, ErrorCode.NOT_CONTROLLER})
"""Answers of a broker that a command is not for, or not yet."""

STOP_AGAIN_S, STOP_AGAIN_S_MAX = 1.0, 30.0
"""The first and the longest pause before a StopReplica is repeated that the broker could not carry out."""

REFUSALS_COUNT_S = 5.0
"""For so long the refusals that this broker met before it took the office count for the channel."""

Connect = Callable[[BrokerImage], Awaitable[Link]]


class Hears:
    """Receives broker state changes from the controller's channels."""

    def is_stopping(self, broker_id: int, epoch: int) -> bool:
        """Whether the broker announced its stop (ControlledShutdown) in the registration with ``epoch``."""
        return False

    def broker_dead(self, broker_id: int, epoch: int) -> None:
        """Its process has ended, though its registration may be there."""

    def broker_reached(self, broker_id: int) -> None:
        """A connection to it was made."""

    def replicas_deleted(self, broker_id: int, topics: Sequence[Key]) -> None:
        """It has no files of these topics any more."""

    def replicas_failed(self, broker_id: int, epoch: int, partitions: Sequence[tuple[bytes, int]]) -> None:
        """In the registration with ``epoch``, it cannot read or write these partitions (by topic id)."""

    def replicas_served(self, broker_id: int, epoch: int, partitions: Sequence[tuple[bytes, int]]) -> None:
        """In the registration with ``epoch``, it serves these partitions (by topic id) that were offline."""

    def office_lost(self) -> None:
        """It knows a later controller than this one."""


class Channel:
    """One broker, in one registration."""

    def __init__(
        self,
        to: BrokerImage,
        listener: str,
        connect: Connect,
        hears: Hears,
        patience_s: float,
        refused: int = 0,
    ) -> None:
        """``patience_s``: how long an answer may take. A broker that hangs is left to its session.

        ``refused``: how often the broker has refused connections just before.
        """
        self.to = to
        self._refused_before = refused
        self._patience_s = patience_s
        self.is_dead = False
        """Nobody listens where the broker was; it is tried all the same."""
        self._listener = listener
        self._connect = connect
        self._hears = hears
        self._pending = Command()
        self._told = self._pending.image
        """Whose controller has commanded last."""
        self._waiting: list[asyncio.Future[None]] = []
        self._unsent: asyncio.Future[None] | None = None
        """The last of them: for all that is pending. A broker may not answer for long, while much happens."""
        self._news = asyncio.Event()
        self._refused = Command()
        """Replicas that the broker could not stop: only :attr:`Command.stops` and :attr:`Command.gone`."""
        self._pause_s = STOP_AGAIN_S
        self._stops_again: asyncio.TimerHandle | None = None
        self._link: Link | None = None
        self._task = asyncio.get_running_loop().create_task(self._run())

    def tell(self, command: Command) -> asyncio.Future[None]:
        """Queues what it has to know; done once it is carried out, cancelled when the channel ends.

        Logs of new replicas that only follow may be made a moment later.
        """
        self._pending.add(command)
        self._told = self._pending.image
        if self._refused.stops:
            self._drop_outdated_stops(command)
        if self._unsent is None:
            self._unsent = asyncio.get_running_loop().create_future()
            self._waiting.append(self._unsent)
        self._news.set()
        return self._unsent

    def stop(self) -> None:
        """Ends the channel."""
        self._task.cancel()
        if self._stops_again is not None:
            self._stops_again.cancel()
        if self._link is not None:
            self._link.close("the controller has no use for it any more")
        for one in self._waiting:
            one.cancel()
        self._waiting.clear()

    async def _run(self) -> None:
        failures = 0
        while True:
            try:
                if self._link is None or self._link.closed:
                    self._link = await self._reach()
                await self._news.wait()
                await self._send(self._link)
                failures = 0
            except LinkError as problem:
                if self._is_stopping():
                    log.info("%s: the broker is shutting down", problem)
                else:
                    log.warning("%s; what it has to know is kept for it", problem)
                failures += 1
                if failures > 1:
                    # It listens, and ends every connection: its store may not answer, for instance.
                    await asyncio.sleep(RETRY_S)
            except Exception:
                log.exception("commanding broker %d failed; it is tried again", self.to.broker_id)
                await asyncio.sleep(RETRY_S)

    async def _reach(self) -> Link:
        refused, self._refused_before = self._refused_before, 0
        link = await reach(lambda: self._connect(self.to), self._has_ended, self._is_stopping, refused)
        try:
            if self.is_dead and not await self._is_it(link):
                raise LinkError(f"{link.name}: another broker has its address")
        except BaseException:
            link.close("it was not used")
            raise
        link.on_close = lambda reason: self._news.set()
        self.is_dead = False
        self._hears.broker_reached(self.to.broker_id)
        return link

    async def _is_it(self, link: Link) -> bool:
        """Whether that is the broker which was found dead, asked by a command to stop nothing."""
        request = StopReplicaRequest(
            controller_id=self._told.controller_id,
            controller_epoch=self._told.controller_epoch,
            broker_epoch=self.to.epoch,
            topic_states=[],
        )
        version = link.version_of(ApiKey.STOP_REPLICA, *VERSIONS[ApiKey.STOP_REPLICA])
        answer = await link.ask(ApiKey.STOP_REPLICA, version, request, self._patience_s)
        return answer.error_code not in ELSEWHERE

    def _is_stopping(self) -> bool:
        return self._hears.is_stopping(self.to.broker_id, self.to.epoch)

    def _has_ended(self) -> None:
        self.is_dead = True
        self._hears.broker_dead(self.to.broker_id, self.to.epoch)

    async def _send(self, link: Link) -> None:
        """Sends what is pending, and takes the answers. Raises LinkError, and all of it is pending again."""
        if link.closed:
            # What is pending is news for the next connection, too.
            if not self._pending.has_news:
                self._news.clear()
            raise LinkError(f"{link.name}: {link.closed}")
        self._news.clear()
        if not self._pending.has_news:
            return  # Woken by the end of the connection before; an empty command would be of no controller.
        command, self._pending = self._pending, Command()
        waiting, self._waiting, self._unsent = self._waiting, [], None
        try:
            for key, making in making_requests(command, self.to, self._listener):
                request = await with_pauses(making)
                low, high = VERSIONS[key]
                answer = await link.ask(key, link.version_of(key, low, high), request, self._patience_s)
                if answer.error_code == ErrorCode.STALE_CONTROLLER_EPOCH:
                    self._hears.office_lost()
                elif answer.error_code in ELSEWHERE:
                    # Another process than the one that registered so: the broker has started anew, or another
                    # has its address now. Or its store does not know of this controller yet.
                    link.close("it is not the broker that registered there")
                    raise LinkError(f"{link.name}: it is of another registration than {self.to.epoch}")
                elif answer.error_code != 0:
                    log.error("%s answers %s with error %d", link.name, ApiKey(key).name, answer.error_code)
                else:
                    self._take(command, key, answer)
                if key == ApiKey.UPDATE_METADATA:
                    # What comes after it nobody waits for: followers of what is new.
                    _done(waiting)
                # Thousands of objects, which would go all at once.
                await with_pauses(let_go_in_slices(request))
                await with_pauses(let_go_in_slices(answer))
        except asyncio.CancelledError:  # The channel ends.
            for one in waiting:
                one.cancel()
            raise
        except Exception:
            newer, self._pending = self._pending, command
            self._pending.add(newer)
            self._waiting = [*(one for one in waiting if not one.done()), *self._waiting]
            self._unsent = self._waiting[-1] if self._waiting else None
            self._news.set()
            raise
        _done(waiting)

    def _take(self, command: Command, key: ApiKey, answer: Any) -> None:
        broker = self.to.broker_id
        if key == ApiKey.STOP_REPLICA:
            deleted = deleted_topics(command, answer)
            self._note_refused(command, answer)
            # Told once more, after a later request of the command was lost, it would take away what was made
            # under the same name meanwhile.
            command.stops.clear()
            if deleted:
                self._hears.replicas_deleted(broker, deleted)
        elif key == ApiKey.LEADER_AND_ISR:
            failed = failed_partitions(answer)
            if failed:
                self._hears.replicas_failed(broker, self.to.epoch, failed)
            served = served_again(command, broker, answer)
            if served:
                self._hears.replicas_served(broker, self.to.epoch, served)

    def _note_refused(self, command: Command, answer: Any) -> None:
        refused = refused_stops(command, answer)
        if not refused:
            self._pause_s = STOP_AGAIN_S
            return
        for key, stops in refused.items():
            self._refused.stops.setdefault(key, {}).update(stops)
            if key in command.gone:
                self._refused.gone[key] = None
        for later in (command, self._pending):
            self._drop_outdated_stops(later)
        if self._stops_again is None:
            log.warning(
                "broker %d could not stop or delete replicas of %d topics; StopReplica is sent again in %g s",
                self.to.broker_id,
                len(refused),
                self._pause_s,
            )
            loop = asyncio.get_running_loop()
            self._stops_again = loop.call_later(self._pause_s, self._stop_again)
            self._pause_s = min(2 * self._pause_s, STOP_AGAIN_S_MAX)

    def _stop_again(self) -> None:
        """Queues what was refused, before anything newer."""
        self._stops_again = None
        again, self._refused = self._refused, Command()
        if not again.stops:
            return
        again.image, again.has_news = self._told, True
        newer, self._pending = self._pending, again
        self._pending.add(newer)
        self._news.set()

    def _drop_outdated_stops(self, command: Command) -> None:
        """Forgets stops of replicas that the broker is given again, and of topics whose name another has."""
        ids = {key[0]: key[1] for key in command.metadata}
        for key, stops in list(self._refused.stops.items()):
            name, topic_id = key
            if ids.get(name, topic_id) != topic_id:
                stops.clear()
            for index in command.states.get(key) or ():
                stops.pop(index, None)
            if not stops:
                del self._refused.stops[key]
                self._refused.gone.pop(key, None)


class Channels:
    """All channels of a controller while it is in office."""

    def __init__(
        self, own_id: int, listener: str, connect: Connect, hears: Hears, patience_s: float = 30.0
    ) -> None:
        """``patience_s``: how long an answer may take (``controller.socket.timeout.ms``)."""
        self._patience_s = patience_s
        self._own_id = own_id
        self._listener = listener
        self._connect = connect
        self._hears = hears
        self._channels: dict[int, Channel] = {}
        self._refusing: dict[int, float] = {}
        """Brokers that refused connections before the office was taken: until when that counts."""
        self._is_in_office = False

    def refuses(self, broker_id: int) -> None:
        """A broker has just refused connections as often as one that has ended.

        If this broker takes the office, one more refusal tells that the other has ended.
        """
        self._refusing[broker_id] = asyncio.get_running_loop().time() + REFUSALS_COUNT_S

    def _refusals(self, broker_id: int) -> int:
        until = self._refusing.pop(broker_id, 0.0)
        return REFUSED_TIMES - 1 if asyncio.get_running_loop().time() < until else 0

    def start(self) -> None:
        """The office is taken."""
        self._is_in_office = True

    def tell(self, delta: Delta) -> list[asyncio.Future[None]]:
        """Queues for every other living broker what ``delta`` means to it; when each has carried it out.

        Nothing once the office is lost: what was written before that, the next controller tells. Kept for
        the next office, it would be told of topics and replicas that have changed since.
        """
        if not self._is_in_office:
            return []
        self._follow(delta.image)
        told = []
        for broker_id in delta.image.brokers:
            channel = self._channels.get(broker_id)
            if channel is not None:
                whole = channel.to.epoch != _epoch(delta.before, broker_id)
                command = commands_for(delta, broker_id, whole=whole)
                if command is not None:
                    told.append(channel.tell(command))
        return told

    def repeat(self, image: ClusterImage, broker_id: int) -> None:
        """Tells a broker all that it has to know once more: its answer says which replicas it has."""
        channel = self._channels.get(broker_id)
        command = commands_for(Delta(image, image), broker_id, whole=True)
        if channel is not None and command is not None:
            channel.tell(command)

    def _follow(self, image: ClusterImage) -> None:
        """Opens channels to brokers that came, and ends those to brokers that went."""
        for broker_id, channel in list(self._channels.items()):
            now = image.brokers.get(broker_id)
            if now is None and channel.is_dead:
                continue  # As long as it is registered it is tried.
            if now is None or now.epoch != channel.to.epoch:
                del self._channels[broker_id]
                channel.stop()
        for broker_id, broker in image.brokers.items():
            if broker_id == self._own_id:
                continue
            known = self._channels.get(broker_id)
            if known is None:
                self._channels[broker_id] = Channel(
                    broker,
                    self._listener,
                    self._connect,
                    self._hears,
                    self._patience_s,
                    self._refusals(broker_id),
                )
            else:
                known.to = broker

    def registered(self, brokers: Mapping[int, BrokerImage]) -> None:
        """Gives up those that were found dead and are not registered any more."""
        for broker_id, channel in list(self._channels.items()):
            if channel.is_dead and _epoch_of(brokers, broker_id) != channel.to.epoch:
                del self._channels[broker_id]
                channel.stop()

    def stop(self) -> None:
        """Ends all channels: the office is lost."""
        self._is_in_office = False
        for channel in self._channels.values():
            channel.stop()
        self._channels.clear()


def _done(waiting: Sequence[asyncio.Future[None]]) -> None:
    for one in waiting:
        if not one.done():
            one.set_result(None)


def _epoch(image: ClusterImage, broker_id: int) -> int | None:
    return _epoch_of(image.brokers, broker_id)


def _epoch_of(brokers: Mapping[int, BrokerImage], broker_id: int) -> int | None:
    known = brokers.get(broker_id)
    return known.epoch if known is not None else None
