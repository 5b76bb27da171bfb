"""The interface for the parts of a broker that depend on its registration."""

from __future__ import annotations


class RegistrationListener:
    """Receives the changes of this broker's registration, of its session, and of the controller.

    A method does nothing unless the listener overrides it.
    """

    def registered(self, epoch: int) -> None:
        """This broker is registered with the broker epoch ``epoch``."""

    def controller_changed(self, broker_id: int) -> None:
        """Broker ``broker_id`` is the controller; -1 if there is none."""

    async def lost_replicas_cleared(self) -> None:
        """The registration reports no lost replicas any more, so that they can become leaders.

        Raises StoreError.
        """

    def session_expired(self) -> None:
        """The session has expired: the registration is gone, and other brokers may lead by now."""

    def store_disconnected(self) -> None:
        """The store does not respond. The session may have expired."""

    def store_reconnected(self) -> None:
        """The store responds again. If the session has expired, :meth:`session_expired` was called before."""
