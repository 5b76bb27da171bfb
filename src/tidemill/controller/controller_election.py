"""Election of the controller: the registration of this broker, ``/controller`` and the controller epoch.

Source: Apache Kafka, ``KafkaController.elect`` and
``KafkaZkClient.registerControllerAndIncrementControllerEpoch``.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from tidemill.coordination.coordination_store import (
    BadVersion,
    Check,
    Create,
    Delete,
    NodeExists,
    NoNode,
    Operation,
    SetData,
    Store,
)
from tidemill.coordination.nodes import (
    CONTROLLER,
    CONTROLLER_EPOCH,
    BrokerNode,
    BrokerRegistration,
    ControllerEpochNode,
    ControllerNode,
)
from tidemill.model.errors import ErrorCode, KafkaError
from tidemill.model.system_interfaces import Clock

logger = logging.getLogger(__name__)


class ControllerElection:
    """The election of this broker as the controller, and its controller epoch."""

    def __init__(self, store: Store, broker_id: int, clock: Clock) -> None:
        self.broker_id = broker_id
        self.controller_change_listeners: list[Callable[[bool], None]] = []
        """Called with True when this broker becomes the controller, with False when it ceases to be."""
        self._store = store
        self._clock = clock
        self._epoch_version: int | None = None
        """The version of the node of the controller epoch; None while this broker is not the controller."""
        self.epoch = 0
        """The controller epoch of the last election that this broker won."""

    @property
    def is_active(self) -> bool:
        """Whether this broker is the controller, in its own state; the store may have another."""
        return self._epoch_version is not None

    def check_active(self) -> None:
        """Raises NOT_CONTROLLER unless this broker is the controller in its own state."""
        if not self.is_active:
            raise KafkaError("this broker is not the controller", ErrorCode.NOT_CONTROLLER)

    def fence(self) -> Check:
        """Fails a transaction if another broker became the controller.

        Raises BadVersion if this broker knows that it is not the controller.
        """
        if self._epoch_version is None:
            raise BadVersion(CONTROLLER_EPOCH, 0, "this broker is no longer the controller")
        return fence(self._epoch_version)

    async def register(self, registration: BrokerRegistration) -> int:
        """Registers this broker. Returns the epoch of its registration.

        Raises KafkaError (DUPLICATE_BROKER_REGISTRATION) if a broker with this id is registered.
        """
        path = BrokerNode.path(registration.broker_id)
        data = BrokerNode.encode(registration)
        try:
            await self._store.transact([Create(path, data, ephemeral=True)])
        except NodeExists as error:
            known = await self._store.get(path)
            if known is None or known.owner != self._store.session_id:
                raise KafkaError(
                    f"{error}: another broker has registered with this id. Give each broker of a cluster "
                    "its own broker.id. If this broker was just stopped, wait until its session expires.",
                    ErrorCode.DUPLICATE_BROKER_REGISTRATION,
                ) from None
            # An earlier call of this session created it, and its response was lost.
            await self._store.transact([SetData(path, data)])
        node = await self._store.get(path)
        return node.creation_id if node is not None else 0

    async def elect(self, dead: int | None) -> bool:
        """Creates ``/controller`` and begins a controller epoch, unless another broker is the controller.

        Returns whether this broker is the controller. For ``dead`` see :meth:`ControllerContext.activate`.
        """
        # The epoch is read first: if the controller changes afterwards, the transaction fails.
        node = await self._store.get(CONTROLLER_EPOCH)
        holder = await self._store.get(CONTROLLER)
        if holder is not None:
            is_dead = dead is not None and ControllerNode.decode(holder.data) == dead
            if not is_dead and holder.owner != self._store.session_id:
                return False
        epoch = ControllerEpochNode.decode(node.data) + 1 if node is not None else 1
        operations: list[Operation] = [Delete(CONTROLLER)] if holder is not None else []
        operations.append(
            Create(CONTROLLER, ControllerNode.encode(self.broker_id, self._clock.wall_ms()), ephemeral=True)
        )
        data = ControllerEpochNode.encode(epoch)
        if node is None:
            operations.append(Create(CONTROLLER_EPOCH, data))
        else:
            operations.append(SetData(CONTROLLER_EPOCH, data, node.version))
        try:
            results = await self._store.transact(operations)
        except (NodeExists, NoNode, BadVersion):
            return False  # Another broker was faster.
        self._epoch_version = results[-1].version
        self.epoch = epoch
        return True

    def notify_elected(self) -> None:
        """Calls the listeners, after this broker was elected and has read the store."""
        for listener in self.controller_change_listeners:
            listener(True)

    def resign(self) -> None:
        """Resigns as the controller, or records that this broker was replaced."""
        if self.is_active:
            self._epoch_version = None
            logger.info("broker %d is no longer the controller", self.broker_id)
            for listener in self.controller_change_listeners:
                listener(False)


def fence(controller_epoch_version: int) -> Check:
    """Fails a transaction if another broker became the controller.

    Raises ValueError for a negative version: -1 matches any version in the store.
    """
    if controller_epoch_version < 0:
        raise ValueError(f"version {controller_epoch_version} of the controller epoch does not fence writes")
    return Check(CONTROLLER_EPOCH, controller_epoch_version)
